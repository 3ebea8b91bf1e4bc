"""The check bites: a Program with one thing wrong gives a wrong number, and the command says where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.strategies import conv, machine
from tpusim.base.errors import CheckFailed
from tpusim.flow.engines import ENGINES, unwatched
from tpusim.flow.simulation import LOWERINGS
from tpusim.flow.verify import Verdict
from tpusim.machines.tpu import event
from tpusim.machines.tpu.lowering.channel_first import lower
from tpusim.machines.tpu.observation.timing import Timing
from tpusim.machines.tpu.program.steps import FilterFill, IfmapFill, Program, Spill, Step, Stream
from tpusim.network.workload import Workload
from tpusim.reference import oracle as reference

LAYER = conv(6, 9, 7, 3)
MACHINE = machine(4, 4, capacity_words=200)
BATCH = 3


def change(program: Program, kind: type[Step], edit: Callable[[Any], Any], which: int = 0) -> Program:
    """The Program with the `which`-th step of a kind edited."""
    at = [index for index, step in enumerate(program.steps) if isinstance(step, kind)][which]
    steps = [*program.steps]
    steps[at] = edit(steps[at])
    return replace(program, steps=tuple(steps))


def edit_read(stream: Stream, **changes: Any) -> Stream:
    group = stream.reads[0]
    return replace(stream, reads=(replace(group, pattern=replace(group.pattern, **changes)), *stream.reads[1:]))


def edit_tile(fill: FilterFill, **changes: Any) -> FilterFill:
    return replace(fill, tiles=(replace(fill.tiles[0], **changes), *fill.tiles[1:]))


def shift(part: range, by: int) -> range:
    return range(part.start + by, part.stop + by)


def spills(program: Program) -> list[Spill]:
    return [step for step in program.steps if isinstance(step, Spill)]


def swap_streams(program: Program) -> Program:
    """The last pass of one block and the first of the next change places: an accumulation out of order."""
    firsts = [i for i, step in enumerate(program.steps) if isinstance(step, Stream) and not step.accumulate]
    lasts = [i for i, step in enumerate(program.steps) if isinstance(step, Stream) and i < firsts[1]]
    steps = [*program.steps]
    a, b = firsts[0], lasts[-1]
    first, last = steps[a], steps[b]
    assert isinstance(first, Stream)
    assert isinstance(last, Stream)
    steps[a], steps[b] = replace(first, accumulate=True), replace(last, accumulate=False)
    return replace(program, steps=tuple(steps))


CORRUPTIONS: dict[str, Callable[[Program], Program]] = {
    "an address": lambda p: change(p, Stream, lambda s: edit_read(s, base=s.reads[0].pattern.base + 1), 4),
    "a start": lambda p: change(p, Stream, lambda s: edit_read(s, start=(1, 0)), 0),
    "a tap": lambda p: change(p, FilterFill, lambda f: edit_tile(f, taps=((2, 2),))),
    "a lane": lambda p: change(
        p, IfmapFill, lambda f: replace(f, box=replace(f.box, channels=shift(f.box.channels, 1)))
    ),
    "a weight fold": lambda p: change(p, FilterFill, lambda f: edit_tile(f, channels=shift(f.tiles[0].channels, 1))),
    "an output column": lambda p: change(
        p, FilterFill, lambda f: edit_tile(f, out_channels=shift(f.tiles[0].out_channels, 1))
    ),
    "a swapped accumulation": swap_streams,
    "a lost accumulation": lambda p: change(p, Stream, lambda s: replace(s, accumulate=False), 3),
    "a result address": lambda p: change(p, Stream, lambda s: replace(s, result_base=s.result_base + 1), 2),
    "a lost block": lambda p: change(p, Spill, lambda s: replace(s, box=spills(p)[0].box), 1),
    "a spill of the wrong rows": lambda p: change(
        p, Spill, lambda s: replace(s, box=replace(s.box, rows=shift(s.box.rows, -1))), 1
    ),
}


def verdict_of(program: Program, engine: str = "event") -> Verdict:
    return next(ENGINES[engine](Workload("net", BATCH, (LAYER,)), MACHINE, [program], True, 0, unwatched))[1]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_sound_program_passes(engine: str) -> None:
    assert verdict_of(lower(LAYER, BATCH, MACHINE)[1], engine).mismatched == 0


@pytest.mark.parametrize("engine", ["event", "register"])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corrupted_program_is_caught(name: str, engine: str) -> None:
    program = lower(LAYER, BATCH, MACHINE)[1]
    corrupted = CORRUPTIONS[name](program)
    assert corrupted != program
    verdict = verdict_of(corrupted, engine)
    assert verdict.mismatched > 0
    assert verdict.first is not None
    assert str(verdict.first).startswith("ofmap[channel=")


def test_an_address_outside_the_memory_is_named() -> None:
    program = lower(LAYER, BATCH, MACHINE)[1]
    corrupted = change(program, Stream, lambda s: edit_read(s, base=10**6))
    with pytest.raises(CheckFailed, match=r"layer conv: words \[1000000, .* were addressed"):
        verdict_of(corrupted)
    with pytest.raises(CheckFailed, match=r"layer conv: cycle \d+: lane 0: word 1000000 is outside"):
        verdict_of(corrupted, "register")


@pytest.mark.parametrize("engine", ["event", "register"])
@pytest.mark.parametrize("lane", [-1, 1000])
def test_a_lane_that_does_not_exist_is_named(lane: int, engine: str) -> None:
    program = lower(LAYER, BATCH, MACHINE)[1]
    corrupted = change(program, Stream, lambda s: replace(s, reads=(replace(s.reads[0], first_lane=lane),)))
    with pytest.raises(CheckFailed, match=rf"layer conv: .*{lane}"):
        verdict_of(corrupted, engine)


def test_engines_that_disagree_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--engine both` names the first figure that differs."""
    sound = event.run

    def late(*arguments: Any) -> Timing:
        timing = sound(*arguments)
        return replace(timing, reads=timing.reads + 1)

    monkeypatch.setattr(event, "run", late)
    with pytest.raises(CheckFailed, match=r"layer conv: the engines disagree: reads is .* in the event engine"):
        verdict_of(lower(LAYER, BATCH, MACHINE)[1], "both")


def test_the_first_wrong_element_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """One wrong output in the reference is found, counted and located."""
    sound = reference.compute

    def off_by_one(*arguments: Any) -> Any:
        outputs = sound(*arguments)
        outputs[2, 3, 4, 1] += 1
        return outputs

    monkeypatch.setattr(reference, "compute", off_by_one)
    verdict = verdict_of(lower(LAYER, BATCH, MACHINE)[1])
    assert verdict.mismatched == 1
    assert verdict.first is not None
    assert verdict.first.index == (2, 3, 4, 1)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_the_command_says_where_and_exits_with_1(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole command on a lowering that goes wrong."""
    from tpusim.cli import app as cli

    net = tmp_path / "net.yaml"
    layer = "{name: conv3, op: conv2d, in_channels: 6, in_height: 9, in_width: 9, out_channels: 7, kernel: 3}"
    net.write_text(f"name: net\nlayers: [{layer}]\n")

    def corrupt(*arguments: Any) -> Any:
        plan, program = lower(*arguments)
        return plan, CORRUPTIONS[name](program)

    monkeypatch.setitem(LOWERINGS, "channel_first", corrupt)
    monkeypatch.setattr(
        "sys.argv",
        ["tpusim", "run", str(net), "--hardware", "tiny_4x4", "--batch", "3", "--set", "vector_memory.capacity=1600 B"],
    )
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == 1
    captured = capsys.readouterr()
    assert "conv3" in captured.err
    assert "ofmap[channel=" in captured.err
