"""Engines of plans that are no Programs: the one that `--engine` asks for, and whether all of them agree."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tpusim.base.errors import CheckFailed, InputError, Problem

MOST_STEPPED = 20_000_000
"""Cycles that are stepped through one by one, at most: some tens of seconds."""
_MODULES = {"event": "event", "simpy": "processes", "register": "stepping"}
"""By name the module of each engine. It has a function `run`, which returns the log of a plan."""


def agreed(folder: str, plan: object, engine: str, what: str) -> Any:
    """Return the log of a plan by an engine; with `both` all engines must log the same.

    Args:
        folder: where the engines of such a plan stand, such as chip_steps.
        plan: what is to run.
        engine: the engine that is asked for.
        what: what runs, for people.

    Raises:
        InputError: too many cycles are to be stepped through.
        CheckFailed: engines disagree.
    """

    def by(name: str) -> Any:
        # Imported here, as hardly anybody asks for any but that of events.
        return import_module(f"tpusim.flow.{folder}.{_MODULES[name]}").run(plan)

    # The engine of events says how long the others would take.
    log = by("event")
    if engine in ("register", "both") and log.cycles > MOST_STEPPED:
        says = f"a step of {log.cycles:,} cycles is too long to step through; it takes {MOST_STEPPED:,}"
        raise InputError(Problem(f"{says}: take fewer layers, or engine event", f"engine {engine}"))
    for name in ("simpy", "register") if engine == "both" else ():
        if (other := by(name)) != log:
            says = f"{log.cycles:,} cycles in the event engine, {other.cycles:,} in the {name} engine"
            raise CheckFailed(f"the engines disagree on when {what}: {says}")
    return by(engine) if engine in ("simpy", "register") else log
