"""Outcomes that stay on chip between layers: right at every level, to the cycle, and nothing overwritten too early."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.agreement.chains import Chain, Values, chains, nameless
from tests.agreement.engines import agreed_timing, clocked
from tests.agreement.test_agreement import suppose
from tests.agreement.test_chains import add_up, early
from tests.agreement.test_hazards import hazards
from tests.covering import few
from tests.rules import rule
from tests.strategies import cases, conv, machine
from tpusim.flow.numbers import SMALL, Numbers, numbers_of
from tpusim.flow.verify import verdict_of
from tpusim.machines.tpu import datapath
from tpusim.machines.tpu.lowering.registry import LOWERINGS, meant
from tpusim.machines.tpu.lowering.riding import riding
from tpusim.machines.tpu.program.transfers import Fill, Keep, Spill
from tpusim.machines.tpu.schedule.home import ResidentTensors, ScatteredError, home_of, settled
from tpusim.machines.tpu.schedule.joined import ReadOutcomes, linked
from tpusim.machines.tpu.schedule.residence import Residence, residence
from tpusim.network.ops.elementwise import Add, Relu
from tpusim.network.ops.fused import OTHER, Fused

MOST_CYCLES = 1_500


@st.composite
def with_room(draw: st.DrawFn) -> Chain:
    """A chain of layers on a machine with room for some of what they make."""
    chain = draw(chains())
    more = draw(st.integers(0, 300)) * chain.hardware.word_bytes
    memory = chain.hardware.vector_memory
    memory = memory.model_copy(update={"capacity_bytes": memory.capacity_bytes + more})
    chain.hardware = chain.hardware.model_copy(update={"vector_memory": memory})
    return chain


def found_for(chain: Chain, leaves: bool = False) -> Residence:
    """What stays; `leaves`: somebody outside wants all."""
    return residence([each._replace(leaves=leaves) for each in chain.joints], chain.hardware)


def told(found: Residence) -> None:
    """To Hypothesis, what a case has."""
    places = [(each.base, each.words) for each in found.allocations]
    event(f"{min(4, len(places))} outcomes stay")
    for what, there in {
        "one in the words of another": len({*places}) < len(places),
        "one is read twice": any(len(each.readers) > 1 for each in found.allocations),
        "one stays for long": any(each.readers[-1][0] > each.maker + 1 for each in found.allocations),
        "one is spilled too": any(each.spilled for each in found.allocations),
    }.items():
        if there:
            event(what)


def check(chain: Chain, found: Residence) -> None:
    """Both engines to the cycle, layer by layer; values at both levels; no wait missing."""
    program = linked(found.layers, chain.hardware)
    timing = agreed_timing(program, chain.hardware)
    assert not [*hazards(program, chain.hardware)]
    assert not [*early(program)]
    add_up(timing)
    values = Values.of(chain, program, found)
    _, registers = clocked(values.program, chain.hardware, values.given, timing)
    compare(values, registers, datapath.run(values.program, chain.hardware, values.given))


def compare(values: Values, *levels: dict[str, Any]) -> None:
    """What was written, with the reference."""
    for each in (computed for written in levels for computed in values.computed(written)):
        assert verdict_of(each.layer, each.read, each.written, values.chain.numbers).mismatched == 0


@rule("T148")
@settings(max_examples=cases(0.12), deadline=None, suppress_health_check=list(HealthCheck))
@given(chain=with_room(), leaves=st.booleans())
def test_random_chains(chain: Chain, leaves: bool) -> None:
    found = found_for(chain, leaves)
    suppose(len(found.allocations) > 0)
    suppose(agreed_timing(linked(found.layers, chain.hardware), chain.hardware).cycles < MOST_CYCLES)
    told(found)
    check(chain, found)


# ---- what would be seen

AMPLE = machine(8, 8, word_elements=4, capacity_words=800)


def block(capacity: int = 800, numbers: Numbers = SMALL) -> Chain:
    """A residual block, and an activation."""
    chain = Chain(4, machine(8, 8, word_elements=4, capacity_words=capacity), numbers)
    sizes = {"name": "next", "channels": 12, "height": 4, "width": 4}
    behind = [Relu(**sizes), conv(12, 4, 12, 3, padding=1), Add(**sizes), Relu(**sizes)]
    for at, layer in enumerate([conv(6, 4, 12, 3, padding=1), *behind]):
        made = nameless(LOWERINGS[meant(layer, "channel_first")].drafts(layer, 4, chain.hardware)[0])
        reads = {"ifmap": ReadOutcomes((f"l{at - 1}",))} if at else {}
        chain.join(layer, made, {**reads, "other": ReadOutcomes(("l0",))} if isinstance(layer, Add) else reads)
    return chain


@cache
def ample(leaves: bool = False) -> tuple[Chain, Residence]:
    """A block where there is room for all, and what stays of it."""
    chain = block()
    return chain, found_for(chain, leaves)


@rule("T147")
def test_a_block_stays_on_chip_in_place() -> None:
    """The addition takes the place of what it adds to, and nothing but the first map and the last goes through HBM."""
    chain, found = ample()
    assert [each.maker for each in found.allocations] == [0, 1, 2, 3]
    assert found.allocations[3].base == found.allocations[0].base
    readers = [each.readers for each in found.allocations]
    assert readers == [((1, "ifmap"), (3, "other")), ((2, "ifmap"),), ((3, "ifmap"),), ((4, "ifmap"),)]
    check(chain, found)
    steps = linked(found.layers, AMPLE).rows
    assert {step.tensor.name for step in steps if isinstance(step, Fill)} == {"l0.ifmap", "l0.filter", "l2.filter"}
    assert {step.tensor.name for step in steps if isinstance(step, Spill)} == {"l4.ofmap"}


def test_who_wants_it_from_hbm_finds_it_there() -> None:
    chain, found = ample(leaves=True)
    assert all(each.spilled for each in found.allocations)
    check(chain, found)
    written = {step.tensor.name for step in linked(found.layers, AMPLE).rows if isinstance(step, Spill)}
    assert written == {f"l{at}.ofmap" for at in range(5)}


@rule("T149")
def test_what_saves_least_goes_where_there_is_no_room() -> None:
    assert len(ample()[1].allocations) == 4
    for words, stay in ((140, 3), (90, 1)):
        chain = block(words)
        found = found_for(chain)
        assert len(found.allocations) == stay
        check(chain, found)


def test_layers_by_themselves_are_right_at_their_places() -> None:
    """What a run holds against the reference."""
    chain, found = ample()
    values = Values.of(chain, linked(found.layers, AMPLE), found)
    alone = [datapath.run(found.alone(at), AMPLE, mine) for at, mine in enumerate(values.operands)]
    compare(values, {f"l{at}.{name}": each for at, made in enumerate(alone) for name, each in made.items()})


@pytest.mark.parametrize("leaves", few(1, [True, False]))
def test_who_reads_it_may_be_given_other_numbers(leaves: bool) -> None:
    """Bytes are never handed on: sums are wider."""
    chain = block(numbers=numbers_of("int8", "any"))
    found = found_for(chain, leaves)
    values = Values.of(chain, linked(found.layers, AMPLE), found)
    assert not values.sources
    assert values.operands[1]["ifmap"] is values.operands[3]["other"]
    check(chain, found)


@pytest.mark.parametrize("what", ["a word further", "not waited for"])
def test_a_wrong_place_is_seen(what: str) -> None:
    chain, found = ample()
    program = linked(found.layers, AMPLE)
    if what == "not waited for":
        keeps = {at for at, step in enumerate(program.rows) if isinstance(step, Keep)}
        steps = tuple(replace(each, after=tuple({*each.after} - keeps)) for each in program.rows)
        assert any(hazards(replace(program, rows=steps), AMPLE))
        return
    steps = tuple(_astray(step) if isinstance(step, Keep) else step for step in program.rows)
    values = Values.of(chain, replace(program, rows=steps), found)
    with pytest.raises(AssertionError):
        compare(values, datapath.run(values.program, AMPLE, values.given))


def _astray(step: Keep) -> Keep:
    return replace(step, parts=tuple(part._replace(base=part.base - 1) for part in step.parts))


@rule("T149")
def test_who_adds_to_what_stays_takes_its_place_or_leaves_it() -> None:
    """Sums that begin with a map at home would be written over it, while others may still read it there."""
    hardware, inner = AMPLE, conv(6, 6, 12, 3, padding=1)
    layer = Fused("adds", inner, adds=True, finish=())
    draft = riding(LOWERINGS["channel_first"].drafts(inner, 4, hardware)[0], layer, hardware)
    home = home_of(draft.units)
    assert home is not None
    settled(draft.units, ResidentTensors({OTHER: home}, home, OTHER))
    for stays in (ResidentTensors({OTHER: home}), ResidentTensors({OTHER: home}, home)):
        with pytest.raises(ScatteredError):
            settled(draft.units, stays)
