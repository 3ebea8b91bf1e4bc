"""Random collectives on random toruses: sizes, axes, wraps, parts of axes, types, and rates that no file has."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import prod
from random import Random
from typing import NamedTuple

from tpusim.machines.tpu.slices.algorithms.registry import algorithms_for
from tpusim.machines.tpu.slices.collective import OPS, Collective
from tpusim.machines.tpu.slices.exchange import Rates
from tpusim.machines.tpu.slices.slice import Emitters
from tpusim.machines.tpu.slices.torus import Group, Span, Torus, TorusAxis

MOST_CHIPS = 16


class CollectiveCase(NamedTuple):
    """A collective by an algorithm, on chips of these rates."""

    collective: Collective
    algorithm: str
    rates: Rates


def random_group(random: Random) -> Group:
    """A group of 2 to 16 chips of a torus of up to three axes, some of them in part."""
    while True:
        sides = [random.choice([1, 2, 3, 4, 5, 8]) for _ in range(random.randint(1, 3))]
        spans = [span for number, side in enumerate(sides) for span in _spans(random, number, side)]
        if spans and prod(sides) <= MOST_CHIPS:
            axes = [TorusAxis("xyz"[at], side, random.random() < 0.5) for at, side in enumerate(sides)]
            if random.random() < 0.2:
                axes[-1] = axes[-1]._replace(wraps=True, direct=True)
            return Group(Torus(tuple(axes)), tuple(spans))


def _spans(random: Random, axis: int, side: int) -> list[Span]:
    if side == 1 or random.random() < 0.2:
        return []
    many = random.choice([part for part in range(2, side + 1) if side % part == 0])
    apart = side // many
    return [Span(axis, random.choice([part for part in range(1, apart + 1) if apart % part == 0]), many)]


def random_case(seed: int) -> CollectiveCase:
    """The case of a number."""
    random = Random(seed)
    group, op = random_group(random), random.choice([*OPS])
    emitters = Emitters(
        launch_ps=1, chunk_bytes=random.choice([4, 8, 16, 64]), most_passes=random.choice([3, 16, 32]),
        passes=random.choice([1, 1, 2, 3]),
        dma_bytes=random.choice([4, 8, 32]), streams=random.choice(["together", "apart"]),
    )  # fmt: skip
    collective = Collective(op, random.randint(1, 90), random.choice([1, 2, 4]), group, emitters)
    return CollectiveCase(
        collective, random.choice(algorithms_for(op, group)), random_rates(random, len(group.torus.axes))
    )


def random_rates(random: Random, axes: int) -> Rates:
    """Rates of a few cycles, so that everything meets."""

    def rate(most: int) -> Fraction:
        return Fraction(random.randint(1, most), random.randint(1, 9))

    links, hops = tuple(rate(40) for _ in range(axes)), tuple(random.randint(1, 9) for _ in range(axes))
    return Rates(random.randint(0, 9), links, hops, rate(90), random.randint(1, 5), rate(30))


def with_passes(case: CollectiveCase, many: int) -> CollectiveCase:
    """The same of more elements, so that a stream takes many passes, and some more where several are under way."""
    collective = case.collective
    many += 6 * collective.emitters.passes
    emitters = collective.emitters.model_copy(update={"chunk_bytes": 4, "most_passes": many})
    elements = collective.elements + many * collective.group.size**2
    return case._replace(collective=replace(collective, elements=elements, emitters=emitters))
