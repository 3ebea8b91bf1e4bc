"""What holds among the figures of a result, whatever machine it is of: a file in which it does not was changed.

A run adds its layers up (`total_of`), and works figures out from others. Who changes one of them by hand, or mixes two
files, leaves the rest as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from math import isclose
from typing import Any, TypeAlias

from tpusim.result.records import STALL_CAUSES, LayerResult, Result, StepResult, total_of, unsealed
from tpusim.result.vocabulary.states import ARRAY_UNIT, main_unit

SHARES = ("mapping_efficiency", "transformation_share", "port_idle_ratio")
"""Figures that are shares, from 0 to 1.

PE utilisation is none: an algorithm such as Winograd's takes fewer multiplications than the layer has, and so may be
faster than a peak without stalls.
"""

_NO_MORE = (
    ("outputs_checked", "outputs"), ("outputs_mismatched", "outputs_checked"),
    ("intermediates_mismatched", "intermediates_checked"), ("transformation_cycles", "cycles"),
    ("launch_cycles", "cycles"),
)  # fmt: skip
"""Figures of which the first is never above the second."""

_WORKED_OUT: Mapping[str, tuple[str, Callable[[LayerResult], float]]] = {
    "tflops": ("macs and time_us", lambda each: 2 * each.macs / (each.time_us * 1e6)),
    "transformation_share": ("transformation_cycles and cycles", lambda e: e.transformation_cycles / e.cycles),
}
"""Figures that follow from others: from which, and how."""

_LATER = {"bank_conflict", "vector_work", "conversion"}
"""Stall causes that older results do not have; no cycle of theirs goes to them."""

_CLOSE = 1e-9
"""Relative difference that rounding may make between a figure and the same one worked out again."""

_Rule: TypeAlias = Callable[[LayerResult], Iterator[str]]


def broken(result: Result) -> Iterator[str]:
    """Yield what does not hold: of each layer, and then of the total, which is that of the layers."""
    for record in (*{id(each): each for each in result.kinds}.values(), result.total):
        name = "total" if record is result.total else f"layer {record.name}"
        for rule in _RULES:
            yield from (f"{name}: {said}" for said in rule(record))
            # Who divides by them has been told of cycles and times that are zero.
            if record.cycles <= 0 or record.time_us <= 0:
                break
    yield from _clocks(result)
    yield from _sums(result)
    yield from _hbm(result)
    yield from _step(result)
    if unsealed(result):
        yield "its seal is of another machine, batch, or other layers, so one of them was edited"


# ---- one layer, or the total


def _times(record: LayerResult) -> Iterator[str]:
    if record.cycles <= 0 or record.time_us <= 0:
        yield "cycles and time_us must be above zero"


def _accounts(record: LayerResult) -> Iterator[str]:
    """The cycles of each unit add up to those of the layer, and stalls are those of the main unit."""
    main = main_unit(record) if record.units else ARRAY_UNIT
    for unit, split in {main: {}, **record.units}.items():
        if unit in record.units and (not any(split.values()) or "idle" not in split):
            yield f"units.{unit} must hold cycles, idle ones among them"
        elif sum(split.values()) != record.cycles:
            yield f"the cycles of units.{unit} do not add up to `cycles`"
    if main == ARRAY_UNIT and set(STALL_CAUSES) - set(record.stall_cycles) - _LATER:
        yield f"stall_cycles must hold {', '.join(STALL_CAUSES)}"
    for cause, cycles in record.stall_cycles.items():
        if cycles != (spent := record.units.get(main, {}).get(cause, 0)):
            yield f"stall_cycles.{cause} is {cycles:,}, and units.{main}.{cause} {spent:,}"


def _orders(record: LayerResult) -> Iterator[str]:
    for less, more in _NO_MORE:
        if getattr(record, less) > getattr(record, more):
            yield f"{less}, {getattr(record, less):,}, is above {more}, {getattr(record, more):,}"
    if record.first_mismatch and not record.wrong:
        yield "first_mismatch tells of a wrong element, and none is counted"
    if record.error_share is not None and record.error_share > 1 and not record.wrong:
        yield f"error_share, {record.error_share:g}, is above 1, and no element is counted as wrong"


def _shares(record: LayerResult) -> Iterator[str]:
    for name in SHARES:
        share = getattr(record.vector_memory if name == "port_idle_ratio" else record, name, None)
        if share is not None and share > 1 + _CLOSE:
            yield f"{name}, {share:g}, is a share, at most 1"
    if record.mapping_efficiency and record.passes == 0:
        yield f"mapping_efficiency is {record.mapping_efficiency:g}, and there is no pass"


def _worked_out(record: LayerResult) -> Iterator[str]:
    for name, (source, work_out) in _WORKED_OUT.items():
        if not _close(found := getattr(record, name), expected := work_out(record)):
            yield f"{name} is {found:g}, and {source} make it {expected:g}"


def _memories(record: LayerResult) -> Iterator[str]:
    memory, dram = record.vector_memory, record.dram
    if memory and memory.ifmap_bytes > memory.peak_bytes:
        yield f"vector_memory.ifmap_bytes, {memory.ifmap_bytes:,}, is above peak_bytes, {memory.peak_bytes:,}"
    if dram is None:
        return
    asked = record.hbm_read_bytes + record.hbm_write_bytes
    if dram.hbm_asked_bytes not in (None, asked):
        yield f"dram.hbm_asked_bytes is {dram.hbm_asked_bytes:,}, and bytes read and written are {asked:,}"
    if not _close(dram.hbm_overfetch, expected := dram.hbm_moved_bytes / max(1, dram.hbm_wanted_bytes)):
        yield f"dram.hbm_overfetch is {dram.hbm_overfetch:g}, and bytes moved and wanted make it {expected:g}"


def _energy(record: LayerResult) -> Iterator[str]:
    if (use := record.energy_use) is None:
        return
    energy = sum(use.parts.values())
    expected = {
        "energy": energy,
        "energy_delay": energy * record.time_us / 1e6,
        "tops_per_watt": 2 * record.macs / energy if energy else 0.0,
    }
    for name, value in expected.items():
        if not _close(found := getattr(use, name), value):
            yield f"energy_use.{name} is {found:g}, and its parts make it {value:g}"


_RULES: tuple[_Rule, ...] = (_times, _accounts, _orders, _shares, _worked_out, _memories, _energy)


# ---- the network as a whole


def _hbm(result: Result) -> Iterator[str]:
    """What HBM holds is the sum of its parts, and no more than there is."""
    if (use := result.hbm_use) is None:
        return
    for name, whole, parts in (
        ("need_bytes", use.need_bytes, use.parts),
        ("unpadded_bytes", use.unpadded_bytes, use.unpadded_parts),
    ):
        if (summed := sum(parts.values())) != whole:
            yield f"hbm_use.{name} is {whole:,}, and its parts make it {summed:,}"
    if use.need_bytes > use.capacity_bytes:
        yield f"hbm_use.need_bytes, {use.need_bytes:,}, is above capacity_bytes, {use.capacity_bytes:,}"


_OF_LAYERS = ("compute", "hbm", "launches")
"""Parts of a step that its layers take by themselves."""
_OF_COLLECTIVES = ("links", "dcn", "host")
"""Parts for which a chip waits for collectives."""


def _spans(layers: Sequence[LayerResult], step: StepResult) -> Iterator[str]:
    """Layers run one after another, each for as many cycles as it takes, or more; of a pipeline nothing is told."""
    starts, ends = step.layer_starts, step.layer_ends
    if {len(starts), len(ends)} not in ({0}, {len(layers)}):
        yield f"step: {len(starts):,} layer_starts and {len(ends):,} layer_ends, and there are {len(layers):,} layers"
        return
    # A layer may stand still while HBM belongs to collectives, but never run ahead of its own time.
    now = 0
    for layer, start, end in zip(layers, starts, ends, strict=False):
        if start < now or end < start + layer.cycles:
            yield f"step: layer {layer.name} runs from {start:,} to {end:,}, and the one ahead of it until {now:,}"
        now = end
    if now > step.cycles:
        yield f"step.layer_ends: the last is {now:,}, and the step has {step.cycles:,} cycles"


def _step(result: Result) -> Iterator[str]:
    """The parts of a step add up, to its layers, to what it waits for, and to all of it."""
    if (step := result.step) is None:
        return
    for each in step.collectives:
        if (span := each.end - each.start) != each.cycles:
            yield f"step.collectives {each.name}: {each.cycles:,} cycles, and start and end make it {span:,}"
        for name, most in (("exposed_cycles", each.cycles), ("hbm_cycles", each.cycles), ("end", step.cycles)):
            if (value := getattr(each, name)) > most:
                yield f"step.collectives {each.name}: {name} is {value:,}, at most {most:,}"
    yield from _spans(result.layers, step)
    of_layers = [step.parts.get(part, 0) for part in _OF_LAYERS]
    for at, stage in enumerate(step.stages):
        turns = step.microbatches * (stage.forward_cycles + stage.backward_cycles) + stage.update_cycles
        if (most := turns + stage.bubble_cycles) > step.cycles:
            yield f"step.stages[{at}]: its turns and its bubble are {most:,} cycles, and the step has {step.cycles:,}"
    for name, told, parts in (
        ("cycles", step.cycles, [*step.parts.values()]),
        # Of a pipeline layers come once a microbatch, and parts are those of one stage.
        ("the cycles of its layers", sum(of_layers) if step.stages else result.total.cycles, of_layers),
        ("the cycles of its waiting", step.exposed_cycles, [step.parts.get(part, 0) for part in _OF_COLLECTIVES]),
    ):
        if sum(parts) != told:
            yield f"step: {name} are {told:,}, and parts make them {sum(parts):,}"
    for name, found, expected in (
        ("seconds", step.seconds, result.total.time_us / 1e6 * step.cycles / max(1, result.total.cycles)),
        ("items_per_second_chip", step.items_per_second_chip, step.items_per_second / max(1, step.chips)),
    ):
        if not _close(found, expected):
            yield f"step.{name} is {found:g}, and others make it {expected:g}"


# ---- layers beside one another


def _clocks(result: Result) -> Iterator[str]:
    """All layers are of one machine: as many cycles take as long, and the array has as many PEs."""
    for layer in result.layers:
        expected = result.total.time_us * layer.cycles / max(1, result.total.cycles)
        if not _close(layer.time_us, expected):
            yield f"layer {layer.name}: time_us is {layer.time_us:g}, and its cycles take {expected:g} by the total"
        # Ideal cycles are whole ones, rounded up.
        if abs(layer.pe_utilization * layer.cycles - layer.ideal_cycles) > 1 + _CLOSE * layer.cycles:
            yield f"layer {layer.name}: pe_utilization is {layer.pe_utilization:g}, and ideal_cycles and cycles " + (
                f"make it {layer.ideal_cycles / max(1, layer.cycles):g}"
            )


def _sums(result: Result) -> Iterator[str]:
    """The total is that of the layers."""
    told, summed = (asdict(each) for each in (result.total, total_of(result.layers, result.total.wall_seconds)))
    for path, found, expected in _apart("", told, summed):
        yield f"total: {path} is {_text(found)}, and the layers make it {_text(expected)}"


def _apart(path: str, told: Any, summed: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the paths at which two values differ, with both values."""
    if isinstance(told, dict) and isinstance(summed, dict):
        for key in dict.fromkeys((*told, *summed)):
            yield from _apart(f"{path}.{key}" if path else key, told.get(key), summed.get(key))
    elif not (_close(told, summed) if isinstance(told, float) and summed is not None else told == summed):
        yield path, told, summed


def _text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else "none"


def _close(found: float, expected: float) -> bool:
    return isclose(found, expected, rel_tol=_CLOSE, abs_tol=1e-12)
