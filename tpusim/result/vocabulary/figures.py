"""The figures of a layer, a total and a sweep's point: names, units, the better direction, meanings.

And what only one machine family tells of a layer, by its name in `LayerResult.own`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from tpusim.result.records import STALL_CAUSES, LayerResult
from tpusim.result.vocabulary.fields import axis_title
from tpusim.result.vocabulary.states import ARRAY_UNIT, STATES, main_account, main_unit

Scales = tuple[tuple[str, float], ...]
"""Units to choose from, the largest first, and the divisor of a value for each."""

TIMES: Scales = (("s", 1e6), ("ms", 1e3), ("us", 1.0))
BYTES: Scales = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
MEMORY: Scales = (("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0))
RATES: Scales = (("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6), ("B/s", 1.0))
COUNTS: Scales = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))
PERCENT: Scales = (("%", 0.01),)
CYCLES: Scales = (("cycles", 1.0),)
JOULES: Scales = (("J", 1e12), ("mJ", 1e9), ("uJ", 1e6), ("nJ", 1e3), ("pJ", 1.0))
JOULE_SECONDS: Scales = (("J s", 1e12), ("mJ s", 1e9), ("uJ s", 1e6), ("nJ s", 1e3), ("pJ s", 1.0))
AREAS: Scales = (("mm2", 1.0),)
PLAIN: Scales = (("", 1.0),)

LESS, MORE, EITHER = -1, 1, 0
"""The better direction; EITHER: it depends on the question."""


@dataclass(frozen=True)
class Figure:
    """A figure; `key` names it in results and files, `label` for people, `head` above a narrow column.

    A value is in the last of `units`; `unit` is the one to use where there are no values to choose by.
    """

    key: str
    label: str
    kind: type = int
    better: int = EITHER
    units: Scales = PLAIN
    unit: str = ""
    head: str = ""
    meaning: str = ""

    @property
    def style(self) -> Literal["percent", "count", "three"]:
        """Way to write a value: in percent, whole with thousands apart, or in three digits."""
        if self.units == PERCENT:
            return "percent"
        return "count" if self.kind is int and len(self.units) == 1 else "three"

    @property
    def legend(self) -> str:
        """The meaning of a column's head: "map: PEs that hold a weight"; empty where the head says it all."""
        return self.meaning and f"{self.head or self.label}: {self.meaning}".replace("\n", " ")

    @property
    def usual(self) -> tuple[str, float]:
        """The usual unit and its divisor: `unit`, or the only one."""
        return next((each for each in self.units if each[0] == self.unit), self.units[0])

    @property
    def title(self) -> str:
        """The label with the usual unit."""
        unit, _ = self.usual
        return f"{self.label} ({unit})" if unit else self.label


def _by_key(*figures: Figure) -> dict[str, Figure]:
    return {figure.key: figure for figure in figures}


FIGURES = _by_key(
    Figure("macs", "MACs", int, EITHER, COUNTS, "G",
           meaning="multiplications, each with an addition; those with padding zeros included"),
    Figure("passes", "passes", int, LESS, head="pass", meaning="passes through the array"),
    Figure("cycles", "cycles", int, LESS, head="cycles", meaning="of the clock, from the start to the last spill"),
    Figure("time_us", "time", float, LESS, TIMES, "ms", "time", "cycles at the machine's clock"),
    Figure("ideal_cycles", "ideal cycles", int, LESS, meaning="MACs over those at the peak in a cycle"),
    Figure("pe_utilization", "PE utilisation", float, MORE, PERCENT, "", "PE",
           "MACs over those at the peak in as many cycles: the model FLOP utilisation (MFU)"),
    Figure("mapping_efficiency", "mapping efficiency", float, MORE, PERCENT, "", "map",
           "PEs that hold a weight, mean over passes"),
    Figure("tflops", "TFLOPS", float, MORE, head="TF/s", meaning="10^12 operations a second, two a MAC"),
    Figure("hbm_read_bytes", "HBM read", int, LESS, BYTES, "MB", "read", "bytes asked of HBM"),
    Figure("hbm_write_bytes", "HBM written", int, LESS, BYTES, "MB", "write", "bytes to HBM"),
    Figure("busy_cycles", "array busy", int, EITHER, CYCLES, "", meaning="the array takes elements in"),
    *(Figure(f"{stall.key}_cycles", stall.label, int, LESS, CYCLES, "", stall.head, f"stalled, {stall.why}")
      for stall in map(STATES.__getitem__, STALL_CAUSES)),
    Figure("idle_cycles", "array idle", int, LESS, CYCLES, "", meaning="after its last pass; these, the busy and the "
           "stalled add up to all cycles"),
    Figure("launch_cycles", "launches", int, LESS, CYCLES, "", "launch",
           "in which layers are launched; a part of the stalled"),
    Figure("reads", "words read", int, LESS, COUNTS, "M", meaning="from the vector memories, all lanes together"),
    Figure("writes", "words written", int, LESS, COUNTS, "M", meaning="to the vector memories, all lanes together"),
    Figure("peak_bytes", "memory allocated", int, LESS, MEMORY, "MiB",
           meaning="of the vector memories, all lanes together, at most"),
    Figure("port_idle_ratio", "ports unused", float, EITHER, PERCENT, "", "ports\nunused",
           "port cycles without an access"),
    Figure("lowered_bytes", "lowered", int, LESS, BYTES, "MB", "lowered",
           "bytes of tensors written to HBM and read again, without padding: the lowered matrix"),
    Figure("transformation_cycles", "transformation", int, LESS, CYCLES, "", "transf",
           "cycles of the HBM bus that go to writing the lowered matrix"),
    Figure("transformation_share", "transformation's share", float, LESS, PERCENT, "", "transf %",
           "cycles that go to writing the lowered matrix, of all cycles"),
    Figure("hbm_asked_bytes", "HBM asked", int, LESS, BYTES, "MB", "asked",
           "bytes of the bursts that transfers ask for, read and written: moved, or served by a pending burst"),
    Figure("hbm_moved_bytes", "HBM moved", int, LESS, BYTES, "MB", "bursts", "bytes of the bursts that HBM moves"),
    Figure("hbm_wanted_bytes", "HBM wanted", int, EITHER, BYTES, "MB", "wanted",
           "bytes of the elements that the layer asks for"),
    Figure("hbm_overfetch", "HBM moved over wanted", float, LESS, PLAIN, "", "moved /\nwanted",
           "bytes that HBM moves over those that the layer asks for, a burst once for all who ask while it is pending"),
    Figure("hbm_reached_bytes_per_s", "HBM bandwidth reached", float, MORE, RATES, "GB/s", "reached",
           "bytes that HBM moves a second, while a transfer is under way"),
    Figure("row_hits", "row hits", int, EITHER, COUNTS, "k", "hits", "bursts that found their row open"),
    Figure("row_misses", "row misses", int, LESS, COUNTS, "k", "misses", "bursts that had to open their row"),
    Figure("row_conflicts", "row conflicts", int, LESS, COUNTS, "k", "confl",
           "bursts that had to close another row before"),
    Figure("refreshes", "refreshes", int, LESS, COUNTS, "", "refr", "that came due, all channels together"),
    Figure("channel_imbalance", "channel imbalance", float, LESS, PLAIN, "", "imbal",
           "bursts of each transfer's busiest channel over the mean"),
    Figure("energy", "energy", float, LESS, JOULES, "mJ", "energy", "of all that is counted, in the machine's "
           "technology"),
    Figure("energy_delay", "energy x time", float, LESS, JOULE_SECONDS, "mJ s", "energy\nx time", "energy times time"),
    Figure("tops_per_watt", "TOPS/W", float, MORE, head="TOPS/W", meaning="10^12 operations a joule, two a MAC"),
)  # fmt: skip
"""The figures of every layer and every point, in the order of a sweep's files."""

COSTS = _by_key(
    Figure("pes", "PEs", int, LESS, head="PEs", meaning="of the machine"),
    Figure("lanes", "lanes", int, LESS, head="lanes", meaning="of the machine"),
    Figure("sram_bytes", "vector memories", int, LESS, MEMORY, "MiB", "SRAM", "of the machine, all lanes together"),
    Figure("hbm_bytes_per_s", "HBM bandwidth", int, LESS, RATES, "GB/s", "HBM", "of the machine"),
    Figure("area", "area", float, LESS, AREAS, "mm2", "area", "of the machine, in its technology"),
)
"""The parts of a machine; known without a simulation."""

TOKENS_PER_S, FIRST_TOKEN_US = "tokens_per_s", "first_token_us"
SPEEDS = _by_key(
    Figure(TOKENS_PER_S, "tokens a second", float, MORE, head="tokens/s",
           meaning="of all sequences together, where a network makes a token of each"),
    Figure(FIRST_TOKEN_US, "time to first token", float, LESS, TIMES, "ms", "first\ntoken",
           "in which the prompt of each sequence is read, and makes its first token"),
)  # fmt: skip
"""What follows from the time of a point and from what its network makes."""

COLUMNS = FIGURES | SPEEDS | COSTS
"""Every column of a sweep's points that can be compared."""

LAYER = FIGURES | _by_key(
    Figure("multi_tile", "taps", head="T", meaning="taps stacked in a pass (multi-tile)"),
    Figure("share", "of run", float, EITHER, PERCENT, meaning="its share of the run's cycles"),
)
"""Every figure of a layer in a run."""


def column_of(key: str) -> Figure:
    """Return a column of a sweep's points, or one of its axes, which is shown as it was written."""
    return COLUMNS.get(key) or Figure(key, axis_title(key), float)


def in_frame(key: str) -> str:
    """Return the name of a column in a table of Python: the key, with the unit behind it where it does not say it."""
    unit = column_of(key).units[-1][0]
    ending = {"pJ": "_pj", "pJ s": "_pj_s", "mm2": "_mm2"}.get(unit, "")
    return f"{key}{ending}"


def value_of(record: LayerResult, key: str) -> float | None:
    """Return a record's figure by its key in FIGURES; None where machines of its family have no such thing."""
    if (state := key.removesuffix("_cycles")) in STALL_CAUSES:
        return record.stall_cycles.get(state, 0) if main_unit(record) == ARRAY_UNIT else None
    if state in ("busy", "idle"):
        return main_account(record).get(state, 0)
    holders = (record, record.vector_memory, record.dram, record.energy_use)
    holder = next((each for each in holders if hasattr(each, key)), None)
    if holder is None:
        # Results without banks, or of an older version, lack some figures, which are then zero.
        return None if record.vector_memory is None else FIGURES[key].kind()
    value: float | None = getattr(holder, key)
    return value


def known(records: Iterable[LayerResult], key: str) -> bool:
    """Return whether any of the records has the figure."""
    return any(value_of(record, key) is not None for record in records)


OF_ANY_MACHINE = frozenset({
    "macs", "cycles", "time_us", "ideal_cycles", "pe_utilization", "tflops", "hbm_read_bytes", "hbm_write_bytes",
    "busy_cycles", "idle_cycles", "lowered_bytes", "transformation_cycles", "transformation_share", "pes",
    "sram_bytes", "hbm_bytes_per_s",
})  # fmt: skip
"""Columns of a sweep's points that machines of every family fill."""


# ---- figures that only one machine family has

OWN: Mapping[str, Figure] = {figure.key: figure for figure in (
    Figure("tile", "tile", str, head="tile", meaning="outputs x channels of a block"),
    Figure("split_k", "parts of a sum", head="split", meaning="blocks that share the sum of an output"),
    Figure("resident", "blocks an SM", head="per SM", meaning="blocks that share an SM"),
    Figure("blocks", "blocks", head="blocks", meaning="of threads, each with a tile of outputs"),
    Figure("waves", "waves", head="waves", meaning="blocks / blocks that all SMs hold at once, rounded up"),
    Figure("a_bytes", "A", float, 0, BYTES, "", "A", "bytes of the ifmap, or of the lowered matrix, that blocks fetch"),
    Figure("b_bytes", "B", float, 0, BYTES, "", "B", "bytes of filters that blocks fetch"),
    Figure("scratch_read_bytes", "scratch memory read", float, 0, BYTES, "", "scr read",
           "bytes from the scratch memory"),
    Figure("scratch_write_bytes", "scratch memory written", float, 0, BYTES, "", "scr write",
           "bytes to the scratch memory"),
    Figure("l2_bytes", "L2", float, 0, BYTES, "", "L2", "bytes from L2, in whole sectors"),
)}  # fmt: skip
"""Figures of one family whose names do not say enough."""


def own_keys(layers: Iterable[LayerResult]) -> list[str]:
    """Return the names of all own figures of some layers, in order."""
    return list(dict.fromkeys(key for layer in layers for key in layer.own))


def own_figure(key: str) -> Figure:
    """Return label and unit of a figure; an unknown one has its name as the label, and bytes by the end of the name."""
    words = key.removesuffix("_bytes").replace("_", " ")
    units = BYTES if key.endswith("_bytes") else PLAIN
    return OWN.get(key) or Figure(key, words, float if units == BYTES else int, 0, units, "", words)
