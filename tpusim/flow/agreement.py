"""Which engine of `--engine` says when things run, of plans that are no Programs, and whether all engines agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from tpusim.base.errors import CheckFailed, InputError, Problem

MOST_STEPPED = 20_000_000
"""Cycles that are stepped through one by one, at most: some tens of seconds."""


class CycleLog(Protocol):
    """When things ran; logs are equal where all of them ran in the same cycles."""

    @property
    def cycles(self) -> int:
        """Cycles until all are done."""


Log = TypeVar("Log", bound=CycleLog)


def agreed(log: Log, others: Mapping[str, Callable[[], Log]], engine: str, what: str) -> Log:
    """Return what an engine logs; with `both` all engines must log the same.

    Args:
        log: what the event engine has logged. It says how long the others would take.
        others: by name the other engines, simpy and register.
        engine: the engine that is asked for.
        what: what runs, for people.

    Raises:
        InputError: too many cycles are to be stepped through.
        CheckFailed: engines disagree.
    """
    if engine in ("register", "both") and log.cycles > MOST_STEPPED:
        says = f"a step of {log.cycles:,} cycles is too long to step through; it takes {MOST_STEPPED:,}"
        raise InputError(Problem(f"{says}: take fewer layers, or engine event", f"engine {engine}"))
    if engine in others:
        return others[engine]()
    for name, run in others.items() if engine == "both" else ():
        if (other := run()) != log:
            says = f"{log.cycles:,} cycles in the event engine, {other.cycles:,} in the {name} engine"
            raise CheckFailed(f"the engines disagree on when {what}: {says}")
    return log
