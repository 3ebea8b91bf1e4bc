"""Engines that time Programs, and a watch under which each of them times whatever the event engine is asked to time.

As a plugin of pytest it watches all tests that are run: `pytest -p tests.engines -s`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tpusim.machines.tpu import event
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timeline import Timing
from tpusim.machines.tpu.program.program import Program

ENGINES: dict[str, Callable[[Program, Hardware], Timing]] = {"event": event.run, "simpy": event.by_simpy}
"""All that take as long as a Program has steps, the first the one that runs use. The register engine takes values, too:
tests compare it with the first.
"""
TELLING_SECONDS = 10


class Watch:
    """Holds every engine against the first, Program by Program, and counts."""

    def __init__(self, most_steps: int = sys.maxsize) -> None:
        """Programs of more than `most_steps` are left to the first engine alone."""
        self.programs = self.steps = self.left_out = 0
        self._most = most_steps
        self._others = [engine for engine in ENGINES if engine != "event"]
        self._told = time.monotonic()

    def __str__(self) -> str:
        names = ", ".join(["event", *self._others])
        left = f"; {self.left_out:,} longer ones by event alone" if self.left_out else ""
        return f"{self.programs:,} Programs of {self.steps:,} steps are equal by {names}{left}"

    def compare(self, program: Program, hardware: Hardware, limit: int | None, found: Timing | None) -> None:
        """What the first engine has found of a Program, maybe only that it takes `limit` cycles or more."""
        if len(program.steps) > self._most:
            self.left_out += 1
            return
        for name in self._others:
            timing = ENGINES[name](program, hardware)
            if found is None:
                assert limit is not None
                assert timing.cycles >= limit, f"{name} takes {timing.cycles} cycles, event {limit} or more"
            else:
                assert timing == found, f"{name} and event differ: {timing} and {found}"
        self.programs, self.steps = self.programs + 1, self.steps + len(program.steps)
        if time.monotonic() > self._told + TELLING_SECONDS:
            self._told = time.monotonic()
            print(f"  {self}", file=sys.stderr, flush=True)


@contextmanager
def watched(watch: Watch) -> Iterator[Watch]:
    """Within, `watch` compares what `event.run` and `event.run_within` find."""
    inside = False

    def seen(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(program: Program, hardware: Hardware, limit: int | None = None) -> Any:
            nonlocal inside
            given = (program, hardware) if limit is None else (program, hardware, limit)
            # One may be made of the other; and another engine may ask this one.
            if inside:
                return function(*given)
            inside = True
            try:
                found = function(*given)
                watch.compare(program, hardware, limit, found)
            finally:
                inside = False
            return found

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("run", "run_within"):
            patch.setattr(event, name, seen(getattr(event, name)))
        yield watch


def pytest_configure(config: pytest.Config) -> None:
    """Watch all that this run of pytest tests."""
    watch = Watch()
    scope = watched(watch)
    scope.__enter__()
    config.add_cleanup(lambda: print(watch, flush=True))
    config.add_cleanup(lambda: scope.__exit__(None, None, None))
