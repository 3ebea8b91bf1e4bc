"""Accounts of a Program's cycles, the same from every engine that keeps time, and deadlocks in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tpusim.machines.lowered import by_unit
from tpusim.machines.tpu.definition import CLIENTS, Ports, port_name
from tpusim.machines.tpu.program.program import Program
from tpusim.result.records import STALL_CAUSES

if TYPE_CHECKING:
    from tpusim.memory.dram.rules import Counts, Requested


STARVED = STALL_CAUSES[0]
"""What a unit is while it waits for data."""

CAUSES = ("busy", *STALL_CAUSES)
"""What a unit does with its cycles; the rest is idle."""

PORT_CLIENTS = CLIENTS[1:]
"""Who owns the cycles of lane 0's port; the rest is idle."""


def split(use: Mapping[str, int], cycles: int, names: tuple[str, ...] = CAUSES) -> dict[str, int]:
    """An account of `cycles`: every name in a fixed order, then what is left as idle."""
    return {**{name: use.get(name, 0) for name in names}, "idle": cycles - sum(use.values())}


def unit_name(unit: str, array: int) -> str:
    """What the account, or a track, of a unit that each array has is called; that of the first as if it were alone."""
    return f"{unit}_{array}" if array else unit


def accounts(
    uses: Mapping[str, Mapping[str, int]], owned: Mapping[str, int], cycles: int, ports: Ports
) -> dict[str, dict[str, int]]:
    """The split of every unit, as `uses` has them in order; then lane 0's `ports` by who `owned` their cycles: an
    account of the one that is shared, and of each that a client has alone.
    """
    found = {name: split(use, cycles) for name, use in uses.items()}
    for clients in ports:
        names = tuple(CLIENTS[client] for client in clients)
        found[port_name(clients)] = split({name: owned.get(name, 0) for name in names}, cycles, names)
    return found


class HbmUse(NamedTuple):
    """What has happened in each channel of the DRAM: accesses that found their row open, rows opened, rows closed for
    others, bursts read and written. `cycles`: those of the memory in which some transfer was under way, from its first
    burst accepted to its last one done. `requested` bursts, `busiest` of them by the busiest channel of their transfer.
    """

    row_hits: tuple[int, ...]
    activates: tuple[int, ...]
    conflicts: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    cycles: int
    requested: int
    busiest: int

    @classmethod
    def of(cls, counts: Counts, requested: Requested, cycles: int) -> HbmUse:
        """What a model of the DRAM has counted."""
        hits, activates, reads, writes, _, conflicts = (tuple(each.tolist()) for each in counts)
        return cls(hits, activates, conflicts, reads, writes, cycles, *requested)

    @property
    def figures(self) -> dict[str, int]:
        """All of it by name, channel by channel."""
        by_channel = {name: of for name, of in self._asdict().items() if isinstance(of, tuple)}
        named = {f"{name} of channel {at}": n for name, of in by_channel.items() for at, n in enumerate(of)}
        asked = {"bursts requested": self.requested, "bursts of busiest channels": self.busiest}
        return {**named, **asked, "cycles of the DRAM": self.cycles}


@dataclass(frozen=True)
class Timing:
    """Cycles of the layer; the split of every unit's cycles, each adding up to `cycles`; port accesses.

    `bus` tells where HBM's cycles go that are not idle: to transfers of that label, moved or waited for.
    `reads` and `writes` are words over all lanes. A slot left unused, by padding or by a lane that has no part in the
    step, is no access. `hbm` is None where no banks are modelled.

    Of a Program of several `layers`, each one's share. A layer ends when the array is through with its last pass or
    vector step, the last one with all. Units' cycles are those until then, whatever they are spent on, but for the
    vector unit, whose work counts where it belongs; so do `bus`, `reads` and `writes`, and no share has `hbm`.
    """

    cycles: int
    units: Mapping[str, Mapping[str, int]]
    bus: Mapping[str, int]
    reads: int
    writes: int
    hbm: HbmUse | None = None
    layers: tuple[Timing, ...] = ()

    @property
    def compared(self) -> dict[str, int | float]:
        """Every figure by its name, those of layers' shares behind those of the whole."""
        held = {f"bus for {label}": cycles for label, cycles in self.bus.items()}
        dram = self.hbm.figures if self.hbm else {}
        shares = {
            f"{name} of layer {number}": figure
            for number, share in enumerate(self.layers)
            for name, figure in share.compared.items()
        }
        whole = {"cycles": self.cycles, **by_unit(self.units), **held, "reads": self.reads, "writes": self.writes}
        return {**whole, **dram, **shares}


def who_waits(program: Program, stuck: Sequence[int]) -> str:
    """How many steps never finish, and for what each of the first of them waits; `stuck` are their indices."""

    def name(step: int) -> str:
        return f"step {step} ({program.steps[step].label})"

    def blockers(step: int) -> str:
        return ", ".join(name(other) for other in program.steps[step].after if other in stuck) or "its unit's turn"

    rows = (f"{name(step)} waits for {blockers(step)}" for step in stuck[:4])
    return f"{len(stuck)} steps never finish: " + "; ".join(rows)
