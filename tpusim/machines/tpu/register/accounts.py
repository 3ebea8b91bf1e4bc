"""What the units have counted until a cycle; of several layers, until each of them ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tpusim.machines.tpu.definition import Ports
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timing import Timing, port_accounts, unit_accounts
from tpusim.machines.tpu.program.program import Program


class Counted(NamedTuple):
    """Cycles of each unit by what it did, those of the ports by who had them, before cycle `now`.

    Of arrays and weight paths there are as many as have weights of their own.
    """

    now: int
    hbm: Mapping[str, int]
    scratch_memory: Mapping[str, int]
    granted: Mapping[str, int]
    arrays: Sequence[Mapping[str, int]]
    preloads: Sequence[Mapping[str, int]]

    def since(self, before: Counted) -> Counted:
        """What was counted since then; `now` is how many cycles that are."""
        arrays = [*map(_less, self.arrays, before.arrays)], [*map(_less, self.preloads, before.preloads)]
        hbm, scratch = _less(self.hbm, before.hbm), _less(self.scratch_memory, before.scratch_memory)
        return Counted(self.now - before.now, hbm, scratch, _less(self.granted, before.granted), *arrays)

    def accounts(self, worked: Sequence[Counter[int]], ports: Ports, scratch: bool) -> dict[str, dict[str, int]]:
        """Every unit's split, of all cycles; `worked` are those in which the vector unit did, for each array, and
        `scratch` says whether there is a scratch memory.
        """
        vectors = [{"busy": each.total()} for each in worked]
        arrays = [*zip(self.arrays, self.preloads, vectors, strict=True)]
        buses = {"hbm": self.hbm, **({"scratch_memory": self.scratch_memory} if scratch else {})}
        return unit_accounts(arrays, buses, self.now) | port_accounts(self.granted, self.now, ports)


def _less(counted: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {name: cycles - before.get(name, 0) for name, cycles in counted.items()}


NOTHING = Counted(0, {}, {}, {}, ({},), ({},))
"""Before the first cycle of layers that overlap, which only do where all arrays share weights."""


class ByStep(NamedTuple):
    """Cycles that belong to steps, whenever they were: of HBM's queue, and of the vector unit, for each array."""

    held: Counter[int]
    worked: Sequence[Counter[int]]

    def of_layer(self, number: int, program: Program) -> ByStep:
        """Those of the steps of a layer."""
        held, *worked = (
            Counter({step: n for step, n in each.items() if program.layers[step] == number})
            for each in (self.held, *self.worked)
        )
        return ByStep(held, worked)

    def bus(self, program: Program) -> dict[str, int]:
        """The first by the labels of their transfers."""
        held: Counter[str] = Counter()
        for step, cycles in self.held.items():
            held[program.steps[step].label] += cycles
        return dict(held)


def shares(ends: Sequence[Counted], steps: ByStep, program: Program, hardware: Hardware) -> tuple[Timing, ...]:
    """Each layer's share, of what was counted until each ended."""
    found, ports = [], program.ports(hardware)
    for number, (before, end) in enumerate(pairwise([NOTHING, *ends])):
        counted, mine, use = end.since(before), steps.of_layer(number, program), program.uses[number]
        accounts = counted.accounts(mine.worked, ports, hardware.scratch_memory is not None)
        found.append(Timing(counted.now, accounts, mine.bus(program), use.port_reads, use.port_writes))
    return tuple(found)
