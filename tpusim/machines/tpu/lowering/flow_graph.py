"""Linear transforms as graphs of sums, and recipes made of them: transposed, with sums run together, given places.

Bounds of what floating point may lose in them hold whatever the numbers and the order of sums: a sum of n terms, each a
product with a rounded factor, is off by at most g(n + 1) times the sum of their sizes, where g is the gamma of
numerics/bounds.py, of float64; what terms were off by before comes to that, times their factors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tpusim.machines.tpu.lowering.tile_algorithm import Factors, Line, Recipe
from tpusim.numerics.bounds import DOUBLE, gamma
from tpusim.numerics.element_types import EXACT_FLOAT32

Sums = dict[str, dict[str, float]]
"""Each of what has a name already; inputs are x0, x1, ..."""


@dataclass
class FlowGraph:
    """Sums in the order in which they can be worked out, and which of them are asked for."""

    sums: Sums = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)

    def sum(self, *terms: tuple[str, float]) -> str:
        """A new sum of factors times what there is; just its name where nothing is to be worked out."""
        factors: dict[str, float] = defaultdict(float)
        for name, factor in terms:
            factors[name] += factor
        if [*factors.values()] == [1]:
            return terms[0][0]
        made = f"v{len(self.sums)}"
        self.sums[made] = dict(factors)
        return made

    def transposed(self, wanted: int) -> FlowGraph:
        """The transposed transform, of which the first outputs are `wanted`: along each edge the other way.

        It has as many multiplications, and as many additions but for those that only others want (H. Kahn's
        transposition of signal flow graphs; A. Oppenheim and R. Schafer, "Discrete-Time Signal Processing").
        """
        users: dict[str, list[tuple[str, float]]] = defaultdict(list)
        asked = {f"x{at}" for at in range(wanted)}
        order: dict[str, None] = {}
        for made, factors in self.sums.items():
            if asked & factors.keys():
                asked.add(made)
            for name, factor in factors.items():
                users[name].append((made, factor))
            order.update(dict.fromkeys((*factors, made)))
        given, value, other = {name: f"x{at}" for at, name in enumerate(self.outputs)}, dict[str, str](), FlowGraph()
        for name in reversed([each for each in order if each in asked]):
            own = [(given[name], 1.0)] if name in given else []
            value[name] = other.sum(*own, *((value[user], factor) for user, factor in users[name]))
        other.outputs = [value[f"x{at}"] for at in range(wanted)]
        return other

    def run_together(self) -> FlowGraph:
        """A graph with fewer words read and written, for more operations: sums of sums where that saves words."""
        sums: Sums = {made: dict(factors) for made, factors in self.sums.items()}
        for name in [*sums]:
            users = [made for made, factors in sums.items() if name in factors]
            merged = {made: _merged(sums[made], name, sums[name]) for made in users}
            before = sum(len(sums[made]) for made in users) + len(sums[name]) + 1
            if name not in self.outputs and sum(map(len, merged.values())) < before:
                sums.update(merged)
                del sums[name]
        return FlowGraph(sums, self.outputs)

    def recipe(self, over_inputs: bool = False) -> Recipe:
        """Its lines. A sum wanted for a while takes the place of an output that comes later, or that of an input which
        nothing wants any more: these may be `over`, or be kept, and then outputs are kept nowhere but at the end.
        """
        sums = _in_turn(self.sums)
        made_at = {name: at for at, name in enumerate(sums)}
        last_used = {name: at for at, factors in enumerate(sums.values()) for name in factors}
        place = {name: f"y{at}" for at, name in enumerate(self.outputs)}
        due = {} if over_inputs else {place[name]: made_at[name] for name in self.outputs}
        free_from = dict.fromkeys(due, 0)
        if over_inputs:
            free_from = {name: at for name, at in last_used.items() if name[0] == "x"}
        for name, at in made_at.items():
            if name not in place:
                place[name] = _free(free_from, due, at, last_used[name])
                free_from[place[name]] = last_used[name]
        return Recipe(
            Line(place[name], {place.get(each, each): factor for each, factor in factors.items()})
            for name, factors in sums.items()
        )


def _in_turn(sums: Sums) -> Sums:
    """So that few are wanted at a time: next is the sum behind which most of what it is made of is not."""
    left, found = dict(sums), Sums()
    users: dict[str, set[str]] = defaultdict(set)
    for made, factors in sums.items():
        for name in factors:
            users[name].add(made)
    while left:
        ready = (made for made, factors in left.items() if left.keys().isdisjoint(factors))
        best = max(ready, key=lambda made: sum(len(users[name]) == 1 for name in left[made]))
        for name in left[best]:
            users[name].discard(best)
        found[best] = left.pop(best)
    return found


def _free(free_from: Mapping[str, int], due: Mapping[str, int], at: int, until: int) -> str:
    """A place that nobody wants from one line to another."""
    fitting = (name for name, free in free_from.items() if free <= at and due.get(name, until) >= until)
    return next(fitting, f"z{sum(name.startswith('z') for name in free_from)}")


def _merged(factors: Factors, name: str, its: Factors) -> dict[str, float]:
    """A sum with another, which it is made of, written out."""
    made = defaultdict(float, {each: factor for each, factor in factors.items() if each != name})
    for each, factor in its.items():
        made[each] += factors[name] * factor
    return {each: factor for each, factor in made.items() if factor}


# ---- what floating point may lose

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
    """The sum of `count` products."""
    large = count * one.large * other.large
    off = count * (one.off * (other.large + other.off) + other.off * one.large)
    return Bound(large, off + growth(count) * (large + off))


def growth(terms: int) -> float:
    """g of a sum with that number of terms, its factors rounded."""
    return gamma(terms + 1 + FACTOR, DOUBLE)
