"""Pictures of a result for a paper: PE utilisation per layer, where the cycles of the array went, and a roofline.

Everything is readable in grey: utilisation is one grey, the breakdown has ordered tones and hatches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from heapq import nlargest
from itertools import accumulate
from math import atan2, degrees, sqrt
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from pydantic import ValidationError

from tpusim.base.errors import InputError
from tpusim.input.form import FROM_YAML
from tpusim.machines.family import KEY, USUAL, Machine, family_named, family_of, peak_tflops
from tpusim.report.plots.figure import CYCLE_COUNTS, Picture, bars, columns_below, figure_of, in_full, plain, stack
from tpusim.report.plots.labels import OccupiedPlaces, Spot, name_marks, near, settled
from tpusim.report.plots.network import draw_network, draw_ops, has_edges
from tpusim.report.plots.step import step_pictures
from tpusim.report.style import GREY, HATCHES, MAIN
from tpusim.report.text import scale, shortened, three_digits
from tpusim.result.records import LayerResult, Result, WordRange, by_op
from tpusim.result.vocabulary.figures import RATES, TIMES, known, value_of
from tpusim.result.vocabulary.runs import size_of, with_extent
from tpusim.result.vocabulary.states import main_unit, parts_in, parts_of, unit_name

_MAPPED = "mapping_efficiency"
_MOST_NAMES = 64
_MOST_NAMED_MARKS = 5
_NAME_WIDTH = 26
_SAME = 3.0
"""Points between marks that share a name."""
_LABEL: Any = {"textcoords": "offset points", "fontsize": 7}


def plots(result: Result) -> tuple[Picture, ...]:
    """Return every picture of a run that has anything to show. Raises InputError when the result's machine is none."""
    # The machine is read first, as every picture needs it.
    hardware = hardware_of(result)
    made = (
        _utilization(result),
        _breakdown(result),
        _roofline(result, hardware),
        _ops(result),
        memory_of(result),
        network_of(result),
        *step_pictures(result),
    )
    return tuple(picture for picture in made if picture is not None)


def _ops(result: Result) -> Picture | None:
    if len(by_op(result.layers)) < 2:
        return None
    caption = f"Time of {_run(result)} by the kind of op, with its share and its layers."
    return Picture("time_by_op", caption, partial(draw_ops, result, _title(result)))


def network_of(result: Result) -> Picture | None:
    """Return the picture of which layer reads which; None where that is unknown, or where there are too many layers."""
    if not has_edges(result):
        return None
    caption = (
        f"The layers of {_run(result)}, from the top down, one column after the other. A line is what a layer makes, as"
        " far down as the last layer that reads it; what reads it stands on it, or at the end of a line across. Bars:"
        " time. Many layers of one entry that read the same, such as heads, are one row, with the time of all."
    )
    return Picture("network", caption, partial(draw_network, result, _title(result)))


def _run(result: Result) -> str:
    return with_extent(f"{result.workload} at {size_of(result)} on {result.machine}", result)


# ---- a bar a layer


def _utilization(result: Result) -> Picture | None:
    """Draw PE utilisation per layer that multiplies, each with its mapping efficiency, and the network's line."""
    layers, total = [layer for layer in result.layers if layer.macs], 100 * result.total.pe_utilization
    if not layers:
        return None
    mapped = " Black: mapping efficiency, the share of PEs that hold a weight." * known(result.layers, _MAPPED)
    which = "" if len(layers) == len(result.layers) else " that multiplies"
    caption = (
        f"PE utilisation (MACs over those at the peak) of each layer{which} of {_run(result)}.{mapped}"
        f" Dashed: the whole network, {total:.1f} %."
    )

    def draw() -> Figure:
        figure, x = _figure_of_layers(layers, 3.4), np.arange(len(layers))
        axes = figure.subplots()
        used = np.array([100 * layer.pe_utilization for layer in layers])
        bars(axes, len(layers))(x, used, 0.8, color=GREY, label="PE utilisation")
        if known(layers, _MAPPED):
            bounds = [100 * (value_of(layer, _MAPPED) or 0) for layer in layers]
            axes.hlines(bounds, x - 0.4, x + 0.4, color="black", linewidth=1.4, label="mapping efficiency")
        axes.axhline(total, color=MAIN, linestyle="--", linewidth=1, label=f"network: {total:.1f} %")
        # Utilisation is above 100 % where a layer leaves out some of its multiplications.
        axes.set(title=_title(result), ylim=(0, 1.05 * max(100, *used)), ylabel="PE utilisation (%)")
        _name_layers(axes, layers)
        figure.legend(loc="outside lower center", ncols=3)
        return figure

    return Picture("pe_utilization", caption, draw)


def _breakdown(result: Result) -> Picture:
    """Draw where the cycles of the main unit went: stacked cycles, and below them their shares."""
    layers, total = result.layers, f"{result.total.cycles:,} cycles"
    caption = (
        f"What the {unit_name(main_unit(result.total))} did in each layer of {_run(result)}: cycles (above) and their"
        f" shares (below), by cause; busy cycles are parted by the PEs in use. The network takes {total}."
    )

    def draw() -> Figure:
        figure, places = _figure_of_layers(layers, 5.2), range(len(layers))
        cycles, shares = figure.subplots(2, 1, sharex=True)
        arrays, all_layers = [parts_of(layer) for layer in layers], parts_of(result.total)
        states = parts_in([*layers, result.total])
        word, size = scale((float(layer.cycles) for layer in layers), CYCLE_COUNTS)
        stack(bars(cycles, len(layers)), places, arrays, size, 0.84, states)
        label = f"cycles ({word})" if word else "cycles"
        cycles.set(title=f"{_title(result)}; network: {total}", ylim=(0, None), ylabel=label)

        wide = max(0.84, 0.012 * len(layers))
        # The network's bar stands apart from those of its layers.
        network_at = len(layers) + 0.38 + wide / 2
        percents = np.array([sum(each.values()) / 100 for each in arrays])
        stack(bars(shares, len(layers)), places, arrays, percents, 0.84, states)
        stack(shares.bar, [network_at], [all_layers], sum(all_layers.values()) / 100, wide, states)
        shares.set(ylim=(0, 100), ylabel="share of cycles (%)")
        _name_layers(shares, layers, network_at=network_at)
        legend = cycles.get_legend_handles_labels()
        figure.legend(*legend, loc="outside lower center", ncols=columns_below(figure))
        return figure

    return Picture("cycle_breakdown", caption, draw)


def _figure_of_layers(layers: Sequence[LayerResult], height: float) -> Figure:
    width = min(max(5.2, 1.5 + 0.13 * len(layers)), 12.0)
    longest = max(len(shortened(layer.name, _NAME_WIDTH)) for layer in layers)
    return figure_of(width, height + 0.055 * longest)


def _title(result: Result) -> str:
    return plain(with_extent(f"{result.workload}, {size_of(result)}, {result.machine}", result))


def _name_layers(axes: Axes, layers: Sequence[LayerResult], network_at: float | None = None) -> None:
    """Write rotated names, only every n-th when there are too many to read."""
    step = -(-len(layers) // _MOST_NAMES)
    ticks = [float(i) for i in range(0, len(layers), step)]
    names = [plain(shortened(layer.name, _NAME_WIDTH)) for layer in layers[::step]]
    if network_at is not None:
        ticks, names = [*ticks, network_at], [*names, "NETWORK"]
    axes.set_xticks(ticks, names, rotation=90, fontsize=8 if len(ticks) < 30 else 6.5)
    axes.set_xlim(-0.8, len(layers) - 0.2 if network_at is None else 2 * network_at - len(layers))
    axes.set_xlabel("layer" if step == 1 else f"layer (one name in {step})")


# ---- a mark a layer


def _roofline(result: Result, hardware: Machine) -> Picture | None:
    """Draw a mark a layer, the larger the more cycles it takes, under the bounds of the machine.

    Layers without MACs or traffic are left out.
    """
    spots = [(layer, (intensity(layer) or 0.0, layer.tflops)) for layer in result.layers]
    spots = [(layer, spot) for layer, spot in spots if all(spot)]
    if not spots:
        return None
    left = "" if len(spots) == len(result.layers) else " Layers that multiply or move nothing are left out."
    caption = (
        f"Speed of each layer of {_run(result)} over its operations a byte of HBM traffic, two a MAC. The lines are"
        " what HBM's bandwidth and the PEs allow. Larger marks take more cycles; circles are convolutions, squares"
        f" matrix products. Named: those that take most.{left}"
    )

    def draw() -> Figure:
        figure = figure_of(5.2, 3.6)
        axes = figure.subplots()
        axes.set(xscale="log", yscale="log", xlabel="operations a byte of HBM traffic", ylabel="TFLOPS")
        radii = [3 + 12 * sqrt(layer.cycles / result.total.cycles) for layer, _ in spots]
        for marker, squares in (("o", False), ("s", True)):
            # All at once: a call each takes a second for a few hundred of them.
            marked = [(*spot, (2 * radius) ** 2) for (layer, spot), radius in zip(spots, radii, strict=True)
                      if (layer.op == "gemm") is squares]  # fmt: skip
            style: Any = {"color": MAIN, "alpha": 0.55, "edgecolors": "black", "linewidths": 0.4, "marker": marker}
            if marked:
                axes.scatter(*zip(*marked, strict=True), **style)
        speeds = [peak_tflops(hardware), *(speed for _, (_, speed) in spots)]
        axes.set(title=_title(result), ylim=(min(speeds) / 2, max(speeds) * 2))
        for axis in (axes.xaxis, axes.yaxis):
            in_full(axis)
        _draw_roofs(figure, axes, hardware, [spot for _, spot in spots], radii, [layer for layer, _ in spots])
        return figure

    return Picture("roofline", caption, draw)


def _draw_roofs(
    figure: Figure,
    axes: Axes,
    hardware: Machine,
    spots: Sequence[Spot],
    radii: Sequence[float],
    layers: Sequence[LayerResult],
) -> None:
    """Draw the bounds with what they are, and name the costliest marks where there is room."""
    peak, rate = peak_tflops(hardware), hardware.hbm_bytes_per_s
    ridge = peak * 1e12 / rate
    reached = [x for x, _ in spots]
    # Left of the ridge there is room for what stands there.
    ends = [min([*reached, ridge / 4]) / 2, ridge, max([*reached, ridge]) * 2]
    roof = [(x, min(peak, x * peak / ridge)) for x in ends]
    axes.plot(*zip(*roof, strict=True), color="black", linewidth=1.2)
    axes.set_xlim(ends[0], ends[-1])
    settled(figure)
    taken = OccupiedPlaces()
    taken.add_line(axes, roof)
    taken.add_marks(axes, spots, radii)
    told = f"{hardware.pes:,} PEs: {peak:.1f} TFLOPS\nfrom {three_digits(ridge)} operations a byte"
    bound = axes.annotate(told, roof[1], (-4, 0), **_LABEL, ha="right", va="bottom")
    if bound.get_window_extent().x0 < axes.bbox.x0:
        bound.set(ha="left", va="bottom", position=(0, 3), text=told.replace("\n", ", "))
    taken.words.append(bound.get_window_extent())
    # Along the slope, and above it where no mark can be.
    start = max(ends[0], axes.get_ylim()[0] * ridge / peak)
    (x0, y0), (x1, y1) = axes.transData.transform([(start, start * peak / ridge), roof[1]])
    middle = sqrt(start * ridge)
    along: Any = {"rotation": degrees(atan2(y1 - y0, x1 - x0)), "rotation_mode": "anchor", "ha": "center"}
    unit, size = scale([rate], RATES)
    told = f"HBM: {three_digits(rate / size)} {unit}"
    axes.annotate(told, (middle, middle * peak / ridge), (0, 0), **_LABEL, **along, va="bottom")
    _name_costliest(axes, spots, radii, layers, taken)


def _name_costliest(
    axes: Axes, spots: Sequence[Spot], radii: Sequence[float], layers: Sequence[LayerResult], taken: OccupiedPlaces
) -> None:
    """Name the marks that take most, those on one another by the costliest of them."""
    order = sorted(range(len(spots)), key=lambda index: -layers[index].cycles)
    groups = [[order[index] for index in group] for group in near(axes, [spots[index] for index in order], _SAME)]
    most = nlargest(_MOST_NAMED_MARKS, groups, key=lambda group: sum(layers[index].cycles for index in group))
    names = [
        plain(shortened(layers[first].name, _NAME_WIDTH)) + (f" and {len(others)} more" if others else "")
        for first, *others in most
    ]
    firsts = [group[0] for group in most]
    look = {"fontsize": _LABEL["fontsize"]}
    name_marks(axes, [spots[i] for i in firsts], [radii[i] for i in firsts], names, taken, **look)


# ---- the vector memories over time: what layers need for themselves, and what stays between them


_TYPE = 5.5
_LETTER, _LINE = 0.045, 0.08
"""Inches of a letter of that size of type, and of a line of it."""
_EDGED = 0.03
"""Least inches of a box with an edge of its own: of a smaller box the edge would leave nothing."""
_WIDTH, _HEIGHT = 7.2, 3.6
_INSIDE = 6.4, 2.6
"""Inches of the picture, and about how many are inside its axes."""


class _HeldWords(NamedTuple):
    """Words from one time to another; `name` is the layer that made them, empty where they are a layer's own."""

    since: float
    until: float
    words: WordRange
    name: str


def memory_of(result: Result) -> Picture | None:
    """Return the picture of what stays on chip between layers: a box for words and the time for which they are held.

    None where nothing stays.
    """
    if not any(layer.residency and layer.residency.outcome for layer in result.layers):
        return None
    caption = (
        f"What the vector memory of a lane holds in {_run(result)}: what layers make, from the layer that makes it to"
        " the last that reads it on chip, and what layers need for themselves. Layers overlap a little more than is"
        " drawn."
    )

    def draw() -> Figure:
        machine = hardware_of(result)
        lanes = family_of(machine).lanes(machine)
        assert lanes
        figure = figure_of(_WIDTH, _HEIGHT)
        axes = figure.subplots()
        unit, size = scale([result.total.time_us], TIMES)
        kib = lanes.word_bytes / 1024
        axes.set(title=_title(result), xlim=(0, result.total.time_us / size), ylim=(0, lanes.words * kib))
        for held in _held(result.layers):
            since, width = held.since / size, (held.until - held.since) / size
            first, height = held.words.first * kib, held.words.words * kib
            across, up = width / axes.get_xlim()[1] * _INSIDE[0], height / axes.get_ylim()[1] * _INSIDE[1]
            look = _look(bool(held.name))
            if min(across, up) < _EDGED:
                look |= {"edgecolor": look["facecolor"], "hatch": ""}
            axes.add_patch(Rectangle((since, first), width, height, **look))
            # A name stands in the box, or along it, where it fits whole.
            long = len(held.name) * _LETTER
            along, upright = across > long and up > _LINE, up > long and across > _LINE
            if held.name and (along or upright):
                place: Any = {"ha": "center", "va": "center", "fontsize": _TYPE, "color": "white"}
                turned = 0 if along else 90
                axes.text(since + width / 2, first + height / 2, plain(held.name), rotation=turned, **place)
        axes.set(xlabel=f"time ({unit})", ylabel="vector memory of a lane (KiB)")
        looks = (("stays for layers behind", True), ("a layer's own, while it runs", False))
        marks = [Patch(label=label, **_look(outcome)) for label, outcome in looks]
        figure.legend(handles=marks, loc="outside lower center", ncols=2)
        return figure

    return Picture("memory", caption, draw)


def _held(layers: tuple[LayerResult, ...]) -> Iterator[_HeldWords]:
    """Yield all words that are held: layers' own, then outputs. An output that takes another's place does so when it
    begins.
    """
    starts = [*accumulate((layer.time_us for layer in layers), initial=0.0)]
    ends = {layer.name: end for layer, end in zip(layers, starts[1:], strict=True)}
    there = [(layer, start, layer.residency) for layer, start in zip(layers, starts, strict=False) if layer.residency]
    for layer, start, found in there:
        if found.own.words:
            yield _HeldWords(start, ends[layer.name], found.own, "")
    outcomes = [_HeldWords(start, max(ends[each] for each in found.readers), found.outcome, layer.name)
                for layer, start, found in there if found.outcome]  # fmt: skip
    for one in outcomes:
        taken = (each.since for each in outcomes if each.words == one.words and one.since < each.since < one.until)
        yield one._replace(until=min([one.until, *taken]))


def _look(outcome: bool) -> dict[str, Any]:
    tone, hatch = (MAIN, "") if outcome else (GREY, HATCHES["rising"][0])
    return {"facecolor": tone, "hatch": hatch, "edgecolor": "white" if outcome else "black", "linewidth": 0.3}


# ---- the bounds of a machine: what its array does at most, and what its HBM allows


def hardware_of(result: Result) -> Machine:
    """Return the machine of a result. Raises InputError when there is none."""
    model = family_named(result.hardware.get(KEY, USUAL)).model()
    try:
        machine: Machine = model.model_validate(dict(result.hardware), context=FROM_YAML)
        return machine.of_type(result.dtype)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(map(str, ("hardware", *first["loc"])))
        raise InputError(f"{path}: {first['msg'].removeprefix('Value error, ')}") from None


def intensity(layer: LayerResult) -> float | None:
    """Return the operations a byte of HBM traffic, two a MAC; None without traffic."""
    traffic = layer.hbm_read_bytes + layer.hbm_write_bytes
    return 2 * layer.macs / traffic if traffic else None


def memory_bounds(layer: LayerResult, hardware: Machine) -> bool:
    """Return whether the HBM's bandwidth allows a layer fewer TFLOPS than the PEs do."""
    operations = intensity(layer)
    return operations is not None and operations * hardware.hbm_bytes_per_s / 1e12 < peak_tflops(hardware)
