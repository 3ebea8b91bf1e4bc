"""What the array's cycles are split into on the page."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tpusim.result.records import LayerResult, Total


@dataclass(frozen=True)
class State:
    """One part of the array's cycles; `loss` completes "The largest loss is ..."."""

    key: str
    label: str
    short: str
    explain: str
    loss: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


STATES = (
    State(
        "useful", "useful", "useful",
        "Busy, and counted in full PEs: the cycles the MACs would need if every PE worked.",
    ),
    State(
        "unused", "busy, PEs unused", "unused",
        "Busy, but PEs stand by: channels do not fill the rows and columns, or elements do not fill the words.",
        "PEs that stand by while the array is busy",
    ),
    State("starved", "starved", "starved", "Waits for data from HBM.", "waiting for data from HBM"),
    State(
        "blocked", "blocked", "blocked",
        "Waits for the output side: a spill, the vector unit, sums of the pass before.",
        "waiting for the output side",
    ),
    State(
        "waiting_weights", "waiting for weights", "weights", "Waits for the preload of weights into the PEs.",
        "waiting for weights",
    ),
    State(
        "port_stall", "port stall", "port", "Waits for the vector memories, whose one port is taken.",
        "waiting for the port of the vector memories",
    ),
    State(
        "idle", "idle", "idle",
        "After a layer's last input: its results drain, the last spill travels to HBM, the last lane ends.",
        "draining at the end of layers",
    ),
)  # fmt: skip
"""From the bottom of a bar to its top. The first two together are what the result calls busy."""


def states_of(record: LayerResult | Total, pes: int) -> list[float]:
    """Cycles in each of STATES; they add up to the record's cycles."""
    split = record.units["systolic_array"]
    useful = min(record.macs / pes, split.get("busy", 0))
    rest = [float(split.get(state.key, 0)) for state in STATES[2:]]
    return [useful, split.get("busy", 0) - useful, *rest]
