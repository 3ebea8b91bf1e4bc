"""Fused ops ride on the results of an op of the array: results are stored once these are done, and not before.

An addition begins the sums of a block: the other tensor is brought to the place of the sums, and the first pass adds
to it. A bias is a number of a column beside its weights: all biases are brought once, and the last pass of a block
loads the biases of its columns. An activation ends the sums: the last pass finishes its results on their way to the
vector memory. Where the vector unit has made the results, it adds biases and finishes them in further steps; another
tensor is not added to these, as no words are kept for it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from tpusim.base.errors import CapacityError, UnsuitableError
from tpusim.machines.tpu.cut.tiling import col_folds
from tpusim.machines.tpu.cut.traffic import Traffic
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.drafts import Draft
from tpusim.machines.tpu.lowering.vector import in_turn, lane_step
from tpusim.machines.tpu.program.program import StepCounts
from tpusim.machines.tpu.program.steps import Finish, Scalars
from tpusim.machines.tpu.program.tensors import Tensor
from tpusim.machines.tpu.program.transfers import Along, Part
from tpusim.machines.tpu.schedule.scheduler import buffers, link
from tpusim.machines.tpu.schedule.units import (
    Act,
    Area,
    Bias,
    EqualMoves,
    Key,
    Moves,
    Pass,
    SlotNeed,
    Touch,
    Unit,
    Units,
    VectorWork,
    in_one,
    with_the_spill,
)
from tpusim.network.ops.array_op import GroupedOp
from tpusim.network.ops.fused import BIAS, OTHER, Fused
from tpusim.network.ops.op import OFMAP, Op

_NOT_SO = (
    "its outputs are not what passes leave behind, so that nothing can ride on them; leave fusion out, by "
    "sequencer.fusion=none"
)


def riding(draft: Draft, layer: Fused, hardware: Hardware) -> Draft:
    """The draft of a layer's core together with the ops fused to it.

    Raises UnsuitableError if a fused op takes a function. The draft raises it, too, if results are scaled, words
    have several channels, or a tensor is added to results of the vector unit; and CapacityError if biases do not fit.
    """
    if not (layer.adds or layer.bias or layer.finish):
        return draft
    if not all(each.exact for each in layer.finish):
        raise UnsuitableError(
            "what takes a function, such as tanh, does not ride on results; leave it out of the fusion"
        )

    def make() -> Units:
        units = RidingUnits(draft.units, layer, hardware)
        *_, last = buffers(units, link(units))
        if layer.bias and (stop := last.base + last.words) > hardware.capacity_words:
            raise CapacityError(
                f"its biases take {last.words} words beside the {last.base} of a lane, which has "
                f"{hardware.capacity_words}; set vector_memory.capacity to at least {stop * hardware.word_bytes} B, "
                "or sequencer.fusion to none"
            )
        return units

    added = {"bias": layer.bias, "add": layer.adds}
    names = *(name for name, there in added.items() if there), *(each.op for each in layer.finish)
    return replace(draft, make=make).telling("fused", f"{' and '.join(names)} ride on results")


def bias_words(layer: Op, batch: int, hardware: Hardware) -> int:
    """The most words of a lane that the biases of a layer take: one word for the channels of a pass."""
    if not isinstance(layer, Fused) or not layer.bias:
        return 0
    core = layer.core
    conv = core.scatter or (core if isinstance(core, GroupedOp) else core.convolution(batch)[0])
    # Phases stand side by side in rectangles of at most four sizes, and each size repeats the channels in its own way.
    sizes = 4 if core.scatter else 1
    return sizes * conv.groups * len(col_folds(conv.out_channels // conv.groups, hardware))


def spared(layer: Op, batch: int, hardware: Hardware) -> Hardware:
    """The machine without the words of biases, which are lost to the layer's core."""
    if not (words := bias_words(layer, batch, hardware)):
        return hardware
    left = max(1, hardware.vector_memory.capacity_bytes - words * hardware.word_bytes)
    return hardware.having("vector_memory", capacity_bytes=left)


class RidingUnits(Units):
    """The units of a layer's core, with work on the results that they leave."""

    def __init__(self, core: Units, layer: Fused, hardware: Hardware) -> None:
        self.core, self.layer, self.hardware = core, layer, hardware
        self.word_fill, self.intermediates = core.word_fill, core.intermediates
        self.strands, self.before = core.strands, core.before
        ofmap = next(each for each in core.tensors if each.name == OFMAP)
        if ofmap.scale != 1 or ofmap.lost:
            raise UnsuitableError(_NOT_SO)
        self._bias, other = Tensor(BIAS, (ofmap.shape[0], 1, 1, 1)), replace(ofmap, name=OTHER)
        self.tensors = *core.tensors, *((other,) if layer.adds else ()), *((self._bias,) if layer.bias else ())
        self._first = next(unit for unit in core.units() if unit.leaves >= 0)
        self._results = self._first.needs[self._first.leaves].area
        # Areas for fused operands come behind all others, so that the core's addresses stay the same.
        added = *((self._results,) if layer.adds else ()), *((BIAS,) if layer.bias else ())
        self.policy = core.policy._replace(order=(*core.policy.order, *added))
        self._finish = tuple(Finish(each.operation, each.coefficients(1)) for each in layer.finish)
        self._leaving: dict[Key, Unit] = {}
        """The unit that leaves each result; `_first` is the first of these units."""

    @property
    def more(self) -> Mapping[str, Any]:
        return self.core.more

    @property
    def areas(self) -> tuple[Area, ...]:
        """Areas of the core, and areas for tensors added to sums, which come as soon as their slot is free, and for
        biases, which come once.
        """
        areas = {each.name: each for each in self.core.areas}
        results, gaps = areas[self._results], with_the_spill(self.core.policy.lag)
        if self.layer.adds:
            # A tensor is added to the sums that passes leave; other outputs have no such place.
            if not self._by_passes:
                raise UnsuitableError(_NOT_SO)

            def other(key: Key, base: int) -> list[Moves]:
                """Return the additions to the sums that a unit leaves."""
                left = self.core.spill(self._leaving[key], base)
                return [left._replace(tensor=replace(left.tensor, name=OTHER))]

            cut = in_one(other, alike=lambda key: self.core.left_alike(self._leaving[key]))
            areas[results.name] = replace(results, cut=cut, late=True, gaps=gaps)
        if self.layer.bias:
            lanes = max(map(len, self._words))
            areas[BIAS] = Area(BIAS, BIAS, len(self._words), 1, lanes, in_one(self._biases), late=True, gaps=gaps)
        return tuple(areas.values())

    def units(self) -> Iterator[Unit]:
        steps = 0 if self._by_passes else len(self._finish) + self.layer.bias
        for unit in self.core.units():
            if unit.leaves >= 0:
                self._leaving[unit.needs[unit.leaves].key] = unit
                needs = *unit.needs, *((SlotNeed(BIAS, 0),) if self.layer.bias else ())
                unit = unit._replace(needs=needs, steps=unit.steps + steps)
            yield unit

    def counted(self) -> StepCounts | None:
        """Numbers of steps of the core, and a fill of the added tensor for each result, and a fill of biases."""
        found = self.core.counted()
        if found is None:
            return None
        added = sum(unit.leaves >= 0 for unit in self.core.units()) if self.layer.adds else 0
        return found._replace(transfers=found.transfers + added + self.layer.bias)

    def alike(self, unit: Unit) -> Hashable:
        """Units that leave results are alike where the words of their biases are the same."""
        if unit.leaves < 0:
            return self.core.alike(unit)
        found = self.core.alike(self._leaving[unit.needs[unit.leaves].key]) if self._by_passes else None
        return found and (found, self._words[self.core.channels(unit)] if self.layer.bias else 0)

    def acts(self, unit: Unit, bases: Sequence[int]) -> Iterator[Act]:
        if unit.leaves < 0:
            yield from self.core.acts(unit, bases)
            return
        core = self._leaving[unit.needs[unit.leaves].key]
        acts = self.core.acts(core, bases[: len(core.needs)])
        if self._by_passes:
            yield from self._finished([*acts], unit, bases)
        else:
            yield from acts
            yield from self._worked(unit, bases)

    def _finished(self, acts: Sequence[Act], unit: Unit, bases: Sequence[int]) -> Iterator[Act]:
        """Acts in which the last pass of each sum finishes it."""
        last = {act.result: act for act in acts if isinstance(act, Pass)}
        bias = Bias(Touch(len(bases) - 1), self._bias_of(unit, bases)) if self.layer.bias else None
        for act in acts:
            ends = isinstance(act, Pass) and last[act.result] is act
            yield act._replace(finish=self._finish, bias=bias) if ends and isinstance(act, Pass) else act

    def _worked(self, unit: Unit, bases: Sequence[int]) -> Iterator[VectorWork]:
        """Vector steps on the words of the results."""
        results = Touch(unit.leaves)
        for part in self.core.spill(unit, bases[unit.leaves]).parts:
            walk = in_turn(part.base, part.words)
            make = partial(lane_step, part.lanes, walks=[walk], writes=walk)
            if self.layer.bias:
                step = make("add", scalars=Scalars(self._bias_of(unit, bases), 1, 1))
                yield VectorWork([step], (results, Touch(len(bases) - 1)), unit.leaves)
            for operation, coefficients in self._finish:
                yield VectorWork([make(operation, coefficients=coefficients)], (results,), unit.leaves)

    def channels(self, unit: Unit) -> tuple[int, ...]:
        return self.core.channels(unit)

    def spill(self, unit: Unit, base: int) -> Moves:
        return self.core.spill(unit, base)

    def left_alike(self, unit: Unit) -> EqualMoves | None:
        return self.core.left_alike(unit)

    # ---- fused operands

    @cached_property
    def _by_passes(self) -> bool:
        """Whether passes make the results, not the vector unit."""
        acts = self.core.acts(self._first, [0] * len(self._first.needs))
        return any(isinstance(act, Pass) and act.sums == self._first.leaves for act in acts)

    def _bias_of(self, unit: Unit, bases: Sequence[int]) -> int:
        """The word of biases for the result of a unit."""
        return bases[-1] + self._words[self.core.channels(unit)]

    @cached_property
    def _words(self) -> Mapping[tuple[int, ...], int]:
        """The number of each word of biases, by the channels of its lanes."""
        found: dict[tuple[int, ...], int] = {}
        for unit in self.core.units():
            if unit.leaves >= 0:
                found.setdefault(self.core.channels(unit), len(found))
        if () in found:
            raise UnsuitableError(_NOT_SO)
        return found

    def _biases(self, key: Key, base: int) -> Iterator[Moves]:
        """Moves of all biases."""
        parts = tuple(
            Part(base + number, (0,), (Along(0, channels),), (Along(1, range(1)),), 1)
            for channels, number in self._words.items()
        )
        yield Traffic(self.hardware).numbers(self._bias, parts, self._bias.size)
