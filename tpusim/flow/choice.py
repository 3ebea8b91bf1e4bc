"""A layer made ready to run by the lowering it is asked for; under `auto`, by the one that simulation finds fastest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from tpusim.base.errors import CapacityError, Problem, UnsuitableError, failures_named
from tpusim.flow.lowerings import tried
from tpusim.machines.family import Machine, family_of
from tpusim.machines.lowered import Lowered
from tpusim.network.ops.op import Op

Found = TypeVar("Found")
Doing = Callable[[str], None]
"""Told what is done to a layer."""


def unsaid(doing: str) -> None:
    """Nobody is told."""


def prepared(layer: Op, batch: int, machine: Machine, lowering: str, doing: Doing = unsaid) -> Lowered:
    """A layer for its machine; of several candidates the one of the fewest cycles, of equals that which comes first.

    Raises:
        CapacityError: when no candidate fits the machine: what each of them says; names the layer.
        CheckFailed, DeadlockError: when a candidate fails otherwise as it is timed; names the layer.
    """
    family = family_of(machine)

    def by(name: str) -> Lowered:
        doing("lowering" if name == lowering else f"trying {name}")
        return family.lowered(layer, batch, machine, name)

    names = tried(lowering, layer, batch, family)
    if names == (lowering,):
        return by(lowering)
    cycles: list[int] = []

    def timed(name: str) -> Lowered:
        made = by(name)
        cycles.append(made.timing.cycles)
        return made

    def hopeless(name: str) -> bool:
        return bool(cycles) and family.least(layer, batch, machine, name) >= min(cycles)

    with failures_named(layer):
        # One is made at a time, so that two are held at most.
        return min(fitting(names, timed, hopeless), key=lambda each: each.timing.cycles)


def _all_may_do(_: str) -> bool:
    return False


def fitting(
    names: Sequence[str], make: Callable[[str], Found], hopeless: Callable[[str], bool] = _all_may_do
) -> Iterator[Found]:
    """What is made by each of some lowerings that fit the machine, but for those that are `hopeless` by then.

    Raises:
        CapacityError: when none does: what each of them says, as one may fit more easily than another.
    """
    refused: defaultdict[Problem, list[str]] = defaultdict(list)
    found = False
    for name in names:
        try:
            if hopeless(name):
                continue
            made = make(name)
        except UnsuitableError:
            # Of many, one that is made for other ops is no news.
            if len(names) == 1:
                raise
            continue
        except CapacityError as error:
            for problem in error.problems:
                refused[problem].append(name)
            continue
        found = True
        yield made
        del made
    if refused and not found:
        raise CapacityError(refused if len(names) == 1 else [_by(names, problem) for problem, names in refused.items()])


def _by(names: Sequence[str], problem: Problem) -> Problem:
    return replace(problem, message=f"by {', '.join(names)}: {problem.message}")
