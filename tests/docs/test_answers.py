"""The JSON of commands: what the reference describes is what they print, key by key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from docs import answers, columns, reference
from tests.cli.test_screens import LISTED, SHIPPED
from tests.conftest import in_this_process
from tests.docs.schemas import keys_of, printed, problems
from tests.pages import point, points_file
from tpusim.cli.actions import hardware
from tpusim.cli.app import app
from tpusim.report.tables import paper
from tpusim.report.tables.validation import validated
from tpusim.study.paper.claims import Finding, words
from tpusim.study.paper.exhibit import Exhibit, ExhibitFigures, TextTable
from tpusim.study.validation.cases import NumberSet, Omission
from tpusim.study.validation.comparison import ComparedCase, Comparison
from tpusim.study.validation.pods import ComparedPod

SCHEMAS = answers.schemas()
OF_A_RUN = {*columns.run_schema()["$defs"]}


def told(*arguments: str, given: str | None = None) -> str:
    done = CliRunner().invoke(app, [*arguments, "--json", "-"], input=given)
    assert done.exit_code == 0, done.output
    return done.stdout


def explain() -> Iterator[str]:
    # Blocks that simulation chooses take most of the time, and have no say in what is printed.
    tiny = ("--hardware", "tiny_4x4", "--set", "mapping.search=estimate")
    yield told("explain", "tiny", "--layer", "fig11", *tiny, "--batch", "2")
    # Words that cannot be twice as long; then a machine of another family.
    long = ["--set", "vector_memory.word_elements=4096", "--set", "vector_memory.capacity=16 GiB"]
    yield told("explain", "tiny", "--layer", "two_passes", *tiny, "--batch", "1", *long)
    yield told("explain", "tiny", "--layer", "two_passes", "--hardware", "v100")
    Path("net.yaml").write_text(
        "name: net\nlayers:\n- {name: a, op: gemm, m: batch, k: 8, n: 8}\n- {name: b, op: gemm, m: batch, k: 8, n: 8}\n"
    )
    yield told("explain", "net.yaml", *tiny, "--batch", "2")
    yield told("explain", "net.yaml", *tiny, "--batch", "8", "--slice", "v6e_2x2")


def compare() -> Iterator[str]:
    run = ["run", "tiny", "--hardware", "tiny_4x4", "--set", "mapping.search=estimate", "--no-check", "--json"]
    layers = "- {name: a, op: conv2d, in_channels: 4, in_height: 4, in_width: 4, out_channels: 4, kernel: 1}\n"
    for name, inputs in {"one": "a", "other": "input"}.items():
        more = f"- {{name: b, op: relu, inputs: [{inputs}]}}\n"
        Path(f"{name}.yaml").write_text(f"name: net\nlayers:\n{layers}{more}")
    runs: Mapping[str, list[str]] = {
        "s.json": ["tiny", "--slice", "v6e_2x2"],
        "a.json": ["tiny"], "b.json": ["tiny", "--set", "array.size=2"], "c.json": ["one.yaml"],
        "d.json": ["other.yaml"], "e.json": ["one.yaml", "--set", "sequencer.fusion=results"],
    }  # fmt: skip
    for file, asked in runs.items():
        done = CliRunner().invoke(app, ["run", *asked, *run[2:], file])
        assert done.exit_code == 0, done.output
    for one, other in (("a.json", "b.json"), ("s.json", "s.json"), ("c.json", "d.json"), ("c.json", "e.json")):
        yield told("compare", one, other)
    for name, took in {"a": 10, "b": 5}.items():
        points_file(Path(name), [{**point(took, ""), "array.size": 64}], ("array.size",))
    yield told("compare", "a", "b")
    yield told("compare", "tiny", "--closed-form", "--hardware", "tiny_4x4")


def validate() -> Iterator[str]:
    """Two sets of a kind, with all that a set may have."""
    rows = (
        ComparedCase("a", 11, 10, 8, True, 10.5, 10, 10, False),
        ComparedCase("b", 9, 10, 8, False, None, None, 10, True),
    )
    sets = [
        NumberSet(name, "scheduled", "layers", "cases", "tpu_v2_core", (), ("array.size=64",), fitted=fitted,
                  left_out=(Omission("copy", 3),), tiles=fitted, generation="v3", part="tiles")
        for name, fitted in (("one", True), ("other", False))
    ]  # fmt: skip
    pod = ComparedPod("pod", 11, 10, 8, False, parts={"compute": 1.0}, chips=4)
    pods = Comparison(NumberSet("pods_v4", "measured", "pods", "steps", "slices", (), unit="ms"), (pod,))
    yield validated([pods, *(Comparison(each, rows) for each in sets)]).to_json()
    with pytest.MonkeyPatch.context() as patch:
        in_this_process(patch)
        yield told("validate", "--set-of-numbers", "v3")
        yield told("validate", "--set-of-numbers", "collectives")


def dram() -> Iterator[str]:
    yield told("dram", "-", "--device", "hbm2_1ch", given="time,address,bytes,rw\n0,0,64,r\n")


def collective() -> Iterator[str]:
    few = ("collective", "all-reduce", "--bytes", "4KiB", "--slice", "v5e_2x2")
    yield told(*few, "--explain", "--engine", "both")
    yield told(*few, "--sizes", "4KiB..8KiB")
    yield told("collective", "all-to-all", "--slice", "v5e_4x4", "--mesh", "data=2,tensor=8", "--axes", "tensor")


def scale() -> Iterator[str]:
    Path("net.yaml").write_text("name: net\nlayers:\n- {name: a, op: gemm, m: batch, k: 8, n: 8}\n")
    few = ("--set", "mapping.search=estimate")
    yield told("scale", "net.yaml", *few, "--slices", "v6e_2x2,v6e_8", "--batch-a-chip", "1")


def area() -> Iterator[str]:
    yield told("area")
    yield told("area", "--hardware", "tiny_4x4")


def shipped() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hardware, "load_workload", SHIPPED)
        yield told("list")


def of_paper() -> Iterator[str]:
    known = words()["14a"]
    found = {each.key: [Finding("at batch 8", 1.0)] for each in known.claims[:1]}
    yield paper.to_json([Exhibit(known, ExhibitFigures([TextTable(["a"], [["1"]])], found))])


LIST = "list"
PRINTED = {
    "explain": explain, "compare": compare, "validate": validate, "dram": dram, "area": area, "collective": collective,
    "scale": scale, "paper": of_paper, LIST: shipped,
}  # fmt: skip


@pytest.mark.parametrize("command", [pytest.param(each, marks=[LISTED] if each == LIST else []) for each in SCHEMAS])
def test_what_is_printed_is_described_and_what_is_described_is_printed(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    schema, found = SCHEMAS[command], set[tuple[str, str]]()
    for text in PRINTED[command]():
        data: Any = json.loads(text)
        assert [*problems(data, schema, command, schema)] == []
        found |= {*printed(data, schema, schema)}
    places = {"": schema, **{name: held for name, held in schema["$defs"].items() if name not in OF_A_RUN}}
    assert {(name, key) for name, held in places.items() for key in held["properties"]} - found == set()


def test_a_key_that_nobody_described_is_found() -> None:
    schema = SCHEMAS["dram"]
    (text,) = dram()
    data = json.loads(text)
    assert [*problems({**data, "more": 1}, schema, "dram", schema)] == ["dram.more: unknown"]
    assert [*problems({**data, "channels": [{}]}, schema, "dram", schema)]


def test_every_command_that_writes_json_is_there() -> None:
    writing = {
        name.removeprefix("tpusim ")
        for name, command in columns.commands().items()
        if any(each.written.startswith("--json") for each in command.parameters)
    }
    assert writing == {"run", *SCHEMAS}
    page = reference.answers_page()
    assert all(f"## tpusim {name}\n" in page for name in SCHEMAS)


def test_every_key_is_described() -> None:
    for schema in SCHEMAS.values():
        assert not [key for key, held in keys_of(schema) if not held["description"]]
    names = [name for schema in SCHEMAS.values() for name in schema["$defs"] if name not in OF_A_RUN]
    assert len(names) == len({*names})
