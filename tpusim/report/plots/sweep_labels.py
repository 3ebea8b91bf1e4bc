"""What the axes and columns of a sweep are called in a picture, and where their values stand."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tpusim.base.errors import InputError
from tpusim.base.units import BANDWIDTH, FREQUENCY, SIZE, TIME

_AXES: Mapping[str, str] = {
    "clock": "clock",
    "array.size": "array size (PEs a side)",
    "array.rows": "array rows (PEs)",
    "array.cols": "array columns (PEs)",
    "array.weight_buffers": "weight registers of a PE",
    "array.count": "arrays",
    "vector_memory.word_elements": "vector memory word (elements)",
    "vector_memory.element_bytes": "element (bytes)",
    "vector_memory.capacity": "vector memory of a lane",
    "vector_unit.alus": "vector ALUs",
    "vector_unit.unpack_cycles": "unpacking a word (cycles)",
    "vector_unit.pack_cycles": "packing a word (cycles)",
    "hbm.bandwidth": "HBM bandwidth",
    "hbm.latency": "HBM latency",
    "hbm.burst": "HBM burst",
    "hbm.channel_multiple": "channels stored in multiples of",
    "sequencer.launch_cycles": "launch of a step (cycles)",
    "sequencer.between_blocks": "between blocks",
    "mapping.multi_tile": "taps stacked in a pass (multi-tile)",
    "mapping.loop_order": "loop order",
    "batch": "batch (images)",
}
_COLUMNS: Mapping[str, tuple[str, float]] = {
    "time_us": ("time (ms)", 1e-3),
    "cycles": ("cycles", 1.0),
    "tflops": ("TFLOPS", 1.0),
    "pe_utilization": ("PE utilisation (%)", 100.0),
    "mapping_efficiency": ("mapping efficiency (%)", 100.0),
    "port_idle_ratio": ("port cycles without an access (%)", 100.0),
    "hbm_read_bytes": ("read from HBM (MB)", 1e-6),
    "hbm_write_bytes": ("written to HBM (MB)", 1e-6),
    "starved_cycles": ("cycles that wait for HBM data", 1.0),
    "blocked_cycles": ("cycles that wait for the output side", 1.0),
    "waiting_weights_cycles": ("cycles that wait for weights", 1.0),
    "port_stall_cycles": ("cycles that wait for a port", 1.0),
    "reads": ("words read from vector memories", 1.0),
    "writes": ("words written to vector memories", 1.0),
    "peak_bytes": ("vector memories in use (MiB)", 2.0**-20),
    "macs": ("billion MACs", 1e-9),
    "ideal_cycles": ("cycles with every PE busy", 1.0),
    "pes": ("PEs", 1.0),
    "lanes": ("lanes", 1.0),
    "sram_bytes": ("vector memories together (MiB)", 2.0**-20),
    "hbm_bytes_per_s": ("HBM bandwidth (GB/s)", 1e-9),
}
_UNITS = (FREQUENCY, SIZE, BANDWIDTH, TIME)
_QUANTITY = re.compile(r"([0-9.eE_]+)\s*([A-Za-z/]+)")
_LOG_RATIO = 8

Value = int | float | str


def plain(text: str) -> str:
    """`text` for matplotlib, to which a dollar is mathematics and a leading underscore means hidden."""
    return (f" {text}" if text.startswith("_") else text).replace("$", r"\$")


def axis_label(axis: str) -> str:
    """An axis in words, unit included where its values carry none: "array size (PEs a side)"."""
    parts = (path.strip() for path in axis.split(","))
    return plain(
        ", ".join(_layer_label(path) if path.startswith("layers.") else _AXES.get(path, path) for path in parts)
    )


def column_label(column: str) -> str:
    """A column in words with its unit; an axis where it is one."""
    return _COLUMNS[column][0] if column in _COLUMNS else axis_label(column)


def column_value(column: str, value: float) -> float:
    """`value` in the unit of `column_label`."""
    return value * _COLUMNS.get(column, ("", 1.0))[1]


def _layer_label(path: str) -> str:
    name, _, field = path.removeprefix("layers.").rpartition(".")
    return f"{field.replace('_', ' ')} of {name}"


@dataclass(frozen=True)
class Scale:
    """Where each value of an axis stands, what is written there, and what along the axis."""

    places: Mapping[Value, float]
    texts: Mapping[Value, str]
    label: str
    kind: str
    """Of matplotlib: "log", "linear"; places of words are 0, 1, 2, ..."""

    def ticks(self, most: int = 12) -> tuple[list[float], list[str]]:
        """Places and texts, of some `most` that have room."""
        shown: list[Value] = []
        order = sorted(self.places, key=lambda value: self.places[value])
        across = [self._across(value) for value in order]
        least = (across[-1] - across[0]) / most if len(order) > 1 else 0.0
        last = -math.inf
        for value, place in zip(order, across, strict=True):
            if place - last >= least * 0.999:
                shown.append(value)
                last = place
        return [self.places[value] for value in shown], [plain(self.texts[value]) for value in shown]

    def _across(self, value: Value) -> float:
        place = self.places[value]
        return math.log(place) if self.kind == "log" else place


def scale_of(axis: str, values: Iterable[Value]) -> Scale:
    """Numbers and quantities stand where they belong, over a wide range on a logarithmic scale; words in a row."""
    distinct = list(dict.fromkeys(values))
    texts = {value: str(value) for value in distinct}
    numbers = [_number(value) for value in distinct]
    if len(distinct) < 2 or any(number is None for number in numbers):
        return Scale({value: float(i) for i, value in enumerate(distinct)}, texts, axis_label(axis), "linear")
    places = {value: number for value, number in zip(distinct, numbers, strict=True) if number is not None}
    least, most = min(places.values()), max(places.values())
    units = {_unit(value) for value in distinct}
    label = axis_label(axis)
    if len(units) == 1 and (unit := units.pop()):
        texts = {value: str(value).removesuffix(unit).strip() for value in distinct}
        label = f"{label} ({unit})"
    return Scale(places, texts, label, "log" if 0 < least * _LOG_RATIO <= most else "linear")


def rows_of(axis: str, values: Iterable[Value]) -> Scale:
    """Every value one step after the other, as in a heat map; numbers in rising order."""
    scale = scale_of(axis, values)
    order = sorted(scale.places, key=lambda value: scale.places[value])
    return Scale({value: float(i) for i, value in enumerate(order)}, scale.texts, scale.label, "linear")


def zipped(axes: Sequence[str], rows: Sequence[Mapping[str, Value]]) -> tuple[Scale, list[Value]]:
    """Axes that move together: one step a combination, its values below one another."""
    texts = ["\n".join(str(row[axis]) for axis in axes) for row in rows]
    distinct = list(dict.fromkeys(texts))
    label = "\n".join(axis_label(axis) for axis in axes)
    places: dict[Value, float] = {text: float(i) for i, text in enumerate(distinct)}
    return Scale(places, {text: text for text in distinct}, label, "linear"), [*texts]


def _unit(value: Value) -> str:
    found = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    return found[2] if found else ""


def _number(value: Value) -> float | None:
    if not isinstance(value, str):
        return float(value)
    for unit in _UNITS:
        try:
            return float(unit.parse(value))
        except InputError:
            continue
    return None
