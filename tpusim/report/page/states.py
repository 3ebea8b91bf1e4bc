"""What the array's cycles are split into on the page."""

from __future__ import annotations

from tpusim.result.records import LayerResult, Total
from tpusim.result.vocabulary.states import PARTS


def states_of(record: LayerResult | Total, pes: int) -> list[float]:
    """Cycles in each of PARTS; they add up to the record's cycles."""
    split = record.units["systolic_array"]
    busy = split.get("busy", 0)
    useful = min(record.macs / pes, busy)
    return [useful, busy - useful, *(float(split.get(state.key, 0)) for state in PARTS[2:])]
