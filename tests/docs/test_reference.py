"""The generated reference says something of everything, and its examples are true. No Sphinx is needed."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
import yaml

import tpusim
from docs import columns, fields, reference
from docs.fields import Entry, Section
from tests import ROOT
from tests.docs.schemas import keys_of, problems
from tpusim import Conv2d, Workload, load_hardware, load_workload, simulate
from tpusim.input.document import Document
from tpusim.machines.family import FAMILIES, family_named
from tpusim.machines.tpu.slices.slice import Interconnect
from tpusim.memory.dram.device import Device, load_device
from tpusim.network.entries import COMPOSITES, FREE, read_layers
from tpusim.network.ops import OPS
from tpusim.network.workload_file import workload_of
from tpusim.report.tables.run import layer_table
from tpusim.result.records import LayerResult, Result
from tpusim.result.vocabulary.figures import COLUMNS, LAYER, own_figure, own_keys
from tpusim.result.vocabulary.states import STATES
from tpusim.study.sweep import reader
from tpusim.technology.constants import Technology

OPENING = re.compile(r"(that|those|it|its|they|their|this|these|one|the same|nobody|always|of)\b", re.I)
"""No text begins so: a reader who looks up one row has not read the one before it."""


@cache
def op_sections() -> dict[str, Section]:
    """Made when a test asks, not by every process that looks for tests."""
    return fields.op_sections()


@cache
def sections() -> list[Section]:
    return [*every_section()]


@cache
def fields_of_files() -> list[Entry]:
    return [entry for section in sections() for entry in section.entries]


def every_section() -> Iterator[Section]:
    for found in fields.machine_sections().values():
        yield from found
    yield from fields.workload_sections()
    yield from fields.sweep_sections()
    yield from op_sections().values()
    yield from fields.sections(Device, fields.shipped("configs/dram"))
    yield from fields.sections(Technology, fields.shipped("configs/technology"))
    yield from fields.sections(Interconnect, fields.shipped("configs/interconnects"))


def value_of(entry: Entry) -> Any:
    return yaml.safe_load(entry.example)[entry.path.rpartition(".")[2]]


# ---- fields of files


@pytest.mark.parametrize("what", ["meaning", "allowed", "default", "example"])
def test_every_field_is_described(what: str) -> None:
    assert len(fields_of_files()) > 400
    assert not [entry.path for entry in fields_of_files() if not getattr(entry, what)]


def test_every_section_is_described() -> None:
    assert not [section.path for section in sections() if not section.about]


def test_no_text_begins_with_a_pronoun() -> None:
    texts = [entry.meaning for entry in fields_of_files()] + [section.about for section in sections()]
    texts += [meaning for held in columns.file_columns().values() for _, meaning in held.values()]
    texts += [held["description"] for _, held in keys_of(columns.run_schema())]
    assert not [text for text in texts if OPENING.match(text)]
    assert OPENING.match("Its capacity.")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_field_of_a_machine_is_there(family: str) -> None:
    """Those that `--set` knows; `array.size` stands for two of them."""
    title = {"tpu": "A TPU", "gpu": "A GPU"}[family]
    told = {entry.path for section in fields.machine_sections()[title] for entry in section.entries}
    assert {path for path in told if "[]" not in path} == {*family_named(family).paths()} - {"array.size"}


TOGETHER = {
    "hbm.model": {"hbm.device": "hbm2_16ch_700"},
    "hbm.device": {"hbm.model": "banks"},
    "refresh": {"timing.tRFC_bank": "130 ns", "timing.tREFI": "39 us"},
    "hbm.mapping": {"hbm.model": "banks", "hbm.device": "hbm2_16ch_700"},
    "scratch_memory": {f"scratch_memory.{key}": text for key, text in
                       {"capacity": "128 MiB", "bandwidth": "2 TB/s", "latency": "20 ns"}.items()},
    "vector_unit.slots": {f"vector_unit.slots.{key}": text for key, text in
                          {"loads": 3, "stores": 1, "lanes": 128, "register": "32 B", "registers": 8}.items()},
    **{f"types.{name}": {f"types.{name}.bytes": 2} for name in ("f32", "bf16", "f16", "int8", "f8")},
}  # fmt: skip
"""What a field needs beside it."""


@pytest.mark.parametrize(("title", "name"), [("A TPU", "tpu_v2"), ("A GPU", "v100")])
def test_examples_of_machines_are_sound(title: str, name: str) -> None:
    machine = load_hardware(name)
    for section in fields.machine_sections()[title]:
        for entry in (each for each in section.entries if not each.path.startswith("tiles")):
            beside = TOGETHER.get(entry.path, TOGETHER.get(section.path, {}))
            changed = machine.with_overrides({**beside, entry.path: value_of(entry)})
            assert type(changed) is type(machine)


def test_examples_of_devices_are_sound() -> None:
    for section in fields.sections(Device, fields.shipped("configs/dram")):
        for entry in section.entries:
            load_device("hbm2_16ch_700", {**TOGETHER.get(entry.path, {}), entry.path: value_of(entry)})


BESIDE: dict[tuple[str, str], dict[str, int]] = {
    ("slice", "start"): {"stop": 8}, ("conv_transpose2d", "output_padding"): {"stride": 2},
    ("softmax", "window"): {"queries": 128},
}  # fmt: skip
"""What a field of an op needs beside it."""


@pytest.mark.parametrize("op", OPS)
def test_examples_of_ops_are_sound(op: str) -> None:
    entry = yaml.safe_load(fields.op_example(op))[0]
    names = {"batch": 4, "context": 8, "tokens": 4}
    (layer,) = read_layers(entry, names).layers
    assert layer.op == op
    for field in op_sections()[op].entries:
        read_layers({**entry, **BESIDE.get((op, field.path), {}), field.path: value_of(field)}, names)


def test_examples_of_workload_files_are_sound() -> None:
    file, around = fields.workload_sections()
    layer = yaml.safe_load(fields.op_example("conv2d"))[0]
    for entry in file.entries:
        beside = {"sizes": {"context": 8, "heads": 8}} if entry.path in ("grows", "shard") else {}
        value = value_of(entry)
        # What names layers names some that are there.
        names = value["batch_norm"] if entry.path == "training" else [layer["name"]]
        layers = [{**layer, "name": name.replace("*", "any")} for name in names]
        data = {"name": "net", "layers": layers, **beside, entry.path: value}
        assert workload_of(Document("net", data), 2).layers
    for entry in (each for each in around.entries if each.path not in ("op", "inputs")):
        assert workload_of(Document("net", {"name": "net", "layers": [{**layer, entry.path: value_of(entry)}]}), 2)


def test_examples_of_sweeps_are_sound() -> None:
    file, search = fields.sweep_sections()
    base = {"workloads": ["tiny"], "axes": {"array.size": [4, 8], "vector_memory.word_elements": [4, 8]}}
    goals = yaml.safe_load(search.entries[0].example)
    looked_for = {"mode": "search", "search": {"budget": 2, **goals}}
    tokens = {key: {"workloads": ["gpt2_small"]} for key in ("phase", "prompt")}
    # Shapes are those of a function of JAX, which not every environment has.
    for entry in (each for each in file.entries if each.path != "shapes"):
        beside = {"mode": looked_for, **tokens}.get(entry.path, {})
        assert reader.read(Document("small", {**base, **beside, entry.path: value_of(entry)})).axes
    for entry in search.entries:
        inside = {**looked_for["search"], entry.path.rpartition(".")[2]: value_of(entry)}
        assert reader.read(Document("small", {**base, "mode": "search", "search": inside})).search


# ---- ops, columns, commands


def test_every_op_is_there() -> None:
    assert [*op_sections()] == [*OPS, *COMPOSITES, *FREE]


def test_every_column_of_a_sweep_is_there() -> None:
    """The axes come first."""
    points, layers = columns.file_columns().values()
    assert {*COLUMNS} <= points.keys()
    assert {"position", "name", "op", "lowered_by"} <= layers.keys()
    page = reference.columns_page()
    assert all(f"| `{key}` |" in page for key in (*points, *layers))


def test_every_column_of_a_run_is_there() -> None:
    """Heads of figures, of states and of words; those of bytes and times have their unit below."""
    work = load_workload("tiny", batch=2)
    figures = [each.head for each in (*COLUMNS.values(), *LAYER.values(), *STATES.values())]
    for machine in ("tiny_4x4", "v100"):
        result = run_of(work, machine, check=False)
        own = [own_figure(key).head for key in own_keys(result.layers)]
        told = {head.replace("\n", " ") for head in (*figures, *columns.RUN_WORDS, *own)} - {""}
        shown = [each.header.replace("\n", " ") for each in layer_table(result.layers, {}, "auto").columns]
        assert [head for head in shown if not any(f"{head} ".startswith(f"{each} ") for each in told)] == []


def test_every_column_of_a_command_is_there() -> None:
    found = columns.command_tables()
    assert {*found} == {*columns.COMMAND_WORDS}
    assert not [(name, head) for name, held in found.items() for head, meaning in held.items() if not meaning]
    assert not [text for held in found.values() for text in held.values() if OPENING.match(text)]
    unused = [(name, head) for name, held in columns.COMMAND_WORDS.items() for head in held if head not in found[name]]
    assert not unused


@pytest.mark.parametrize("family", FAMILIES)
def test_every_lowering_is_described(family: str) -> None:
    page = reference.workload_page()
    assert all(fields.lowerings()[family].values())
    assert all(f"| `{name}` |" in page for name in family_named(family).lowerings)


def test_every_command_and_option_is_described() -> None:
    found = columns.commands()
    assert len(found) == 16
    for name, command in found.items():
        assert command.help
        assert command.example.startswith("tpusim ")
        assert not [each.written for each in command.parameters if not each.help], name
    assert "--lowering NAME" in [each.written for each in found["tpusim run"].parameters]


# ---- the JSON of a run


def run_of(workload: Workload, machine: str, overrides: Mapping[str, object] | None = None, **choices: Any) -> Result:
    return simulate(workload, load_hardware(machine, overrides or {}), **choices)


def runs() -> Iterator[Result]:
    tiny = load_workload("tiny", batch=2)
    # Blocks that simulation chooses take most of the time, and have no key of their own.
    yield run_of(tiny, "tiny_4x4", {"mapping.search": "estimate"})
    yield run_of(tiny, "tiny_4x4", {"mapping.search": "estimate"}, engine="both", dtype="f32")
    yield run_of(tiny, "v100", check=False)
    yield run_of(Workload("one", 1, (Conv2d("a", 4, 5, 5, 4, 3),)), "tpu_v2_hbm", check=False)
    layers = (Conv2d("a", 4, 5, 5, 4, 3), Conv2d("b", 4, 3, 3, 4, 1))
    edges = Workload("two", 2, layers, sizes=(("seq", 3),), not_timed=(("Relu", 2),), edges={"b": ["a"]})  # type: ignore[arg-type]
    yield run_of(edges, "tpu_v2", {"sequencer.between_layers": "stay"})


def test_the_schema_fits_runs() -> None:
    schema = columns.run_schema()
    for result in runs():
        assert [*problems(json.loads(result.to_json()), schema, "run", schema)] == []


def test_the_schema_refuses_what_is_no_run() -> None:
    schema = columns.run_schema()
    good = json.loads(next(runs()).to_json())
    wrong = [{**good, "batch": -1}, {**good, "batch": "2"}, {**good, "more": 1}, {**good, "layers": [{}]},
             {key: held for key, held in good.items() if key != "seed"}]  # fmt: skip
    assert all([*problems(each, schema, "run", schema)] for each in wrong)


def test_the_schema_describes_every_key() -> None:
    schema = columns.run_schema()
    assert not [key for key, held in keys_of(schema) if not held["description"]]
    assert {field.name for field in dataclasses.fields(LayerResult)} == {*schema["$defs"]["LayerResult"]["properties"]}


# ---- Python

PUBLIC = [name for name in tpusim.__all__ if name != "__version__"]


LESS = {
    "Answer": ('layer="fig10"', 'layer="fig10", set="mapping.search=estimate"'),
}
"""What of an example is smaller here and has no say in what it prints."""
DEAR = ("explain", "generate", "scale")
"""Examples that take a second; what they call has tests of its own on small networks. `Answer` explains a layer."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in DEAR else []) for name in PUBLIC]
)
def test_examples_in_docstrings_are_true(name: str) -> None:
    if name in ("from_jax", "journey"):
        pytest.importorskip("jax")
    thing = getattr(tpusim, name)
    (found,) = (each for each in doctest.DocTestFinder(recurse=False).find(thing, name, module=False, globs={}))
    assert found.examples
    if name in LESS:
        assert any(LESS[name][0] in each.source for each in found.examples)
        for each in found.examples:
            each.source = each.source.replace(*LESS[name])
    told: list[str] = []
    assert doctest.DocTestRunner(verbose=False).run(found, out=told.append).failed == 0, "".join(told)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_show_what_they_take(name: str) -> None:
    thing = getattr(tpusim, name)
    taken = inspect.signature(thing).parameters
    assert "args" not in taken
    if inspect.isclass(thing) and name not in ("Result", "Hardware"):
        assert {*taken} == {*fields.fields_in(thing)}
    text = inspect.getdoc(thing) or ""
    if inspect.isfunction(thing):
        assert not [each for each in taken if f"\n    {each}: " not in text]


# ---- pages


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return reference.pages()


def test_tables_are_whole(pages: dict[str, str]) -> None:
    """As many cells in each row as in the head, none of them over 1,200 characters."""
    for name, text in pages.items():
        for block in re.findall(r"(?:^\|.*\|\n)+", text, re.M):
            rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines()]
            assert {len(row) for row in rows} == {len(rows[0])}, name
            assert max(len(cell) for row in rows for cell in row) < 1200, name


def test_links_between_the_top_and_the_docs() -> None:
    """As they stand on a disk, and as the site has them."""
    text = "[a](docs/timing.md#frames) [b](README.md) [c](scripts/test) [d](https://e.f) [g](#h)"
    seen = "[a](../timing.md#frames) [b](../../README.md) [c](../../scripts/test) [d](https://e.f) [g](#h)"
    assert reference.from_the_reference(text) == seen
    assert reference.linked("[b](../../README.md#x) [c](../CHANGELOG.md)") == (
        "[b](/index.md#x) [c](/reference/changelog.md)"
    )


def test_the_site_lists_every_page(pages: dict[str, str]) -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    listed = {
        line
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```", index, re.M | re.S)
        for line in block.splitlines()
        if line and not line.startswith(":")
    }
    written = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    written |= {f"notebooks/{path.stem}" for path in (ROOT / "docs" / "notebooks").glob("*.ipynb")}
    written |= {f"reference/{name.removesuffix('.md')}" for name in pages if name.endswith(".md")}
    assert listed == written
