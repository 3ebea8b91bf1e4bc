"""A layer made ready to run by the lowering it is asked for; of `auto`, by the one that simulation finds fastest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from tpusim.base.errors import CapacityError, Problem
from tpusim.flow.engines import Prepared
from tpusim.flow.lowerings import candidates
from tpusim.flow.verify import failures_named
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.registry import lowered
from tpusim.network.ops import Op

Found = TypeVar("Found")
Doing = Callable[[str], None]
"""Told what is done to a layer."""


def unsaid(doing: str) -> None:
    """Nobody is told."""


def prepared(layer: Op, batch: int, hardware: Hardware, lowering: str, doing: Doing = unsaid) -> Prepared:
    """The Program of a layer; of several candidates the one of the fewest cycles, of equals that which comes first.

    Raises:
        CapacityError: when no candidate fits the machine: what each of them says; names the layer.
        CheckFailed, DeadlockError: when a candidate fails otherwise as it is timed; names the layer.
    """

    def by(name: str) -> Prepared:
        doing("lowering" if name == lowering else f"trying {name}")
        return Prepared(*lowered(layer, batch, hardware, name), hardware, name)

    if candidates(lowering) == (lowering,):
        return by(lowering)
    with failures_named(layer):
        # One at a time, so that two are held at most.
        return min(fitting(lowering, by), key=lambda each: each.timing.cycles)


def fitting(lowering: str, make: Callable[[str], Found]) -> Iterator[Found]:
    """What is made by each of the candidates that fit the machine.

    Raises:
        CapacityError: when none does: what each of them says, as one may fit more easily than another.
    """
    refused: defaultdict[Problem, list[str]] = defaultdict(list)
    found = False
    for name in candidates(lowering):
        try:
            made = make(name)
        except CapacityError as error:
            for problem in error.problems:
                refused[problem].append(name)
            continue
        found = True
        yield made
        del made
    if refused and not found:
        alone = candidates(lowering) == (lowering,)
        raise CapacityError(refused if alone else [_by(names, problem) for problem, names in refused.items()])


def _by(names: Sequence[str], problem: Problem) -> Problem:
    return replace(problem, message=f"by {', '.join(names)}: {problem.message}")
