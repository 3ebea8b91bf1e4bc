"""Number types of a run, and random operands of layers."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.input.scalars import whole_number
from tpusim.memory.hbm_layout import FILTER
from tpusim.network.ops.array_op import STORED_BITS, ArrayOp
from tpusim.network.ops.op import Op
from tpusim.numerics.element_types import ELEMENT_TYPES, SIXTEENTHS, ElementType
from tpusim.numerics.equality import MOST_ROUNDINGS

if TYPE_CHECKING:
    from tpusim.reference import Operand

INTEGERS = "integers"
"""The default: operands are whole numbers so small that every sum is exact in float32."""
DTYPES = (INTEGERS, *ELEMENT_TYPES)
ANY_ORDER, ARRAY_ORDER = "any", "array"
SUMS = (ANY_ORDER, ARRAY_ORDER)
"""Orders in which the data path may add: the fastest for this computer, or that of the array."""
_MOST_SEED = 2**63 - 1


@dataclass(frozen=True)
class Numbers:
    """The numbers that layers are computed with.

    Attributes:
        kind: element type; None for small whole numbers.
        in_array_order: whether the data path adds as the array does.
    """

    kind: ElementType | None = None
    in_array_order: bool = False

    def operands(self, layer: Op, batch: int, seed: int) -> dict[str, Operand]:
        """Random operands of a layer, by the names of the tensors in its Program; they do not depend on other layers.

        Raises:
            InputError: when a sum may be too large for its type, or too long for a useful bound.
        """
        kind = self.of(layer).kind
        if kind is None:
            from tpusim.reference import operands

            return operands(layer, batch, seed)
        self.check(layer, batch)
        # Seeded by the layer itself, so that adding or leaving out other layers changes nothing.
        random = np.random.default_rng([seed, zlib.crc32(repr(layer).encode())])
        drawn = {name: kind.drawn(random, shape) for name, shape in layer.sources(batch).items()}
        if layer.positive:
            drawn = {name: abs(each) for name, each in drawn.items()}
        if isinstance(layer, ArrayOp) and layer.filter_stored in STORED_BITS:
            # Whole numbers of the type that HBM has: every type of operands holds them.
            most = 1 << STORED_BITS[layer.filter_stored] - 1
            whole = random.integers(-most, most, size=drawn[FILTER].shape)
            drawn[FILTER] = whole.astype(drawn[FILTER].dtype)
        for name, below in layer.numbered.items():
            drawn[name] = random.integers(below, size=drawn[name].shape).astype(np.float32)
        return drawn | {name: made(batch) for name, made in layer.fixed.items()}

    def of(self, layer: Op) -> Numbers:
        """The numbers of a layer: layers that round get real numbers in place of whole ones."""
        return self if layer.exact or self.bounded else replace(self, kind=SIXTEENTHS)

    def check(self, layer: Op, batch: int) -> None:
        """Raise InputError for a layer whose sums are too long."""
        from tpusim.reference.rounding import roundings

        products, numbers = layer.terms(batch), self.of(layer)
        try:
            if numbers.kind is not None and numbers.kind.exact and layer.factors(batch):
                raise InputError(f"numbers of {numbers.kind.name} are multiplied on their way; take another dtype")
            if numbers.kind is not None:
                numbers.kind.check_sum(products)
            if numbers.bounded and roundings(layer, batch) > MOST_ROUNDINGS:
                raise InputError(f"a sum of {products:,} products may be off by too much to be checked; check nothing")
        except InputError as error:
            raise InputError(Problem(str(error), f"layer {layer.name}")) from None

    @property
    def bounded(self) -> bool:
        """Whether outputs have a bound, rather than having to be equal."""
        return self.kind is not None and not self.kind.exact

    @property
    def operand_bytes(self) -> int:
        """Bytes of an operand, with its copies in the reference: in float64, and its magnitude."""
        if self.kind is None:
            return 1
        return 1 + 8 if self.kind.exact else 4 + 8 + 4

    @property
    def output_bytes(self) -> int:
        """Bytes of an output until it is compared: a mark, or, where all are compared at the end, a number."""
        return 4 if self.bounded else 1

    def number(self, layer: Op, batch: int) -> np.dtype[Any]:
        """The type in which a machine adds a layer's values, so that every whole number is exact."""
        return np.dtype(np.float64 if self.needs_doubles(layer, batch) else np.float32)

    def needs_doubles(self, layer: Op, batch: int) -> bool:
        """Whether sums of whole numbers, or of equal fractions, may exceed what float32 holds exactly."""
        kind = self.of(layer).kind
        return kind is not None and kind.needs_doubles(layer.terms(batch) * layer.sample_parts)


SMALL = Numbers()
"""Small whole numbers, for which the order of sums makes no difference."""


def numbers_of(dtype: str, sums: str) -> Numbers:
    """The numbers that a dtype and an order of sums ask for. Raises InputError for unknown names."""
    for given, known, asked in ((dtype, DTYPES, "dtype"), (sums, SUMS, "sums")):
        if given not in known:
            raise InputError(
                f"unknown {asked} {given!r}{did_you_mean(given, known) or ';'} there is {', '.join(known)}"
            )
    return Numbers(ELEMENT_TYPES.get(dtype), sums == ARRAY_ORDER)


def seed_of(seed: object) -> int:
    """A sound seed of random operands. Raises InputError."""
    try:
        return whole_number(seed, 0, _MOST_SEED)
    except InputError as error:
        raise InputError(Problem(str(error), "seed")) from None
