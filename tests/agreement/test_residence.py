"""Outcomes that stay on chip between layers: right at every level, to the cycle, and nothing overwritten too early."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.agreement.test_agreement import MOST_CYCLES, suppose
from tests.agreement.test_chains import Chain, add_up, extend, following, whole
from tests.agreement.test_hazards import hazards
from tests.strategies import cases, conv, machine, machines_of_all_kinds
from tpusim.flow.verify import as_floats, expected, operands_of, verdict_of
from tpusim.machines.tpu import datapath, register
from tpusim.machines.tpu import event as event_engine
from tpusim.machines.tpu.lowering.registry import LOWERINGS, meant
from tpusim.machines.tpu.program.check import check_program
from tpusim.machines.tpu.program.joined import Joint, Read, linked
from tpusim.machines.tpu.program.keep import Keep
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.residence import Residence, residence
from tpusim.machines.tpu.program.steps import Fill, Spill
from tpusim.network.ops import Add, Op, Pool2d, Relu
from tpusim.network.ops.op import OFMAP
from tpusim.reference import Tensor


@st.composite
def read_on_chip(draw: st.DrawFn) -> Chain:
    """Layers that mostly read what the one ahead has made, on a machine with room for some of it."""
    hardware = draw(machines_of_all_kinds(8, st.sampled_from([1, 2, 4])))
    suppose(not hardware.banked)
    words = draw(st.integers(100, 900)) * hardware.word_bytes
    memory = hardware.vector_memory.model_copy(update={"capacity_bytes": words})
    chain = Chain([], [], draw(st.integers(1, 5)), hardware.model_copy(update={"vector_memory": memory}))
    size, channels = draw(st.integers(2, 6)), draw(st.integers(1, 9))
    first = conv(channels, size, draw(st.integers(1, 9)), draw(st.integers(1, 2)), padding=1)
    extend(draw, chain, draw(st.sampled_from([first, Pool2d("pool", "max", channels, size, size, 2, 1, 1)])))
    for _ in range(draw(st.integers(1, 5))):
        suppose(len(chain.layers) > 0)
        extend(draw, chain, draw(following(chain.layers[-1].shapes(chain.batch)[OFMAP])))
    return chain


class Flow:
    """Values from layer to layer, as far as they are whole and small: what is added comes from the layer furthest ahead
    that makes its like.
    """

    def __init__(self, chain: Chain, leaves: bool = False) -> None:
        self.chain, self.joints = chain, list[Joint]()
        self.operands = list[dict[str, Tensor]]()
        made: list[Tensor] = []
        for at, layer in enumerate(chain.layers):
            mine = as_floats(operands_of(layer, chain.batch, seed=at))
            reads = {}
            for name, source in self._read(at, layer):
                direct = mine[name].shape == made[source].shape and whole(made[source])
                mine[name] = made[source] if direct else mine[name]
                reads[name] = Read((f"l{source}",), direct)
            self.operands.append(mine)
            self.joints.append(Joint(f"l{at}", chain.programs[at], reads, leaves))
            made.append(expected(layer, mine).astype(np.float32))

    def _read(self, at: int, layer: Op) -> Iterator[tuple[str, int]]:
        if at:
            yield "ifmap", at - 1
        shapes = [each.shapes(self.chain.batch)[OFMAP] for each in self.chain.layers[: max(0, at - 1)]]
        wanted = layer.sources(self.chain.batch).get("other")
        if wanted in shapes:
            yield "other", shapes.index(wanted)

    def given(self, program: Program) -> dict[str, Tensor]:
        """By the names of the joined Program, all that is not handed on."""
        handed = {each.tensor for each in program.handed if each.same}
        named = {f"l{at}.{name}": each for at, mine in enumerate(self.operands) for name, each in mine.items()}
        return {name: each for name, each in named.items() if name not in handed}

    def check(self, found: Residence) -> None:
        """Both engines to the cycle, layer by layer; values at both levels; no wait missing."""
        hardware = self.chain.hardware
        program = linked(found.layers, hardware, found.stay)
        check_program(program, hardware)
        assert not [*hazards(program, hardware)]
        timing, registers = register.run(program, hardware, self.given(program))
        assert timing == event_engine.run(program, hardware)
        assert (timing.reads, timing.writes) == (program.use.port_reads, program.use.port_writes)
        add_up(timing)
        self.compare(registers, datapath.run(program, hardware, self.given(program)))

    def compare(self, *levels: dict[str, Any]) -> None:
        for at, (layer, mine) in enumerate(zip(self.chain.layers, self.operands, strict=True)):
            for each in levels:
                made = {name: each[f"l{at}.{name}"] for name in self.chain.programs[at].written}
                assert verdict_of(layer, mine, made).mismatched == 0


def told(found: Residence) -> None:
    """To Hypothesis, what a case has."""
    places = [(each.base, each.words) for each in found.allocations]
    event(f"{min(4, len(places))} outcomes stay")
    for what, there in {
        "one in the words of another": len({*places}) < len(places),
        "one is read twice": any(len(each.readers) > 1 for each in found.allocations),
        "one stays for long": any(each.last > each.maker + 1 for each in found.allocations),
        "one is spilled too": any(each.spilled for each in found.allocations),
    }.items():
        if there:
            event(what)


@settings(max_examples=cases(1 / 80), deadline=None, suppress_health_check=list(HealthCheck))
@given(chain=read_on_chip(), leaves=st.booleans())
def test_random_chains(chain: Chain, leaves: bool) -> None:
    suppose(sum(event_engine.run(each, chain.hardware).cycles for each in chain.programs) < MOST_CYCLES)
    flow = Flow(chain, leaves)
    found = residence(flow.joints, chain.hardware)
    suppose(len(found.allocations) > 0)
    told(found)
    flow.check(found)


# ---- what would be seen

AMPLE = machine(8, 8, word_elements=4, capacity_words=800)


def block(capacity: int = 800) -> Chain:
    """A residual block, and an activation."""
    hardware = machine(8, 8, word_elements=4, capacity_words=capacity)
    sizes = {"name": "next", "channels": 12, "height": 6, "width": 6}
    behind = [Relu(**sizes), conv(12, 6, 12, 3, padding=1), Add(**sizes), Relu(**sizes)]
    layers: list[Op] = [conv(6, 6, 12, 3, padding=1), *behind]
    programs = [LOWERINGS[meant(each, "channel_first")](each, 4, hardware)[0] for each in layers]
    return Chain(layers, programs, 4, hardware)


def found_for(flow: Flow) -> Residence:
    return residence(flow.joints, flow.chain.hardware)


def test_a_block_stays_on_chip_in_place() -> None:
    """The addition takes the place of what it adds to, and nothing but the first map and the last goes through HBM."""
    flow = Flow(block())
    found = found_for(flow)
    assert [each.maker for each in found.allocations] == [0, 1, 2, 3]
    assert found.allocations[3].base == found.allocations[0].base
    readers = [each.readers for each in found.allocations]
    assert readers == [((1, "ifmap"), (3, "other")), ((2, "ifmap"),), ((3, "ifmap"),), ((4, "ifmap"),)]
    flow.check(found)
    steps = linked(found.layers, AMPLE, found.stay).steps
    assert {step.tensor.name for step in steps if isinstance(step, Fill)} == {"l0.ifmap", "l0.filter", "l2.filter"}
    assert {step.tensor.name for step in steps if isinstance(step, Spill)} == {"l4.ofmap"}


def test_who_wants_it_from_hbm_finds_it_there() -> None:
    flow = Flow(block(), leaves=True)
    found = found_for(flow)
    assert all(each.spilled for each in found.allocations)
    flow.check(found)
    written = {step.tensor.name for step in linked(found.layers, AMPLE).steps if isinstance(step, Spill)}
    assert written == {f"l{at}.ofmap" for at in range(5)}


def test_what_saves_least_goes_where_there_is_no_room() -> None:
    kept = {words: len(found_for(Flow(block(words))).allocations) for words in (800, 200, 140)}
    assert kept[800] == 4
    assert 0 < kept[200] < 4
    for words in kept:
        flow = Flow(block(words))
        flow.check(found_for(flow))


def test_layers_by_themselves_are_right_at_their_places() -> None:
    """What a run holds against the reference."""
    flow = Flow(block())
    found = found_for(flow)
    alone = [datapath.run(found.alone(at), AMPLE, mine) for at, mine in enumerate(flow.operands)]
    flow.compare({f"l{at}.{name}": each for at, made in enumerate(alone) for name, each in made.items()})


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("engine", [register, datapath])
def test_who_reads_it_may_be_given_other_numbers(engine: Any, leaves: bool) -> None:
    flow = Flow(block(), leaves)
    found = found_for(flow)
    program = linked(found.layers, AMPLE, found.stay).with_given_operands()
    others = as_floats(operands_of(flow.chain.layers[1], 4, seed=9))["ifmap"]
    operands = [dict(mine) for mine in flow.operands]
    operands[1]["ifmap"] = operands[3]["other"] = others
    named = {f"l{at}.{name}": each for at, mine in enumerate(operands) for name, each in mine.items()}
    made = engine.run(program, AMPLE, named)
    made = made[1] if engine is register else made
    for at, (layer, mine) in enumerate(zip(flow.chain.layers, operands, strict=True)):
        assert verdict_of(layer, mine, {OFMAP: made[f"l{at}.ofmap"]}).mismatched == 0


@pytest.mark.parametrize("what", ["a word further", "not waited for"])
def test_a_wrong_place_is_seen(what: str) -> None:
    flow = Flow(block())
    found = found_for(flow)
    program = linked(found.layers, AMPLE, found.stay)
    if what == "not waited for":
        keeps = {at for at, step in enumerate(program.steps) if isinstance(step, Keep)}
        steps = tuple(replace(each, after=tuple({*each.after} - keeps)) for each in program.steps)
        assert any(hazards(replace(program, steps=steps), AMPLE))
        return
    steps = tuple(_astray(step) if isinstance(step, Keep) else step for step in program.steps)
    with pytest.raises(AssertionError):
        flow.compare(datapath.run(replace(program, steps=steps), AMPLE, flow.given(program)))


def _astray(step: Keep) -> Keep:
    return replace(step, parts=tuple(part._replace(base=part.base - 1) for part in step.parts))
