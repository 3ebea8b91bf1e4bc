"""What came out of a simulation: one record a layer, and the totals over layers.

Field names are those of the result JSON, so `Result.to_json()` is a plain dump.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tpusim.result.energy_use import EnergyUse, energy_use
from tpusim.result.quantities import Count, Element, Figure

if TYPE_CHECKING:
    from pandas import DataFrame

STALL_CAUSES = ("starved", "blocked", "waiting_weights", "port_stall", "bank_conflict", "vector_work")
"""Why the array stood still; `tpusim.result.vocabulary.states` says what each means."""

_ADDED = (
    "macs", "passes", "cycles", "time_us", "ideal_cycles", "hbm_read_bytes", "hbm_write_bytes", "outputs",
    "outputs_checked", "outputs_mismatched", "intermediates_checked", "intermediates_mismatched", "lowered_bytes",
    "transformation_cycles",
)  # fmt: skip
"""What a total is the sum of."""

_WHERE_ANY = ("layers_left", "not_timed", "not_known", "reference_only", "sizes")
"""What the JSON of a result has only where there is any."""

_ASKED_TOO = ("dtype", "sums")
"""What a run was asked besides; the JSON has it before what came of it."""


@dataclass(frozen=True)
class VectorMemoryUse:
    """Accesses are words, summed over all lanes; bytes are summed over all lanes."""

    reads: Count
    writes: Count
    port_idle_ratio: Figure
    peak_bytes: Count
    ifmap_bytes: Count


@dataclass(frozen=True)
class DramUse:
    """What the DRAM did, where HBM is modelled with its banks.

    Of the accesses of a burst, `row_hits` found their row open, `row_misses` had to open it, `row_conflicts` to close
    another one first. `hbm_reached_bytes_per_s` counts bytes moved while a transfer is under way. `channel_imbalance`:
    what the busiest channel of each transfer moves, over the mean. `refreshes` came due, in all channels together.
    """

    hbm_moved_bytes: Count
    hbm_wanted_bytes: Count
    hbm_overfetch: Figure
    hbm_reached_bytes_per_s: Figure
    row_hits: Count
    row_misses: Count
    row_conflicts: Count
    refreshes: Count
    channel_imbalance: Figure


@dataclass(frozen=True)
class Blocking:
    """How the lowering cut a layer up: the block of outputs held on chip, and the loop order.

    `rows` and `cols` are those of one strip; `word_fill` elements of a word are in use, from `strips` parts of the map.
    The reduction comes in `chunks`, each filled, used and replaced while the partial sums stay.
    """

    rows: Count
    cols: Count
    images: Count
    blocks: Count
    row_folds: Count
    col_folds: Count
    loop_order: str
    word_fill: Count
    strips: Count
    chunks: Count = 1


@dataclass(frozen=True)
class Mismatch:
    """The first wrong element of a layer's `tensor`, in coordinates of its own; None: it was never written.

    It may be off by `bound`.
    """

    index: tuple[Count, ...]
    axes: tuple[str, ...]
    expected: Element
    actual: Element | None
    tensor: str = "ofmap"
    bound: Figure = 0.0

    def __str__(self) -> str:
        where = ", ".join(f"{axis}={i}" for axis, i in zip(self.axes, self.index, strict=True))
        digits, within = (".9g", f" within {self.bound:.2g}") if self.bound else ("g", "")
        found = "was never written" if self.actual is None else f"is {self.actual:{digits}}"
        return f"{self.tensor}[{where}] {found}, expected {self.expected:{digits}}{within}"


@dataclass(frozen=True)
class LayerResult:
    """One layer. Cycles are clock cycles; `units` splits every unit's cycles, each adding up to `cycles`.

    `lowering` is the one that its Program is from, also where the run was asked for another name, such as "auto".
    A layer may be lowered by writing a tensor to HBM and reading it again: an intermediate, of `lowered_bytes` in all,
    which cost `transformation_cycles` of the bus, and whose elements are checked as the outputs are. `error_share`
    is the largest error of an output over its proven bound; None where outputs must be equal.
    `inputs` are the nodes and inputs of the network whose values it read, where these went from layer to layer.
    """

    name: str
    op: str
    macs: Count
    passes: Count
    multi_tile: Count
    cycles: Count
    time_us: Figure
    ideal_cycles: Count
    pe_utilization: Figure
    mapping_efficiency: Figure
    tflops: Figure
    stall_cycles: Mapping[str, Count]
    hbm_read_bytes: Count
    hbm_write_bytes: Count
    vector_memory: VectorMemoryUse
    outputs: Count
    outputs_checked: Count
    outputs_mismatched: Count
    units: Mapping[str, Mapping[str, Count]]
    blocking: Blocking
    lowering: str = ""
    first_mismatch: Mismatch | None = None
    intermediates_checked: Count = 0
    intermediates_mismatched: Count = 0
    lowered_bytes: Count = 0
    transformation_cycles: Count = 0
    transformation_share: Figure = 0.0
    dram: DramUse | None = None
    energy_use: EnergyUse | None = None
    error_share: Figure | None = None
    inputs: tuple[str, ...] = ()

    @property
    def wrong(self) -> int:
        """Elements that are not as the reference has them."""
        return self.outputs_mismatched + self.intermediates_mismatched


@dataclass(frozen=True)
class Total:
    """The layers run one after another: sums, ratios of sums, the largest `error_share`, and the wall time of the
    simulation.
    """

    macs: Count
    passes: Count
    cycles: Count
    time_us: Figure
    ideal_cycles: Count
    pe_utilization: Figure
    mapping_efficiency: Figure
    tflops: Figure
    stall_cycles: Mapping[str, Count]
    hbm_read_bytes: Count
    hbm_write_bytes: Count
    vector_memory: VectorMemoryUse
    outputs: Count
    outputs_checked: Count
    outputs_mismatched: Count
    units: Mapping[str, Mapping[str, Count]]
    wall_seconds: Figure
    intermediates_checked: Count = 0
    intermediates_mismatched: Count = 0
    lowered_bytes: Count = 0
    transformation_cycles: Count = 0
    transformation_share: Figure = 0.0
    dram: DramUse | None = None
    energy_use: EnergyUse | None = None
    error_share: Figure | None = None

    @property
    def wrong(self) -> int:
        """Elements that are not as the reference has them."""
        return self.outputs_mismatched + self.intermediates_mismatched


@dataclass(frozen=True)
class Result:
    """A whole run: its complete inputs, the totals and the layers in network order.

    `layers_left` were not simulated, because the run was interrupted; `not_timed` are ops of the network, by name and
    count, that take no time here, `not_known` those that nobody here knows; `sizes` are those that the workload names,
    such as the length of a sequence. The JSON has each only where there are any. `dtype` says what operands were, and
    `sums` in which order the data path added; `reference_only` are ops whose values no layer worked out, but the
    reference alone, by name and count.
    """

    tpusim: str
    hardware: Mapping[str, Any]
    workload: str
    batch: Count
    lowering: str
    engine: str
    seed: Count
    total: Total
    layers: tuple[LayerResult, ...]
    layers_left: Count = 0
    not_timed: Mapping[str, Count] = field(default_factory=dict)
    not_known: Mapping[str, Count] = field(default_factory=dict)
    sizes: Mapping[str, Count] = field(default_factory=dict)
    dtype: str = "integers"
    sums: str = "any"
    reference_only: Mapping[str, Count] = field(default_factory=dict)

    @property
    def correct(self) -> bool:
        """Whether nothing that was checked was wrong (also true when nothing was checked)."""
        return self.total.wrong == 0

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries and lists, ready for JSON."""
        held = asdict(self)
        names = [name for name in held if name not in _ASKED_TOO]
        names[names.index("total") : names.index("total")] = _ASKED_TOO
        return {name: held[name] for name in names if held[name] or name not in _WHERE_ANY}

    def to_json(self) -> str:
        """The result JSON of the contract, indented, keys in a fixed order."""
        return json.dumps(self.to_dict(), indent=2)

    def to_frame(self) -> DataFrame:
        """A pandas DataFrame, a row a layer, a column a field: those of a sweep's layers.csv, and more.

        Raises:
            InputError: pandas is not installed; says how to install it.
        """
        from tpusim.result.frame import frame_of

        return frame_of(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from tpusim.result.html import html_of

        return html_of(self)


def total_of(layers: tuple[LayerResult, ...], wall_seconds: float) -> Total:
    """Add the layers up. Ratios are weighted: by cycles, or by passes for the mapping efficiency."""
    sums: dict[str, Any] = {name: sum(getattr(layer, name) for layer in layers) for name in _ADDED}
    memories = [layer.vector_memory for layer in layers]
    return Total(
        **sums,
        pe_utilization=_mean((layer.pe_utilization, layer.cycles) for layer in layers),
        mapping_efficiency=_mean((layer.mapping_efficiency, layer.passes) for layer in layers),
        transformation_share=_mean((layer.transformation_share, layer.cycles) for layer in layers),
        tflops=2 * sums["macs"] / (sums["time_us"] * 1e6) if sums["time_us"] else 0.0,
        stall_cycles=_sum_maps(layer.stall_cycles for layer in layers),
        vector_memory=VectorMemoryUse(
            reads=sum(memory.reads for memory in memories),
            writes=sum(memory.writes for memory in memories),
            port_idle_ratio=_mean((layer.vector_memory.port_idle_ratio, layer.cycles) for layer in layers),
            peak_bytes=max(memory.peak_bytes for memory in memories),
            ifmap_bytes=max(memory.ifmap_bytes for memory in memories),
        ),
        units={unit: _sum_maps(_account(layer, unit) for layer in layers) for unit in _units(layers)},
        dram=_dram_total([layer.dram for layer in layers if layer.dram]),
        energy_use=_energy_total(layers, sums["macs"], sums["time_us"] / 1e6),
        error_share=max((layer.error_share for layer in layers if layer.error_share is not None), default=None),
        wall_seconds=wall_seconds,
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
