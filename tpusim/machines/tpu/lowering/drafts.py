"""A lowering as its module tells of it, and the drafts that it makes of a layer: units that are not scheduled yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from tpusim.base.errors import CapacityError, Problem, UnsuitableError
from tpusim.base.memory import at_rest
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.program import Explained, Explanation, Program, StepCounts
from tpusim.machines.tpu.schedule.scheduler import planned, program_of
from tpusim.machines.tpu.schedule.units import Units
from tpusim.machines.tpu.sections import MappingPolicy
from tpusim.network.ops.array_op import ArrayOp
from tpusim.network.ops.op import Op

_SAID = {"array": "array", "vector": "vector unit"}
"""Units of a machine, in words."""


@dataclass(frozen=True)
class Draft:
    """A way to lower a layer, of those that its lowering leaves to simulation, in the order in which to try them.

    Attributes:
        make: gives the units.
        finish: gives, for the Program of the units, the one to be run, and what people are told of it.
        blocks: the more of them, the more steps.
        least: cycles that no run of this draft, nor of those behind it, falls below; 0 where there is no choice.
        estimate: gives the cycles that the lowering expects, of convolutions and by the vector unit.
        around: gives a context for all of that, which may name the layer in what is raised.
    """

    make: Callable[[], Units]
    finish: Callable[[Program], Explained]
    blocks: int = 1
    least: float = 0.0
    estimate: Callable[[], float] = float
    around: Callable[[], AbstractContextManager[None]] = nullcontext

    @cached_property
    def units(self) -> Units:
        """What is scheduled."""
        return self.make()

    def lower(self) -> Explained:
        """The Program, and what is told of it."""
        with self.around(), at_rest():
            return self.finish(program_of(self.units))

    def telling(self, aspect: str, words: str, first: bool = False) -> Draft:
        """The draft with one thing more that is told, behind all others or ahead of them."""

        def finish(program: Program) -> Explained:
            program, told = self.finish(program)
            aspects = {aspect: words, **told.aspects} if first else {**told.aspects, aspect: words}
            return program, replace(told, aspects=aspects)

        return replace(self, finish=finish)

    def finished(self, program: Program) -> Program:
        """The Program to be run, for one of the units, wherever their words are."""
        return self.finish(program)[0]

    @property
    def planned(self) -> StepCounts:
        """How many steps the Program will have, those of the vector unit among the transfers."""
        with self.around():
            return planned(self.units)


class LeftTo(NamedTuple):
    """Layers that a lowering leaves to another, as it would do the same with them."""

    to: Lowering
    which: Callable[[ArrayOp, int], bool]


@dataclass(frozen=True)
class Lowering:
    """All that there is to say of a lowering.

    Attributes:
        name: what `--lowering` calls it, and its module.
        gloss: what it is, in a line, for those who choose.
        ways: gives the drafts of an op, a batch and a machine; the first is what a run without search takes. Raises
            CapacityError when nothing fits the memories, UnsuitableError for ops that it is not made for.
        unit: the unit of a machine whose ops it takes.
        whole_rows: whether it takes ops of whole rows, instead of those of single places.
        partial: whether it refuses some layers (UnsuitableError).
        banks: whether it can read from banks.
        carries: what may ride on its results: "bias", "add", "finish".
        instead: by op, the lowering that this name means for it.
        left: layers that another lowering takes for it.
        least: gives cycles that no run can do without, before anything is lowered; 0: nothing is known.
        ignores: fields below `mapping` that change nothing.
    """

    name: str
    gloss: str
    ways: Callable[[Any, int, Hardware], Sequence[Draft]]
    unit: str = "array"
    whole_rows: bool = False
    partial: bool = False
    banks: bool = False
    carries: frozenset[str] = frozenset({"bias", "add", "finish"})
    instead: Mapping[str, str] = field(default_factory=dict)
    left: LeftTo | None = None
    least: Callable[[Any, int, Hardware], float] | None = None
    ignores: Callable[[Hardware], frozenset[str]] | frozenset[str] = frozenset()

    def takes(self, layer: Op) -> bool:
        """Whether such an op is of its unit."""
        return layer.unit == self.unit and (layer.unit == "array" or layer.whole_rows == self.whole_rows)

    def leaves(self, layer: Op, batch: int) -> bool:
        """Whether it leaves a layer to another lowering. Raises UnsuitableError for ops that are no convolution."""
        return self.left is not None and isinstance(layer.core, ArrayOp) and self.left.which(layer.core, batch)

    def drafts(self, layer: Op, batch: int, hardware: Hardware) -> Sequence[Draft]:
        """The drafts of a layer's core: one, or what a simulation should choose from. Raises as `ways`."""
        if layer.core.unit != self.unit:
            says = f"{layer.core.op} is an op of the {_SAID[layer.core.unit]}, and {self.name} lowers those of the "
            raise UnsuitableError(f"{says}{_SAID[self.unit]}; name another lowering, or none")
        if self.left and self.leaves(layer, batch):
            return self.left.to.drafts(layer, batch, hardware)
        if hardware.banked and not self.banks:
            says = "this lowering reads from lanes alone; write lanes, or take another lowering"
            raise CapacityError(Problem(says, "vector_memory.organization"))
        return self.ways(layer.core, batch, hardware)

    def lower(self, layer: Op, batch: int, hardware: Hardware) -> Explained:
        """The first draft, scheduled. Raises as `ways`."""
        return self.drafts(layer, batch, hardware)[0].lower()

    def planned(self, layer: Op, batch: int, hardware: Hardware) -> StepCounts:
        """How many steps the longest of the drafts has. Raises as `ways`."""
        return max(self.drafts(layer, batch, hardware), key=lambda draft: draft.blocks).planned

    def unused(self, hardware: Hardware) -> list[str]:
        """The fields below `mapping` that a machine sets and this lowering does not know."""
        ignored = self.ignores(hardware) if callable(self.ignores) else self.ignores
        ignored |= {"row_windows", "transposed_channels"} if hardware.banked else frozenset()
        mapping, plain = hardware.mapping, MappingPolicy()
        given = [name for name, value in mapping if name != "block" and value != getattr(plain, name)]
        return [name for name in (*given, *(f"block.{name}" for name in mapping.block.given)) if name in ignored]


def one_draft(units: Callable[[], Units], explained: Callable[[Program], Explanation]) -> list[Draft]:
    """The drafts of a lowering that leaves no choice, and tells of it when it has its Program."""
    return [Draft(units, lambda program: (program, explained(program)))]
