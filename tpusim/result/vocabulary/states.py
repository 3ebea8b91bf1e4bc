"""The states of units, the owners of ports and the uses of energy: in words, and how they look."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tpusim.result.records import STALL_CAUSES, EnergyUse, LayerResult


@dataclass(frozen=True)
class Look:
    """A tone on light and on dark ground; and a hatch of `tpusim.report.style`, so that grey paper tells it apart."""

    light: str
    dark: str
    hatch: str = ""


@dataclass(frozen=True)
class State:
    """A use of cycles: `label` names it, `meaning` explains it.

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
        """The meaning of `head`: "starv: starved, HBM data late"; empty where the head says it all."""
        if not self.why and self.head == self.label:
            return ""
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
          "Waits for a fill whose data have not come from HBM; the first fill included.",
          "starved", "starv", "HBM data late", "waiting for data from HBM"),
    State("blocked", "blocked", Look("#56b4e9", "#3f83ad", "dots"),
          "Waits for the output side: a spill, the vector unit, sums of the pass before; or for a fill that cannot "
          "begin while words are in use, its own or those of a transfer ahead of it.",
          "blocked", "block", "output side not ready", "waiting for the output side"),
    State("waiting_weights", "waiting for weights", Look("#f0a3c6", "#b96c92", "falling"),
          "Waits for the preload of weights into the PEs.",
          "weights", "wait", "preload not done", "waiting for weights"),
    State("port_stall", "port stall", Look("#f0e442", "#b5aa25", "crossed"),
          "Waits for the vector memories, whose one port is taken; or for a fill whose data have come, and wait for "
          "that port.",
          "port", "port", "SRAM port full", "waiting for the port of the vector memories"),
    State("bank_conflict", "bank conflict", Look("#8a63b0", "#a98bc9", "bars"),
          "Waits because several rows of the array ask one bank for different words at once.",
          "banks", "bank", "rows meet in one bank", "waiting for banks that rows share", seldom=True),
    State("vector_work", "vector work", Look("#3a7d44", "#6fbf7b", "grid"),
          "Stands by while the vector unit works by itself.",
          "vector", "vect", "the vector unit works alone", "standing by for the vector unit", seldom=True),
    State("conversion", "conversion", Look("#a6761d", "#c79a4b", "rings"),
          "Waits for a fill whose data have come from HBM, and are being converted by the vector unit.",
          "conversion", "conv", "fills being converted", "waiting for fills to be converted", seldom=True),
    State("idle", "idle", _NOTHING,
          "Nothing of the layer is left for it: results drain, the last spill travels to HBM, the last lane ends.",
          "idle", "idle", "after the last pass", "idling after the last pass"),
    State("load_wait", "waiting for loads", Look("#d55e00", "#f08a35", "rising"),
          "Of an SM: operands are on their way to all of its blocks, and none does anything else.",
          "loads", "load", "operands late", "waiting for operands"),
    State("stage", "staging", Look("#f0a3c6", "#b96c92", "falling"),
          "Of an SM: stores operands in shared memory, works out addresses, waits at barriers, and multiplies nothing.",
          "staging", "stage", "storing operands", "staging operands"),
    State("epilogue", "epilogue", Look("#56b4e9", "#3f83ad", "dots"),
          "Of an SM: writes results, and multiplies nothing.",
          "epilogue", "epi", "writing results", "writing results"),
    State("dram_wait", "waiting for DRAM", Look("#f0e442", "#b5aa25", "crossed"),
          "Of an SM: stands by because DRAM takes longer for all bytes of a kernel than its blocks do.",
          "DRAM", "dram", "bound by DRAM", "waiting for DRAM"),
    State("move", "moving", Look("#8a63b0", "#a98bc9", "bars"),
          "Of an SM: in a kernel that multiplies nothing but makes offsets, another layout, the lowered matrix, sums.",
          "moving", "move", "other kernels", "in kernels that multiply nothing"),
    State("launch", "launch", Look("#3a7d44", "#6fbf7b", "grid"),
          "Of an SM: stands by while a kernel is launched.",
          "launch", "laun", "of kernels", "waiting for launches"),
)}  # fmt: skip

ELSEWHERE: Mapping[str, State] = {state.key: state for state in (
    State("unused", "busy, not useful", _PART,
          "Busy, but with less than it can do: a tile's edges, padded channels, blocks too few to keep it at work.",
          "not useful", "part", "in part for nothing", "work that does not count"),
    State("idle", "idle", _NOTHING, "Has nothing of the layer left to do.", "idle", "idle", "nothing left to do",
          "idling, with nothing left to do"),
)}  # fmt: skip
"""States that have other words for machines without an array."""

CHIP_STATES: Mapping[str, State] = {state.key: state for state in (
    State("sends", "a link carries", _FULL, "A link out of the chip carries bytes.", "sends"),
    State("adds", "adds", Look("#3a7d44", "#6fbf7b", "grid"),
          "No link carries bytes, and what has come is added.", "adds"),
    State("moves", "moves in memory", Look("#8a63b0", "#a98bc9", "bars"),
          "Bytes are read from HBM or written to it, and nothing else is done.", "moves"),
    State("neighbour_wait", "waits for a neighbour", Look("#d55e00", "#f08a35", "rising"),
          "Nothing of the chip works: what it needs next is on its way from a neighbour, or not yet sent.", "waits"),
    State("launch", "launch", Look("#f0e442", "#b5aa25", "crossed"), "The collective has not begun.", "launch"),
)}  # fmt: skip
"""What a chip does in a collective; the first that holds counts."""

STEP_PARTS: Mapping[str, State] = {state.key: state for state in (
    State("compute", "compute", _FULL, "Layers run, and do not wait for HBM."),
    State("hbm", "HBM", Look("#56b4e9", "#3f83ad", "dots"), "Layers wait for their data from HBM."),
    State("launches", "launches", Look("#3a7d44", "#6fbf7b", "grid"), "Layers are launched."),
    State("shared_hbm", "HBM for collectives", Look("#8a63b0", "#a98bc9", "bars"),
          "Layers stand still, as HBM belongs to collectives."),
    State("links", "links", Look("#d55e00", "#f08a35", "rising"),
          "The chip waits for a collective over links between chips of a slice."),
    State("dcn", "network", Look("#f0e442", "#b5aa25", "crossed"),
          "The chip waits for a collective over the network between slices."),
    State("host", "host", Look("#f0a3c6", "#b96c92", "falling"),
          "The chip waits for data on their way to the host's memory, or from it."),
    State("bubble", "bubble", _NOTHING, "The chip waits for chips that have other layers."),
)}  # fmt: skip
"""What a chip does in a step that several chips share."""

ARRAY_UNIT = "systolic_array"
"""The main unit of a TPU."""

ARRAY = tuple(STATES[key] for key in ("busy", *STALL_CAUSES, "idle"))
"""The states of the array in a result, from the bottom of a bar to its top."""

MAIN_UNITS: Mapping[str, str] = {ARRAY_UNIT: "array", "sms": "average SM"}
"""People's names of the unit whose cycles a result accounts for first; any other has its key as its name."""


def main_unit(record: LayerResult) -> str:
    """Return the unit whose states are the stalls of a result: a TPU's array, of other machines the first one."""
    return ARRAY_UNIT if ARRAY_UNIT in record.units else next(iter(record.units))


def main_account(record: LayerResult) -> Mapping[str, int]:
    """Return the cycles of the main unit by state."""
    return record.units[main_unit(record)]


def main_name(record: LayerResult) -> str:
    """Return people's name of the main unit."""
    unit = main_unit(record)
    return MAIN_UNITS.get(unit, unit_name(unit))


def unit_name(unit: str) -> str:
    """Return people's name of a unit; an unknown one has its key as its name."""
    return UNITS.get(unit) or MAIN_UNITS.get(unit, unit.replace("_", " "))


def state_of(key: str, of_array: bool = False) -> State:
    """Return a state by its key; an unknown one has its key as its label, and a common look."""
    if key in STATES:
        return STATES[key] if of_array else ELSEWHERE.get(key, STATES[key])
    words = key.replace("_", " ")
    return State(key, words, _PART, "", words, words, "", words)


STALLED = state_of("stalled")
"""Neither busy nor idle, whatever the reason."""

LAUNCHING = State(
    "launching", "launch", Look("#7b6a58", "#a8957f", "bars"), "Starved while layers are launched.",
    why="of layers, one by one", seldom=True,
)  # fmt: skip
"""Cycles of launches, which a result counts among the starved ones, where a picture tells them apart."""


def parts_of(record: LayerResult) -> dict[str, float]:
    """Return cycles of the main unit, by the keys of STATES where it is an array; they add up to the record's
    cycles.
    """
    split = main_account(record)
    busy = split.get("busy", 0)
    useful = min(record.pe_utilization * record.cycles, busy)
    stalls = STALL_CAUSES if ARRAY_UNIT in record.units else [key for key in split if key not in ("busy", "idle")]
    others = {key: float(split.get(key, 0)) for key in (*stalls, "idle")}
    return {"useful": useful, "unused": busy - useful, **others}


def all_parts(record: LayerResult) -> tuple[State, ...]:
    """Return the states that `parts_of` splits a record into."""
    return tuple(state_of(key, main_unit(record) == ARRAY_UNIT) for key in parts_of(record))


def does_less(record: LayerResult) -> bool:
    """Return whether the main unit is busy for less than the layers' MACs take: some are left out, or done
    elsewhere.
    """
    return record.pe_utilization * record.cycles > main_account(record).get("busy", 0) * (1 + 1e-9)


def parts_in(records: Iterable[LayerResult]) -> tuple[State, ...]:
    """Return the states that these records are split into, idle the last; without seldom ones that do not occur."""
    units, parts = zip(*((main_unit(record), parts_of(record)) for record in records), strict=True)
    held = {key for each in parts for key, cycles in each.items() if cycles}
    known = dict.fromkeys(key for each in parts for key in each)
    of_array = {*units} == {ARRAY_UNIT}
    states = [state_of(key, of_array) for key in known if key != "idle"]
    return (*(state for state in states if not state.seldom or state.key in held), state_of("idle", of_array))


PHASES: Mapping[str, str] = {
    **{state.key: state.doing for state in ARRAY},
    "first_fill": "waiting for the first data",
    "drain": "draining after the last pass",
    "spill": "last results going to HBM",
    "skew": "last lane behind the first",
}
"""The states of the array in a layer explained, where the first fill and the parts of idle are told apart."""

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
"""The owners of a cycle of a port; an idle cycle has none."""

UNITS: Mapping[str, str] = {
    "systolic_array": "systolic array", "preload": "weight path", "vector_unit": "vector unit", "hbm": "HBM",
}  # fmt: skip
"""The units but the ports."""


# ---- the uses of a run's energy

ENERGIES: Mapping[str, State] = {part.key: part for part in (
    State("multiply_adds", "multiply-adds", Look("#0b3c5d", "#6db5ea"), "Products and sums of the PEs in use."),
    State("pe_registers", "registers of the PEs", Look("#9dbdd6", "#2f5878", "level"),
          "Elements, sums and weights that PEs hand on."),
    State("vector_operations", "vector unit", Look("#3a7d44", "#6fbf7b", "grid"),
          "Products and sums of the vector unit; partial sums above all."),
    State("port_reads", "port reads", Look("#d55e00", "#f08a35", "rising"), "Words read from the vector memories."),
    State("port_writes", "port writes", Look("#f0a3c6", "#b96c92", "falling"), "Words written to them."),
    State("serializers", "serializers", Look("#8a63b0", "#a98bc9", "bars"),
          "Words and elements in the registers between the ports and all else."),
    State("hbm_bits", "HBM bits", Look("#56b4e9", "#3f83ad", "dots"), "Bits moved from and to HBM."),
    State("hbm_activates", "HBM activates", Look("#f0e442", "#b5aa25", "crossed"),
          "Rows opened in the DRAM; without banks their share is in the bits.", seldom=True),
    State("leakage", "leakage", Look("#eceff2", "#2a323c"), "Of memories and registers, all the time."),
)}  # fmt: skip


def energies_in(uses: Sequence[EnergyUse]) -> tuple[State, ...]:
    """Return the parts of ENERGIES that these uses are split into."""
    return tuple(part for part in ENERGIES.values() if not part.seldom or any(use.parts.get(part.key) for use in uses))


# ---- what the port of a lane does in a cycle


@dataclass(frozen=True, slots=True)
class LaneAccess:
    """An access of a lane's port in a cycle: in a word, in a sentence about the lane, and its tone in a picture."""

    word: str
    meaning: str
    tone: str


UNUSED = "-"
"""A slot that padding, or a lane that has no part in the step, leaves unused."""

ACCESSES = {
    ".": LaneAccess("free", "", "#ffffff"),
    "R": LaneAccess("ifmap", "reads ifmap", CLIENTS["ifmap"].look.light),
    "p": LaneAccess("pointer", "reads pointers", CLIENTS["pointer"].look.light),
    "P": LaneAccess("psum", "reads a partial sum", CLIENTS["psum"].look.light),
    "W": LaneAccess("result", "writes a result", CLIENTS["result"].look.light),
    "v": LaneAccess("vector", "works for the vector unit", CLIENTS["vector"].look.light),
    # A strong tone, as a single such word among fills would be overlooked.
    "k": LaneAccess("weight", "reads weights", "#b0126f"),
    "f": LaneAccess("fill", "is filled", CLIENTS["dma"].look.light),
    "s": LaneAccess("spill", "is spilled", "#c49a6c"),
    UNUSED: LaneAccess("unused", "leaves its slot unused (padding, or no part in the step)", "#e8e8e8"),
}
"""Accesses by letter: first those of the port's clients, FREE to DMA, then a DMA access that spills. Legends skip the
first.
"""

WORKING = "PEs that hold an activation (zeros of unused rows and columns included)"
MOVING = "weights on their way"
