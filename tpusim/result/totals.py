"""The totals of a run: what its layers take together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tpusim.result.energy_use import EnergyUse, energy_use
from tpusim.result.records import DramUse, LayerResult, Total, VectorMemoryUse

_ADDED = (
    "macs", "cycles", "time_us", "ideal_cycles", "hbm_read_bytes", "hbm_write_bytes", "outputs",
    "outputs_checked", "outputs_mismatched", "intermediates_checked", "intermediates_mismatched", "lowered_bytes",
    "transformation_cycles", "hidden_cycles", "hbm_saved_bytes",
)  # fmt: skip
"""What a total is the sum of."""


def total_of(layers: tuple[LayerResult, ...], wall_seconds: float) -> Total:
    """Add the layers up. Ratios are weighted: by cycles, or by passes for the mapping efficiency."""
    sums: dict[str, Any] = {name: sum(getattr(layer, name) for layer in layers) for name in _ADDED}
    return Total(
        **sums,
        **_mapped(layers),
        pe_utilization=_mean((layer.pe_utilization, layer.cycles) for layer in layers),
        transformation_share=_mean((layer.transformation_share, layer.cycles) for layer in layers),
        tflops=2 * sums["macs"] / (sums["time_us"] * 1e6) if sums["time_us"] else 0.0,
        stall_cycles=_sum_maps(layer.stall_cycles for layer in layers),
        units={unit: _sum_maps(_account(layer, unit) for layer in layers) for unit in _units(layers)},
        dram=_dram_total([layer.dram for layer in layers if layer.dram]),
        energy_use=_energy_total(layers, sums["macs"], sums["time_us"] / 1e6),
        error_share=max((layer.error_share for layer in layers if layer.error_share is not None), default=None),
        wall_seconds=wall_seconds,
    )


def _mapped(layers: Sequence[LayerResult]) -> dict[str, Any]:
    """What is told of passes and vector memories; None where layers have none."""
    weighted = [(each.mapping_efficiency, each.passes) for each in layers]
    known = [(efficiency, passes) for efficiency, passes in weighted if efficiency is not None and passes is not None]
    memories = [(each.vector_memory, each.cycles) for each in layers if each.vector_memory]
    return {
        "passes": sum(passes for _, passes in known) if known else None,
        "mapping_efficiency": _mean(known) if known else None,
        "vector_memory": _memory_total(memories) if memories else None,
    }


def _memory_total(uses: Sequence[tuple[VectorMemoryUse, int]]) -> VectorMemoryUse:
    """Sums and peaks; ports by cycles."""
    memories = [use for use, _ in uses]
    return VectorMemoryUse(
        reads=sum(memory.reads for memory in memories),
        writes=sum(memory.writes for memory in memories),
        port_idle_ratio=_mean((memory.port_idle_ratio, cycles) for memory, cycles in uses),
        peak_bytes=max(memory.peak_bytes for memory in memories),
        ifmap_bytes=max(memory.ifmap_bytes for memory in memories),
    )


def _dram_total(uses: Sequence[DramUse]) -> DramUse | None:
    """Sums; rates by the bytes moved. None where no layer has any."""
    if not uses:
        return None
    counts = ("hbm_moved_bytes", "hbm_wanted_bytes", "row_hits", "row_misses", "row_conflicts", "refreshes")
    sums: dict[str, int] = {name: sum(getattr(use, name) for use in uses) for name in counts}
    seconds = sum(use.hbm_moved_bytes / use.hbm_reached_bytes_per_s for use in uses if use.hbm_reached_bytes_per_s)
    return DramUse(
        **sums,
        hbm_overfetch=sums["hbm_moved_bytes"] / max(1, sums["hbm_wanted_bytes"]),
        hbm_reached_bytes_per_s=sums["hbm_moved_bytes"] / seconds if seconds else 0.0,
        channel_imbalance=_mean((use.channel_imbalance, use.hbm_moved_bytes) for use in uses),
    )


def _energy_total(layers: Sequence[LayerResult], macs: int, seconds: float) -> EnergyUse | None:
    """Sums; None where a layer has none, as in older results."""
    uses = [layer.energy_use for layer in layers if layer.energy_use]
    if len(uses) < len(layers):
        return None
    parts = {key: sum(use.parts[key] for use in uses) for key in uses[0].parts}
    return energy_use(uses[0].technology, parts, _sum_maps(use.counts for use in uses), macs, seconds)


def _units(layers: tuple[LayerResult, ...]) -> list[str]:
    """Every unit that some layer uses."""
    return [*dict.fromkeys(unit for layer in layers for unit in layer.units)]


def _account(layer: LayerResult, unit: str) -> Mapping[str, int]:
    """What a unit does in a layer; one that it has no use for has nothing to do."""
    return layer.units.get(unit, {"idle": layer.cycles})


def _mean(weighted: Iterable[tuple[float, int]]) -> float:
    pairs = list(weighted)
    weight = sum(w for _, w in pairs)
    return sum(value * w for value, w in pairs) / weight if weight else 0.0


def _sum_maps(maps: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in maps:
        total.update(each)
    return dict(total)
