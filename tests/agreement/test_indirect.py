"""Indirect convolution: channel-first's passes, their addresses read from pointers in the vector memory."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.agreement.engines import agreed_timing, clocked
from tests.agreement.test_agreement import fitted, suppose
from tests.covering import covering
from tests.rules import rule
from tests.strategies import cases, conv, convs, fills, machine, machines_of_all_kinds
from tpusim.flow.verify import expected, operands_of
from tpusim.machines.tpu import datapath
from tpusim.machines.tpu.cut.traffic import in_layout
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering import indirect
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST, Convolution
from tpusim.machines.tpu.lowering.indirect import INDIRECT, NAME
from tpusim.machines.tpu.program.addresses import PADDING, AddressTable, Counters, Feed, Pointers
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Step, Stream
from tpusim.machines.tpu.program.transfers import Fill
from tpusim.machines.tpu.schedule.scheduler import program_of
from tpusim.network.ops.array_op import Conv2d

CASES = cases(1 / 20)


# ---- the same layer, right and to the cycle


@rule("T32")
@pytest.mark.parametrize(("counted", "word", "ports"), covering(2, (0, 1), (1, 3, 8), ("shared", "separate")))
def test_passes_with_and_without_pointers_may_follow_one_another(counted: int, word: int, ports: str) -> None:
    """Every other pass finds its words without."""
    layer, hardware = conv(5, 5, 6, 3, padding=1), machine(8, 6, word_elements=word, vector_memory={"ports": ports})
    program = INDIRECT.lower(layer, 5, hardware)[0]
    steps = [*program.rows]
    plain = without_pointers(program).streams
    streams = [index for index, step in enumerate(steps) if isinstance(step, Stream)]
    for number, index in enumerate(streams):
        if number % 2 == counted:
            steps[index] = replace(program.streams[number], reads=plain[number].reads)
    mixed, operands = replace(program, rows=tuple(steps)), operands_of(layer, 5, seed=6)
    _, written = clocked(mixed, hardware, operands)
    for ofmap in (written["ofmap"], datapath.run(mixed, hardware, operands)["ofmap"]):
        np.testing.assert_array_equal(ofmap, expected(layer, operands))


@rule("T30")
@settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))
@given(layer=convs(), batch=st.integers(1, 9), hardware=machines_of_all_kinds(16))
def test_accesses_padding_and_values_are_those_of_channel_first(layer: Conv2d, batch: int, hardware: Hardware) -> None:
    """With the counters put back and the pointers taken out it is channel-first's Program, time included."""
    # Of several arrangements of the arrays each lowering takes its own.
    alike = len(hardware.arrangements(layer.out_channels // layer.groups)) == 1
    suppose(layer.macs(batch) / hardware.pes < 200 and not hardware.banked and alike)
    program, hardware = fitted(layer, batch, hardware.without_windows(), "indirect")
    if NAME not in {each.name for each in program.tensors}:
        assert program == in_layout(CHANNEL_FIRST.lower(layer, batch, hardware)[0], hardware)
        return
    plan, _ = indirect.plans_of(layer, batch, hardware)[0]
    counted, planned = Convolution(plan).counted(), indirect.PointerConvolution(plan).counted()
    assert counted
    assert planned
    assert planned.transfers - counted.transfers == len(fills(program, NAME))
    plain = without_pointers(program)
    same = in_layout(matching(layer, batch, hardware), hardware)
    assert [words_of(step) for step in plain.streams] == [words_of(step) for step in same.streams]
    assert [step.reads.accesses for step in plain.streams] == [step.reads.accesses for step in same.streams]
    assert [step.reads.accesses for step in program.streams] == [step.reads.accesses for step in same.streams]
    assert agreed_timing(plain, hardware) == agreed_timing(same, hardware)
    operands = operands_of(layer, batch, seed=4)
    np.testing.assert_array_equal(
        datapath.run(program, hardware, operands)["ofmap"], datapath.run(same, hardware, operands)["ofmap"]
    )


def matching(layer: Conv2d, batch: int, hardware: Hardware) -> Program:
    """Channel-first's Program, or one of its emitter where pointers take the room of the tiling that it chooses."""
    plan, _ = indirect.plans_of(layer, batch, hardware)[0]
    emitted, (same, told) = program_of(Convolution(plan)), CHANNEL_FIRST.lower(layer, batch, hardware)
    assert told.choices != vars(plan.tiling) or emitted == same
    return emitted


def without_pointers(program: Program) -> Program:
    """No pointers, no slot and no fills for them: every address in a table."""
    numbers = program.constants[0].values
    at: dict[int, int] = {}
    steps: list[Step] = []
    first: dict[int, int] = {}
    for index, step in enumerate(program.rows):
        if isinstance(step, Fill) and step.tensor.name == NAME:
            first[index] = step.parts[0].items[0].coordinates[0]
            continue
        at[index] = len(steps)
        filled = next((each for each in step.after if each in first), None)
        changes: dict[str, Any] = {"after": tuple(at[each] for each in step.after if each not in first)}
        if isinstance(step, Stream):
            assert filled is not None
            changes |= {"preload": at[step.preload], "reads": tabled(step.reads, numbers[first[filled] :])}
        steps.append(replace(step, **changes))
    return replace(
        program,
        tensors=program.tensors[:-1],
        buffers=program.buffers[:-1],
        rows=tuple(steps),
        constants=(),
    )


def tabled(feed: Feed, numbers: NDArray[np.float32]) -> Feed:
    return Feed(tuple(group._replace(pattern=table_of(group.pattern, numbers)) for group in feed.groups))


def table_of(pattern: Any, numbers: NDArray[np.float32]) -> AddressTable:
    """One by one, as section 3 of docs/timing.md says."""
    assert isinstance(pattern, Pointers)
    _, pixels, together, _, repeat = pattern.table
    addresses = []
    for pixel in range(pixels):
        number = int(numbers[pixel * together + pattern.which])
        for word in range(repeat):
            addresses.append(PADDING if number % 2 else pattern.base + number // 2 + word)
    return AddressTable(tuple(addresses))


def words_of(step: Stream) -> tuple[Any, ...]:
    """The lanes and addresses of a pass, and where its results go."""
    reads = [(group.first_lane, group.lanes, addresses_of(group.pattern)) for group in step.reads.groups]
    return reads, step.result_base, step.words, step.rows, step.cols, step.accumulate


def addresses_of(pattern: Any) -> tuple[int, ...]:
    if isinstance(pattern, AddressTable):
        return pattern.addresses
    assert isinstance(pattern, Counters)
    return tuple(at if at == PADDING else at + pattern.base for at in offsets_of(pattern._replace(base=0)))


@lru_cache(maxsize=4096)
def offsets_of(pattern: Counters) -> tuple[int, ...]:
    """Many passes walk alike, from another base."""
    addresses = []
    for counts in np.ndindex(*(counter.length for counter in pattern.counters)):
        pairs = [*zip(pattern.counters, counts, strict=True)]
        inside = all(count in counter.inside for counter, count in pairs)
        addresses.append(sum(c.offset(count) for c, count in pairs) if inside else PADDING)
    walked = pattern.window or range(len(addresses))
    return tuple(addresses[walked.start : walked.stop])
