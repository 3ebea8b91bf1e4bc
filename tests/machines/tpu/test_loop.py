"""The loop of the event engine: as machine code, as Python, with bounds checked; limits; and the file that keeps it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis.strategies import SearchStrategy, booleans, integers, one_of, sampled_from
from typer.testing import CliRunner

from tests.covering import few
from tests.rules import rule
from tests.strategies import cases, convs, machine, machines_of_all_kinds, pools, row_ops, vector_ops
from tests.test_structure import imported
from tpusim import load_hardware
from tpusim.base.errors import DeadlockError, InputError
from tpusim.base.memory import at_rest
from tpusim.cli.app import app
from tpusim.machines.tpu import event
from tpusim.machines.tpu.definition import NEVER
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event import engine, native
from tpusim.machines.tpu.event.columns import Columns, columns_of
from tpusim.machines.tpu.event.engine import PlainRun
from tpusim.machines.tpu.event.state import LoopRun, LoopState, bounds_of
from tpusim.machines.tpu.lowering import drafts
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST
from tpusim.machines.tpu.lowering.registry import LOWERINGS
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload, Stream, Vector
from tpusim.machines.tpu.program.transfers import BankFill, LaneTransfer, Spill, Transfer
from tpusim.machines.tpu.runs.fastest_draft import prepared
from tpusim.network.ops.array_op import Conv2d
from tpusim.network.ops.op import Op

Loop = native.Loop
relaxed = settings(max_examples=cases(1 / 6), deadline=None, suppress_health_check=list(HealthCheck))
MOST_STEPS = 1500
"""Of a case: few have more, and they take most of the time."""


def lowered(layer: Op, hardware: Hardware, how: str, own: bool = False) -> tuple[Program, Hardware]:
    if own and hardware.array.count > 1:
        hardware = hardware.having("array", weights="own")
    # Most of those that are too long need not be lowered to be told.
    assume(layer.macs(1) / hardware.pes < 4_000)
    try:
        ready = prepared(layer, 2, hardware.having("mapping", search="estimate"), how)
    except InputError:
        assume(False)
    assume(len(ready.program.rows) < MOST_STEPS)
    return ready.program, ready.running


def told(program: Program, hardware: Hardware, run: Loop, limit: int = NEVER) -> Any:
    """All that a form of the loop says of a Program."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_fast_enough", lambda _: run)
        try:
            log = engine.timed(program, hardware, True, limit)
        except DeadlockError as error:
            return str(error)
    if log is None:
        return None
    tables = log.loads, log.passes, log.works, log.moves, log.reads, *log.owners.values()
    return log.cycles, log.owned, log.hbm, [each.tolist() for each in tables]


def ops() -> SearchStrategy[Op]:
    return one_of(convs(channels=40, size=8), vector_ops(), row_ops(), pools())


def drawn(test: Callable[..., None]) -> Callable[..., None]:
    """Layers of every kind on machines of every kind, by every lowering, some with a limit."""
    hows, parts = sampled_from(sorted(LOWERINGS)), integers(1, 12)
    given_all = given(layer=ops(), hardware=machines_of_all_kinds(8), how=hows, own=booleans(), part=parts)
    return relaxed(given_all(test))


def agree(run: Loop, other: Loop, layer: Op, hardware: Hardware, how: str, own: bool, part: int) -> None:
    program, running = lowered(layer, hardware, how, own)
    whole = told(program, running, run)
    assert told(program, running, other) == whole
    limit = max(1, whole[0] * part // 8)
    assert told(program, running, other, limit) == told(program, running, run, limit)


@drawn
def test_machine_code_does_what_python_does(layer: Op, hardware: Hardware, how: str, own: bool, part: int) -> None:
    compiled = native.loaded()
    assert compiled
    agree(PlainRun, compiled, layer, hardware, how, own, part)


@drawn
def test_a_recipe_is_right_for_each_step_that_has_it(
    layer: Op, hardware: Hardware, how: str, own: bool, part: int
) -> None:
    program, running = lowered(layer, hardware, how, own)
    columns = columns_of(program, running)
    for number, (step, row) in enumerate(zip(program.rows, columns.rows, strict=True)):
        match step:
            case Transfer():
                its = columns.moves[row["recipe"]]
                busy = max(running.pipes[step.bus].cycles(step.hbm_bytes), step.conversion_cycles(running))
                accesses = len(step.accesses) if isinstance(step, LaneTransfer) and step.work else step.words
                assert (its["words"], its["busy"], its["accesses"]) == (step.words, busy, accesses)
            case Stream():
                its = columns.passes[row["recipe"]]
                assert (its["words"], its["accumulate"]) == (step.words, step.accumulate)
            case Preload():
                assert columns.loads[row["recipe"]].item() == (step.delay, step.bias_words)
            case Vector():
                its = columns.works[row["recipe"]]
                delay = step.delay + step.beat(program.fill_of(number), running).body
                assert (its["words"], its["delay"], its["scalars"]) == (step.words, delay, step.scalars.words)


@rule("T59")
def test_fills_of_banks_take_the_time_of_all_their_words() -> None:
    """Also where the fullest bank has as many words as another fill's."""
    hardware = load_hardware("tpu_v2_banked", ["array.size=8", "vector_unit.unpack_cycles=50"])
    ready = prepared(Conv2d("conv", 10, 6, 6, 8, 3), 2, hardware, "channel_last")
    fill = next(each for each in ready.program.rows if isinstance(each, BankFill))
    other = replace(fill)
    object.__setattr__(other, "lane_words", 100 * fill.lane_words)
    steps = fill, *(other if each is fill else each for each in ready.program.rows)
    columns = columns_of(replace(ready.program, rows=steps), ready.running)
    first, second = (columns.moves[columns.rows["recipe"][steps.index(each)]] for each in (fill, other))
    assert [first["busy"], second["busy"]] == [each.conversion_cycles(ready.running) for each in (fill, other)]


checked = dict[str, Callable[[Columns, LoopState], int]]()
"""The loop, compiled so that it looks at every index: code as it is used would read and write beside an array."""


@pytest.mark.long
@drawn
def test_no_index_is_out_of_bounds(layer: Op, hardware: Hardware, how: str, own: bool, part: int) -> None:
    from numba import njit

    if not checked:
        checked["run"] = native.compiled(njit(_nrt=False, boundscheck=True))

    class CheckedRun(LoopRun):
        def _once(self) -> int:
            status = checked["run"](self.program, self.tables)
            # Ranges of cells are not looked at: whatever is beyond their end would be left out.
            assert self.state.ends.max(initial=0) <= self.state.window[0].first + self.state.cells.shape[1]
            return status

    compiled = native.loaded()
    assert compiled
    agree(compiled, CheckedRun, layer, hardware, how, own, part)


def lowered_conv(size: int) -> tuple[Program, Hardware]:
    hardware = machine(4, 4, word_elements=4)
    return CHANNEL_FIRST.lower(Conv2d("conv", 40, 9, 9, 12, (3, 3)), size, hardware)[0], hardware


def test_the_log_names_every_step_once() -> None:
    program, hardware = lowered_conv(4)
    log = event.logged(program, hardware)
    steps = [step for table in (log.loads, log.passes, log.moves) for step in table["step"].tolist()]
    assert sorted(steps) == list(range(len(program.rows)))


# ---- limits


@relaxed
@given(
    layer=convs(channels=30, size=7),
    hardware=machines_of_all_kinds(6),
    how=sampled_from(["channel_first", "implicit_gemm", "explicit"]),
    more=integers(-40, 40),
)
def test_a_run_is_given_up_only_if_it_reaches_its_limit(layer: Conv2d, hardware: Hardware, how: str, more: int) -> None:
    program, running = lowered(layer, hardware, how)
    whole = event.run(program, running)
    assert event.run_within(program, running, whole.cycles + 1) == whole
    for limit in (whole.cycles, whole.cycles + more):
        assert event.run_within(program, running, limit) == (whole if limit > whole.cycles else None)


@drawn
def test_the_least_that_is_left_is_that_of_all_steps_behind(
    layer: Op, hardware: Hardware, how: str, own: bool, part: int
) -> None:
    """Passes of an array; and transfers of a bus, up to its last spill: nobody waits for fills behind that."""
    program, running = lowered(layer, hardware, how, own)
    columns = columns_of(program, running)
    of_passes, of_moves = bounds_of(columns)
    for first, end in pairwise(columns.orders.tolist()):
        for place in range(first, end):
            steps = [program.rows[step] for step in columns.order[place:end].tolist()]
            numbers = [program.numbers_of_paces[step] for step in columns.order[place:end].tolist()]
            frames = [program.frames(running)[number] for number in numbers]
            left = (frame.frames(step.words) * frame.period for step, frame in zip(steps, frames, strict=True)
                    if isinstance(step, Stream))  # fmt: skip
            assert of_passes[place] == sum(left)
            if place > first + part:
                break
    moves = [program.rows[step] for step in columns.transfers.tolist()]
    least = [columns.moves["least"][columns.rows["recipe"][step]] for step in columns.transfers.tolist()]
    for at in range(0, len(moves), 1 + len(moves) // 100):
        step = moves[at]
        behind = [other for other in range(at, len(moves)) if moves[other].bus == step.bus]
        spills = [other for other in behind if isinstance(moves[other], Spill)]
        left = sum(least[other] for other in behind[1:] if other <= spills[-1]) if spills else -1
        assert of_moves[at] == left


@pytest.mark.parametrize(
    ("layer", "machine", "changes", "share"),
    [
        (Conv2d("conv", 128, 14, 14, 128, 3, padding=1), "tpu_v2", {}, 0.5),
        (Conv2d("conv", 512, 14, 14, 128, 1), "tpu_v2", {"hbm.bandwidth": "20 GB/s"}, 0.9),
        (Conv2d("conv", 256, 56, 56, 512, 1, stride=2), "tpu_v2_hbm", {}, 0.9),
    ],
    ids=["array", "bus", "banks"],
)
def test_a_run_that_cannot_win_is_given_up_on_its_way(
    layer: Conv2d, machine: str, changes: dict[str, str], share: float
) -> None:
    hardware = load_hardware(machine, changes)
    program, runs = CHANNEL_FIRST.lower(layer, 8, hardware)[0], list[LoopRun]()

    def run(columns: Columns, state: LoopState) -> LoopRun:
        runs.append(PlainRun(columns, state))
        return runs[-1]

    cycles = event.run(program, hardware).cycles
    assert told(program, hardware, run, int(share * cycles)) is None
    assert 0 < (runs[-1].tables.done >= 0).sum() < len(program.rows) / 2


def test_a_program_whose_run_was_given_up_is_gone_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the garbage collector, which rests while Programs are made and timed; if it is too long to be kept."""
    monkeypatch.setattr(drafts, "_kept", {})
    monkeypatch.setattr(drafts, "LONGEST", 0)
    layer, hardware = Conv2d("conv", 128, 14, 14, 128, 3, padding=1), load_hardware("tpu_v2")
    program = CHANNEL_FIRST.lower(layer, 8, hardware)[0]
    held = ref(program)
    with at_rest():
        assert event.run_within(program, hardware, 1000) is None
        del program
        assert held() is None


# ---- which form, and the file that keeps machine code


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and a compiler that only tells that it was asked."""
    monkeypatch.setattr(native, "_places", lambda: iter([tmp_path / "cache"]))
    monkeypatch.setattr(native, "object_code", lambda _: b"machine code")
    return tmp_path / "cache"


def test_what_is_kept_is_found_again(place: Path) -> None:
    assert native.code() == b"machine code"
    (path,) = place.iterdir()
    before = path.stat()
    assert native.code() == b"machine code"
    assert path.stat() == before
    assert before.st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda whole: b"", lambda whole: whole[:-1], lambda whole: whole + b"!", lambda whole: b"\x7fELF" + whole,
        lambda whole: whole[:20], lambda whole: whole.replace(b"machine", b"machime"),
    ],
    ids=["empty", "short", "long", "foreign", "cut in its head", "changed"],
)  # fmt: skip
def test_a_spoilt_file_is_made_anew(place: Path, spoilt: Callable[[bytes], bytes]) -> None:
    native.code()
    (path,) = place.iterdir()
    whole = path.read_bytes()
    path.write_bytes(spoilt(whole))
    assert native.code() == b"machine code"
    assert path.read_bytes() == whole


@pytest.mark.skipif(sys.platform == "win32", reason="there, files have no such rights")
def test_machine_code_that_others_could_write_is_not_run(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native.code()
    (path,) = place.iterdir()
    asked = list[object]()
    monkeypatch.setattr(native, "object_code", lambda numba: asked.append(numba) or b"machine code")
    path.chmod(0o666)
    native.code()
    monkeypatch.setattr(native, "_user", lambda: os.getuid() + 1)
    native.code()
    assert len(asked) == 2


def test_without_a_place_code_lasts_as_long_as_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(native, "_places", lambda: iter([tmp_path / "file" / "cache"]))
    monkeypatch.setattr(native, "object_code", lambda _: b"machine code")
    assert native.code() == b"machine code"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_the_cache_is_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert next(native._places()) == tmp_path / "tpusim"


def test_a_change_in_what_the_loop_takes_compiles_it_anew() -> None:
    taken = imported("machines.tpu.event.loop")
    assert taken <= {each.__name__.removeprefix("tpusim.") for each in native._SOURCES}


LONG = "name: long\nlayers: [{name: sum, op: gemm, m: 1024, n: 256, k: 256}]\n"
"""More steps than Python is to time, on arrays of 8 x 8."""
SHORT = "name: short\nlayers: [{name: sum, op: gemm, m: 8, n: 8, k: 8}]\n"


def run_of(text: str, before: str, home: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """A command with an empty cache, or with what others left there."""
    shown = "from tpusim.cli import app; code = 0\ntry: app.main()\nexcept SystemExit as end: code = end.code"
    says = "print('llvmlite' in sys.modules, sys.modules.get('numba') is not None, file=sys.stderr); sys.exit(code)"
    words = ["run", "-", "--hardware", "tpu_v2", "--set", "array.size=8", "--no-check", "--json", "-", *more]
    command = [sys.executable, "-c", f"import sys\n{before}\n{shown}\n{says}", *words]
    own = {**os.environ, "XDG_CACHE_HOME": str(home)}
    return subprocess.run(command, env=own, input=text, capture_output=True, text=True, timeout=300, check=False)


def test_a_short_command_neither_compiles_nor_loads(tmp_path: Path) -> None:
    shown = run_of(SHORT, "", tmp_path)
    assert shown.returncode == 0
    assert shown.stderr.endswith("False False\n")
    assert not [*tmp_path.iterdir()]


def test_without_a_compiler_the_loop_runs_as_python_and_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the steps for which it is not asked."""
    program, hardware = lowered_conv(4)
    known = event.run(program, hardware)
    monkeypatch.setitem(sys.modules, "llvmlite", None)  # type: ignore[arg-type]
    monkeypatch.setattr(native, "loaded", cache(native.loaded.__wrapped__))
    monkeypatch.setattr(engine, "_steps", engine._SHORT)
    with pytest.warns(UserWarning, match="The loop of the event engine cannot be compiled .* 20 times slower"):
        assert event.run(program, hardware) == known


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        pytest.param(
            "numba",
            f"Warning: Numba cannot be imported .* 20 times slower; {sys.executable} -m pip install numba",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "llvmlite",
            "Warning: The loop of the event engine cannot be compiled .* 20 times slower",
            marks=pytest.mark.long,
        ),
    ],
)
def test_without_a_compiler_the_loop_runs_as_python_and_a_line_says_so(missing: str, says: str, tmp_path: Path) -> None:
    shown = run_of(LONG, f"sys.modules['{missing}'] = None", tmp_path)
    assert shown.returncode == 0
    (warned,) = (line for line in shown.stderr.splitlines() if line.startswith("Warning"))
    assert re.fullmatch(says, warned)


@pytest.mark.parametrize(
    ("missing", "engine"), few(1, [("simpy", "both"), ("simpy", "simpy"), ("numba", "register"), ("numba", "both")])
)
def test_an_engine_that_cannot_run_says_so_in_a_line(
    missing: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And before anything else takes its time."""
    monkeypatch.setitem(sys.modules, missing, None)  # type: ignore[arg-type]
    words = ["run", "-", "--hardware", "tpu_v2", "--set", "array.size=8", "--engine", engine]
    shown = CliRunner().invoke(app, words, input=SHORT)
    assert shown.exit_code == 2
    library = {"simpy": "SimPy", "numba": "Numba"}[missing]
    assert [line for line in shown.output.splitlines() if not line.startswith("0/")] == [
        f"Error: {'engine simpy' if missing == 'simpy' else 'the register engine'} needs {library}, which cannot be "
        f"imported (import of {missing} halted; None in sys.modules): {sys.executable} -m pip install {missing}"
    ]


COMMANDS = [
    *("run tiny --engine simpy", "run tiny --no-check", "explain tiny --layer fig10", "run tiny --out out", "list"),
    *("run tiny --hardware tpu_v2_hbm", "trace tiny --layers fig10 -o a.json", "area"),
    *("trace tiny --layers fig10 -o a.txt", "run tiny --engine register"),
]


@pytest.mark.long
@pytest.mark.parametrize("missing", ["numba", "llvmlite"])
@pytest.mark.parametrize("words", COMMANDS)
def test_without_a_compiler_every_command_works_or_refuses_in_a_line(words: str, missing: str, tmp_path: Path) -> None:
    hidden = f"import sys; sys.modules['{missing}'] = None; from tpusim.cli import app; app.main()"
    command = [sys.executable, "-c", hidden, *words.split()]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    steps = "register" in words or words.endswith(".txt")
    says = [line for line in shown.stderr.splitlines() if line.startswith(("Error", "Warning"))]
    assert shown.returncode == (2 if steps else 0), shown.stderr
    assert len(says) == 1 if steps else len(says) <= 1, says
    assert "Traceback" not in shown.stderr


@pytest.mark.long
def test_two_processes_may_compile_at_once_and_the_third_only_loads(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor() as pool:
        both = [*pool.map(lambda _: run_of(LONG, "", tmp_path), range(2))]
    third, without = run_of(LONG, "", tmp_path), run_of(LONG, "sys.modules['numba'] = None", tmp_path)
    assert {each.returncode for each in (*both, third, without)} == {0}
    assert all(each.stderr.count("Note: loops are compiled") == 1 for each in both)
    assert third.stderr.endswith("True False\n")
    assert "Note" not in third.stderr + without.stderr
    assert len({str(json.loads(each.stdout)["layers"]) for each in (*both, third, without)}) == 1
    assert len([*(tmp_path / "tpusim").iterdir()]) == 1
