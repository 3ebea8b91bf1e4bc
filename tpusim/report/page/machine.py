"""The machine of a result: its fields with units, its peaks, and the blocks of its diagram."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tpusim.base.units import BANDWIDTH, FREQUENCY, SIZE, TIME
from tpusim.machines.tpu.description import Hardware
from tpusim.report.page.states import STATES, states_of
from tpusim.report.tables import run as tables
from tpusim.result.records import Result

_UNIT_OF = {
    "array.rows": "PEs",
    "array.cols": "PEs",
    "array.weight_buffers": "registers a PE",
    "array.weights_per_cycle": "weights a column",
    "array.count": "arrays",
    "vector_memory.word_elements": "elements",
    "vector_memory.element_bytes": "B",
    "vector_memory.capacity": "a lane",
    "vector_unit.alus": "ALUs",
    "vector_unit.unpack_cycles": "cycles a word",
    "vector_unit.pack_cycles": "cycles a word",
    "hbm.channel_multiple": "channels",
    "sequencer.launch_cycles": "cycles",
}
"""Of the fields whose value does not carry one."""

PORT_CLIENTS = (
    ("ifmap", "ifmap reads"),
    ("psum", "partial-sum reads"),
    ("result", "result writes"),
    ("weight", "weight reads"),
    ("dma", "DMA"),
    ("idle", "free"),
)


def fields(hardware: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Every field as (path, value with its unit)."""
    return [(path, _with_unit(value, _UNIT_OF.get(path, ""))) for path, value in _flat(hardware)]


def _with_unit(value: Any, unit: str) -> str:
    first, *rest = unit.split(" ")
    return " ".join([str(value), first.removesuffix("s") if value == 1 else first, *rest]).strip()


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def ports_of(units: Mapping[str, Mapping[str, int]]) -> dict[str, Mapping[str, int]]:
    """The accounts of lane 0's port, or of its ports where each client has one, by their names on the page."""
    if "port" in units:
        return {"ports": units["port"]}
    labels = dict(PORT_CLIENTS)
    return {
        f"port of {labels[unit.removeprefix('port_')]}": split
        for unit, split in units.items()
        if unit.removeprefix("port_") in labels and unit.startswith("port_")
    }


def diagram(result: Result, hardware: Hardware) -> dict[str, Any]:
    """A block for every unit: its name, its own parameters, and the parts of its cycles."""
    array, memory, hbm = hardware.array, hardware.vector_memory, hardware.hbm
    lanes, word = hardware.lanes, f"{memory.word_elements} x {memory.element_bytes} B"
    units, cycles = result.total.units, result.total.cycles
    total_memory = tables.quantity(lanes * memory.capacity_bytes, tables.MEMORY)

    def busy(unit: str) -> list[tuple[str, str, float]]:
        return [("busy", "busy", units[unit]["busy"] / cycles)]

    blocks = {
        "hbm": ("HBM", [BANDWIDTH.format(hbm.bandwidth_bytes_per_s), f"latency {TIME.format(hbm.latency_ps)}",
                        f"bursts of {SIZE.format(hbm.burst_bytes)}"], busy("hbm")),
        "dma": ("DMA", ["one queue, in order", f"on {tables.percent(_owned(units, 'dma') / cycles)} % of port cycles"],
                []),
        "memory": ("Vector memories", [f"{lanes} x {SIZE.format(memory.capacity_bytes)}", f"= {total_memory}",
                                       *_port_lines(units, word, cycles)],
                   _port_parts(units, cycles)),
        "preload": ("Weight path", [f"{hardware.preload_cycles} cycles a preload",
                                    f"{array.weight_buffers} weights a PE"], busy("preload")),
        "serializer": ("Serializers", [f"{lanes} x one word", f"of {word}"], []),
        "array": ("Systolic array", [_array_text(hardware), f"at {FREQUENCY.format(hardware.clock_hz)}"],
                  [(state.key, state.label, part / cycles)
                   for state, part in zip(STATES, states_of(result.total, hardware.pes), strict=True)]),
        "deserializer": ("De-serializers", [f"{lanes} x one word", f"of {word}"], []),
        "vector_unit": ("Vector unit", [f"{hardware.vector_unit.alus} ALUs", "adds partial sums"], busy("vector_unit")),
    }  # fmt: skip
    return {key: {"name": name, "lines": lines, "parts": parts} for key, (name, lines, parts) in blocks.items()}


def _owned(units: Mapping[str, Mapping[str, int]], client: str) -> int:
    """Port cycles of a client, on whichever port."""
    return sum(split.get(client, 0) for split in ports_of(units).values())


def _port_parts(units: Mapping[str, Mapping[str, int]], cycles: int) -> list[tuple[str, str, float]]:
    if "port" not in units:
        return []
    return [(key, label, units["port"].get(key, 0) / cycles) for key, label in PORT_CLIENTS]


def _port_lines(units: Mapping[str, Mapping[str, int]], word: str, cycles: int) -> list[str]:
    """The one port, whose shares are drawn; of several, each with its own share, as they add up to nothing."""
    if "port" in units:
        return [f"one port, words of {word}"]
    clients = [(label, _owned(units, key)) for key, label in PORT_CLIENTS if key != "idle"]
    return [f"a port a client, words of {word}", *(f"{label} {tables.percent(n / cycles)} %" for label, n in clients)]


def _array_text(hardware: Hardware) -> str:
    sides = f"{hardware.array.rows} x {hardware.array.cols} PEs"
    return sides if hardware.array.count == 1 else f"{hardware.array.count} x {sides}"
