"""Functions of Python that are commands: they take the command's words, and say what it says."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

import tpusim
from tests import ROOT
from tests.covering import few
from tpusim import Workload, load_hardware, load_workload, simulate
from tpusim.api.answer import Answer
from tpusim.api.asked import WorkloadOptions
from tpusim.api.sweep import SweepAnswer
from tpusim.base.errors import InputError
from tpusim.cli import app as cli
from tpusim.network.ops.array_op import Gemm

ESTIMATE = "mapping.search=estimate"
TINY = ("tiny", "--hardware", "tiny_4x4", "--set", ESTIMATE, "--batch", "2")
SPEC: dict[str, Any] = {
    "workloads": "tiny", "hardware": "tiny_4x4", "batch": 2,
    "axes": {"array.count": [1, 2], "mapping.search": ["estimate"]},
}  # fmt: skip
"""Blocks that simulation chooses take most of the time of a sweep, and have no say in how it is asked for."""
GROWING = """
name: net
sizes: {context: 12, tokens: context, width: 16}
grows: context
phases: {prefill: {tokens: context}, decode: {tokens: 1}}
layers:
  - {name: first, op: gemm, m: batch*tokens, n: width, k: 16}
  - {name: scores, op: gemm, m: batch*tokens, n: context}
"""


def said(*arguments: str) -> str:
    done = CliRunner().invoke(cli.app, [*arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def asked() -> dict[str, Any]:
    return {"workload": "tiny", "hardware": load_hardware("tiny_4x4", ESTIMATE), "batch": 2}


# ---- the words of the command

SPELT = {"set": "changes", "first": "from", "last": "to"}
"""Parameters of functions that the command spells otherwise, as Python or the command's own code wants it."""


@pytest.mark.parametrize(
    ("name", "command", "own"),
    [
        ("explain", "explain", {"drawn", "progress", "note"}),
        ("trace", "trace", {"progress", "note"}),
        ("generate", "run", {"progress", "note"}),
        ("scale", "scale", {"progress", "note", "shapes"}),
        ("sweep", "sweep", {"progress", "note", "resume"}),
        ("compare", "compare", set()),
        ("report", "report", set()),
    ],
)
def test_a_function_takes_the_words_of_its_command(name: str, command: str, own: set[str]) -> None:
    taken = {each: parameter.kind for each, parameter in inspect.signature(getattr(tpusim, name)).parameters.items()}
    words = {each.removeprefix("--") for each in WorkloadOptions.__annotations__ if "options" in taken}
    words = (words | {each for each in taken if taken[each] != inspect.Parameter.VAR_KEYWORD}) - own
    group: Any = get_command(cli.app)
    parameters = group.commands[command].params
    options = {each.lstrip("-").replace("-", "_") for one in parameters for each in (*one.opts, one.name)}
    options |= {"dims" for each in options if each == "dim"}
    assert {SPELT.get(each, each) for each in words} <= options


def test_options_of_a_workload_are_those_of_load_workload() -> None:
    taken = {*inspect.signature(load_workload).parameters} - {"name_or_path", "batch"}
    assert taken | {"training", "keep", "offload", "optimizer"} == {*WorkloadOptions.__annotations__}


# ---- what the command says


def test_explaining_a_layer_says_what_the_command_says(asked: dict[str, Any], in_folder: Path) -> None:
    answer = tpusim.explain(**asked, layer="fig11")
    assert str(answer).rstrip() == said("explain", *TINY, "--layer", "fig11", "--json", "why.json").rstrip()
    assert answer.to_dict() == json.loads((in_folder / "why.json").read_text())


def test_generating_says_what_the_command_says(in_folder: Path) -> None:
    (in_folder / "net.yaml").write_text(GROWING)
    answer = tpusim.generate("net.yaml", load_hardware("tiny_4x4", ESTIMATE), tokens=3, prompt=4, dims={"width": 8})
    command = ("run", "net.yaml", "--hardware", "tiny_4x4", "--set", ESTIMATE, "--tokens", "3", "--prompt", "4")
    assert answer.to_dict() == json.loads(said(*command, "--dim", "width=8", "--json", "-"))
    assert [row["context_tokens"] for row in answer.rows] == [5, 6]
    frame = answer.to_frame()
    assert frame["time_us"].sum() == pytest.approx(1e6 * answer.found.seconds)


@pytest.mark.usefixtures("undrawn")
def test_sweeping_leaves_what_the_command_leaves(tmp_path: Path) -> None:
    spec = tmp_path / "s.yaml"
    spec.write_text(json.dumps({"name": "s", **SPEC}))
    shown = said("sweep", str(spec), "--out", str(tmp_path / "a"), "--workers", "1", "--format", "svg")
    answer = tpusim.sweep(spec, tmp_path / "b")
    for name in ("points.csv", "layers.csv"):
        assert (tmp_path / "a" / name).read_text() == (tmp_path / "b" / name).read_text()
    assert str(answer) in shown
    again = tpusim.sweep(spec, tmp_path / "a")
    assert (again.outcome.reused, again.outcome.computed) == (2, 0)
    assert again.rows == tpusim.sweep(SPEC).rows
    assert not list(Path(tmp_path / "b").glob("*.svg"))


def test_comparing_takes_results_answers_and_files(tmp_path: Path) -> None:
    work, machines = (
        load_workload("tiny", batch=2),
        [load_hardware("tiny_4x4", {"array.count": n, "mapping.search": "estimate"}) for n in (1, 2)],
    )
    one, other = (simulate(work, machine, check=False) for machine in machines)
    files = [tmp_path / "one.json", tmp_path / "other.json"]
    for file, result in zip(files, (one, other), strict=True):
        file.write_text(result.to_json())
    answers = [tpusim.compare(one, other), tpusim.compare(files[0], str(files[1])), tpusim.compare(one, files[1])]
    assert answers[0].rows == answers[1].rows == answers[2].rows
    assert answers[1].to_dict() == json.loads(said("compare", *map(str, files), "--json", "-"))
    swept = tpusim.sweep(SPEC)
    assert [row["ratio"] for row in tpusim.compare(swept, swept).rows] == [1.0, 1.0]
    with pytest.raises(InputError, match="A is a run, B is a sweep; compare two of a kind"):
        tpusim.compare(one, swept)


def test_a_page_is_that_of_the_command(tmp_path: Path) -> None:
    result = simulate(load_workload("tiny", batch=2), load_hardware("tiny_4x4", ESTIMATE))
    (tmp_path / "run.json").write_text(result.to_json())
    said("report", str(tmp_path), "-o", str(tmp_path / "a.html"))
    assert tpusim.report(tmp_path) == tmp_path / "report.html"
    pages = [tmp_path / "a.html", tmp_path / "report.html", tpusim.report(result, tmp_path / "b.html")]
    assert len({page.read_bytes() for page in pages}) == 1
    swept = tpusim.report(tpusim.sweep(SPEC), tmp_path / "s.html").read_text()
    assert "2 points over" in swept


def test_a_trace_is_that_of_the_command(asked: dict[str, Any], tmp_path: Path) -> None:
    lines = [*tpusim.trace(**asked, layers="fig10", first=20, last=30)]
    shown = said("trace", *TINY, "--layers", "fig10", "--from", "20", "--to", "30")
    assert lines == shown.splitlines()
    made = tpusim.trace(**asked, out=tmp_path / "t.json")
    assert made.file == tmp_path / "t.json"
    said("trace", *TINY, "-o", str(tmp_path / "u.json"))
    assert (tmp_path / "u.json").read_bytes() == (tmp_path / "t.json").read_bytes()


# ---- records


def answers() -> list[Answer]:
    work = Workload("net", 2, [Gemm("first", m=4, n=8, k=4), Gemm("second", m=4, n=4, k=4)])
    machine, other = (load_hardware("tiny_4x4", [f"array.count={n}", ESTIMATE]) for n in (1, 2))
    results = [simulate(work, each, check=False) for each in (machine, other)]
    return [tpusim.explain(work, machine), tpusim.explain(work, machine, layer="first"), swept(),
            tpusim.compare(*results)]  # fmt: skip


def test_every_answer_is_a_line_a_text_a_page_and_a_table() -> None:
    for answer in answers():
        assert isinstance(answer, tpusim.Answer)
        assert "  " not in repr(answer)
        assert ";;" not in repr(answer)
        assert len(repr(answer)) < 200
        assert "\n" not in repr(answer)
        html = answer._repr_html_()
        assert "<table" in html
        assert html.count("<div") == html.count("</div>")
        assert json.loads(answer.to_json())["tpusim"] == tpusim.__version__
        frame = answer.to_frame()
        assert len(frame) == len(answer.rows)
        assert not [name for name in frame if name.endswith(("time", "bytes_per", "energy", "area", "delay"))]


def test_without_pandas_an_answer_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = tpusim.sweep(SPEC)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"to_frame\(\) needs pandas, .* -m pip install pandas$"):
        answer.to_frame()


def test_a_name_like_markup_is_shown_as_it_is() -> None:
    work = Workload("net", 1, [Gemm("[red]<b>", m=4, n=8, k=4), Gemm("other", m=4, n=4, k=4)])
    answer = tpusim.explain(work, load_hardware("tiny_4x4", ESTIMATE))
    assert "[red]<b>" in str(answer)
    assert "[red]&lt;b&gt;" in answer._repr_html_()


# ---- bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tpusim.explain("tinny"), "did you mean tiny"),
        (lambda: tpusim.explain("tiny", "tiny_4x5"), "did you mean tiny_4x4"),
        (lambda: tpusim.explain("tiny", layer="fig12"), "no layer of tiny matches 'fig12'"),
        (lambda: tpusim.explain("tiny", batch=0), "batch: 0 is out of range"),
        (lambda: tpusim.explain("tiny", phases="decode"), "phases: no such option of a workload; there is dims, phase"),
        (lambda: tpusim.explain("tiny", keep="none"), "--keep: only a training step has it"),
        (lambda: tpusim.generate("gpt2_small", "tpu_v6e", tokens=0), "--tokens: 0 is out of range"),
        (lambda: tpusim.generate("gpt2_small", "tpu_v6e", tokens=1, prompt=4), "ask for 2 at least"),
        (lambda: tpusim.generate("alexnet", "tpu_v6e", tokens=2), "the workload does not say which of its sizes"),
        (lambda: tpusim.generate("gpt2_small", "v100", tokens=2, phase="decode"), "v100 is a GPU"),
        (lambda: tpusim.sweep({"workloads": "tiny"}), "axes"),
        (lambda: tpusim.sweep({**SPEC, "axis": {}}), "axis"),
        (lambda: tpusim.sweep(SPEC, format=["png"]), "pictures go into a folder; give out=, or no format"),
        (lambda: tpusim.sweep("nowhere.yaml"), "nowhere.yaml: no such file"),
        (lambda: tpusim.compare("nowhere.json", "nowhere.json"), "nowhere.json: no such file"),
        (lambda: tpusim.compare(1, 2), "1 is no result; give a Result, an answer, or the path"),  # type: ignore[arg-type]
        (lambda: tpusim.compare("a", "b", sort="odd"), "--sort 'odd': no such order"),
        (lambda: tpusim.report("nowhere"), "nowhere: no such file"),
        (lambda: tpusim.trace("tiny", "tiny_4x4", layers="fig10", first=9, last=3), "--to 3 comes before --from 9"),
        (lambda: tpusim.trace("tiny", "tiny_4x4", "t.gif"), "a trace is written as .txt"),
        (lambda: load_workload("gpt2_small", phase="decod"), "did you mean decode"),
        (lambda: load_workload("gpt2_small", weights="int3"), "did you mean int8"),
        (lambda: load_workload("tiny", shapes="2x3"), "only a function of JAX"),
        (lambda: tpusim.report([]), "[] is no result"),  # type: ignore[arg-type]
    ],
)
def test_bad_input_raises_the_one_error(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError) as raised:
        call()
    assert message in str(raised.value)


# Arguments typed in Python have no other check than that of the function.
WRONG: list[Any] = [7, 2.5, b"tiny", ["fig10"], object()]


@pytest.mark.parametrize("wrong", WRONG, ids=[type(each).__name__ for each in WRONG])
@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda wrong: load_workload(wrong), id="workload"),
        *(
            pytest.param(lambda wrong, name=name: load_workload("gpt2_small", **{name: wrong}), id=name)
            for name in ("dims", "phase", "weights", "caches", "ops", "shapes")
        ),
        pytest.param(lambda wrong: tpusim.explain("tiny", wrong), id="hardware"),
        pytest.param(lambda wrong: tpusim.explain(wrong, "tiny_4x4"), id="explained"),
        *(
            pytest.param(lambda wrong, name=name: tpusim.explain("tiny", "tiny_4x4", **{name: wrong}), id=f"of_{name}")
            for name in ("layer", "lowering", "set", "phase")
        ),
        pytest.param(lambda wrong: load_hardware("tiny_4x4", wrong), id="changes"),
        pytest.param(lambda wrong: load_hardware("tiny_4x4").with_overrides(wrong), id="overrides"),
        pytest.param(lambda wrong: tpusim.trace("tiny", "tiny_4x4", wrong, layers="fig10"), id="trace"),
        *(
            pytest.param(
                lambda wrong, name=name: tpusim.trace("tiny", "tiny_4x4", **{"layers": "fig10", name: [wrong]}),
                id=f"trace_{name}",
            )
            for name in ("layers", "first", "last", "seed", "batch")
        ),
        pytest.param(lambda wrong: tpusim.report(wrong, "a.html"), id="report"),
        pytest.param(lambda wrong: tpusim.report(simulated(), wrong), id="page"),
        pytest.param(lambda wrong: tpusim.compare(simulated(), wrong), id="compare"),
        pytest.param(lambda wrong: tpusim.compare(simulated(), simulated(), sort=wrong), id="sort"),
        pytest.param(lambda wrong: tpusim.sweep(SPEC, wrong), id="folder"),
        pytest.param(lambda wrong: tpusim.sweep({**SPEC, "axes": {7: [wrong]}}), id="key"),
        *(
            pytest.param(lambda wrong, name=name: tpusim.sweep(SPEC, "a", **{name: [wrong]}), id=name)
            for name in ("workers", "cluster", "format")
        ),
        pytest.param(lambda wrong: tpusim.training_step(wrong), id="training_step"),
        pytest.param(lambda wrong: simulate(wrong, load_hardware("tiny_4x4")), id="simulate"),
    ],
)
def test_an_argument_of_a_wrong_type_raises_the_one_error(call: Any, wrong: Any, in_folder: Path) -> None:
    with pytest.raises(InputError) as raised:
        call(wrong)
    assert len(str(raised.value).splitlines()[0]) < 1500
    assert [each.name for each in in_folder.iterdir() if each.is_file()] == []


@cache
def simulated() -> tpusim.Result:
    return simulate(load_workload("tiny", batch=2), load_hardware("tiny_4x4", ESTIMATE), check=False)


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_is_no_result_is_named_in_a_line() -> None:
    work = load_workload("resnet50", batch=1)
    for wrong in (work, load_hardware("tpu_v2"), [simulated()] * 9):
        with pytest.raises(InputError) as raised:
            tpusim.report(wrong)  # type: ignore[arg-type]
        assert len(str(raised.value)) < 200


@pytest.mark.parametrize("values", [(1, 2), range(1, 3), np.array([1, 2]), [np.int64(1), np.int32(2)]])
def test_a_sweep_takes_values_as_python_has_them(values: Any) -> None:
    axes = {**SPEC["axes"], "array.count": values}
    answer = tpusim.sweep({**SPEC, "workloads": ("tiny",), "axes": axes, "batch": np.int64(2)})
    assert answer.rows == swept().rows


@cache
def swept() -> SweepAnswer:
    return tpusim.sweep(SPEC)


@pytest.mark.usefixtures("undrawn")
def test_one_format_is_as_good_as_a_list(tmp_path: Path) -> None:
    assert "tflops_tiny.svg" in tpusim.sweep(SPEC, tmp_path, format="svg").files


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_page_is_not_written_as_a_picture(suffix: str, in_folder: Path) -> None:
    (in_folder / "run.json").write_text(simulated().to_json())
    with pytest.raises(InputError, match=f"a.{suffix}: is the name of a picture, and a page is HTML"):
        tpusim.report(in_folder, f"a.{suffix}")
    done = CliRunner().invoke(cli.app, ["report", "run.json", "-o", f"a.{suffix}"])
    assert (done.exit_code, [*in_folder.iterdir()]) == (2, [in_folder / "run.json"])


# ---- the package


@pytest.mark.parametrize("first", few(1, [1, 0]))
def test_report_is_the_function_whatever_was_imported(first: int) -> None:
    lines = "import tpusim", "import tpusim.report.shown", "from tpusim import report", "from tpusim.report import text"
    shows = "import pickle, tpusim; print(report, pickle.loads(pickle.dumps(tpusim.report)))"
    code = "; ".join([*lines[first:], *lines[:first], shows])
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert shown.count("<function report") == 2


def test_the_package_imports_nothing_until_it_is_asked() -> None:
    ours = "[name for name in sys.modules if name.startswith('tpusim.')]"
    code = f"import sys, tpusim; print({ours}, 'numpy' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert shown.strip() == "['tpusim.base', 'tpusim.base.version'] False"


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_load_workload_takes_a_phase_and_how_hbm_has_weights(phase: str) -> None:
    work = load_workload("gpt2_small", batch=1, phase=phase, weights="int4", caches="int8", dims={"context": 8})
    assert dict(work.sizes)["tokens"] == {"prefill": 8, "decode": 1}[phase]
    stored = {layer.stored for layer in work.layers if isinstance(layer, Gemm)}
    assert stored == {"int4", "int8"}
