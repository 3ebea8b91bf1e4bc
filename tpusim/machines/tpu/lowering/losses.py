"""How much floating point may lose at most: bounds that hold whatever the numbers and the order of sums.

A sum of n terms, each a product with a rounded factor, is off by at most g(n + 1) times the sum of their sizes,
where g is the gamma of numerics/bounds.py, of float64; what terms were off by before comes to that, times their
factors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tpusim.machines.tpu.lowering.tile_algorithm import Recipe
from tpusim.numerics.bounds import DOUBLE, gamma
from tpusim.numerics.element_types import EXACT_FLOAT32

FACTOR = 4
"""Units by which a factor may be off: a cosine and its angle, rounded."""
LARGEST_SUM = EXACT_FLOAT32
"""Operands are such that the sizes of an output's products sum up to this at most."""


class Bound(NamedTuple):
    """Numbers are at most so `large`, and `off` by at most so much."""

    large: float
    off: float = 0.0


def weighted(terms: Iterable[tuple[Bound, float]]) -> Bound:
    """A sum of numbers times factors."""
    terms = [*terms]
    large = sum(abs(factor) * bound.large for bound, factor in terms)
    off = sum(abs(factor) * bound.off for bound, factor in terms)
    return Bound(large, off + growth(len(terms)) * (large + off))


def through(recipe: Recipe, given: Bound) -> Bound:
    """The worst output of a transform."""
    known: dict[str, Bound] = {}
    for line in recipe:
        known[line.made] = weighted((known.get(name, given), factor) for name, factor in line.factors.items())
    outputs = [bound for name, bound in known.items() if name.startswith("y")]
    return Bound(max(each.large for each in outputs), max(each.off for each in outputs))


def products(one: Bound, other: Bound, count: int) -> Bound:
    """A sum of so many products."""
    large = count * one.large * other.large
    off = count * (one.off * (other.large + other.off) + other.off * one.large)
    return Bound(large, off + growth(count) * (large + off))


def growth(terms: int) -> float:
    """g of a sum of so many terms, its factors rounded."""
    return gamma(terms + 1 + FACTOR, DOUBLE)
