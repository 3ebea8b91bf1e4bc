"""Where the cycles of the array go, the beginning and the end of the layer told apart."""

from __future__ import annotations

from collections.abc import Mapping

from tpusim.machines.lowered import Phases
from tpusim.machines.tpu.event.board import Log


def phases_of(log: Log, array: Mapping[str, int], lanes: int) -> Phases:
    """Cut up `array`, the split of the array's cycles, by what the log says of the first pass and the last spill."""
    last_spill = log.moves[-1]
    first_fill = _first_fill(log)
    skew = lanes - 1
    ended = log.cycles - array["idle"]
    drain = min(max(last_spill.start - ended, 0), array["idle"] - skew)
    ends = {"first_fill": first_fill, "drain": drain, "spill": array["idle"] - drain - skew, "skew": skew}
    rest = {state: cycles for state, cycles in array.items() if state != "idle"}
    return Phases(**rest | ends | {"starved": array["starved"] - first_fill})


def _first_fill(log: Log) -> int:
    """What the array waits for data before the first pass, or before the first vector step if that comes first."""
    if not log.passes or (log.works and log.works[0].ended < log.passes[0].ended):
        return log.works[0].filled - log.works[0].ended
    first = log.passes[0]
    on_the_grid = first.start - 1 - first.cleared if first.cause == "starved" else 0
    return first.filled - first.ended + on_the_grid
