"""Wrong cuts of M and K are seen, in the data path and in the register engine; test_agreement tries the right ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.strategies import conv, machine
from tpusim.flow.verify import expected, operands_of
from tpusim.machines.tpu import datapath, register
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.registry import LOWERINGS
from tpusim.machines.tpu.program.addresses import Counters, Feed
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Stream
from tpusim.machines.tpu.program.transfers import Along, Fill, Part


def with_mapping(hardware: Hardware, **changes: Any) -> Hardware:
    return hardware.model_copy(update={"mapping": hardware.mapping.model_copy(update=changes)})


def moved_lane(part: Part, number: int, lane: int) -> Part:
    """One lane of a part holds what lies one further along one of the axes along which lanes differ."""
    axis, coordinates = part.lane[number]
    wrong = (*coordinates[:lane], coordinates[lane] + 1, *coordinates[lane + 1 :])
    return part._replace(lane=(*part.lane[:number], Along(axis, wrong), *part.lane[number + 1 :]))


def with_wrong_fill(program: Program, number: int) -> Program:
    """The last lane of the first ifmap fill that has so many counters of lanes."""
    at, step = next(
        (at, step)
        for at, step in enumerate(program.rows)
        if isinstance(step, Fill) and step.tensor.name == "ifmap" and len(step.parts[0].lane) > number
    )
    wrong = replace(step, parts=(moved_lane(step.parts[0], number, step.parts[0].lanes - 1), *step.parts[1:]))
    return replace(program, rows=(*program.rows[:at], wrong, *program.rows[at + 1 :]))


def with_wrong_window(program: Program) -> Program:
    """The first pass that begins within a row begins and ends a word too early."""
    steps = [*program.rows]
    for at, step in enumerate(steps):
        if isinstance(step, Stream) and (early := earlier(step)) is not None:
            steps[at] = replace(step, reads=early)
            break
    return replace(program, rows=tuple(steps))


def earlier(stream: Stream) -> Feed | None:
    groups = []
    for group in stream.reads.groups:
        pattern = group.pattern
        if not isinstance(pattern, Counters) or pattern.window is None or not pattern.window.start:
            return None
        window = range(pattern.window.start - 1, pattern.window.stop - 1)
        groups.append(group._replace(pattern=pattern._replace(window=window)))
    return Feed(tuple(groups))


CORRUPTIONS = {
    "a lane's channel": lambda program: with_wrong_fill(program, 0),
    "a lane's tap": lambda program: with_wrong_fill(program, 1),
    "where a pass begins": with_wrong_window,
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_wrong_place_or_position_is_caught(name: str) -> None:
    layer = conv(5, 9, 4, 3)
    hardware = with_mapping(machine(8, 4, capacity_words=2000), fetch="per_tap", block_m=10)
    sound = LOWERINGS["channel_last"].lower(layer, 3, hardware)[0]
    operands = operands_of(layer, 3, seed=3)
    outputs = expected(layer, operands)
    np.testing.assert_array_equal(datapath.run(sound, hardware, operands)["ofmap"], outputs)
    wrong = CORRUPTIONS[name](sound)
    for engine in (datapath.run(wrong, hardware, operands), register.run(wrong, hardware, operands)[1]):
        assert (engine["ofmap"] != outputs).any()
