"""Layers that overlap: one Program of several, right at every level, to the cycle, layer by layer."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.agreement.test_agreement import MOST_CYCLES, fitted_by, suppose
from tests.agreement.test_fused import FINISHES
from tests.agreement.test_hazards import hazards
from tests.strategies import (
    cases,
    conv,
    lowerings_of,
    machine,
    machines_of_all_kinds,
    row_ops,
    small_layers,
    transposed_convs,
    vector_ops,
    with_resident_taps,
)
from tpusim.base.errors import CheckFailed
from tpusim.flow.verify import as_floats, expected, operands_of, verdict_of
from tpusim.machines.tpu import datapath, event, register
from tpusim.machines.tpu.datapath.hbm import parts_of
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.registry import LOWERINGS, meant
from tpusim.machines.tpu.lowering.riding import riding
from tpusim.machines.tpu.observation.timing import Timing
from tpusim.machines.tpu.program.check import check_program
from tpusim.machines.tpu.program.explanation import Lowered
from tpusim.machines.tpu.program.joined import Joint, Read, joined, unfit
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Fill, Spill, Step, Stream
from tpusim.network.ops import Add, Conv2d, Fused, Gemm, Op, Pool2d, Relu
from tpusim.network.ops.op import OFMAP, Shape
from tpusim.reference import Tensor

LARGEST = 2**20
"""Of values that are handed on: float32 adds up what an op here makes of them without rounding."""


class Chain(NamedTuple):
    """Layers, each lowered for the machine, that fit one another."""

    layers: list[Op]
    programs: list[Program]
    batch: int
    hardware: Hardware

    @property
    def joints(self) -> list[Joint]:
        return [self.joint(at, each) for at, each in enumerate(self.programs)]

    def joint(self, at: int, program: Program, direct: bool = True) -> Joint:
        """Each reads the one before it, the sixth two of them."""
        before = tuple(f"l{each}" for each in range(max(0, at - (2 if at == 5 else 1)), at))
        return Joint(f"l{at}", program, {"ifmap": Read(before, direct)} if at else {})


@st.composite
def following(draw: st.DrawFn, shape: Shape) -> Op:
    """A layer that reads a map of this shape."""
    channels, height, width, _ = shape
    kernel = draw(st.integers(1, 3))
    sizes = {"name": "next", "channels": channels, "height": height, "width": width}
    return draw(
        st.sampled_from([
            *([conv(channels, height, draw(st.integers(1, 8)), kernel, padding=1)] * 3 if height == width else []),
            Pool2d("pool", "max", channels, height, width, 2, draw(st.integers(1, 2)), 1),
            Relu(**sizes),
            Add(**sizes),
        ])
    )  # fmt: skip


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    """On a machine that has room for each layer alone; half of the layers read just what the one before makes."""
    hardware = with_resident_taps(draw(machines_of_all_kinds(8, st.sampled_from([1, 2, 4, 8]))))
    suppose(not hardware.banked)
    chain = Chain([], [], draw(st.integers(1, 5)), hardware)
    for _ in range(draw(st.integers(3, 6))):
        after = [following(chain.layers[-1].shapes(chain.batch)[OFMAP])] * 2 if chain.layers else []
        layer = draw(st.one_of(small_layers(), transposed_convs(), vector_ops(8, 3), row_ops(12, 9), *after))
        if layer.unit == "array" or len(layer.sources(chain.batch)) - 1 <= hardware.vector_unit.scalar_words:
            extend(draw, chain, layer)
    suppose(len(chain.layers) > 1)
    return chain


def extend(draw: st.DrawFn, chain: Chain, layer: Op) -> None:
    """By a layer, perhaps with something that rides on its results, if its Program fits those before."""
    suppose(layer.macs(chain.batch) / chain.hardware.pes < 300)
    names = lowerings_of(layer) - {"indirect"} if layer.unit == "array" else {meant(layer, "")}
    adds, finish = draw(st.booleans()), draw(FINISHES)
    if isinstance(layer, Conv2d | Gemm) and (adds or finish):
        layer = Fused(layer.name, layer, adds, finish)
    name = draw(st.sampled_from(sorted(names - {"vector"})))
    program, enough = fitted_by(partial(lowered_as, name, layer), layer.core, chain.batch, chain.hardware)
    if enough is chain.hardware and not unfit(chain.joint(len(chain.layers), program), chain.joints, enough):
        chain.layers.append(layer)
        chain.programs.append(program)


def lowered_as(name: str, layer: Op, core: Op, batch: int, hardware: Hardware) -> Lowered:
    """By a lowering, with what rides on it."""
    found = LOWERINGS[name](core, batch, hardware)
    return riding(found, layer) if isinstance(layer, Fused) else found


class Values(NamedTuple):
    """What each layer reads, and the joints by which it is handed on if that can be: whole and small, so that no sum of
    the next layer is rounded.
    """

    operands: list[dict[str, Tensor]]
    joints: list[Joint]

    @classmethod
    def of(cls, chain: Chain) -> Values:
        values, before = cls([], []), None
        for at, layer in enumerate(chain.layers):
            mine = as_floats(operands_of(layer, chain.batch, seed=at))
            direct = before is not None and mine["ifmap"].shape == before.shape and at != 5 and whole(before)
            mine["ifmap"] = before if direct else mine["ifmap"]
            values.operands.append(mine)
            values.joints.append(chain.joint(at, chain.programs[at], direct))
            before = expected(layer, mine).astype(np.float32)
        return values

    def given(self, program: Program) -> dict[str, Tensor]:
        """By the names of the joined Program, all that is not handed on."""
        handed = {each.tensor for each in program.handed if each.same}
        named = {f"l{at}.{name}": each for at, mine in enumerate(self.operands) for name, each in mine.items()}
        return {name: each for name, each in named.items() if name not in handed}


def whole(values: Tensor) -> bool:
    return bool((values == np.rint(values)).all() and np.abs(values).max() < LARGEST)


@settings(max_examples=cases(1 / 80), deadline=None, suppress_health_check=list(HealthCheck))
@given(chain=chains())
def test_random_chains(chain: Chain) -> None:
    """The engines to the cycle, layer by layer; values at both levels; no wait missing."""
    suppose(sum(event.run(each, chain.hardware).cycles for each in chain.programs) < MOST_CYCLES)
    values = Values.of(chain)
    program = joined(values.joints, chain.hardware)
    check_program(program, chain.hardware)
    assert not [*hazards(program, chain.hardware)]
    timing, registers = register.run(program, chain.hardware, values.given(program))
    assert timing == event.run(program, chain.hardware)
    assert (timing.reads, timing.writes) == (program.use.port_reads, program.use.port_writes)
    add_up(timing)
    written = datapath.run(program, chain.hardware, values.given(program))
    for at, (layer, mine) in enumerate(zip(chain.layers, values.operands, strict=True)):
        for each in (registers, written):
            made = {name: each[f"l{at}.{name}"] for name in chain.programs[at].written}
            assert verdict_of(layer, mine, made).mismatched == 0


def add_up(timing: Timing) -> None:
    """The layers' shares to the whole, and each one's accounts to its cycles."""
    assert sum(each.cycles for each in timing.layers) == timing.cycles
    for share in timing.layers:
        for unit, account in share.units.items():
            assert sum(account.values()) == share.cycles, unit
            assert min(account.values()) >= 0, (unit, account)
    for unit, account in timing.units.items():
        for cause, cycles in account.items():
            assert sum(share.units[unit][cause] for share in timing.layers) == cycles


# ---- what would be seen

TIGHT = machine(8, 8, word_elements=4, capacity_words=75)


def three(linked: bool = True) -> Program:
    """Layers in blocks that hardly fit, each of which reads the one before, if they are linked."""
    layer = conv(6, 7, 6, 3, padding=1)
    chain = Chain([], [LOWERINGS["channel_first"](layer, 4, TIGHT)[0]] * 3, 4, TIGHT)
    return joined([each if linked else each._replace(reads={}) for each in chain.joints], TIGHT)


def without(program: Program, kind: type[Step]) -> Program:
    """Steps of a kind no longer wait for those of other layers."""
    steps = (
        replace(step, after=tuple(each for each in step.after if program.layers[each] == layer))
        if isinstance(step, kind)
        else step
        for step, layer in zip(program.steps, program.layers, strict=True)
    )
    return replace(program, steps=tuple(steps))


@pytest.mark.parametrize("kind", [Fill, Stream])
def test_no_kind_of_step_could_do_without_its_waits(kind: type[Step]) -> None:
    program = three(linked=False)
    assert not [*hazards(program, TIGHT)]
    assert any(hazards(without(program, kind), TIGHT))


def test_what_others_make_is_waited_for() -> None:
    program = three()
    check_program(program, TIGHT)
    with pytest.raises(CheckFailed, match=r"reads a l1\.ifmap that it does not wait for"):
        check_program(without(program, Fill), TIGHT)


def test_what_is_handed_on_has_the_margin_of_who_writes_it() -> None:
    """Strips of one image reach beyond the map, and so do spills of them."""
    layer, hardware = conv(3, 7, 3, 3, padding=1), machine(4, 4, word_elements=4)
    chain = Chain([layer] * 2, [LOWERINGS["channel_first"](layer, 1, hardware)[0]] * 2, 1, hardware)
    values = Values.of(chain)
    program = joined(values.joints, hardware)
    spilled = {part for step in program.steps if isinstance(step, Spill) and step.tensor.name == "l0.ofmap"
               for part in step.parts}  # fmt: skip
    assert spilled <= {*parts_of(program, "l1.ifmap")}
    made = datapath.run(program, hardware, values.given(program))
    np.testing.assert_array_equal(made["l1.ofmap"], expected(layer, values.operands[1]))


def test_weights_go_ahead_of_the_last_results() -> None:
    """The first of a layer come in before all of the layer ahead is spilled, and first blocks behind what they read."""
    ample = machine(8, 8, word_elements=4, capacity_words=400)
    chain = Chain([], [LOWERINGS["channel_first"](conv(6, 9, 6, 3, padding=1), 4, ample)[0]] * 2, 4, ample)
    program = joined(chain.joints, ample)
    spilled = max(at for at, step in enumerate(program.steps) if isinstance(step, Spill) and program.layers[at] == 0)
    first = {
        name: next(at for at, step in enumerate(program.steps) if isinstance(step, Fill) and step.tensor.name == name)
        for name in ("l1.filter", "l1.ifmap")
    }
    assert first["l1.filter"] < spilled
    assert program.sources(program.steps[first["l1.ifmap"]])  # type: ignore[arg-type]
