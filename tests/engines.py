"""Engines that time Programs, and a watch under which each of them times whatever the event engine is asked to time.

As a plugin of pytest it watches all tests that are run: `pytest -p tests.engines -s`. TPUSIM_VARIATIONS is how many
more cases it makes of each Program: with other delays of its steps, and another HBM. They cost a tenth of a case whose
layer must be drawn and lowered, and whose values are computed twice.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any
from weakref import ref

import numpy as np
import pytest

from tpusim.machines.tpu import event, register
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timeline import Timing
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload, Step, Vector

ENGINES: dict[str, Callable[[Program, Hardware], Timing]] = {"event": event.run, "simpy": event.by_simpy}
"""All that take as long as a Program has steps, the first the one that runs use. The register engine takes values, too:
tests compare it with the first.
"""
TELLING_SECONDS = 10
MOST_VARIED = 400, 1_000
"""Most steps of a Program that is varied; most cycles for which the register engine takes part."""
DELAYS = 0, 0, 0, 1, 2, 7, 30
SPEEDS = tuple(speed * 10**9 for speed in (7, 64, 1000, 5000))
LATENCIES = 1000, 3000, 40_000


def varied(program: Program, hardware: Hardware, seed: int) -> tuple[Program, Hardware]:
    """The Program with other delays, on a machine with another HBM, if that is a pipe. Its values stay right."""
    draw = Random(seed)
    share = draw.choice((0.1, 0.5, 1))

    def late(step: Step) -> Step:
        if isinstance(step, Preload | Vector) and draw.random() < share:
            return replace(step, delay=draw.choice(DELAYS))
        return step

    hbm = hardware.hbm
    if hbm.dram is None:
        speed = {"bandwidth_bytes_per_s": draw.choice(SPEEDS), "latency_ps": draw.choice(LATENCIES)}
        hbm = hbm.model_copy(update=speed)
    return replace(program, rows=tuple(map(late, program.rows))), hardware.model_copy(update={"hbm": hbm})


def in_registers(program: Program, hardware: Hardware) -> Timing:
    """Time by the register engine, with zeros in HBM."""
    tensors = ((each.name, each.shape) for each in program.tensors)
    operands = {name: np.zeros(shape, np.float32) for name, shape in tensors if name not in program.written}
    return register.run(program, hardware, operands)[0]


class Watch:
    """Holds every engine against the first, Program by Program, and counts."""

    def __init__(self, most_steps: int = sys.maxsize, variations: int = 0) -> None:
        """Programs of more than `most_steps` are left to the first engine alone; `variations` are made of each."""
        self.programs = self.steps = self.left_out = self.varied = self.in_registers = 0
        self._most, self._variations = most_steps, variations
        self._last: Callable[[], Program | None] = lambda: None
        self._others = [engine for engine in ENGINES if engine != "event"]
        self._told = time.monotonic()

    def __str__(self) -> str:
        names = ", ".join(["event", *self._others])
        left = f"; {self.left_out:,} longer ones by event alone" if self.left_out else ""
        varied = (
            f"; so are {self.varied:,} variations, {self.in_registers:,} of them by register" if self.varied else ""
        )
        return f"{self.programs:,} Programs of {self.steps:,} steps are equal by {names}{varied}{left}"

    def compare(self, program: Program, hardware: Hardware, limit: int | None, found: Timing | None) -> None:
        """What the first engine has found of a Program, maybe only that it takes `limit` cycles or more."""
        if len(program.rows) > self._most:
            self.left_out += 1
            return
        for name in self._others:
            timing = ENGINES[name](program, hardware)
            if limit is not None and timing.cycles >= limit:
                assert found is None, f"{name} takes {timing.cycles} cycles, event fewer than {limit}"
            elif found is None:
                assert limit is not None
                assert timing.cycles >= limit, f"{name} takes {timing.cycles} cycles, event {limit} or more"
            else:
                assert timing == found, f"{name} and event differ: {timing} and {found}"
        self.programs, self.steps = self.programs + 1, self.steps + len(program.rows)
        if self._last() is not program and len(program.rows) <= MOST_VARIED[0]:
            self._last = ref(program)
            for seed in range(self._variations):
                self._vary(*varied(program, hardware, seed))
        if time.monotonic() > self._told + TELLING_SECONDS:
            self._told = time.monotonic()
            print(f"  {self}", file=sys.stderr, flush=True)

    def _vary(self, program: Program, hardware: Hardware) -> None:
        found = ENGINES["event"](program, hardware)
        others = {name: ENGINES[name](program, hardware) for name in self._others}
        if found.cycles < MOST_VARIED[1]:
            others["register"] = in_registers(program, hardware)
            self.in_registers += 1
        self.varied += 1
        for name, timing in others.items():
            assert timing == found, f"{name} and event differ on a variation: {timing} and {found}"


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
    watch = Watch(variations=int(os.environ.get("TPUSIM_VARIATIONS", 0)))
    scope = watched(watch)
    scope.__enter__()
    config.add_cleanup(lambda: print(watch, flush=True))
    config.add_cleanup(lambda: scope.__exit__(None, None, None))
