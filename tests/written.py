"""Lowerings whose Programs are written by hand, or spoilt: for tests that put them among those of the registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST
from tpusim.machines.tpu.lowering.drafts import Draft, Lowering
from tpusim.machines.tpu.program.program import ExplainedProgram, StepCounts
from tpusim.machines.tpu.program.tensors import Tensor
from tpusim.machines.tpu.schedule.units import Act, Area, Moves, Policy, Unit, Units, at_once
from tpusim.network.ops.op import Op

Lower = Callable[[Op, int, Hardware], ExplainedProgram]
Plan = Callable[[Op, int, Hardware], StepCounts]


def as_channel_first(layer: Op, batch: int, hardware: Hardware) -> StepCounts:
    return CHANNEL_FIRST.drafts(layer, batch, hardware)[0].planned


def by_hand(name: str, lower: Lower, planned: Plan = as_channel_first) -> Lowering:
    """The lowering that makes of a layer what `lower` makes."""

    def ways(layer: Op, batch: int, hardware: Hardware) -> list[Draft]:
        asked = layer, batch, hardware
        return [Draft(partial(_Nothing, partial(planned, *asked)), lambda _: lower(*asked))]

    return Lowering(name, f"{name}, by hand", ways, banks=True)


@dataclass
class _Nothing(Units):
    """Units of which nothing is scheduled."""

    count: Callable[[], StepCounts]
    word_fill = 1
    tensors: tuple[Tensor, ...] = ()
    areas: tuple[Area, ...] = ()
    policy = Policy((), at_once)

    def units(self) -> Iterator[Unit]:
        return iter(())

    def counted(self) -> StepCounts:
        return self.count()

    def acts(self, unit: Unit, bases: Sequence[int]) -> Iterator[Act]:
        raise NotImplementedError

    def spill(self, unit: Unit, base: int) -> Moves:
        raise NotImplementedError
