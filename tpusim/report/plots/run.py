"""Pictures of a result for a paper: PE utilisation per layer, and where the cycles of the array went.

Everything is readable in grey: utilisation is one grey, the breakdown has ordered tones and hatches.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tpusim.report.plots.figure import Picture, figure_of, titled
from tpusim.report.plots.roofline import hardware_of, peaks_of
from tpusim.report.plots.roofline_plot import roofline_figure
from tpusim.report.tables.run import scale, shortened
from tpusim.result.records import LayerResult, Result

STATES = (
    # state, legend, colour (safe for the colour-blind, and ordered in grey), hatch
    ("busy", "busy", "#0b3c5d", ""),
    ("starved", "starved: HBM data late", "#d55e00", "///"),
    ("blocked", "blocked: output side not ready", "#56b4e9", "..."),
    ("waiting_weights", "waiting for weights", "#f0a3c6", "\\\\\\"),
    ("port_stall", "port stall: SRAM port full", "#f0e442", "xxx"),
    ("idle", "idle: fill, drain, no work", "#f2f2f2", ""),
)

_COUNTS = (("billion", 1e9), ("million", 1e6), ("thousand", 1e3), ("", 1.0))
_MOST_NAMES = 64
_NAME_WIDTH = 26


def plots(result: Result) -> tuple[Picture, ...]:
    """Every picture of a run. Raises InputError when the result's machine is none."""
    run = f"{result.workload} at batch {result.batch} on {result.hardware.get('name', 'a machine')}"
    utilization = (
        f"PE utilisation (MACs over PEs and cycles) of each layer of {run}. Black: mapping efficiency, the share of PEs"
        f" that hold a weight. Dashed: the whole network, {100 * result.total.pe_utilization:.1f} %."
    )
    breakdown = (
        f"What the systolic array did in each layer of {run}: cycles (above) and their shares (below), by cause."
        f" The network takes {result.total.cycles:,} cycles."
    )
    return (
        Picture("pe_utilization", utilization, partial(utilization_figure, result)),
        Picture("cycle_breakdown", breakdown, partial(breakdown_figure, result)),
        Picture("roofline", _roofline_caption(run), partial(roofline_figure, result, peaks_of(hardware_of(result)))),
    )


def utilization_figure(result: Result) -> Figure:
    """Bars of PE utilisation per layer, each with its mapping efficiency, and the network's line."""
    figure = _figure(result, 3.4)
    axes = figure.subplots()
    layers, total = result.layers, 100 * result.total.pe_utilization
    x, heights = range(len(layers)), [100 * layer.pe_utilization for layer in layers]
    axes.bar(x, heights, 0.8, color="#9a9a9a", label="PE utilisation")
    bounds = [100 * layer.mapping_efficiency for layer in layers]
    left, right = [i - 0.4 for i in x], [i + 0.4 for i in x]
    axes.hlines(bounds, left, right, color="black", linewidth=1.4, label="mapping efficiency")
    axes.axhline(total, color="#0b3c5d", linestyle="--", linewidth=1, label=f"network: {total:.1f} %")
    axes.set_ylim(0, 105)
    axes.set_ylabel("PE utilisation (%)")
    titled(axes, result)
    _name_layers(axes, layers)
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def breakdown_figure(result: Result) -> Figure:
    """Where the cycles of the systolic array went: stacked cycles, and below them their shares."""
    figure = _figure(result, 5.2)
    cycles, shares = figure.subplots(2, 1, sharex=True)
    layers = result.layers
    arrays = [layer.units["systolic_array"] for layer in layers]
    word, size = scale((float(layer.cycles) for layer in layers), _COUNTS)
    _stack(cycles, range(len(layers)), arrays, [size] * len(layers))
    cycles.set_ylabel(f"cycles ({word})" if word else "cycles")
    titled(cycles, result, f"; network: {result.total.cycles:,} cycles")

    everything = [*arrays, result.total.units["systolic_array"]]
    positions = [*range(len(layers)), len(layers) + 0.8]
    _stack(shares, positions, everything, [sum(each.values()) / 100 for each in everything])
    shares.set_ylim(0, 100)
    shares.set_ylabel("share of cycles (%)")
    _name_layers(shares, layers, network_at=positions[-1])
    handles, labels = cycles.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3 if figure.get_figwidth() > 6.5 else 2)
    return figure


def _roofline_caption(run: str) -> str:
    return (
        f"Speed of each layer of {run} over its operations a byte of HBM traffic, two a MAC. The lines are what"
        " the HBM's bandwidth and the PEs allow. Larger marks take more cycles; circles are convolutions, squares"
        " matrix products."
    )


def _figure(result: Result, height: float) -> Figure:
    width = min(max(5.2, 1.5 + 0.13 * len(result.layers)), 12.0)
    longest = max(len(shortened(layer.name, _NAME_WIDTH)) for layer in result.layers)
    return figure_of(width, height + 0.055 * longest)


def _stack(axes: Axes, x: Sequence[float], arrays: Sequence[Any], sizes: Sequence[float]) -> None:
    """One bar per position, its states on top of each other in units of `sizes`."""
    below = [0.0] * len(arrays)
    for state, label, color, hatch in STATES:
        parts = [each.get(state, 0) / size for each, size in zip(arrays, sizes, strict=True)]
        axes.bar(x, parts, 0.84, below, color=color, hatch=hatch, edgecolor="black", linewidth=0.2, label=label)
        below = [low + part for low, part in zip(below, parts, strict=True)]


def _name_layers(axes: Axes, layers: Sequence[LayerResult], network_at: float | None = None) -> None:
    """Rotated names, only every n-th when there are too many to read."""
    step = -(-len(layers) // _MOST_NAMES)
    ticks = [float(i) for i in range(0, len(layers), step)]
    names = [shortened(layer.name, _NAME_WIDTH).replace("$", r"\$") for layer in layers[::step]]
    if network_at is not None:
        ticks, names = [*ticks, network_at], [*names, "NETWORK"]
    axes.set_xticks(ticks, names, rotation=90, fontsize=8 if len(ticks) < 30 else 6.5)
    axes.set_xlim(-0.8, (network_at or len(layers) - 1) + 0.8)
    axes.set_xlabel("layer" if step == 1 else f"layer (one name in {step})")
