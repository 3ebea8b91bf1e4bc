"""Pictures of a result for a paper: PE utilisation per layer, and where the cycles of the array went.

Everything is readable in grey: utilisation is one grey, the breakdown has ordered tones and hatches.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tpusim.report.plots.figure import Picture, figure_of, plain, stack, titled
from tpusim.report.plots.roofline import hardware_of, peaks_of
from tpusim.report.plots.roofline_plot import roofline_figure
from tpusim.report.style import GREY, MAIN
from tpusim.report.text import scale, shortened
from tpusim.result.records import LayerResult, Result

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
    roofline = (
        f"Speed of each layer of {run} over its operations a byte of HBM traffic, two a MAC. The lines are what"
        " the HBM's bandwidth and the PEs allow. Larger marks take more cycles; circles are convolutions, squares"
        " matrix products."
    )
    return (
        Picture("pe_utilization", utilization, partial(utilization_figure, result)),
        Picture("cycle_breakdown", breakdown, partial(breakdown_figure, result)),
        Picture("roofline", roofline, partial(roofline_figure, result, peaks_of(hardware_of(result)))),
    )


def utilization_figure(result: Result) -> Figure:
    """Bars of PE utilisation per layer, each with its mapping efficiency, and the network's line."""
    figure = _figure(result, 3.4)
    axes = figure.subplots()
    layers, total = result.layers, 100 * result.total.pe_utilization
    x, heights = range(len(layers)), [100 * layer.pe_utilization for layer in layers]
    axes.bar(x, heights, 0.8, color=GREY, label="PE utilisation")
    bounds = [100 * layer.mapping_efficiency for layer in layers]
    left, right = [i - 0.4 for i in x], [i + 0.4 for i in x]
    axes.hlines(bounds, left, right, color="black", linewidth=1.4, label="mapping efficiency")
    axes.axhline(total, color=MAIN, linestyle="--", linewidth=1, label=f"network: {total:.1f} %")
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
    stack(cycles.bar, range(len(layers)), arrays, [size] * len(layers), 0.84)
    cycles.set_ylabel(f"cycles ({word})" if word else "cycles")
    titled(cycles, result, f"; network: {result.total.cycles:,} cycles")

    everything = [*arrays, result.total.units["systolic_array"]]
    positions = [*range(len(layers)), len(layers) + 0.8]
    stack(shares.bar, positions, everything, [sum(each.values()) / 100 for each in everything], 0.84)
    shares.set_ylim(0, 100)
    shares.set_ylabel("share of cycles (%)")
    _name_layers(shares, layers, network_at=positions[-1])
    handles, labels = cycles.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3 if figure.get_figwidth() > 6.5 else 2)
    return figure


def _figure(result: Result, height: float) -> Figure:
    width = min(max(5.2, 1.5 + 0.13 * len(result.layers)), 12.0)
    longest = max(len(shortened(layer.name, _NAME_WIDTH)) for layer in result.layers)
    return figure_of(width, height + 0.055 * longest)


def _name_layers(axes: Axes, layers: Sequence[LayerResult], network_at: float | None = None) -> None:
    """Rotated names, only every n-th when there are too many to read."""
    step = -(-len(layers) // _MOST_NAMES)
    ticks = [float(i) for i in range(0, len(layers), step)]
    names = [plain(shortened(layer.name, _NAME_WIDTH)) for layer in layers[::step]]
    if network_at is not None:
        ticks, names = [*ticks, network_at], [*names, "NETWORK"]
    axes.set_xticks(ticks, names, rotation=90, fontsize=8 if len(ticks) < 30 else 6.5)
    axes.set_xlim(-0.8, (network_at or len(layers) - 1) + 0.8)
    axes.set_xlabel("layer" if step == 1 else f"layer (one name in {step})")
