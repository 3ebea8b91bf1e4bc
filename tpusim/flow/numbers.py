"""What the numbers of a run are: the operands of a layer, and what is expected of all that is made of them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tpusim import reference
from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.flow.lowerings import AUTO, asked_of, tried
from tpusim.machines.tpu.program.program import Program
from tpusim.network.ops import Op
from tpusim.network.ops.op import OFMAP
from tpusim.network.workload import Workload
from tpusim.numerics.bounds import BOUNDED, MOST_ROUNDINGS, bounded, moved
from tpusim.numerics.element_types import ELEMENT_TYPES, ElementType, Values
from tpusim.reference import Box, Operand, Operands

INTEGERS = "integers"
"""Without a type, operands are whole numbers so small that every sum is exact in float32."""
DTYPES = (INTEGERS, *ELEMENT_TYPES)
ANY_ORDER, ARRAY_ORDER = "any", "array"
SUMS = (ANY_ORDER, ARRAY_ORDER)
"""The orders in which the data path may add: the fastest for this computer, or that of the array."""
UNBOUNDED = frozenset({"winograd_2", "winograd_4", "fft"})
"""Lowerings that round more than sums of products: what they transform grows before it cancels."""
_MOST_TOLD = 8
_SAMPLING = 4
"""Roundings of what is interpolated between four elements, before the array multiplies it."""


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
        if self.kind is None:
            return reference.operands(layer, batch, seed)
        self.check(layer, batch)
        random = np.random.default_rng([seed, zlib.crc32(repr(layer).encode())])
        return {name: self.kind.drawn(random, shape) for name, shape in layer.sources(batch).items()}

    def check(self, layer: Op, batch: int) -> None:
        """Raise InputError for a layer whose sums are too long."""
        products = layer.terms(batch)
        try:
            if self.kind is not None:
                self.kind.check_sum(products)
            if self.rounds(layer) and products + _SAMPLING > MOST_ROUNDINGS:
                raise InputError(f"a sum of {products:,} products may be off by too much to be checked; use --no-check")
        except InputError as error:
            raise InputError(Problem(str(error), f"layer {layer.name}")) from None

    @property
    def bounded(self) -> bool:
        """Whether outputs have a bound, instead of being equal to what is expected."""
        return self.kind is not None and not self.kind.exact

    def rounds(self, layer: Op) -> bool:
        """Whether outputs of a layer have a bound: those of the vector unit are rounded as the reference does it."""
        return self.bounded and self._sums(layer)

    def _sums(self, layer: Op) -> bool:
        return layer.unit == "array"

    @property
    def operand_bytes(self) -> int:
        """What an operand takes, also as the reference has it: in float64, and its magnitude."""
        if self.kind is None:
            return 1
        return 1 + 8 if self.kind.exact else 4 + 8 + 4

    def program(self, layer: Op, batch: int, program: Program) -> Program:
        """The Program, for numbers that hold these values."""
        if self.kind is None or not self._sums(layer) or not self.kind.needs_doubles(layer.terms(batch)):
            return program
        return replace(program, doubles=True)


SMALL = Numbers()
"""Small whole numbers, added in any order: it makes no difference."""


def numbers_of(dtype: str, sums: str) -> Numbers:
    """Those of `--dtype` and `--sums`. Raises InputError for names that there are not."""
    for given, known, option in ((dtype, DTYPES, "--dtype"), (sums, SUMS, "--sums")):
        if given not in known:
            raise InputError(f"{option} {given}{did_you_mean(given, known) or ':'} there is {', '.join(known)}")
    return Numbers(ELEMENT_TYPES.get(dtype), sums == ARRAY_ORDER)


def check_numbers(workload: Workload, lowering: str, numbers: Numbers) -> None:
    """Raise InputError for layers whose values could not be checked: all of them, before the first is simulated."""
    problems: list[Problem] = []
    for layer, name in asked_of(workload, lowering):
        try:
            numbers.check(layer, workload.batch)
        except InputError as error:
            problems += error.problems
        if numbers.bounded and (lost := UNBOUNDED & {*tried(name, layer, workload.batch)}):
            says = f"no bound is proven for what {', '.join(sorted(lost))} round"
            also = f", which {AUTO} may take" if name == AUTO else ""
            problems.append(Problem(f"{says}{also}; take another --lowering or --dtype", f"layer {layer.name}"))
    if problems:
        raise InputError(problems[:_MOST_TOLD])


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
        exact = np.float32 if self.numbers.kind is None else np.float64
        return BOUNDED if self.numbers.rounds(self.layer) else np.dtype(exact)

    def of(self, box: Box) -> Values:
        """What is expected of the elements in a box of the tensor."""
        true = self._computed(self._exact, box)
        if not self.numbers.rounds(self.layer):
            return true
        return bounded(true, self._computed(self._sizes, box), self._roundings) if self._roundings else moved(true)

    def _computed(self, operands: Operands, box: Box) -> Values:
        return reference.TENSORS[self.tensor].compute(self.layer, operands, box)

    @cached_property
    def _exact(self) -> Operands:
        """The operands as what the sums are computed in."""
        if self.numbers.kind is None:
            return self.operands
        return {name: each.astype(np.float64) for name, each in self.operands.items()}

    @cached_property
    def _sizes(self) -> Operands:
        """Their magnitudes."""
        return {name: np.abs(each) for name, each in self.operands.items()}

    @cached_property
    def _roundings(self) -> int:
        """How often a sum is rounded at most, in whatever order; what is only moved never is."""
        if self.tensor != OFMAP:
            return 0
        sampled = _SAMPLING if self.layer.sample_parts > 1 else 0
        return self.layer.terms(self.operands["ifmap"].shape[-1]) + sampled
