"""The machine of a result: its fields with units, its peaks, and the blocks of its diagram."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpusim.base.units import BANDWIDTH, FREQUENCY, SIZE, TIME
from tpusim.machines.tpu.description import Hardware
from tpusim.report.text import percent, quantity
from tpusim.result.records import Result
from tpusim.result.vocabulary.fields import by_path, field_of
from tpusim.result.vocabulary.figures import MEMORY
from tpusim.result.vocabulary.states import CLIENTS, STATES, parts_in, parts_of

Share = tuple[str, str, float]
"""A share of the cycles: its key, its name, how much."""


def fields(hardware: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Every field as (path, value with its unit)."""
    return [(path, field_of(path).shown(_listed(value))) for path, value in by_path(hardware)]


def _listed(value: Any) -> Any:
    """A list in a line: "m 256, n 128; m 128, n 128"."""
    if not isinstance(value, list):
        return value
    parts = (each.items() if isinstance(each, Mapping) else [("", each)] for each in value)
    return "; ".join(", ".join(f"{key} {of}".strip() for key, of in part) for part in parts)


def ports_of(units: Mapping[str, Mapping[str, int]]) -> dict[str, Mapping[str, int]]:
    """The accounts of lane 0's ports, shared and of one client each, by their names on the page."""
    alone = {
        f"port of {client.label}": units[f"port_{key}"] for key, client in CLIENTS.items() if f"port_{key}" in units
    }
    return {"ports": units["port"], **alone} if "port" in units else alone


def diagram(result: Result, hardware: Hardware) -> dict[str, Any]:
    """A block for every unit: its name, its own parameters, and the parts of its cycles."""
    array, memory, hbm = hardware.array, hardware.vector_memory, hardware.hbm
    lanes, word = hardware.lanes, f"{memory.word_elements} x {memory.element_bytes} B"
    units, cycles = result.total.units, result.total.cycles
    scratch = hardware.scratch_memory
    near = [f"scratch memory of {SIZE.format(scratch.capacity_bytes)}"] if scratch else []
    total_memory = quantity(hardware.sram_bytes, MEMORY)
    banks = [f"{hardware.banks} banks x {SIZE.format(memory.bank_capacity_bytes)}"] if hardware.banks else []
    port_lines, port_parts = _ports(units, word, cycles)
    array_count = f"{array.count} x " if array.count > 1 else ""
    parts = parts_of(result.total)

    def busy(unit: str) -> list[Share]:
        return [("busy", STATES["busy"].label, units[unit]["busy"] / cycles)]

    blocks = {
        "hbm": ("HBM", [BANDWIDTH.format(hbm.bandwidth_bytes_per_s), f"latency {TIME.format(hbm.latency_ps)}",
                        f"bursts of {SIZE.format(hbm.burst_bytes)}"], busy("hbm")),
        "dma": ("DMA", ["one queue, in order", *near,
                        f"on {percent(_owned(units, 'dma') / cycles)} % of port cycles"], []),
        "memory": ("Vector memories", [f"{lanes} x {SIZE.format(memory.capacity_bytes)}", *banks,
                                       f"= {total_memory}",
                                       *port_lines], port_parts),
        "preload": ("Weight path", [f"{hardware.preload_cycles} cycles a preload",
                                    f"{array.weight_buffers} weights a PE"], busy("preload")),
        "serializer": ("Serializers", [f"{lanes} x one word", f"of {word}"], []),
        "array": ("Systolic array", [f"{array_count}{array.rows} x {array.cols} PEs",
                                     f"at {FREQUENCY.format(hardware.clock_hz)}"],
                  [(state.key, state.label, parts[state.key] / cycles) for state in parts_in([result.total])]),
        "deserializer": ("De-serializers", [f"{lanes} x one word", f"of {word}"], []),
        "vector_unit": ("Vector unit", [f"{hardware.vector_unit.alus} ALUs", "adds partial sums"], busy("vector_unit")),
    }  # fmt: skip
    return {key: {"name": name, "lines": lines, "parts": parts} for key, (name, lines, parts) in blocks.items()}


def _owned(units: Mapping[str, Mapping[str, int]], client: str) -> int:
    """Port cycles of a client, on whichever port."""
    return sum(split.get(client, 0) for split in ports_of(units).values())


def _ports(units: Mapping[str, Mapping[str, int]], word: str, cycles: int) -> tuple[list[str], list[Share]]:
    """The one port, whose shares are drawn; of several, each with its own share, as they add up to nothing."""
    owners = {key for split in ports_of(units).values() for key in split}
    parts = [(key, each.label, _owned(units, key) / cycles) for key, each in CLIENTS.items() if key in owners]
    if "port" in units:
        shared = [(key, label, units["port"].get(key, 0) / cycles) for key, label, _ in parts]
        return [f"one port, words of {word}"], shared
    shares = [f"{label} {percent(share)} %" for key, label, share in parts if key != "idle"]
    return [f"a port a client, words of {word}", *shares], []
