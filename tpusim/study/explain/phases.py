"""Where the cycles of the array go, the beginning and the end of the layer told apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tpusim.machines.tpu.event.log import Log


@dataclass(frozen=True)
class Phases:
    """Cycles of the array; all of them together are those of the layer.

    `first_fill` is what it is starved before its first pass, `starved` after. What it is idle after its last pass:
    `drain` until the last results can be spilled, `spill` until they are in HBM, `skew` for the last lane.
    """

    busy: int
    first_fill: int
    starved: int
    blocked: int
    waiting_weights: int
    port_stall: int
    bank_conflict: int
    drain: int
    spill: int
    skew: int


def phases_of(log: Log, array: Mapping[str, int], lanes: int) -> Phases:
    """Cut up `array`, the split of the array's cycles, by what the log says of the first pass and the last spill."""
    first, last_spill = log.passes[0], log.moves[-1]
    on_the_grid = first.start - 1 - first.cleared if first.cause == "starved" else 0
    first_fill = first.filled - first.ended + on_the_grid
    skew = lanes - 1
    ended = log.cycles - array["idle"]
    drain = min(max(last_spill.start - ended, 0), array["idle"] - skew)
    ends = {"first_fill": first_fill, "drain": drain, "spill": array["idle"] - drain - skew, "skew": skew}
    rest = {state: cycles for state, cycles in array.items() if state != "idle"}
    return Phases(**rest | ends | {"starved": array["starved"] - first_fill})
