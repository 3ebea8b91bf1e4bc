"""What the register engine refuses: slots and registers used twice, lanes that do not exist, steps that never end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.agreement.test_corruption import change, edit_part, edit_read
from tests.rules import rule
from tests.strategies import conv, machine
from tpusim.base.errors import CheckFailed, DeadlockError, PortConflict, failures_named
from tpusim.flow.simulation import simulate
from tpusim.flow.verify import operands_of
from tpusim.machines.tpu import register
from tpusim.machines.tpu.definition import Frame
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST
from tpusim.machines.tpu.program.addresses import Feed
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload, Stream
from tpusim.machines.tpu.program.transfers import Along, Fill, Spill, Transfer
from tpusim.machines.tpu.register import machine as register_machine
from tpusim.machines.tpu.register import wires
from tpusim.machines.tpu.register.hbm import HbmWords
from tpusim.machines.tpu.register.tables import frames
from tpusim.network.workload import Workload
from tpusim.network.workload_file import load_workload

LAYER = conv(6, 9, 7, 3)
MACHINE = machine(4, 4, word_elements=4, capacity_words=200)
PROGRAM = CHANNEL_FIRST.lower(LAYER, 4, MACHINE)[0]
NARROW = machine(4, 4, word_elements=2, alus=4, capacity_words=400)
NARROW_PROGRAM = CHANNEL_FIRST.lower(LAYER, 4, NARROW)[0]
OPERANDS = operands_of(LAYER, 4, seed=0)


def started(program: Program = PROGRAM) -> register.RegisterMachine:
    return register.RegisterMachine(program, MACHINE, OPERANDS)


def reframed(running: register.RegisterMachine, frame: Frame) -> register.RegisterMachine:
    """The machine with another frame on its port."""
    running.registers.streams.frames[0] = frames([frame])[0]
    return running


def run(machine: register.RegisterMachine) -> None:
    with failures_named(LAYER):
        machine.run()


@rule("T5")
def test_two_clients_in_one_slot() -> None:
    running = started()
    frame = PROGRAM.frame(MACHINE)
    reframed(running, replace(frame, result_slot=Frame.IFMAP_SLOT))
    with pytest.raises(PortConflict, match=r"layer conv: cycle \d+: two clients of the stream ask for lane 0's port"):
        run(running)


def test_a_frame_too_short_for_the_serializers() -> None:
    running = started()
    assert PROGRAM.frame(MACHINE).issue_cycles == 4
    reframed(running, replace(PROGRAM.frame(MACHINE), period=3))
    with pytest.raises(PortConflict, match=r"layer conv: cycle \d+: lane 0: a serializer gets a word before"):
        run(running)


@rule("T34")
def test_weights_read_faster_than_they_leave() -> None:
    running = register.RegisterMachine(NARROW_PROGRAM, NARROW, OPERANDS)
    running.registers = running.registers._replace(preloads=running.registers.preloads._replace(rate=100))
    with pytest.raises(PortConflict, match=r"layer conv: cycle \d+: lane 0: a serializer gets a word before"):
        run(running)


def test_too_few_places_for_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """IN_FLIGHT is what three frames need; with less a result would be lost without a word."""
    run(register.RegisterMachine(NARROW_PROGRAM, NARROW, OPERANDS))
    monkeypatch.setattr(wires, "IN_FLIGHT", 1)
    with pytest.raises(PortConflict, match=r"layer conv: cycle \d+: lane 0: result word \d+ is written when \d+ are"):
        run(register.RegisterMachine(NARROW_PROGRAM, NARROW, OPERANDS))


def test_steps_that_wait_for_one_another_are_named() -> None:
    """In the words of the event engine."""
    spill = next(index for index, step in enumerate(PROGRAM.rows) if isinstance(step, Spill))
    preload = next(index for index, step in enumerate(PROGRAM.rows) if isinstance(step, Preload))
    stuck = change(PROGRAM, Preload, lambda step: replace(step, after=(*step.after, spill)))
    says = (
        rf"layer conv: cycle \d+: nothing moves, \d+ steps never finish: .*step {preload} \(preload\) waits for "
        rf"step {spill} \(ofmap spill\)"
    )
    with pytest.raises(DeadlockError, match=says):
        run(started(stuck))


WRONG = {
    "Stream's columns": (Stream, lambda step: replace(step, cols=5), r"\(stream\) names columns \[0, 5\)"),
    "Stream's rows": (
        Stream,
        lambda step: replace(step, reads=Feed((step.reads.groups[0]._replace(first_lane=4),))),
        r"\(stream\) names rows \[4, ",
    ),
    "Preload's columns": (Preload, lambda step: replace(step, cols=5), r"\(preload\) names columns \[0, 5\)"),
    "Preload's rows": (Preload, lambda step: replace(step, rows=5), r"\(preload\) names rows \[0, 5\)"),
    "Fill's lanes": (
        Fill,
        lambda step: edit_part(step, lambda part: part._replace(first_lanes=(0, 3))),
        r"\(filter fill\) names lanes \[3, ",
    ),
    "Spill's lanes": (
        Spill,
        lambda step: edit_part(step, lambda part: part._replace(lane=(Along(0, range(5)),))),
        r"\(ofmap spill\) names lanes \[0, 5\)",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_step_of_every_kind_that_names_what_is_not_there(what: str) -> None:
    kind, edit, says = WRONG[what]
    with pytest.raises(CheckFailed, match=says + r".*; the machine has 4"):
        started(change(PROGRAM, kind, edit))


def test_a_word_that_does_not_exist() -> None:
    with pytest.raises(CheckFailed, match=r"layer conv: cycle \d+: lane 0: word 1000000 is outside"):
        run(started(change(PROGRAM, Stream, lambda step: edit_read(step, base=10**6))))


def test_who_watches_is_told_how_many_cycles_have_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the engine, by a trace, and, with the layer's name, by a run."""
    every = 100
    monkeypatch.setattr(register_machine, "LOOK_EVERY", every)
    layer, hardware = conv(6, 5, 6, 3), machine(4, 4)
    program, operands = CHANNEL_FIRST.lower(layer, 2, hardware)[0], operands_of(layer, 2, seed=0)
    looks: list[int] = []
    timing, _ = register.run(program, hardware, operands, looks.append)
    assert looks == list(range(every, timing.cycles + 1, every))
    assert len(looks) > 2
    traced: list[int] = []
    running = register.RegisterMachine(program, hardware, operands)
    assert len(list(register.trace(running, 0, traced.append))) == timing.cycles
    assert traced == looks
    told: list[tuple[str, str]] = []
    simulate(Workload("one", 2, (layer,)), hardware, engine="register", watch=lambda *seen: told.append(seen))
    doing = ["lowering", "stepping", *(f"{cycles:,} cycles" for cycles in looks)]
    assert told == [(layer.name, each) for each in doing]


def test_hbm_holds_only_the_words_of_lanes_that_take_part() -> None:
    """A layer of three channels on 128 lanes."""
    from tpusim.machines.tpu.description import load_hardware

    layer, hardware = load_workload("resnet50", batch=8).layers[0], load_hardware("tpu_v2")
    program = CHANNEL_FIRST.lower(layer, 8, hardware)[0]
    words = HbmWords(program, operands_of(layer, 8, seed=0), hardware.vector_memory.word_elements)
    transfers = [step for step in program.rows if isinstance(step, Transfer)]
    everywhere = hardware.lanes * sum(step.words for step in transfers)
    assert len(words.values) == sum(step.lanes * step.words for step in transfers)
    assert len(words.values) < everywhere / 3
