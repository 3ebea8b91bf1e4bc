"""What the numbers of a run are: the operands of a layer, and what is expected of all that is made of them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tpusim import reference
from tpusim.base.errors import CapacityError, InputError, Problem, did_you_mean
from tpusim.flow.lowerings import AUTO, asked_of, tried
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.registry import least_of
from tpusim.machines.tpu.program.program import Program
from tpusim.network.ops import Op, RowOp
from tpusim.network.ops.op import OFMAP
from tpusim.network.workload import Workload
from tpusim.numerics.bounds import BOUNDED, MOST_ROUNDINGS, bounded, gamma, moved
from tpusim.numerics.element_types import ELEMENT_TYPES, SIXTEENTHS, ElementType, Values
from tpusim.reference import Box, Operand, Operands, rows
from tpusim.reference.rounding import magnitudes, roundings

INTEGERS = "integers"
"""Without a type, operands are whole numbers so small that every sum is exact in float32."""
DTYPES = (INTEGERS, *ELEMENT_TYPES)
ANY_ORDER, ARRAY_ORDER = "any", "array"
SUMS = (ANY_ORDER, ARRAY_ORDER)
"""The orders in which the data path may add: the fastest for this computer, or that of the array."""
UNBOUNDED = frozenset({"winograd_2", "winograd_4", "fft"})
"""Lowerings that round more than sums of products: what they transform grows before it cancels."""
_MOST_TOLD = 8


@dataclass(frozen=True)
class Numbers:
    """The numbers that layers are computed with.

    Attributes:
        kind: their type; None: small whole numbers.
        in_array_order: whether the data path adds as the array does.
    """

    kind: ElementType | None = None
    in_array_order: bool = False

    def operands(self, layer: Op, batch: int, seed: int) -> dict[str, Operand]:
        """Random operands of a layer, by the names of the tensors in its Program: the same whatever else runs.

        Raises:
            InputError: when a sum may be too long for what holds it, or for a bound that says something.
        """
        kind = self.of(layer).kind
        if kind is None:
            return reference.operands(layer, batch, seed)
        self.check(layer, batch)
        random = np.random.default_rng([seed, zlib.crc32(repr(layer).encode())])
        drawn = {name: kind.drawn(random, shape) for name, shape in layer.sources(batch).items()}
        return {name: abs(each) for name, each in drawn.items()} if layer.positive else drawn

    def of(self, layer: Op) -> Numbers:
        """Those of a layer: one that rounds gets real numbers where others get whole ones."""
        return self if layer.exact or self.bounded else replace(self, kind=SIXTEENTHS)

    def check(self, layer: Op, batch: int) -> None:
        """Raise InputError for a layer whose sums are too long."""
        products, numbers = layer.terms(batch), self.of(layer)
        try:
            if numbers.kind is not None:
                numbers.kind.check_sum(products)
            if numbers.bounded and roundings(layer, batch) > MOST_ROUNDINGS:
                raise InputError(f"a sum of {products:,} products may be off by too much to be checked; use --no-check")
        except InputError as error:
            raise InputError(Problem(str(error), f"layer {layer.name}")) from None

    @property
    def bounded(self) -> bool:
        """Whether outputs have a bound, instead of being equal to what is expected."""
        return self.kind is not None and not self.kind.exact

    @property
    def operand_bytes(self) -> int:
        """What an operand takes, also as the reference has it: in float64, and its magnitude."""
        if self.kind is None:
            return 1
        return 1 + 8 if self.kind.exact else 4 + 8 + 4

    def program(self, layer: Op, batch: int, program: Program) -> Program:
        """The Program, for numbers that hold these values."""
        return replace(program, doubles=True) if self.needs_doubles(layer, batch) else program

    def needs_doubles(self, layer: Op, batch: int) -> bool:
        """Whether whole numbers, or equal parts of them, are summed up beyond what float32 holds exactly."""
        kind = self.of(layer).kind
        return kind is not None and kind.needs_doubles(layer.terms(batch) * layer.sample_parts)


SMALL = Numbers()
"""Small whole numbers, added in any order: it makes no difference."""


def numbers_of(dtype: str, sums: str) -> Numbers:
    """Those of `--dtype` and `--sums`. Raises InputError for names that there are not."""
    for given, known, option in ((dtype, DTYPES, "--dtype"), (sums, SUMS, "--sums")):
        if given not in known:
            raise InputError(f"{option} {given}{did_you_mean(given, known) or ':'} there is {', '.join(known)}")
    return Numbers(ELEMENT_TYPES.get(dtype), sums == ARRAY_ORDER)


def check_numbers(workload: Workload, hardware: Hardware, lowering: str, numbers: Numbers) -> None:
    """Raise InputError for layers whose values could not be checked: all of them, before the first is simulated."""
    problems: list[Problem] = []
    for layer, name in asked_of(workload, lowering):
        try:
            numbers.check(layer, workload.batch)
        except InputError as error:
            problems += error.problems
        if numbers.bounded and (lost := [*_unbounded(layer, workload.batch, hardware, name)]):
            says = f"no bound is proven for the roundings of {', '.join(lost)}"
            also = f", which {AUTO} may take" if name == AUTO else ""
            advice = "take another --lowering or --dtype, or --no-check"
            problems.append(Problem(f"{says}{also}; {advice}", f"layer {layer.name}"))
    if problems:
        raise InputError(problems[:_MOST_TOLD])


def _unbounded(layer: Op, batch: int, hardware: Hardware, lowering: str) -> Iterator[str]:
    """Those of UNBOUNDED that may take a layer."""
    for name in tried(lowering, layer, batch):
        if name in UNBOUNDED:
            # What a lowering is not for, it refuses by itself.
            with suppress(CapacityError):
                least_of(layer, batch, hardware, name)
                yield name


@dataclass(frozen=True)
class Expectation:
    """What the reference has for a tensor of a layer: numbers, or BOUNDED ones where sums are rounded."""

    layer: Op
    tensor: str
    operands: Operands
    numbers: Numbers

    @property
    def number(self) -> np.dtype[Any]:
        """What is expected of an element: a number, or a BOUNDED one."""
        return BOUNDED if self.bounded else np.dtype(np.float64 if self._doubles else np.float32)

    def of(self, box: Box) -> Values:
        """What is expected of the elements in a box of the tensor."""
        true = reference.TENSORS[self.tensor].compute(self.layer, self._exact, box)
        if not self.bounded:
            return true
        if not self.roundings:
            return moved(true)
        return bounded(true, self._magnitudes(box, true), self.roundings)

    def _magnitudes(self, box: Box, true: Values) -> Values:
        if isinstance(self.layer, RowOp):
            return rows.magnitudes(self.layer, self._exact, box, true, gamma(self.roundings))
        return magnitudes(self.layer, self._sizes, box, true)

    @cached_property
    def bounded(self) -> bool:
        """Whether its elements are BOUNDED."""
        return self.numbers.of(self.layer).bounded

    @cached_property
    def _doubles(self) -> bool:
        """Whether the reference works in float64: float32 rounds, or would lose what the machine holds in float64."""
        return self.bounded or self.numbers.needs_doubles(self.layer, self._batch)

    @property
    def _batch(self) -> int:
        return int(self.operands["ifmap"].shape[-1])

    @cached_property
    def _exact(self) -> Operands:
        """The operands as what the sums are computed in; that is float64 where one of them is."""
        if not self._doubles:
            return self.operands
        if "filter" in self.operands:
            return {**self.operands, "filter": self.operands["filter"].astype(np.float64)}
        return {name: each.astype(np.float64) for name, each in self.operands.items()}

    @cached_property
    def _sizes(self) -> Operands:
        """Their magnitudes."""
        return {name: np.abs(each) for name, each in self.operands.items()}

    @cached_property
    def roundings(self) -> int:
        """How often a sum is rounded at most, in whatever order; what is only moved never is."""
        return roundings(self.layer, self._batch) if self.tensor == OFMAP else 0
