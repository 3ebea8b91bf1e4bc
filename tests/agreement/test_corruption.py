"""The check bites: a Program with one thing wrong gives a wrong number, and the command says where."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.covering import covering
from tests.strategies import conv, machine, spills
from tests.written import by_hand
from tpusim import reference
from tpusim.base.errors import CheckFailed
from tpusim.flow.engines import ENGINES, Task, timed
from tpusim.machines.lowered import unheard
from tpusim.machines.tpu import event
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST
from tpusim.machines.tpu.lowering.registry import LOWERINGS
from tpusim.machines.tpu.program.addresses import Counter, Counters, Feed
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Step, Stream
from tpusim.machines.tpu.program.transfers import Along, Fill, Part, Spill, Transfer
from tpusim.machines.tpu.runs.prepared import PreparedLayer
from tpusim.numerics.equality import Verdict

LAYER = conv(6, 6, 7, 3)
MACHINE = machine(4, 4, capacity_words=60)
MANY_PORTS = machine(4, 4, capacity_words=60, array={"weights_per_cycle": 2}, vector_memory={"ports": "separate"})
BATCH = 2


def change(program: Program, kind: type[Step], edit: Callable[[Any], Any], which: int = 0, of: str = "") -> Program:
    """The Program with the `which`-th step of a kind (`of` a tensor) edited."""
    wanted = (i for i, s in enumerate(program.rows) if isinstance(s, kind) and (not of or s.tensor.name == of))
    at = [*wanted][which]
    steps = [*program.rows]
    steps[at] = edit(steps[at])
    return replace(program, rows=tuple(steps))


def edit_read(stream: Stream, **changes: Any) -> Stream:
    """The address pattern of the first lane group, with changes."""
    group, *others = stream.reads.groups
    return replace(stream, reads=Feed((group._replace(pattern=group.pattern._replace(**changes)), *others)))


def edit_part(transfer: Transfer, edit: Callable[[Part], Part]) -> Transfer:
    """The first part edited."""
    return replace(transfer, parts=(edit(transfer.parts[0]), *transfer.parts[1:]))


def shift_lanes(part: Part, by: int = 1) -> Part:
    """Other elements for the same lanes."""
    (lane,) = part.lane
    return part._replace(lane=(Along(lane.axis, shift(lane.coordinates, by)),))


def shift_items(part: Part, by: int) -> Part:
    """The first counter of the items moved."""
    axis, coordinates = part.items[0]
    return part._replace(items=(Along(axis, shift(coordinates, by)), *part.items[1:]))


def first_pattern(stream: Stream) -> Counters:
    pattern = stream.reads.groups[0].pattern
    assert isinstance(pattern, Counters)
    return pattern


def on_lane(stream: Stream, lane: int) -> Feed:
    """Its first lane group alone, from `lane` on."""
    return Feed((stream.reads.groups[0]._replace(first_lane=lane),))


def first_spilled(program: Program) -> Part:
    """What the first block spills."""
    return spills(program)[0].parts[0]


def moved(stream: Stream) -> tuple[Counter, ...]:
    """Its counters, the rows a grid point further down."""
    row, *others = first_pattern(stream).counters
    return row._replace(start=row.start + 1), *others


def shift(part: range, by: int) -> range:
    return range(part.start + by, part.stop + by)


def swap_streams(program: Program) -> Program:
    """The first pass of a block is taken for its last, and the other way round: an accumulation out of order."""
    base = program.streams[0].result_base
    streams = [(i, step) for i, step in enumerate(program.rows) if isinstance(step, Stream)]
    passes = [(i, step) for i, step in streams if step.result_base == base]
    _, second, *_ = (number for number, (_, step) in enumerate(passes) if not step.accumulate)
    (a, first), (b, last) = passes[0], passes[second - 1]
    steps = [*program.rows]
    steps[a], steps[b] = replace(first, accumulate=True), replace(last, accumulate=False)
    return replace(program, rows=tuple(steps))


CORRUPTIONS: dict[str, Callable[[Program], Program]] = {
    "an address": lambda p: change(p, Stream, lambda s: edit_read(s, base=first_pattern(s).base + 1), 4),
    "a start": lambda p: change(p, Stream, lambda s: edit_read(s, counters=moved(s)), 0),
    "a tap": lambda p: change(p, Fill, lambda f: edit_part(f, lambda part: shift_items(part, 8 * 6)), of="filter"),
    "a lane": lambda p: change(p, Fill, lambda f: edit_part(f, shift_lanes), of="ifmap"),
    "a weight fold": lambda p: change(p, Fill, lambda f: edit_part(f, lambda part: shift_items(part, 1)), of="filter"),
    "an output column": lambda p: change(p, Fill, lambda f: edit_part(f, shift_lanes), of="filter"),
    "a swapped accumulation": swap_streams,
    "a lost accumulation": lambda p: change(
        p, Stream, lambda s: replace(s, accumulate=False), [s.accumulate for s in p.streams].index(True)
    ),
    "an accumulation into what nothing wrote": lambda p: change(p, Stream, lambda s: replace(s, accumulate=True), 0),
    "a result address": lambda p: change(p, Stream, lambda s: replace(s, result_base=s.result_base + 1), 2),
    "a lost block": lambda p: change(
        p, Spill, lambda s: edit_part(s, lambda part: first_spilled(p)._replace(base=part.base)), 1
    ),
    "a spill of the wrong rows": lambda p: change(
        p, Spill, lambda s: edit_part(s, lambda part: shift_items(part, -1)), 1
    ),
}


def verdict_of(program: Program, engine: str = "event", hardware: Hardware = MACHINE) -> Verdict:
    explanation = CHANNEL_FIRST.lower(LAYER, BATCH, hardware)[1]
    task = Task(
        LAYER, BATCH, PreparedLayer(program, explanation, hardware, "channel_first"), check=True, seed=0, watch=unheard
    )
    return timed(task, engine)[1]()


@pytest.mark.parametrize(("engine", "hardware"), covering(1, ENGINES, [MACHINE, MANY_PORTS]))
def test_the_sound_program_passes(engine: str, hardware: Hardware) -> None:
    assert verdict_of(CHANNEL_FIRST.lower(LAYER, BATCH, hardware)[0], engine, hardware).mismatched == 0


@pytest.mark.parametrize(
    ("name", "run"), covering(1, CORRUPTIONS, [("event", MACHINE), ("register", MANY_PORTS), ("register", MACHINE)])
)
def test_a_corrupted_program_is_caught(name: str, run: tuple[str, Hardware]) -> None:
    engine, hardware = run
    program = CHANNEL_FIRST.lower(LAYER, BATCH, hardware)[0]
    corrupted = CORRUPTIONS[name](program)
    assert corrupted != program
    verdict = verdict_of(corrupted, engine, hardware)
    assert verdict.mismatched > 0
    assert verdict.first is not None
    assert str(verdict.first).startswith("ofmap[channel=")


def test_an_address_outside_the_memory_is_named() -> None:
    program = CHANNEL_FIRST.lower(LAYER, BATCH, MACHINE)[0]
    corrupted = change(program, Stream, lambda s: edit_read(s, base=10**6))
    with pytest.raises(CheckFailed, match=r"layer conv: words \[1000000, .* were addressed"):
        verdict_of(corrupted)
    with pytest.raises(CheckFailed, match=r"layer conv: cycle \d+: lane 0: word 1000000 is outside"):
        verdict_of(corrupted, "register")


@pytest.mark.parametrize("engine", ["event", "register"])
@pytest.mark.parametrize("lane", [-1, 1000])
def test_a_lane_that_does_not_exist_is_named(lane: int, engine: str) -> None:
    program = CHANNEL_FIRST.lower(LAYER, BATCH, MACHINE)[0]
    corrupted = change(program, Stream, lambda s: replace(s, reads=on_lane(s, lane)))
    with pytest.raises(CheckFailed, match=rf"layer conv: .*{lane}"):
        verdict_of(corrupted, engine)


@pytest.mark.parametrize(
    ("room", "name", "more", "other"),
    [
        (event, "run", (1, 0), "simpy"),
        (event, "by_simpy", (0, 1), "simpy"),
        (PreparedLayer, "stepped", (0, 1), "register"),
    ],
    ids=["event", "simpy", "register"],
)
def test_engines_that_disagree_are_told_apart(
    room: Any, name: str, more: tuple[int, int], other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--engine both` names the first figure that differs, and both engines."""
    sound = getattr(room, name)

    def late(*arguments: Any) -> Any:
        found = sound(*arguments)
        timing, *rest = found if isinstance(found, tuple) else (found,)
        timing = replace(timing, reads=timing.reads + 1)
        return (timing, *rest) if rest else timing

    program = CHANNEL_FIRST.lower(LAYER, BATCH, MACHINE)[0]
    event_reads, other_reads = (f"{program.use.port_reads + each:,}" for each in more)
    monkeypatch.setattr(room, name, late)
    told = f"reads is {event_reads} in the event engine, {other_reads} in the {other} engine"
    with pytest.raises(CheckFailed, match=rf"^layer conv: .*the engines disagree: {told}$"):
        verdict_of(program, "both")


def test_the_first_wrong_element_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """One wrong output in the reference is found, counted and located."""
    sound = reference.compute

    def off_by_one(layer: Any, operands: Any, box: Any) -> Any:
        outputs = sound(layer, operands, box)
        at = [place - part.start for place, part in zip((2, 1, 3, 1), box, strict=True)]
        if all(0 <= place < size for place, size in zip(at, outputs.shape, strict=True)):
            outputs[tuple(at)] += 1
        return outputs

    monkeypatch.setattr(reference, "compute", off_by_one)
    verdict = verdict_of(CHANNEL_FIRST.lower(LAYER, BATCH, MACHINE)[0])
    assert verdict.mismatched == 1
    assert verdict.first is not None
    assert verdict.first.index == (2, 1, 3, 1)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (at > 2)) for at, name in enumerate(CORRUPTIONS)]
)
def test_the_command_says_where_and_exits_with_1(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole command on a lowering that goes wrong."""
    from tpusim.cli import app as cli

    net = tmp_path / "net.yaml"
    layer = "{name: conv3, op: conv2d, in_channels: 6, in_height: 9, in_width: 9, out_channels: 7, kernel: 3}"
    net.write_text(f"name: net\nlayers: [{layer}]\n")

    def corrupt(*arguments: Any) -> Any:
        program, explanation = CHANNEL_FIRST.lower(*arguments)
        return CORRUPTIONS[name](program), explanation

    monkeypatch.setitem(LOWERINGS, "channel_first", by_hand("channel_first", corrupt))
    monkeypatch.setattr(
        "sys.argv",
        ["tpusim", "run", str(net), "--hardware", "tiny_4x4", "--batch", "3", "--set", "vector_memory.capacity=1600 B"],
    )
    # What leaves the process takes SIGINT with it, and would take it from the tests that follow.
    monkeypatch.setattr(cli, "leave_now", sys.exit)
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == 1
    captured = capsys.readouterr()
    assert "conv3" in captured.err
    assert "ofmap[channel=" in captured.err
