"""What the units have counted until a cycle; of several layers, until each of them ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tpusim.machines.tpu.definition.frame import Ports
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timing import Timing, port_accounts, split
from tpusim.machines.tpu.program.program import Program


class Counted(NamedTuple):
    """Cycles of each unit by what it did, those of the ports by who had them, before cycle `now`."""

    now: int
    array: Mapping[str, int]
    preload: Mapping[str, int]
    hbm: Mapping[str, int]
    scratch_memory: Mapping[str, int]
    granted: Mapping[str, int]

    def since(self, before: Counted) -> Counted:
        """What was counted since then; `now` is how many cycles that are."""
        pairs = zip(self[1:], before[1:], strict=True)
        counts = ({name: cycles - other.get(name, 0) for name, cycles in each.items()} for each, other in pairs)
        return Counted(self.now - before.now, *counts)

    def accounts(self, vector: int, ports: Ports, scratch: bool) -> dict[str, dict[str, int]]:
        """Every unit's split, of all cycles; `vector` are those in which the vector unit was busy, and `scratch` says
        whether there is a scratch memory.
        """
        units = {
            "systolic_array": self.array,
            "preload": self.preload,
            "vector_unit": {"busy": vector},
            "hbm": self.hbm,
            **({"scratch_memory": self.scratch_memory} if scratch else {}),
        }
        return {name: split(use, self.now) for name, use in units.items()} | port_accounts(
            self.granted, self.now, ports
        )


NOTHING = Counted(0, {}, {}, {}, {}, {})
"""Before the first cycle."""


class ByStep(NamedTuple):
    """Cycles that belong to steps, whenever they were: of HBM's queue, and of the vector unit."""

    held: Counter[int]
    worked: Counter[int]

    def of_layer(self, number: int, program: Program) -> ByStep:
        """Those of the steps of a layer."""
        return ByStep(
            *(Counter({step: n for step, n in each.items() if program.layers[step] == number}) for each in self)
        )

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
        accounts = counted.accounts(mine.worked.total(), ports, hardware.scratch_memory is not None)
        found.append(Timing(counted.now, accounts, mine.bus(program), use.port_reads, use.port_writes))
    return tuple(found)
