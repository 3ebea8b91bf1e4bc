"""Channel-last im2col from banks: engines, values, and conflicts under every map."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.agreement.engines import agree, agreed_timing
from tests.agreement.test_agreement import MOST_CYCLES, suppose
from tests.agreement.test_banks import Case, conflict_cycles, machines_with_banks
from tests.covering import covering, few
from tests.machines.tpu.test_timeline import slices_add_up
from tests.rules import rule
from tests.strategies import cases, conv, machine, small_layers
from tpusim import simulate
from tpusim.base.errors import CapacityError
from tpusim.cli import app as cli
from tpusim.flow.engines import Task, timed
from tpusim.machines.lowered import unheard
from tpusim.machines.tpu import event
from tpusim.machines.tpu.cut.geometry import MapAxis
from tpusim.machines.tpu.description import Hardware, load_hardware
from tpusim.machines.tpu.event.conflicts import reading_cycles
from tpusim.machines.tpu.lowering import banked
from tpusim.machines.tpu.lowering.banked import MAPS, BankMap, PatchExtents, Spacing
from tpusim.machines.tpu.lowering.registry import lowered
from tpusim.machines.tpu.program.addresses import BankFeed, Counter, Counters, LaneGroup
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Step, Stream
from tpusim.machines.tpu.program.transfers import BankFill
from tpusim.machines.tpu.runs.prepared import PreparedLayer
from tpusim.machines.tpu.search import search
from tpusim.network.ops.array_op import Conv2d
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.network.workload_file import load_workload
from tpusim.numerics.equality import Verdict

CASES = cases(1 / 10)
thorough = settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))


def program_of(layer: Op, batch: int, hardware: Hardware) -> Program:
    return lowered(layer, batch, hardware, "channel_last")[0]


def changed(hardware: Hardware, **memory: Any) -> Hardware:
    """Any map, also one that files do not know."""
    return hardware.model_copy(update={"vector_memory": hardware.vector_memory.model_copy(update=memory)})


def random_map(seed: int) -> Callable[[PatchExtents, int], BankMap]:
    """Axes in any order, gaps between any of them, and rows and columns folded at any length."""

    def made(wanted: PatchExtents, banks: int) -> BankMap:
        random = np.random.default_rng(seed)
        # An axis that is folded is two: positions within a fold, and folds.
        wrap = {"row": int(random.integers(1, 5)), "col": int(random.integers(1, 5))}
        extents = {"channel": wanted.channels, "group": wanted.groups}
        for name, size in (("row", wanted.rows), ("col", wanted.cols)):
            extents |= {name: wrap[name], f"{name} folds": -(-size // wrap[name])}
        strides, words = {}, 1
        for name in random.permutation([*extents]).tolist():
            strides[name] = words
            words = words * extents[name] + int(random.integers(0, 3))
        row, col = (
            Spacing(strides[name], wrap[name], strides[f"{name} folds"] - wrap[name] * strides[name])
            for name in ("row", "col")
        )
        return BankMap(Spacing(strides["channel"]), row, col, Spacing(strides["group"]), words)

    return made


@contextmanager
def maps(seed: int) -> Iterator[None]:
    """A map named "random" beside the others; what is remembered of it is forgotten."""
    with patch.dict(MAPS, {"random": random_map(seed)}):
        yield
    banked.bank_map.cache_clear()
    search.tilings_of.cache_clear()


@thorough
@given(
    layer=small_layers(),
    batch=st.integers(1, 9),
    hardware=machines_with_banks(),
    name=st.sampled_from(["window", "chw", "hwc", "random", "random"]),
    seed=st.integers(0, 999),
    block_k=st.sampled_from(["auto", "auto", 1, 3, 7]),
    block_m=st.sampled_from(["auto", "auto", 5]),
    drain=st.booleans(),
)
def test_it_runs_in_both_engines_to_the_cycle(
    layer: Op, batch: int, hardware: Hardware, name: str, seed: int, block_k: Any, block_m: Any, drain: bool
) -> None:
    """Under any map: cycles, accounts, accesses, values; and conflicts cost what anybody counts."""
    hardware = changed(hardware, bank_map=name, capacity_bytes=2**20)
    hardware = hardware.model_copy(
        update={
            "mapping": hardware.mapping.model_copy(update={"block_k": block_k, "block_m": block_m}),
            "sequencer": hardware.sequencer.model_copy(update={"between_blocks": "drain" if drain else "overlap"}),
        }
    )
    suppose(layer.macs(batch) / hardware.pes < 2000)
    with maps(seed):
        program = program_of(layer, batch, hardware)
    timing = agreed_timing(program, hardware)
    suppose(timing.cycles < MOST_CYCLES)
    waits, reading, _ = conflict_cycles(Case(hardware, program, {}, None))
    assert timing.units["systolic_array"]["bank_conflict"] == waits
    assert timing.units["port_ifmap"]["ifmap"] == reading
    agree(layer, batch, program, hardware, timing=timing)


# ---- the conflict-free map


def most_cycles(program: Program, hardware: Hardware) -> int:
    """That any word of any pass takes to read."""
    banks, ports = hardware.banks, hardware.vector_memory.bank_ports
    return max(int(reading_cycles(s.reads.groups, s.words, banks, ports).max()) for s in program.streams)


@rule("T58")
@pytest.mark.parametrize("stride", [1, pytest.param(2, marks=pytest.mark.long), 4])
@pytest.mark.parametrize(
    ("kernel", "dilation"),
    [((3, 3), (1, 1)), pytest.param((5, 5), (1, 1), marks=pytest.mark.long),
     pytest.param((7, 7), (1, 1), marks=pytest.mark.long), ((3, 3), (2, 2)), ((2, 5), (3, 2))],
)  # fmt: skip
@pytest.mark.parametrize("channels", [3, pytest.param(40, marks=pytest.mark.long)])
@pytest.mark.parametrize("changes", [{"block_k": True}, {"banks": 512}], ids=["whole windows a pass", "many banks"])
def test_the_window_map_has_no_conflict(
    changes: dict[str, Any], channels: int, kernel: tuple[int, int], dilation: tuple[int, int], stride: int
) -> None:
    """Where a pass takes whole windows; or where there are banks for those, too, in which it begins and ends."""
    layer, rows = Conv2d("conv", channels, 23, 19, 8, kernel, (stride, stride), (1, 2), dilation), 64
    hardware = machine(
        rows, 8, word_elements=1, bank_words=2**20, vector_memory={"organization": "banked", "ports": "separate"}
    )
    if "block_k" in changes:
        whole = rows // (kernel[0] * kernel[1]) * kernel[0] * kernel[1]
        hardware = hardware.model_copy(update={"mapping": hardware.mapping.model_copy(update={"block_k": whole})})
    else:
        hardware = changed(hardware, **changes)
    program = program_of(layer, 1, hardware)
    assert most_cycles(program, hardware) == 1
    assert agreed_timing(program, hardware).units["systolic_array"]["bank_conflict"] == 0


# ---- what linear maps cost

LINEAR = {56: 8, 28: 2, 14: 3, 7: 2, 224: 15}
"""Cycles of every word of a 3x3 layer whose map, whole, lies in 128 banks as CHW, by the side of the map."""


@rule("T58")
@pytest.mark.parametrize("side", few(4, LINEAR))
@pytest.mark.parametrize("stride", [1, 2])
def test_linear_chw_meets_in_banks(side: int, stride: int) -> None:
    """128 rows, unskewed: 2 to 8 cycles a word on the maps of ResNet, and 15 on VGG's first."""
    axis = MapAxis(side, 3, stride, (0, 0), 1)
    laid = banked.chw(PatchExtents(64, side, side, 1, 16, axis, axis), 128)
    groups = []
    for row in range(128):
        (c, tap), outputs = divmod(row, 9), axis.outputs
        counters = (
            Counter(outputs, tap // 3, stride, side, *laid.row),
            Counter(outputs, tap % 3, stride, side, *laid.col),
        )
        groups.append(LaneGroup(row, 1, Counters(c * laid.channel.stride, counters)))
    cycles = reading_cycles(tuple(groups), axis.outputs**2, 128, 1)
    assert {*cycles.tolist()} == {LINEAR[side]}


def bank_share(*changes: str) -> float:
    """Of the array's cycles, those lost to conflicts on a 3x3 layer of ResNet-50."""
    layer = next(each for each in load_workload("resnet50", batch=8).layers if each.name == "layer2.1.conv2")
    hardware = load_hardware("tpu_v2_banked", ["mapping.search=estimate", *changes])
    (told,) = simulate(Workload("one", 8, (layer,)), hardware, lowering="channel_last", check=False).layers
    return told.stall_cycles["bank_conflict"] / told.cycles


@pytest.mark.long
def test_long_words_hide_conflicts() -> None:
    """A word of eight elements keeps the array busy for as many cycles as eight rows that meet in a bank need."""
    one, chw = "vector_memory.word_elements=1", "vector_memory.bank_map=chw"
    assert bank_share() == bank_share(one) == 0
    assert bank_share(chw) < 0.05
    assert bank_share(chw, one) > 0.5
    assert bank_share("vector_memory.bank_map=hwc") > 0.4


# ---- the check bites

LAYER, BATCH = conv(6, 6, 7, 3), 2
MACHINE = machine(4, 4, capacity_words=200, bank_words=400, vector_memory={"organization": "banked"})


def edited(program: Program, kind: type[Step], which: int, edit: Callable[[Any], Any]) -> Program:
    """The Program with the `which`-th step of a kind edited."""
    at = [index for index, step in enumerate(program.rows) if isinstance(step, kind)][which]
    steps = [*program.rows]
    steps[at] = edit(steps[at])
    return replace(program, rows=tuple(steps))


def with_offsets(fill: BankFill, counter: int, edit: Callable[[tuple[int, ...]], tuple[int, ...]]) -> BankFill:
    """The first part of a fill with the offsets of a counter edited."""
    part, *others = fill.parts
    offsets = [*part.offsets]
    offsets[counter] = edit(tuple(offsets[counter]))
    return replace(fill, parts=(part._replace(offsets=tuple(offsets)), *others))


def with_row(stream: Stream, row: int, edit: Callable[[Counters], Counters]) -> Stream:
    """The pattern of a row edited."""
    groups = [*stream.reads.groups]
    pattern = groups[row].pattern
    assert isinstance(pattern, Counters)
    groups[row] = groups[row]._replace(pattern=edit(pattern))
    return replace(stream, reads=BankFeed(tuple(groups)))


def folded(pattern: Counters) -> Counters:
    """The columns folded at another length."""
    rows, cols, *others = pattern.counters
    return Counters(pattern.base, (rows, cols._replace(wrap=cols.wrap + 1), *others))


CORRUPTIONS: dict[str, Callable[[Program], Program]] = {
    "two channels in each other's banks": lambda p: edited(
        p, BankFill, 2, lambda fill: with_offsets(fill, 0, lambda at: (at[1], at[0], *at[2:]))
    ),
    "a column in a wrong bank": lambda p: edited(
        p, BankFill, -1, lambda fill: with_offsets(fill, 2, lambda at: (at[1], at[0], *at[2:]))
    ),
    "an address": lambda p: edited(p, Stream, 4, lambda s: with_row(s, 2, lambda c: c._replace(base=c.base + 1))),
    "a fold of the map": lambda p: edited(p, Stream, 1, lambda s: with_row(s, 0, folded)),
    "two rows of a pass": lambda p: edited(
        p,
        Stream,
        3,
        lambda s: with_row(s, 1, lambda c: s.reads.groups[0].pattern),  # type: ignore[arg-type,return-value]
    ),
}


def verdict_of(program: Program, engine: str) -> Verdict:
    explanation = lowered(LAYER, BATCH, MACHINE, "channel_last")[1]
    task = Task(LAYER, BATCH, PreparedLayer(program, explanation, MACHINE, "channel_last"), True, 0, unheard)
    return timed(task, engine)[1]()


@pytest.mark.parametrize(("name", "engine"), covering(1, CORRUPTIONS, ["event", "register"]))
def test_a_corrupted_program_is_caught(name: str, engine: str) -> None:
    sound = program_of(LAYER, BATCH, MACHINE)
    assert verdict_of(sound, engine).mismatched == 0
    corrupted = CORRUPTIONS[name](sound)
    assert corrupted != sound
    assert verdict_of(corrupted, engine).mismatched > 0


# ---- commands


def test_too_little_memory_is_said() -> None:
    """Of a lane or of a bank, and what is asked for is the least that does."""
    for field, path in (("capacity_bytes", "capacity"), ("bank_capacity_bytes", "bank_capacity")):
        hardware = changed(MACHINE, **{field: 8})
        with pytest.raises(CapacityError, match=rf"set vector_memory.{path} to at least \d+ B") as caught:
            program_of(LAYER, BATCH, hardware)
        enough = int(str(caught.value).split("at least ")[1].split(" B")[0])
        program_of(LAYER, BATCH, changed(MACHINE, **{field: enough}))
        with pytest.raises(CapacityError):
            program_of(LAYER, BATCH, changed(MACHINE, **{field: enough - 1}))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            "--lowering explicit",
            "vector_memory.organization: this lowering reads from lanes alone; write lanes, or take another lowering",
        ),
        (
            "--lowering channel_last --set mapping.fetch=per_tap",
            "mapping.fetch: banks hold what all taps of a block need",
        ),
    ],
)
def test_what_banks_do_not_do_is_refused(options: str, says: str) -> None:
    done = CliRunner().invoke(cli.app, ["run", "tiny", "--hardware", "tpu_v2_banked", *options.split()])
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("run tiny --engine both", "0 wrong"),
        ("run tiny --set vector_memory.bank_map=hwc --out out", "bank conflict"),
        pytest.param(
            "explain resnet50 --layer layer2.1.conv2 --set vector_memory.bank_map=hwc",
            "Bound by conflicts in the banks",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "explain resnet50 --layer layer2.1.conv2",
            "banks of 128 KiB, 1 port each to read, map window",
            marks=pytest.mark.long,
        ),
        ("trace tiny --layers fig10 -o fig10.perfetto-trace", "fig10.perfetto-trace"),
    ],
)
def test_commands_take_it(command: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hardware = "tiny_4x4 --set vector_memory.organization=banked"
    if "tiny" not in command:
        hardware = "tpu_v2_banked --batch 1"
    quick = "--lowering channel_last --set mapping.search=estimate"
    done = CliRunner().invoke(cli.app, f"{command} --hardware {hardware} {quick}".split())
    assert done.exit_code == 0, done.output
    assert says in " ".join(done.output.split())
    if "--out" in command:
        for further in ("report out", "plot out --format svg"):
            made = CliRunner().invoke(cli.app, further.split())
            assert made.exit_code == 0, made.output


def test_its_timeline_is_its_account() -> None:
    """Frames that are lost are drawn, in whole and in part."""
    hardware = changed(MACHINE, bank_map="hwc", bank_ports=1)
    program = program_of(LAYER, BATCH, hardware)
    recording, timing = event.record(program, hardware), agreed_timing(program, hardware)
    assert timing.units["systolic_array"]["bank_conflict"] > 0
    whole = recording.timeline()
    slices_add_up(whole, timing)
    first, stop = timing.cycles // 3, timing.cycles // 2
    part = recording.timeline(first, stop)
    for name, track in whole.tracks.items():
        assert [*part.tracks[name].clipped(first, stop)] == [*track.clipped(first, stop)], name
