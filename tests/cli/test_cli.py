"""The command: exit codes, messages, files, and what a pipe sees."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest
from typer.testing import Result

from tests import forked
from tests.conftest import draw_nothing, in_this_process
from tests.covering import few
from tests.invoked import tpusim
from tpusim.api import trace as trace_action
from tpusim.api.asked import WorkloadOptions
from tpusim.base import imports
from tpusim.base.errors import DeadlockError
from tpusim.base.version import __version__
from tpusim.cli import app as cli
from tpusim.cli import names, progress
from tpusim.cli.actions import run as run_action
from tpusim.cli.terminal import MOST_PROBLEMS
from tpusim.cli.visitors import COMMANDS
from tpusim.flow.engines import ENGINES
from tpusim.flow.numbers import DTYPES, SUMS
from tpusim.flow.simulation import run
from tpusim.machines.tpu import event, register
from tpusim.network.formats import OPS
from tpusim.network.ops.array_op import STORED_BITS
from tpusim.network.workload import MOST_IMAGES
from tpusim.network.workload_file import USUAL_BATCH
from tpusim.report.tables.compared import ORDERS
from tpusim.report.tables.generation import GENERATION_FILE
from tpusim.report.trace.lanes import LEGEND
from tpusim.result.load import RESULT_FILE, parse_result, read_result
from tpusim.result.records import Mismatch, total_of
from tpusim.study.validation.cases import WORDS
from tpusim.study.validation.sets import number_sets

WORKLOAD = """\
name: small
layers:
  - {name: conv1, op: conv2d, in_channels: 3, in_height: 6, in_width: 6,
     out_channels: 5, kernel: 3, padding: 1}
  - {name: fc, op: gemm, m: batch, n: 7, k: 9}
"""
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
TINY = ("--hardware", "tiny_4x4", "--batch", "2")


@pytest.fixture(autouse=True)
def in_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs where there is one small workload, one directory, and nothing else."""
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(WORKLOAD)
    Path("folder").mkdir()


def command(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    words = [sys.executable, "-m", "tpusim", *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, **options)


def run_small(*arguments: str) -> Result:
    return tpusim("run", "small.yaml", *TINY, *arguments)


def files() -> list[str]:
    return sorted(path.name for path in Path().rglob("*"))


UNTOUCHED = ["folder", "small.yaml"]

BAD_INPUT: list[tuple[list[str], str]] = [
    (["rum"], "did you mean"),
    (["--nonsense"], "no such option"),
    (["run"], "missing argument"),
    (["run", "resnet5"], "did you mean resnet50"),
    (["run", "missing.yaml"], "no such file"),
    (["run", "folder"], "is a directory"),
    (["run", "small.yaml", "extra"], "extra"),
    (["run", "small.yaml", "--layer"], "--layer"),
    (["run", "small.yaml", "--hardware", "tpu_v2_ba"], "did you mean tpu_v2_banked"),
    (["run", "small.yaml", "--hardware", "small.yaml"], "is a workload, not hardware"),
    (["run", "small.yaml", "--shapes", "8x3"], "--shapes 8x3: only a function of JAX, FILE.py:FUNCTION, has shapes"),
    (["run", "small.yaml", "--batch", "0"], "out of range"),
    (["run", "small.yaml", "--batch", "-1"], "out of range"),
    (["run", "small.yaml", "--batch", "abc"], "--batch"),
    (["run", "small.yaml", "--batch", "1.5"], "--batch"),
    (["run", "small.yaml", "--batch", "3.0"], "3.0 is not a whole number; write 3 (a whole number, 1 to 65536)"),
    (["explain", "small.yaml", "--layer", "fc", "--batch", "3.0"], "3.0 is not a whole number; write 3"),
    (["run", "small.yaml", "--seed", "3.0"], "3.0 is not a whole number; write 3"),
    (["sweep", "array_size", "--workers", "0"], "0 is out of range; write a whole number, 1 to 1024"),
    (["run", "small.yaml", "--batch", "9" * 30], "out of range"),
    (["run", "small.yaml", "--seed", "-1"], "--seed"),
    (["run", "small.yaml", "--layers", "nothing*"], "no layer of small matches"),
    (["run", "small.yaml", "--layers", ""], "no layer of small matches"),
    (["run", "small.yaml", "--lowering", "channel_frist"], "did you mean channel_first"),
    (["run", "small.yaml", "--engine", "evnt"], "did you mean event"),
    (["run", "small.yaml", "--set", "array.rows"], "PATH=VALUE"),
    (["run", "small.yaml", "--set", "array.rowz=4"], "did you mean array.rows"),
    (["run", "small.yaml", "--set", "array.rows=0"], "array.rows"),
    (["run", "small.yaml", "--set", "array.rows=four"], "array.rows"),
    (["run", "small.yaml", "--set", "clock=700"], "unit"),
    (["run", "small.yaml", "--set", "=4"], "--set"),
    (["run", "small.yaml", "--set", ""], "--set"),
    (["run", "small.yaml", "--json", "folder"], "is a directory"),
    (["run", "small.yaml", "--json", ""], "cannot be written"),
    (["run", "small.yaml", "--json", "nowhere/run.json"], "cannot be written"),
    (["run", "small.yaml", "--json", "small.yaml/run.json"], "cannot be written"),
    (["run", "small.yaml", "--json", "x" * 300], "cannot be written"),
    (["run", "small.yaml", "--json", "a\0b"], "cannot be written"),
    (["run", "small.yaml", "--out", "small.yaml"], "cannot be written"),
    (["run", "small.yaml", "--out", "small.yaml/deep/er"], "cannot be written"),
    (["trace", "small.yaml"], "a trace of lanes shows one layer, not"),
    (
        ["trace", "small.yaml", "--layers", "fc", "--out", "trace.gif"],
        ".vcd, .perfetto-trace, .pftrace, .json, not as .gif",
    ),
    (["trace", "small.yaml", "--layers", "fc", "--out", "trace"], "no suffix"),
    (["trace", "small.yaml", "--layers", "fc", "--out", "nowhere/trace.txt"], "cannot be written"),
    (["trace", "small.yaml", "--layers", "fc", "--from", "9", "--to", "8"], "--to 8 comes before --from 9"),
    (["trace", "small.yaml", "--layers", "fc", "--from", "1000000"], "the layer has"),
    (["trace", "small.yaml", "--layers", "fc", "--from", "-1"], "--from"),
    (["trace", "small.yaml", "--layers", "fc", "--lowering", "row_first"], "unknown lowering"),
    (["trace", "alexnet", "--layers", "conv5", "--out", "trace.png"], "a picture holds 2,000 cycles"),
    (["small.yaml"], "did you mean: tpusim run small.yaml"),
    (["resnet50", "--batch", "4"], "did you mean: tpusim run resnet50"),
    (["array_size"], "did you mean: tpusim sweep array_size"),
    (["tpu_v2"], "did you mean: tpusim run workload --hardware tpu_v2"),
    (["simulate", "small.yaml"], "did you mean: tpusim run ..."),
    (["run", "-t", "small.yaml"], "the network comes first, without an option"),
    (["run", "small.yaml", "-c=scale.cfg"], "the machine is --hardware name or a .yaml path"),
    (["run", "small.yaml", "--batch-size", "4"], "no such option: --batch-size; the batch is --batch n"),
    (["run", "small.yaml", "-o", "there"], "results go to --out dir"),
    (["run", "model.onnx"], "model.onnx: no such file"),
    (["run", "topology.csv"], "topology.csv: no such file"),
    (["run", "small.yaml", "--json", "other.yaml"], "--json other.yaml: such files are read, not written; name one"),
    (["run", "small.yaml", "--dim", "s=3", "--dim", "s=4"], "--dim s=4: s is 3 already; give it once"),
    (["run", "small.yaml", "--dim", "seq=4"], 'the workload has no size "seq"; it names none; leave --dim out'),
    (["run", "small.yaml", "--dim", "seq"], "no name; write name=n"),
    (["run", "small.yaml", "--dim", "seq=0"], "0 is out of range"),
    (["run", "small.yaml", "--dim", "seq=16777217"], "out of range"),
    (["run", "small.yaml", "--ops", "every"], "unknown ops 'every'; there is all, or array:"),
    (["import", "small.yaml"], "files that are read: .csv, .json, .onnx"),
    (["import", "small.csv", "-o", "net.txt"], "a workload is written as .yaml or .yml, not as .txt"),
    (["import", "small.csv", "-o", "nowhere/net.yaml"], "cannot be written"),
    (["import", "small.csv", "--batch", "0"], "out of range"),
    (["import", "folder/.csv"], "says nothing of a format"),
    (["plot"], "missing argument"),
    (["plot", "nothing", "--format", "pgn"], "did you mean png"),
    (["plot", "nothing"], "no such file"),
    (["plot", "folder"], "no such file"),
    (["plot", "small.yaml"], "not a tpusim result"),
    (["list", "everything"], "everything"),
    # Shells make empty text of a variable that is not set: it is no way to ask for the default.
    (["area", "--hardware="], '"": no shipped hardware'),
    (["run", "small.yaml", "--hardware="], '"": no shipped hardware'),
    (["compare", "a.json", "b.json", "--phase="], "--phase: only beside --closed-form"),
    (["run", "small.yaml", "--optimizer="], "only a training step has it"),
]


@pytest.mark.parametrize("command", ["run", "explain", "scale", "trace"])
def test_help_tells_of_the_workload_before_it_tells_where_results_go(command: str) -> None:
    options = re.findall(r"^  (?:-\w, )?--([\w-]+)", tpusim(command, "--help").stdout, re.MULTILINE)
    asked = [each.replace("_", "-").replace("dims", "dim") for each in WorkloadOptions.__annotations__]
    assert {*asked} <= {*options}
    results = [options.index(each) for each in ("json", "csv", "out") if each in options]
    assert max(map(options.index, asked)) < min(results)


@pytest.mark.parametrize(("arguments", "says"), BAD_INPUT, ids=lambda value: str(value)[:60])
def test_bad_input_is_one_message_and_exit_code_2(arguments: list[str], says: str) -> None:
    result = tpusim(*arguments)
    assert result.exit_code == 2, result.output
    assert says in result.stderr.lower() or says in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""
    assert files() == UNTOUCHED


@pytest.mark.parametrize("text", ["", "\0", "- a list", "name: x", "{", "name: [", "layers: []\nname: x", "\udcff"])
def test_bad_standard_input(text: str) -> None:
    shown = tpusim("run", "-", *TINY, stdin=text.encode("utf-8", "surrogateescape"))
    assert shown.exit_code == 2
    assert shown.stderr.startswith("Error: <stdin>:")
    assert "Traceback" not in shown.output
    assert shown.stdout == ""


def test_bad_standard_input_of_a_process() -> None:
    shown = forked.tpusim("run", "-", *TINY, given=b"name: x")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr.startswith("Error: <stdin>:")
    assert "Traceback" not in shown.stderr


def test_every_problem_of_a_file_is_told() -> None:
    Path("bad.yaml").write_text("name: bad\nlayers:\n  - {name: a, op: gem, m: 1}\n  - {name: b, op: gemm, m: 0}\n")
    lines = tpusim("run", "bad.yaml").stderr.splitlines()
    assert len(lines) > 1
    assert all(line.startswith("Error: bad.yaml:") for line in lines)


def test_of_many_problems_the_first_are_told() -> None:
    layers = "".join(f"  - {{name: p{at}, op: matmul, m: 4, k: 5, n: 6}}\n" for at in range(MOST_PROBLEMS + 3))
    Path("mistaken.yaml").write_text(f"name: mistaken\nlayers:\n{layers}")
    result = tpusim("run", "mistaken.yaml")
    *shown, last = result.stderr.splitlines()
    assert (result.exit_code, len(shown)) == (2, MOST_PROBLEMS)
    assert 'layer "p0": unknown op' in shown[0]
    assert last == "3 more problems, not shown; mend these first"


def test_a_size_without_a_name_is_one_problem() -> None:
    said = tpusim("run", "small.yaml", "--dim", "seq").stderr
    assert said.splitlines() == ["Error: --dim seq: no name; write NAME=N, such as --dim seq=128"]


def test_a_layer_that_cannot_fit_is_named_and_no_file_is_left() -> None:
    result = run_small("--set", "vector_memory.capacity=8 B", "--out", "deep/er")
    assert result.exit_code == 2
    assert "layer " in result.stderr
    assert files() == UNTOUCHED


def test_in_a_process_of_its_own() -> None:
    good = command("run", "small.yaml", *TINY)
    assert (good.returncode, forked.told(good.stderr)) == (0, [])
    assert "0 wrong." in good.stdout


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_help_has_an_example(name: str | None) -> None:
    result = tpusim(*([name] if name else []), "--help")
    assert result.exit_code == 0
    assert "Example: tpusim " in result.stdout


@pytest.mark.parametrize("shorter", [True, pytest.param(False, marks=pytest.mark.long)])
def test_every_example_works(shorter: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order; left out are the check of all of ResNet-50, and the sweep, which the README types.

    If `shorter`, small networks stand for ResNet-50, AlexNet and GPT-2, and the least set and figures for those of the
    examples; nothing is drawn, and `list` is left to its own tests.
    """
    small = dict.fromkeys(("resnet50", "alexnet"), "small.yaml")
    less = {**small, "gpt2_small": "sized.yaml", "vgg16": "v3_odd", "14a": "table2", "16b": "11"} if shorter else {}
    Path("sized.yaml").write_text(
        "name: sized\nsizes: {layers: 2}\nlayers: [{name: fc, op: gemm, m: batch, n: 64, k: 64}]\n"
    )
    Path("trace.csv").write_text("time,address,bytes,rw\n0,0,64,r\n,4096,256,w\n")
    shutil.copy(LIGHT / "light_bvlc_alexnet.onnx", "model.onnx")
    monkeypatch.setattr(run_action, "run", partial(simulate_unchecked, run))
    if shorter:
        in_this_process(monkeypatch)
        draw_nothing(monkeypatch)
    examples = [cli.app.info.epilog, *(each.epilog for each in COMMANDS.values())]
    assert len(examples) == len(COMMANDS) + 1
    for example in examples:
        assert isinstance(example, str)
        words = [less.get(word, word) for word in shlex.split(example.removeprefix("Example: tpusim "))]
        if words[0] == "sweep" or (shorter and words[0] == "list"):
            continue
        if shorter and words[0] in ("scale", "explain", "trace"):
            words += ["--set", "mapping.search=estimate"]
        if shorter and words[0] == "explain":
            # A network of one layer: that of several is explained in tests/api.
            words[1:2] = ["sized.yaml", "--hardware", "tiny_4x4"]
        result = tpusim(*words)
        assert result.exit_code == 0, f"{example}: {result.output}"


def simulate_unchecked(real: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    return real(*arguments, **{**options, "check": False})


def test_version() -> None:
    assert tpusim("--version").stdout == f"tpusim {__version__}\n"


def test_run_prints_the_layers_the_total_and_the_verdict() -> None:
    result = run_small()
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("small, batch 2, on tiny_4x4: channel_first lowering, event engine")
    assert any(line.startswith("conv1 ") and line.endswith(" ok") for line in lines)
    assert any(line.startswith("Total: ") for line in lines)
    outputs = 2 * (5 * 6 * 6 + 7)
    assert lines[-1] == f"Every output checked: {outputs} of {outputs} elements equal the reference, 0 wrong."


def test_without_check() -> None:
    assert run_small("--no-check").stdout.splitlines()[-1] == "Outputs not checked (--no-check)."


def test_partly_used_words_are_told() -> None:
    assert "Words partly used" not in run_small("--layers", "fc").stdout
    assert "Words partly used" in tpusim("run", "small.yaml", "--layers", "fc", "--batch", "1").stdout


def test_layers_and_set() -> None:
    result = run_small("--layers", "f*", "--set", "array.rows=2", "--set", "array.cols=8", "--json", "-")
    data = json.loads(result.stdout)
    assert [layer["name"] for layer in data["layers"]] == ["fc"]
    assert data["hardware"]["array"]["rows"] == 2
    assert data["hardware"]["array"]["cols"] == 8


def test_a_workload_from_standard_input() -> None:
    result = tpusim("run", "-", *TINY, "--json", "-", stdin=WORKLOAD)
    assert json.loads(result.stdout)["workload"] == "small"


def test_json_to_standard_output_is_all_there_is() -> None:
    shown = forked.tpusim("run", "small.yaml", *TINY, "--json", "-")
    data = json.loads(shown.stdout)
    assert (data["tpusim"], data["batch"], len(data["layers"])) == (__version__, 2, 2)
    assert "Every output checked" in shown.stderr


def test_json_and_out_write_the_same_result() -> None:
    assert run_small("--json", "a.json", "--out", "deep/er").exit_code == 0
    assert files() == sorted([*UNTOUCHED, "a.json", "deep", "er", "run.json"])
    assert Path("a.json").read_bytes() == Path("deep/er/run.json").read_bytes()


def test_a_result_is_replaced_whole_through_a_link() -> None:
    Path("old.json").write_text("old")
    Path("link.json").symlink_to("old.json")
    assert run_small("--json", "link.json").exit_code == 0
    assert Path("link.json").is_symlink()
    assert json.loads(Path("old.json").read_text())["workload"] == "small"


def test_a_device_is_written_to_and_not_replaced() -> None:
    assert run_small("--json", os.devnull).exit_code == 0
    assert not Path(os.devnull).is_file()


def test_a_failed_write_leaves_the_old_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    Path("a.json").write_text("old")
    monkeypatch.setattr(os, "replace", full)
    result = run_small("--json", "a.json")
    assert (result.exit_code, result.stderr) == (
        2,
        "Error: a.json: cannot be written (No space left on device)\n",
    )
    assert Path("a.json").read_text() == "old"
    assert files() == sorted([*UNTOUCHED, "a.json"])


def test_an_unwritable_target_is_found_before_the_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_action, "run", lambda *_, **__: pytest.fail("simulated"))
    assert run_small("--json", "folder").exit_code == 2


def with_simulate(monkeypatch: pytest.MonkeyPatch, then: Callable[..., Any]) -> None:
    """Let the command call `then` with what simulate returns."""
    monkeypatch.setattr(run_action, "run", lambda *args, **options: then(run(*args, **options)))


def test_a_wrong_output_is_exit_code_1_and_the_json_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def corrupt(result: Any) -> Any:
        first = Mismatch((1, 2, 3, 0), ("channel", "row", "col", "image"), 7.0, 9.0)
        conv1 = replace(result.layers[0], outputs_mismatched=2, first_mismatch=first)
        total = replace(result.total, outputs_mismatched=2)
        return replace(result, layers=(conv1, *result.layers[1:]), total=total)

    with_simulate(monkeypatch, corrupt)
    result = run_small("--json", "a.json")
    assert result.exit_code == 1
    assert "layer conv1: 2 of 360 outputs are wrong" in result.stderr
    assert "ofmap[channel=1, row=2, col=3, image=0] is 9, expected 7" in result.stderr
    assert "equal the reference, 2 wrong." in result.stdout
    assert json.loads(Path("a.json").read_text())["layers"][0]["first_mismatch"]["expected"] == 7


def test_a_deadlock_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(_: Any) -> None:
        raise DeadlockError("conv1: the stream waits for a fill that nobody starts")

    with_simulate(monkeypatch, stuck)
    result = run_small("--out", "deep")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: conv1: the stream waits for a fill that nobody starts\n"
    assert files() == UNTOUCHED


@pytest.mark.parametrize("targets", [(), ("--out", "deep"), ("--out", "deep", "--json", "a.json"), ("--json", "-")])
def test_an_interrupt_keeps_what_finished(targets: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, progress: Any, **options: Any) -> None:
        progress(run(*args, **options).layers[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(run_action, "run", interrupted)
    result = run_small(*targets)
    assert result.exit_code == 130
    written = {"--out": "deep/run.json", "--json": targets[-1].replace("-", "standard output") if targets else ""}
    places = [written[option] for option in targets if option in written]
    hold = "holds" if len(places) == 1 else "hold"
    kept = f"{' and '.join(places)} {hold} what is done" if places else "no file was written"
    assert result.stderr.splitlines()[-1] == f"Interrupted after 1 of 2 layers; {kept}."
    shown = result.stderr if "-" in targets else result.stdout
    assert any(line.startswith("conv1 ") for line in shown.splitlines())
    assert "(incomplete, 1 of 2 layers)" in shown
    for text in (result.stdout if place == "standard output" else Path(place).read_text() for place in places):
        partial_result = parse_result(text)
        assert (len(partial_result.layers), partial_result.layers_left) == (1, 1)
    assert files() == sorted([*UNTOUCHED, *(part for place in places if "." in place for part in place.split("/"))])


def test_a_complete_result_does_not_say_that_nothing_is_left() -> None:
    data = json.loads(run_small("--json", "-").stdout)
    assert "layers" in data
    assert "layers_left" not in data


@pytest.mark.usefixtures("undrawn")
def test_an_incomplete_result_says_so_wherever_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_of(result: Any) -> Any:
        layers = result.layers[:1]
        return replace(result, layers=layers, layers_left=1, total=total_of(layers, 0.0))

    with_simulate(monkeypatch, first_of)
    assert run_small("--out", "deep").exit_code == 0
    tpusim("plot", "deep", "--format", "svg")
    tpusim("report", "deep")
    words = "incomplete, 1 of 2 layers"
    assert words in tpusim("compare", "deep", "deep").stdout
    assert words in Path("deep/captions.txt").read_text()
    assert words in Path("deep/report.html").read_text()


def test_ctrl_c() -> None:
    reading, writing = os.pipe()
    with open(reading) as errors, open(os.devnull, "r+") as nothing:
        streams = nothing.fileno(), nothing.fileno(), writing
        process = forked.begun("run", "vgg16", "--out", "deep", streams=streams, first=told_at_once)
        os.close(writing)
        # The first line of progress.
        assert "/16 " in errors.readline()
        os.kill(process, signal.SIGINT)
        messages = errors.read()
    assert forked.code_of(process, 60) == 130
    assert "Traceback" not in messages
    done = int(re.findall(r"Interrupted after (\d+) of 16 layers", messages)[0])
    assert files() == (sorted([*UNTOUCHED, "deep", "run.json"]) if done else UNTOUCHED)
    if done:
        assert len(read_result(Path("deep")).layers) == done


def told_at_once() -> None:
    progress.FIRST_SECONDS = 0


@pytest.mark.long
@pytest.mark.parametrize("part", range(20))
def test_ctrl_c_at_any_moment_leaves_a_result_or_says_that_there_is_none(part: int, whole_run: float) -> None:
    """Somewhere in each twentieth of a run of many layers, its start and its end among them."""
    Path("many.yaml").write_text(MANY)
    words = [sys.executable, "-m", "tpusim", *RUN_MANY, "--layers", "*", "--out", "deep"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        time.sleep(PYTHON_STARTS_SECONDS + whole_run * (part + random.random()) / 20)
        process.send_signal(signal.SIGINT)
        shown, messages = process.communicate(timeout=120)
    assert "Traceback" not in messages
    if (Path("deep") / RESULT_FILE).exists():
        result = read_result(Path("deep"))
        assert len(result.layers) + result.layers_left == MOST
        assert process.returncode == (130 if "Interrupted" in messages else 0)
        # The report of a whole run can be what Ctrl-C cuts.
        assert "Total: " in shown or (process.returncode == 130 and not result.layers_left)
    else:
        assert process.returncode == 130
        assert messages.splitlines()[-1].endswith("no file was written.")
        assert files() == sorted([*UNTOUCHED, "many.yaml"])


MOST = 24
"""Layers of a run that is interrupted somewhere."""
MANY = "name: many\nlayers:\n" + "".join(
    f"  - {{name: fc{n}, op: gemm, m: {n + 1}, n: 20, k: 20}}\n" for n in range(MOST)
)
RUN_MANY = ("run", "many.yaml", "--hardware", "tiny_4x4", "--set", "mapping.search=estimate")
"""Different layers, none of which takes long."""

PYTHON_STARTS_SECONDS = 0.1
"""Before that, Python itself answers Ctrl-C."""


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> float:
    """How long they take now, whatever else runs."""
    (folder := tmp_path_factory.mktemp("many")).joinpath("many.yaml").write_text(MANY)
    began = time.monotonic()
    assert command(*RUN_MANY, cwd=folder).returncode == 0
    return time.monotonic() - began


def talkative(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is told whenever there is any, and nothing in between."""
    monkeypatch.setattr(progress, "QUIET_SECONDS", -1.0)
    monkeypatch.setattr(progress, "FIRST_SECONDS", 60.0)


def test_a_long_run_in_a_pipe_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    talkative(monkeypatch)
    lines = run_small("--no-check").stderr.splitlines()
    assert lines == [
        "0/2 conv1: lowering ...", "0/2 conv1: timing ...", "1/2 conv1: done ...",
        "1/2 fc: lowering ...", "1/2 fc: timing ...", "2/2 fc: done ...",
    ]  # fmt: skip
    checked = run_small("--layers", "conv1").stderr.splitlines()
    assert "0/1 conv1: checking ..." in checked
    assert "0/1 conv1: 100% of its outputs checked ..." in checked


def test_a_step_that_tells_nothing_is_still_seen_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.02)
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.02)
    with progress.Meter(54) as meter:
        meter.show(31, "conv1: timing")
        time.sleep(0.5)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 2
    assert all(re.fullmatch(r"31/54 conv1: timing(, \d s)? \.\.\.", line) for line in lines)


def test_who_waits_for_the_compiler_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talkative(monkeypatch)
    with progress.Meter(54) as meter:
        monkeypatch.setattr(imports, "_under_way", ["run"])
        meter.show(31, "conv1: timing")
        monkeypatch.setattr(imports, "_under_way", [])
        meter.show(31, "conv1: timing")
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["31/54 conv1: timing; loops are compiled ...", "31/54 conv1: timing ..."]


def test_the_time_left_goes_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while nothing new is heard; once it is over nobody knows how long it takes."""
    said = [progress.pace(10, 60.0, 0.25, "points", since) for since in (0.0, 100.0, 181.0)]
    assert said == ["10 points/min, about 3:00 left", "10 points/min, about 1:20 left", "10 points/min"]
    monkeypatch.setattr(progress, "QUIET_SECONDS", 60.0)
    shown: list[str] = []
    monkeypatch.setattr(progress, "say", lambda _, line: shown.append(line))
    meter = progress.Meter(4, "points")
    meter.show(1, "tiny")
    for passed in (0.0, 100.0):
        meter._began, meter._news, meter._told = (time.monotonic() - passed - each for each in (60.0, 0.0, 61.0))
        meter._tell()
    assert [line.partition(" left")[0][-4:] for line in shown] == ["3:00", "1:20"]


def test_a_pipe_gets_plain_text_in_full() -> None:
    shown = forked.tpusim("run", "small.yaml", *TINY, more={"COLUMNS": "30", "TERM": "xterm-256color"})
    assert "\x1b" not in shown.stdout + shown.stderr
    assert "…" not in shown.stdout
    assert "6x6x3>5 3x3" in shown.stdout
    assert not any(line.endswith(" ") for line in shown.stdout.splitlines())


@pytest.mark.long
def test_a_reader_that_leaves_early_changes_nothing() -> None:
    words = [sys.executable, "-m", "tpusim", "run", "small.yaml", *TINY, "--json", "a.json"]
    # Unbuffered, there would be nothing left to flush at exit.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, env=env) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        messages = forked.told(process.stderr.read())
    assert (process.returncode, messages) == (0, [])
    assert json.loads(Path("a.json").read_text())["workload"] == "small"


def test_a_terminal_without_unicode_can_show_every_name() -> None:
    Path("small.yaml").write_text(WORKLOAD.replace("conv1", "层→ü"))
    shown = forked.tpusim("run", "small.yaml", *TINY, more={"PYTHONIOENCODING": "ascii"})
    assert (shown.returncode, forked.told(shown.stderr)) == (0, [])
    assert "???" in shown.stdout


def test_plot_writes_pictures_beside_the_result_or_elsewhere(undrawn: None) -> None:
    assert run_small("--out", "results", "--no-check").exit_code == 0
    pictures = [
        "captions.txt",
        *(f"{name}.{kind}" for name in ("cycle_breakdown", "pe_utilization", "roofline") for kind in ("png", "svg")),
        *("time_by_op.png", "time_by_op.svg"),
    ]
    beside = tpusim("plot", "results")
    assert (beside.exit_code, beside.stderr) == (0, "")
    assert sorted(path.name for path in Path("results").iterdir()) == sorted([*pictures, "run.json"])
    elsewhere = tpusim("plot", "results/run.json", "--out", "deep/figures", "--format", "svg")
    vectors = [name for name in pictures if not name.endswith(".png")]
    assert sorted(elsewhere.stdout.split()) == [f"deep/figures/{name}" for name in vectors]
    assert all(Path(name).exists() for name in elsewhere.stdout.split())
    assert "cycle_breakdown: What the systolic array did" in Path("deep/figures/captions.txt").read_text()


PDFS = ("pe_utilization.pdf", "cycle_breakdown.pdf", "roofline.pdf", "time_by_op.pdf", "captions.txt")


def test_plot_in_the_formats_asked_for(undrawn: None) -> None:
    run_small("--out", "results", "--no-check")
    shown = tpusim("plot", "results", "--out", "papers", "--format", "pdf", "--format", "pdf")
    assert shown.stdout.split() == [f"papers/{name}" for name in PDFS]
    assert Path("papers/pe_utilization.pdf").read_text().startswith("pdf: ")


@pytest.mark.long
def test_the_same_result_gives_the_same_pdf() -> None:
    run_small("--out", "results", "--no-check")
    first, again = (
        tpusim("plot", "results", "--out", folder, "--format", "pdf").stdout.split() for folder in ("one", "two")
    )
    assert [Path(name).read_bytes() for name in first] == [Path(name).read_bytes() for name in again]


def test_plot_into_an_unwritable_place() -> None:
    run_small("--out", "results", "--no-check")
    before = files()
    assert tpusim("plot", "results", "--out", "small.yaml/figures").exit_code == 2
    assert files() == before


@pytest.mark.parametrize(("module", "arguments"), [("typer", []), ("numpy", ["run", "small.yaml"])])
def test_ctrl_c_while_the_command_is_still_imported(module: str, arguments: list[str]) -> None:
    code = f"""
import sys
from importlib.abc import MetaPathFinder

class Interrupt(MetaPathFinder):
    def find_spec(self, name, *_):
        if name == "{module}":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
from tpusim.__main__ import main
main()
"""
    shown = subprocess.run([sys.executable, "-c", code, *arguments], check=False, capture_output=True, text=True)
    assert (shown.returncode, shown.stdout, shown.stderr) == (130, "", "Interrupted; no file was written.\n")


def test_what_needs_no_simulator_imports_none() -> None:
    """Help of every command, one after another: the names of all modules that are there in the end."""
    asked = [["--version"], ["--help"], *([name, "--help"] for name in COMMANDS)]
    code = f"""
import sys
from tpusim.__main__ import main

for sys.argv[1:] in {asked!r}:
    main()
print(*sys.modules, file=sys.stderr)
"""
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert shown.stdout.count("Example: tpusim ") == len(asked) - 1
    imported = {*shown.stderr.split()}
    assert {"typer", "tpusim.cli.commands"} <= imported
    readers = {"tpusim.machines.tpu.description", "tpusim.network.workload"}
    assert not ({"numpy", "matplotlib", "yaml", "rich"} | readers) & imported


def test_help_names_what_there_is() -> None:
    assert tuple(names.ENGINES) == ENGINES
    assert (DTYPES, SUMS, OPS) == (names.DTYPES, names.SUMS, names.OPS)
    assert tuple(STORED_BITS) == names.NARROW
    assert tuple(ORDERS) == names.LAYER_ORDERS
    assert tuple(number_sets()) == names.NUMBER_SETS
    assert (names.MOST_IMAGES, names.BATCH) == (MOST_IMAGES, USUAL_BATCH)
    assert tuple(WORDS) == names.NUMBER_WORDS
    assert names.RESULT_FILE == RESULT_FILE
    assert names.GENERATION_FILE == GENERATION_FILE
    assert names.TRACE_FORMATS == trace_action.FORMATS


def test_a_trace_on_the_screen_and_in_a_file() -> None:
    """The same lines; a line for every cycle that the run takes."""
    head = len(LEGEND) + 1
    shown = tpusim("trace", "small.yaml", *TINY, "--layers", "fc")
    assert shown.exit_code == 0, shown.output
    cycles = json.loads(run_small("--layers", "fc", "--json", "-").stdout)["total"]["cycles"]
    numbers = [int(line.split()[0]) for line in shown.stdout.splitlines()[head:]]
    assert numbers == list(range(cycles))
    assert tpusim("trace", "small.yaml", *TINY, "--layers", "fc", "--out", "trace.txt").exit_code == 0
    assert Path("trace.txt").read_text() == shown.stdout
    part = tpusim("trace", "small.yaml", *TINY, "--layers", "fc", "--from", "5", "--to", "9").stdout.splitlines()
    assert part[head:] == shown.stdout.splitlines()[head + 5 : head + 10]


@pytest.mark.parametrize("suffix", few(1, ["svg", "png"]))
def test_a_trace_as_a_picture(suffix: str) -> None:
    """The same run gives the same bytes."""
    pictures = []
    for _ in range(2):
        assert (
            tpusim("trace", "small.yaml", *TINY, "--layers", "fc", "--to", "12", "--out", f"trace.{suffix}").exit_code
            == 0
        )
        pictures.append(Path(f"trace.{suffix}").read_bytes())
    assert len(pictures[0]) > 1000
    assert pictures[0] == pictures[1]


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_every_engine_reports_the_same(engine: str) -> None:
    event, other = (json.loads(run_small("--engine", each, "--json", "-").stdout) for each in ("event", engine))
    assert other["layers"] == event["layers"]
    assert other["engine"] == engine


def test_without_numba_the_dram_runs_as_python_and_the_register_engine_says_what_to_install() -> None:
    """Each in a line; the compiler's absence is told once."""
    shown = hidden(
        "numba", ("run", "--layers", "fc", "--no-check", "--hardware", "tpu_v2_hbm"), ("run", "--engine", "register")
    )
    assert shown.returncode == 2
    warned, refused = forked.told(shown.stderr)
    assert warned.startswith("Warning: Numba cannot be imported (")
    assert warned.endswith(f"20 times slower; {sys.executable} -m pip install numba")
    assert "Total: " in shown.stdout
    needs_numba(refused)


@pytest.mark.long
@pytest.mark.parametrize(
    ("missing", "arguments"), [("numba", ("run", "--engine", "register")), ("llvmlite", ("trace", "--layers", "fc"))]
)
def test_without_what_compiles_the_message_says_what_to_install(missing: str, arguments: tuple[str, ...]) -> None:
    shown = hidden(missing, arguments)
    assert shown.returncode == 2
    (refused,) = forked.told(shown.stderr)
    needs_numba(refused)


def hidden(missing: str, *asked: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """What commands say one after another, of the small network, in a process without a package."""
    words = [[name, "small.yaml", *TINY, *more] for name, *more in asked]
    code = f"import sys; sys.modules['{missing}'] = None; from tpusim.cli.app import main\n"
    code += f"for sys.argv[1:] in {words}: main()"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def needs_numba(line: str) -> None:
    assert "the register engine needs Numba, which cannot be imported (" in line
    assert line.endswith(f"): {sys.executable} -m pip install numba")


@pytest.mark.long
def test_a_reader_that_has_seen_enough_ends_a_trace() -> None:
    """`tpusim trace ... | head` does not go on simulating."""
    Path("long.yaml").write_text("name: long\nlayers: [{name: fc, op: gemm, m: 1000, n: 8, k: 60}]\n")
    words = [sys.executable, "-m", "tpusim", "trace", "long.yaml", *TINY, "--layers", "fc"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout
        assert process.stdout.readline().startswith("lanes: ")
        process.stdout.close()
        _, messages = process.communicate(timeout=60)
    assert (process.returncode, forked.told(messages)) == (0, [])


@pytest.mark.parametrize("out", [(), ("--out", "trace.txt")])
def test_a_trace_that_skips_tells_how_far_it_is(out: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    talkative(monkeypatch)
    Path("long.yaml").write_text("name: long\nlayers: [{name: fc, op: gemm, m: 150, n: 8, k: 60}]\n")
    result = tpusim("trace", "long.yaml", *TINY, "--from", "2500", "--to", "2502", *out)
    assert result.exit_code == 0, result.output
    total = "2,503" if out else "2,500"
    assert result.stderr.splitlines() == [f"{1024 * k:,}/{total} cycles ..." for k in range(1, 3)]


def test_a_register_run_tells_how_far_a_layer_is(monkeypatch: pytest.MonkeyPatch) -> None:
    talkative(monkeypatch)
    lines = run_small("--engine", "register", "--layers", "conv1").stderr.splitlines()
    assert "0/1 conv1: 1,024 cycles ..." in lines
    assert lines[-1] == "1/1 conv1: done ..."


@pytest.mark.parametrize("out", [(), ("--out", "trace.txt"), ("--out", "trace.png")])
def test_an_interrupted_trace_says_so(out: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(register.RegisterMachine, "run_to", interrupted)
    result = tpusim("trace", "small.yaml", *TINY, "--layers", "fc", *out)
    assert result.exit_code == 130
    assert result.stderr == "Interrupted; no file was written.\n"
    assert files() == UNTOUCHED


def test_a_trace_of_another_length_than_the_event_engine_says(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = event.run
    for by, says in ((1, r"\d+ in"), (-1, "more in")):

        def wrong(*arguments: Any, by: int = by) -> Any:
            timing = sound(*arguments)
            return replace(timing, cycles=timing.cycles + by)

        monkeypatch.setattr(event, "run", wrong)
        result = tpusim("trace", "small.yaml", *TINY, "--layers", "fc")
        assert result.exit_code == 1
        assert re.search(rf"layer fc: the engines disagree: \d+ cycles in the event engine, {says}", result.stderr)


@pytest.mark.parametrize("arguments", [("run", "--engine", "register"), ("trace", "--layers", "fc")])
def test_too_little_memory_is_told(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(register.RegisterMachine, "__init__", full)
    result = tpusim(arguments[0], "small.yaml", *TINY, *arguments[1:])
    assert result.exit_code == 2
    assert "too little memory for the register engine; take a smaller batch, or engine event" in result.stderr
    assert result.stderr.startswith("Error: layer ")
