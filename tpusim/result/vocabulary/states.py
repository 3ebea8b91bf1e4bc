"""What a unit does with its cycles, and who owns those of a port: in words, and how it looks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tpusim.result.records import STALL_CAUSES, LayerResult, Total


@dataclass(frozen=True)
class Look:
    """Its tone on light and on dark ground; and a hatch of `tpusim.report.style`, so that grey paper tells it apart."""

    light: str
    dark: str
    hatch: str = ""


@dataclass(frozen=True)
class State:
    """One thing that a cycle goes to: `label` names it, `meaning` explains it.

    Of the array's: `short` and `head` are labels for narrow columns, `why` is the cause in brief, and `doing` completes
    "the array is ..." and "the largest loss is ...". What is `seldom` is left out where no cycle goes to it.
    """

    key: str
    label: str
    look: Look
    meaning: str = ""
    short: str = ""
    head: str = ""
    why: str = ""
    doing: str = ""
    seldom: bool = False

    @property
    def head_legend(self) -> str:
        """What `head` stands for: "starv: starved, HBM data late"."""
        words = [self.why] if self.head == self.label else [self.label, self.why]
        return f"{self.head}: {', '.join(words)}"

    @property
    def legend(self) -> str:
        """The label with its cause."""
        return f"{self.label}: {self.why}" if self.why else self.label


_FULL, _PART = Look("#0b3c5d", "#6db5ea"), Look("#9dbdd6", "#2f5878", "level")
_NOTHING = Look("#eceff2", "#2a323c")

STATES: Mapping[str, State] = {state.key: state for state in (
    State("busy", "busy", _FULL, "Takes elements in.", "busy", doing="busy"),
    State("useful", "useful", _FULL,
          "Busy, and counted in full PEs: the cycles the MACs would need if every PE worked.", "useful"),
    State("unused", "busy, PEs unused", _PART,
          "Busy, but PEs stand by: channels do not fill the rows and columns, or elements do not fill the words.",
          "PEs unused", "part", "some stand by", "PEs that stand by while the array is busy"),
    State("starved", "starved", Look("#d55e00", "#f08a35", "rising"),
          "Waits for data from HBM; the first fill included.",
          "starved", "starv", "HBM data late", "waiting for data from HBM"),
    State("blocked", "blocked", Look("#56b4e9", "#3f83ad", "dots"),
          "Waits for the output side: a spill, the vector unit, sums of the pass before.",
          "blocked", "block", "output side not ready", "waiting for the output side"),
    State("waiting_weights", "waiting for weights", Look("#f0a3c6", "#b96c92", "falling"),
          "Waits for the preload of weights into the PEs.",
          "weights", "wait", "preload not done", "waiting for weights"),
    State("port_stall", "port stall", Look("#f0e442", "#b5aa25", "crossed"),
          "Waits for the vector memories, whose one port is taken.",
          "port", "port", "SRAM port full", "waiting for the port of the vector memories"),
    State("bank_conflict", "bank conflict", Look("#8a63b0", "#a98bc9", "bars"),
          "Waits for banks that several rows of the array ask for different words at once.",
          "banks", "bank", "rows meet in one bank", "waiting for banks that rows share", seldom=True),
    State("vector_work", "vector work", Look("#3a7d44", "#6fbf7b", "grid"),
          "Stands by while the vector unit works by itself.",
          "vector", "vect", "the vector unit works alone", "standing by for the vector unit", seldom=True),
    State("idle", "idle", _NOTHING,
          "Nothing of the layer is left for it: results drain, the last spill travels to HBM, the last lane ends.",
          "idle", "idle", "after the last pass", "idling after the last pass"),
)}  # fmt: skip

ARRAY = tuple(STATES[key] for key in ("busy", *STALL_CAUSES, "idle"))
"""How a result splits the cycles of the array, from the bottom of a bar to its top."""

PARTS = tuple(STATES[key] for key in ("useful", "unused", *STALL_CAUSES, "idle"))
"""The same, what it is busy with told apart by how many PEs work."""


def parts_of(record: LayerResult | Total) -> dict[str, float]:
    """Cycles of the array in each of PARTS, by their keys; they add up to the record's cycles."""
    split = record.units["systolic_array"]
    busy = split.get("busy", 0)
    useful = min(record.pe_utilization * record.cycles, busy)
    others = {state.key: float(split.get(state.key, 0)) for state in PARTS[2:]}
    return {"useful": useful, "unused": busy - useful, **others}


def does_less(record: LayerResult | Total) -> bool:
    """Whether the array is busy for less than the layers' multiplications take: not all are done, or not by it."""
    return record.pe_utilization * record.cycles > record.units["systolic_array"].get("busy", 0) * (1 + 1e-9)


def parts_in(records: Iterable[LayerResult | Total]) -> tuple[State, ...]:
    """Those of PARTS that these records are split into."""
    held = {key for record in records for key, cycles in parts_of(record).items() if cycles}
    return tuple(state for state in PARTS if not state.seldom or state.key in held)


PHASES: Mapping[str, str] = {
    **{state.key: state.doing for state in ARRAY},
    "first_fill": "waiting for the first data",
    "drain": "draining after the last pass",
    "spill": "last results going to HBM",
    "skew": "last lane behind the first",
}
"""What the array does in a layer explained, where the first fill and the parts of idle are told apart."""

CLIENTS: Mapping[str, State] = {client.key: client for client in (
    State("ifmap", "ifmap reads", Look("#0b3c5d", "#6db5ea")),
    State("pointer", "pointer reads", Look("#7a4ea3", "#b39ad6", "crossed")),
    State("psum", "partial-sum reads", Look("#d55e00", "#f08a35", "rising")),
    State("result", "result writes", Look("#4f6d8f", "#7f95b0", "bars")),
    State("vector", "vector unit", Look("#3a7d44", "#6fbf7b", "grid")),
    State("weight", "weight reads", Look("#8fb8d9", "#3f83ad", "falling")),
    State("dma", "DMA", Look("#d9d26f", "#b5aa25", "dots")),
    State("idle", "free", _NOTHING),
)}  # fmt: skip
"""Who owns a cycle of a port; idle: nobody."""

UNITS: Mapping[str, str] = {
    "systolic_array": "systolic array", "preload": "weight path", "vector_unit": "vector unit", "hbm": "HBM",
}  # fmt: skip
"""The units but the ports."""
