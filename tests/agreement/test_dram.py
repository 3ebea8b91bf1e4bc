"""HBM with banks in both engines: every word comes when the other engine says; and what a hand finds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.agreement.engines import agree, agreed_timing
from tests.agreement.test_agreement import fitted, short, suppose
from tests.rules import rule
from tests.strategies import cases, conv, dram, drams, lowerings_of, machine, machines, small_layers
from tpusim.flow.verify import operands_of
from tpusim.machines.tpu import event, register
from tpusim.machines.tpu.description import Hardware, load_hardware
from tpusim.machines.tpu.event.memories import BankedHbm
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import Fill, Transfer
from tpusim.machines.tpu.register.transfers import SPILL
from tpusim.memory.dram.device import Device
from tpusim.memory.timing import Clocks, last_shares
from tpusim.network.ops.array_op import Conv2d, Gemm


def with_banks(hardware: Hardware, device: Device) -> Hardware:
    """The same machine, its HBM a DRAM."""
    hbm = hardware.hbm.model_copy(update={"model": "banks", "device": device})
    return hardware.model_copy(update={"hbm": hbm})


@contextmanager
def told(of: type, method: str) -> Iterator[list[Any]]:
    """Everything that a method returns."""
    original, returned = getattr(of, method), []

    def told_too(*arguments: object, **named: object) -> object:
        returned.append(original(*arguments, **named))
        return returned[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of, method, told_too)
        yield returned


def arrivals(program: Program, hardware: Hardware, layer: Conv2d | Gemm, batch: int) -> tuple[list[list[int]], ...]:
    """Of each fill, when its words come: by the event engine, and by the register engine."""
    with told(BankedHbm, "fill") as filled:
        timing = event.run(program, hardware)
    machine = register.RegisterMachine(program, hardware, operands_of(layer, batch, seed=2))
    machine.run()
    assert timing == machine.timing()
    assert timing.hbm is not None
    transfers = machine.registers.transfers
    fills = transfers.each[transfers.each["kind"] != SPILL]
    came = [transfers.arrivals[first : first + words].tolist() for first, words in fills[["place", "words"]].tolist()]
    return [words.tolist() for words, *_ in filled], came


@rule("T130")
@settings(max_examples=cases(1 / 40), deadline=None, suppress_health_check=list(HealthCheck))
@given(layer=small_layers(), batch=st.integers(1, 9), hardware=machines(8), data=st.data())
def test_every_word_of_every_fill_comes_in_the_same_cycle(
    layer: Conv2d | Gemm, batch: int, hardware: Hardware, data: st.DataObject
) -> None:
    suppose(layer.macs(batch) / hardware.pes < 800)
    program, hardware = fitted(layer, batch, hardware, "channel_first")
    hardware = with_banks(hardware, data.draw(drams(hardware.hbm.burst_bytes)))
    short(program, hardware)
    events, cycles = arrivals(program, hardware, layer, batch)
    assert events == cycles
    assert len(events) == sum(isinstance(step, Fill) for step in program.rows)


@rule("T131", "T132", "T133")
@settings(max_examples=cases(1 / 40), deadline=None, suppress_health_check=list(HealthCheck))
@given(layer=small_layers(), batch=st.integers(1, 9), hardware=machines(8), data=st.data())
def test_random_layers(layer: Conv2d | Gemm, batch: int, hardware: Hardware, data: st.DataObject) -> None:
    """By every lowering: the engines to the cycle, and every value."""
    suppose(layer.macs(batch) / hardware.pes < 800)
    program, hardware = fitted(layer, batch, hardware, data.draw(st.sampled_from(sorted(lowerings_of(layer)))))
    hardware = with_banks(hardware, data.draw(drams(hardware.hbm.burst_bytes)))
    agree(layer, batch, program, hardware, timing=short(program, hardware))


@rule("T130")
def test_the_first_word_by_hand() -> None:
    """Accepted in memory cycle 0, in the bank's queue with its end; ACT 1, RD tRCDRD later, data tCL + tBURST after."""
    layer, hardware = conv(1, 2, 1, 1), with_banks(machine(1, 1, word_elements=1), dram(refresh="none"))
    program = CHANNEL_FIRST.lower(layer, 1, hardware)[0]
    fill = next(step for step in program.rows if isinstance(step, Fill))
    # The slowest clock lets the machine stand still for long; it waits, that is no deadlock.
    for hz, word in ((10**9, 1 + 4 + 5 + 2), (10**9 // 2, 2 * 12), (1_500_000_000, 12 * 2 // 3), (10**7, 100 * 12)):
        slower = with_banks(hardware, dram(refresh="none", clock_hz=hz))
        events, cycles = arrivals(program, slower, layer, 1)
        assert events == cycles
        assert (fill.words, events[0][0]) == (1, word)


@rule("T129")
def test_clocks_keep_their_ratio_for_ever() -> None:
    """A cycle of the one is the first of the other that does not begin before it, by whole numbers."""
    clocks = Clocks.of(700_000_000, 1_367_187_500)
    assert clocks == (64, 125)
    for cycle in (0, 1, 63, 64, 65, 10**12 + 7):
        there = clocks.to_memory(cycle)
        assert Fraction(there - 1, 125) < Fraction(cycle, 64) <= Fraction(there, 125)
        assert clocks.to_machine(clocks.to_memory(cycle)) >= cycle
        assert clocks.to_memory(clocks.to_machine(cycle)) >= cycle


@rule("T130", "T131")
@pytest.mark.parametrize(("words", "bursts"), [(1, 1), (3, 7), (7, 3), (8, 8), (5, 40)])
def test_words_and_bursts_share_a_transfer_evenly(words: int, bursts: int) -> None:
    """A burst b is part of word k where [b, b + 1) / bursts meets [k, k + 1) / words."""
    meet = [
        (k, b)
        for k in range(words)
        for b in range(bursts)
        if k * bursts < (b + 1) * words and b * words < (k + 1) * bursts
    ]
    assert last_shares(words, bursts).tolist() == [max(b for k, b in meet if k == word) for word in range(words)]
    assert last_shares(bursts, words).tolist() == [max(k for k, b in meet if b == burst) for burst in range(bursts)]


def test_refresh_and_closed_pages_cost_cycles() -> None:
    layer, plain = conv(8, 9, 16, 3), machine(8, 8, bytes_per_cycle=8)
    cycles = [
        agreed_timing(CHANNEL_FIRST.lower(layer, 2, plain)[0], with_banks(plain, dram(**changes))).cycles  # type: ignore[arg-type]
        for changes in ({"refresh": "none"}, {}, {"page": "closed"}, {"channels": 1, "refresh": "none"})
    ]
    assert cycles[0] < min(cycles[1:])


@rule("T135")
def test_a_transfer_does_not_depend_on_later_ones() -> None:
    """So that the event engine needs no guessing: the first ones come as they do in a shorter Program."""
    layer, hardware = conv(8, 9, 16, 3), with_banks(machine(8, 8), dram())
    program = CHANNEL_FIRST.lower(layer, 2, hardware)[0]
    transfers = [at for at, step in enumerate(program.rows) if isinstance(step, Transfer)]
    whole = fills_of(program, hardware)
    short = replace(program, rows=program.rows[: transfers[3] + 1])
    first = fills_of(short, hardware)
    assert first == whole[: len(first)]
    assert 1 < len(first) < len(whole)


def fills_of(program: Program, hardware: Hardware) -> list[list[int]]:
    """When the words of each fill come in the event engine."""
    with told(BankedHbm, "fill") as filled:
        event.logged(program, hardware)
    return [words.tolist() for words, *_ in filled]


@pytest.mark.parametrize(("name", "base"), [("tpu_v2_hbm", "tpu_v2"), ("tpu_v2_core_hbm", "tpu_v2_core")])
def test_the_shipped_machines_differ_in_hbm_alone(name: str, base: str) -> None:
    banks, pipe = load_hardware(name), load_hardware(base)
    assert banks.hbm.dram is not None
    assert banks.hbm.dram.peak_bytes_per_s == pytest.approx(pipe.hbm.bandwidth_bytes_per_s)
    hbm = banks.hbm.model_copy(update={"model": "pipe", "device": None})
    # Machines that stand for a TPU as it is compiled for fuse.
    unfused = pipe.sequencer.model_copy(update={"fusion": "none"})
    assert banks.model_copy(update={"name": base, "hbm": hbm}) == pipe.model_copy(update={"sequencer": unfused})
    layer = conv(64, 14, 64, 3, padding=1)
    piped = load_hardware(name, {"hbm.model": "pipe"})
    assert agreed_timing(CHANNEL_FIRST.lower(layer, 8, piped)[0], piped) == agreed_timing(
        CHANNEL_FIRST.lower(layer, 8, pipe)[0], pipe
    )


@rule("T128")
def test_both_models_run_the_same_program() -> None:
    """Blocks are estimated by bandwidth and latency, whichever of them moves the bytes."""
    banks = load_hardware("tpu_v2_hbm", ["mapping.search=estimate"])
    pipe = banks.with_overrides({"hbm.model": "pipe"})
    layer = conv(64, 14, 64, 3, padding=1)
    ours, others = (CHANNEL_FIRST.lower(layer, 8, each)[0] for each in (banks, pipe))
    assert ours.rows == others.rows
    assert ours.tensors == others.tensors
    assert event.run(ours, banks).hbm != event.run(others, pipe).hbm
