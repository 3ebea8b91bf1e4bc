"""Full disks, closed pipes, and text that terminals, spreadsheets and fonts take amiss: one line, or done right."""

from __future__ import annotations

import csv
import json
import os
import re
import resource
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.conftest import in_this_process
from tests.invoked import tpusim
from tpusim.base.words import visible
from tpusim.cli.actions import run as run_action
from tpusim.report.tables.sweep import read_points, write_csv
from tpusim.report.text import from_cell, to_cell

TINY = ("run", "tiny", "--hardware", "tiny_4x4", "--batch", "2", "--set", "mapping.search=estimate")
EXPLAIN = (
    "explain", "tiny", "--layer", "fig10", "--hardware", "tiny_4x4", "--set", "mapping.search=estimate",
)  # fmt: skip
MINUSES = "-" * 1000
FULL = Path("/dev/full")


@pytest.fixture(autouse=True)
def in_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def command(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "tpusim", *arguments]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run(words, text=True, timeout=60, check=False, **options)


@cache
def result() -> str:
    """A run as the command writes it, without its seal."""
    done = tpusim(*TINY, "--json", "-")
    assert done.exit_code == 0
    return re.sub(r'"seal": ".*"', '"seal": ""', done.stdout)


def result_with(names: dict[str, str]) -> None:
    """A result in results/run.json, with other names; as somebody else may have written it."""
    text = result()
    for name, other in names.items():
        assert json.dumps(name) in text
        text = text.replace(json.dumps(name), json.dumps(other))
    Path("results").mkdir()
    Path("results/run.json").write_text(text)


# ---- files that cannot be written, output that nobody takes


@pytest.mark.parametrize("targets", [("--json", "a.json"), ("--out", "deep"), ("--json", "a.json", "--out", "deep")])
def test_the_table_is_shown_although_files_cannot_be_written(
    targets: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    result = tpusim(*TINY, *targets)
    assert result.exit_code == 2
    assert "Every output checked" in result.stdout
    lines = forked.told(result.stderr)
    assert len(lines) == len(targets) // 2
    assert all(line.startswith("Error: ") and "cannot be written (No space left on device)" in line for line in lines)


def test_one_file_that_fails_keeps_no_other_from_being_written() -> None:
    result = tpusim(*TINY, "--json", str(FULL), "--out", "deep")
    assert result.exit_code == 2
    assert "Every output checked" in result.stdout
    assert forked.told(result.stderr) == ["Error: /dev/full: cannot be written (No space left on device)"]
    assert json.loads(Path("deep/run.json").read_text())["workload"] == "tiny"


@pytest.mark.parametrize(
    ("arguments", "last"),
    [
        (EXPLAIN, "How it is lowered"),
        (("compare", "results", "results"), "Total"),
        (("validate", "--set-of-numbers", "v3_odd"), "v3_odd"),
    ],
)
def test_what_was_found_is_shown_although_the_json_cannot_be_written(
    arguments: tuple[str, ...], last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_this_process(monkeypatch)
    result_with({})
    whole = tpusim(*arguments)
    result = tpusim(*arguments, "--json", str(FULL))
    assert whole.exit_code == 0
    assert last in whole.stdout
    assert (result.exit_code, result.stdout) == (2, whole.stdout)
    assert forked.told(result.stderr) == [f"Error: {FULL}: cannot be written (No space left on device)"]


EVERY = [
    TINY, (*TINY, "--json", "-"), ("list",), ("--help",), ("run", "--help"), ("--version",),
    ("plot", "results", "--format", "svg"), ("compare", "results", "results"), EXPLAIN,
    ("trace", *TINY[1:], "--layers", "fig10"),
]  # fmt: skip


EACH = [
    pytest.param(each, marks=[pytest.mark.long] * (at % 2 or each == ("list",)), id=" ".join(each))
    for at, each in enumerate(EVERY)
]
OTHER = [
    pytest.param(each, marks=[pytest.mark.long] * (at % 2 == 0), id=" ".join(each)) for at, each in enumerate(EVERY)
]
"""A quick run takes every command, with one way or with the other of having no output."""


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("arguments", EACH)
def test_full_output_is_one_line(arguments: tuple[str, ...]) -> None:
    if "results" in arguments:
        result_with({})
    with FULL.open("w") as full:
        shown = forked.tpusim(*arguments, output=full.fileno())
    assert shown.returncode == 2
    assert shown.stderr.splitlines()[-1] == "Error: standard output: cannot be written (No space left on device)"
    assert "Traceback" not in shown.stderr


def test_closed_output_is_told() -> None:
    shown = forked.tpusim(*TINY, first=closed)
    last = shown.stderr.splitlines()[-1]
    assert (shown.returncode, last.startswith("Error: standard output: is closed")) == (2, True), shown.stderr


def closed() -> None:
    """Output as Python finds it behind `>&-`."""
    os.close(1)
    sys.stdout = None  # type: ignore[assignment]


@pytest.mark.long
@pytest.mark.parametrize("arguments", [TINY, ("list",)], ids=" ".join)
def test_output_that_a_shell_closed_is_told(arguments: tuple[str, ...]) -> None:
    words = ["sh", "-c", '"$@" >&-', "sh", sys.executable, "-m", "tpusim", *arguments]
    shown = subprocess.run(words, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    # A busy computer may take the two seconds after which progress is told.
    last = shown.stderr.splitlines()[-1]
    assert (shown.returncode, last.startswith("Error: standard output: is closed")) == (2, True), shown.stderr


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("arguments", OTHER)
def test_a_reader_that_leaves_after_a_line_changes_nothing(arguments: tuple[str, ...]) -> None:
    if "results" in arguments:
        result_with({})
    reading, writing = os.pipe()
    with open(reading) as reader, ThreadPoolExecutor(1) as beside:
        # The pipe is closed as soon as its first line is read, while the command goes on.
        leaving = beside.submit(lambda: (reader.readline(), reader.close()))
        shown = forked.tpusim(*arguments, output=writing)
        os.close(writing)
        leaving.result()
    # What Typer writes itself, help and the like, ends with 1 where nobody reads it.
    assert shown.returncode in (0, 1 if "--help" in arguments else 0)
    assert "Traceback" not in shown.stderr
    assert "Error" not in shown.stderr


# ---- paths that lead nowhere


@pytest.fixture
def odd_paths(tmp_path: Path) -> None:
    """Links that lead to themselves, a folder, a file, a pipe with a name: with each suffix that commands want."""
    for suffix in ("", ".png", ".txt", ".yaml", ".csv", ".onnx", ".npz", ".html"):
        Path(f"loop{suffix}").symlink_to(f"loop{suffix}")
        Path(f"folder{suffix}").mkdir()
        os.mkfifo(f"pipe{suffix}")
    Path("file").write_text("")
    Path("topology.csv").write_text("Layer, M, N, K,\nfc, 8, 10, 12,\n")
    Path("requests.csv").write_text("")
    Path("sweep.yaml").write_text("name: s\nworkloads: [tiny]\nhardware: tiny_4x4\naxes: {batch: [1, 2]}\n")
    result_with({})


MANY = "n" * 300
NOWHERE = ["loop", "loop/x", "file/x", MANY, f"{MANY}/x", "a\0b", "/proc/none/x"]
FILES = [
    (*TINY, "--json", "@"), (*EXPLAIN, "--json", "@"), (*EXPLAIN, "--out", "@.png"), ("report", "results", "-o", "@"),
    ("compare", "results", "results", "--json", "@"), ("list", "--json", "@"), ("area", "--json", "@"),
    ("import", "topology.csv", "-o", "@.yaml"), ("validate", "--set-of-numbers", "v3", "--json", "@"),
    ("trace", *TINY[1:], "--layers", "fig10", "-o", "@.txt"),
    ("dram", "requests.csv", "--json", "@"), ("paper", "--figure", "table1", "--json", "@"),
]  # fmt: skip
FOLDERS = [
    (*TINY, "--out", "@"), ("plot", "results", "--format", "svg", "--out", "@"),
    ("sweep", "sweep.yaml", "--out", "@"), ("paper", "--figure", "table1", "--out", "@"),
    ("validate", "--set-of-numbers", "v3", "--out", "@"),
]  # fmt: skip


def refused(arguments: tuple[str, ...], path: str) -> str:
    """The one error that says why a path cannot be used; nothing is written."""
    before = sorted(os.listdir())
    done = tpusim(*(word.replace("@", path) for word in arguments))
    assert (done.exit_code, done.stdout, type(done.exception)) == (2, "", SystemExit), (arguments, path, done.output)
    told = [line for line in forked.told(done.stderr) if line.startswith("Error: ")]
    assert len(told) == 1, done.stderr
    assert sorted(os.listdir()) == before
    return told[0]


@pytest.mark.usefixtures("odd_paths")
@pytest.mark.parametrize("arguments", [*FILES, *FOLDERS], ids=" ".join)
def test_a_place_that_nothing_can_be_written_to_is_one_error(arguments: tuple[str, ...]) -> None:
    for path in NOWHERE:
        # Of a link with a suffix, the link without is another.
        if path == "loop" or "@." not in arguments[-1]:
            assert any(says in refused(arguments, path) for says in ("cannot be written", "embedded null byte"))
    if arguments in FILES:
        assert "is a directory)" in refused(arguments, "folder").casefold()
    else:
        assert re.search("Not a directory|it is a file", refused(arguments, "file"))


@pytest.mark.usefixtures("odd_paths")
@pytest.mark.parametrize("name", ["sweep.lock", "sweep.sqlite"])
@pytest.mark.parametrize("kind", ["loop", "folder", "pipe"])
def test_a_file_of_a_sweep_that_is_none_is_one_error(name: str, kind: str) -> None:
    Path("out").mkdir()
    Path(kind).rename(f"out/{name}")
    if kind == "loop":
        Path(f"out/{name}").unlink()
        Path(f"out/{name}").symlink_to(name)
    assert f"out/{name}: cannot be used" in refused(("sweep", "sweep.yaml", "--workers", "1", "--out", "@"), "out")


READING = [
    ("run", "@.yaml"), ("run", "@.csv"), ("run", "@.onnx"), ("run", "tiny", "--hardware", "@"), ("explain", "@.yaml"),
    ("run", "topology.csv", "--input", "@.npz"), ("report", "@"), ("plot", "@"), ("compare", "@", "results"),
    ("compare", "results", "@"), ("sweep", "@.yaml"), ("trace", "@.yaml"), ("import", "@.onnx"), ("import", "@.csv"),
    ("area", "--hardware", "@"), ("area", "--set", "technology=@"), ("dram", "@.csv"), ("report", "@.csv"),
    ("dram", "requests.csv", "--device", "@"), ("validate", "--truth", "@"),
]  # fmt: skip


@pytest.mark.usefixtures("odd_paths")
@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_a_file_that_cannot_be_read_is_one_error(arguments: tuple[str, ...]) -> None:
    for path in ("loop", "file/x", MANY, f"{MANY}/x", "a\0b", "none", "pipe"):
        said = refused(arguments, path)
        if path == "pipe" and "--truth" not in arguments:
            assert "is a named pipe, on which a reader may wait for ever" in said


def test_a_pipe_that_a_shell_made_is_read_to_its_end() -> None:
    """As `<(command)` gives it, whose writer may be slow."""
    reading, writing = os.pipe()
    text = "name: n\nlayers: [{name: fc, op: gemm, m: 4, n: 7, k: 9}]\n"
    with open(reading, "rb"), open(writing, "w") as pipe, ThreadPoolExecutor(1) as beside:
        slow = beside.submit(lambda: (time.sleep(0.1), pipe.write(text), pipe.close()))
        done = tpusim("run", f"/dev/fd/{reading}", "--hardware", "tiny_4x4", "--no-check")
        slow.result()
    assert (done.exit_code, done.stdout.partition(",")[0]) == (0, "n"), done.output


# ---- too little memory


def test_a_memory_error_wherever_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(run_action, "run", full)
    result = tpusim(*TINY)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: this computer has too little memory")
    assert result.stderr.count("\n") == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ulimit -v")
@pytest.mark.parametrize("option", [(), pytest.param(("--no-check",), marks=pytest.mark.long)])
def test_what_ulimit_forbids_is_refused_at_once(option: tuple[str, ...]) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (2 * 10**9, 2 * 10**9))

    # Without a check the steps must fill the memory; there are most of them on a small array.
    millions, machine = (16, "tiny_4x4") if option else (2, "tpu_v2")
    Path("huge.yaml").write_text(f"name: huge\nlayers: [{{name: fc, op: gemm, m: {millions}000000, n: 512, k: 512}}]\n")
    words = ("--hardware", machine, "--set", "mapping.search=estimate", *option)
    shown = command("run", "huge.yaml", *words, preexec_fn=limited)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr.startswith("Error: layer ")
    assert " GB are free; " in shown.stderr
    assert shown.stderr.count("\n") == 1


# ---- text from elsewhere


@pytest.mark.parametrize(
    "arguments",
    [("run", f"{MINUSES}1"), ("run", "--", f"{MINUSES}1"), (*TINY, "--set", f"array.rows={MINUSES}1"),
     (*TINY, "--batch", f"{MINUSES}1"), (*TINY, "--layers", MINUSES)],
    ids=["option", "workload", "set", "batch", "layers"],
)  # fmt: skip
def test_a_thousand_minuses_are_one_error(arguments: tuple[str, ...]) -> None:
    result = tpusim(*arguments)
    assert result.exit_code == 2
    assert "Error: " in result.stderr
    assert isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("key", ["name: X\nlayers: [{name: fc, op: gemm, m: 4, n: 7, k: 9}]",
                                 "name: x\nlayers: [{name: fc, op: gemm, m: X, n: 7, k: 9}]",
                                 "name: x\nlayers: [{name: X, op: gemm, m: 4, n: 7, k: 9}]"])  # fmt: skip
def test_a_thousand_minuses_in_a_workload_are_one_error(key: str) -> None:
    Path("net.yaml").write_text(key.replace("X", f"{MINUSES}1"))
    result = tpusim("run", "net.yaml")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("Error: net.yaml:")


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("minuses", [200, 400, 985, 1000])
def test_minuses_in_a_condition_are_worked_out_or_refused(minuses: int) -> None:
    spec = {"name": "s", "workloads": ["tiny"], "hardware": "tiny_4x4", "axes": {"batch": [1, 2]}}
    Path("s.yaml").write_text(json.dumps({**spec, "where": [f"{'-' * minuses}batch > 1"]}))
    result = tpusim("sweep", "s.yaml", "--workers", "1")
    assert result.exit_code == (0 if minuses == 200 else 2)
    assert isinstance(result.exception, SystemExit | None)
    if minuses > 200:
        assert result.stderr.startswith("Error: s.yaml:1: where")
        assert result.stderr.count("\n") == 1


def test_what_a_terminal_obeys_is_made_visible() -> None:
    assert visible("a\x1b[31mb\r\x07\x9b\u202ec") == r"a\x1b[31mb\r\x07\x9b\u202ec"
    assert visible("plain, 层 and 😀\n\tas they are") == "plain, 层 and 😀\n\tas they are"


def test_escapes_in_the_names_of_a_result_reach_no_terminal_and_letters_that_a_font_lacks_are_no_warning() -> None:
    escape = "\x1b]0;title\x07\x1b[2J"
    result_with({"fig10": f"{escape}😀 conv 层", "tiny": f"{escape}😀 net", "tiny_4x4": "😀"})
    for arguments in (("compare", "results", "results"), ("plot", "results", "--format", "svg"), ("report", "results")):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result = tpusim(*arguments)
        assert (result.exit_code, forked.told(result.stderr)) == (0, []), result.output
        assert "\x1b" not in result.output
        assert "\x07" not in result.output
    assert r"\x1b]0;title\x07" in tpusim("compare", "results", "results").stdout
    drawn = Path("results/roofline.svg").read_text()
    assert "\x1b" not in drawn
    assert "😀" in drawn
    Path("results/run.json").write_text("{" + escape)
    assert "\x1b" not in tpusim("plot", "results").stderr


FORMULAS = ["=1+1", "+1", "-cmd|' /C calc'!A0", "@SUM(A1)", "\tx", "\rx", "'quoted", "''twice", "'=1"]


@pytest.mark.parametrize("text", [*FORMULAS, "plain", "", "a=b", "700 GB/s", "层"])
def test_a_guarded_cell_gives_its_text_back(text: str) -> None:
    cell = to_cell(text)
    assert isinstance(cell, str)
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert from_cell(cell) == text


def test_formulas_in_csv_are_guarded_and_read_back() -> None:
    columns = {"vector_memory.ports": str, "workload": str, "batch": int, "cycles": int, "time_us": float, "error": str}
    rows = [
        {"vector_memory.ports": text, "workload": text, "batch": -1, "cycles": 2, "time_us": 0.5, "error": ""}
        for text in FORMULAS
    ]
    write_csv(Path("points.csv"), rows, columns)
    with Path("points.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert all(cell["workload"].startswith("'") for cell in cells)
    assert {cell["batch"] for cell in cells} == {"-1"}
    points = read_points(Path("points.csv"))
    assert points.texts["workload"] == points.texts["vector_memory.ports"] == tuple(FORMULAS)


@pytest.mark.long
@pytest.mark.parametrize("kinds", [("png",), ("pdf",)], ids=str)
def test_letters_that_a_font_lacks_are_no_warning(kinds: tuple[str, ...]) -> None:
    result_with({"fig10": "😀 conv 层", "tiny": "😀 net", "tiny_4x4": "😀"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = tpusim("plot", "results", *(word for kind in kinds for word in ("--format", kind)))
    assert (result.exit_code, forked.told(result.stderr)) == (0, [])
