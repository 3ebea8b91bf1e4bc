"""Fig. 3, 4, 7 and 8: the cost of the stride by the order of K, by what is fetched, and by the layout in HBM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from statistics import fmean
from typing import Any

from tpusim.flow.lowerings import prepared
from tpusim.machines.family import family_of, load_hardware
from tpusim.machines.lowered import Slot
from tpusim.network.ops.array_op import Conv2d
from tpusim.study.paper.claims import ESTIMATED, MODELLED, Finding
from tpusim.study.paper.exhibit import (
    AskedPoints,
    BarChart,
    ExhibitFigures,
    FoundPoints,
    Making,
    PointFigures,
    ScheduleChart,
    point_of,
)
from tpusim.study.paper.layers import LAYOUTS, LIBRARY, RESNET, STRIDES, products, square
from tpusim.study.sweep.points import Point
from tpusim.study.validation.sets import number_sets

_FETCHES = {"resident": "a patch for all taps", "per_tap": "each tap's points by themselves"}
_ORDERS = {"taps_fastest": "channel-last", "channels_fastest": "channel-first"}
"""Values of mapping.k_order, with the paper's names."""
_DRAWN = RESNET[1]
_SHARE = 6
"""Share of a layer that is drawn."""


def _layers(stride: int) -> list[Conv2d]:
    return [square(size, stride) for size in RESNET]


def _bars(title: str, found: FoundPoints, way: Any) -> BarChart:
    """TFLOPS of each layer at each stride."""
    series = {f"stride {stride}": found[way, stride].each("tflops") for stride in STRIDES}
    return BarChart(title, [layer.name for layer in _layers(1)], series, "TFLOPS")


def _kept(
    found: FoundPoints, ways: Mapping[str, Any], share: Callable[[PointFigures, PointFigures], float]
) -> dict[int, list[Finding]]:
    """For each larger stride, the ratio `share` of it and stride 1, way by way."""
    return {
        stride: [Finding(label, share(found[way, stride], found[way, 1])) for label, way in ways.items()]
        for stride in STRIDES[1:]
    }


def _at_strides(kept: Mapping[int, list[Finding]]) -> list[Finding]:
    """Findings of all strides, one after another, each with its stride."""
    return [Finding(f"stride {at}, {each.when}", each.value) for at, found in kept.items() for each in found]


def _tflops(strided: PointFigures, plain: PointFigures) -> float:
    return strided.over(plain, "tflops")


def _used(strided: PointFigures, plain: PointFigures) -> float:
    """PE utilisation of one point over another's, as means of the layers."""
    own, other = (fmean(each.each("pe_utilization")) for each in (strided, plain))
    return own / other


# ---- Fig. 4


def on_tensor_cores() -> Making:
    """Fig. 4a: layers of ResNet on a V100, with few images and many, and products of equal size, to show the loss."""
    batches = 8, 64
    ways = {f"{layout}, batch {batch}": ("stride", layout, batch) for batch, layout in product(batches, LAYOUTS)}
    ways |= {f"product of equal size, batch {batch}": ("product", "NHWC", batch) for batch in batches}
    machines = {layout: load_hardware("v100", changes) for layout, changes in LAYOUTS.items()}
    points: dict[Any, Point] = {}
    for way, stride in product(ways.values(), STRIDES):
        what, layout, batch = way
        layers = products(_layers(stride)) if what == "product" else _layers(stride)
        points[way, stride] = point_of(f"{what} {stride}", layers, machines[layout], batch, LIBRARY)
    found = yield points
    lost = _kept(found, ways, lambda strided, plain: 100 * (1 - _tflops(strided, plain)))
    drawn = _bars("a V100, NHWC, batch 64", found, ("stride", "NHWC", 64))
    return ExhibitFigures([drawn], {f"gpu_stride_{stride}": findings for stride, findings in lost.items()})


def on_tpu() -> Making:
    """Fig. 4b: five layers of ResNet at each stride: implicit with both fetch policies, and the product alone."""
    points: dict[Any, Point] = {}
    for stride in STRIDES:
        for fetch in _FETCHES:
            machine = load_hardware("tpu_v2", [f"mapping.fetch={fetch}"])
            points[fetch, stride] = point_of("fig_4b", _layers(stride), machine)
        points["product", stride] = point_of("fig_4b", products(_layers(stride)), load_hardware("tpu_v2"))
    found = yield points
    ways = {f"implicit, {what}": fetch for fetch, what in _FETCHES.items()} | {"GEMM alone": "product"}
    views = [_bars(label, found, way) for label, way in ways.items()]
    ours = _at_strides(_kept(found, {what: fetch for fetch, what in _FETCHES.items()}, _tflops))
    return ExhibitFigures(views, {"stride_insensitive": [*ours, *_estimated()]})


def _estimated() -> Iterator[Finding]:
    """The rate that the compiler estimates, relative to stride 1, for layers that fill the array."""
    rates: dict[tuple[int, int], dict[int, float]] = {}
    for case in number_sets()["micro"].cases:
        (layer,) = case.layers
        if isinstance(layer, Conv2d) and layer.in_channels % 128 == 0 and layer.kernel == (3, 3):
            of_size = rates.setdefault((layer.in_height, layer.in_channels), {})
            of_size[layer.stride[0]] = layer.macs(case.batch) / case.theirs
    for stride in STRIDES[1:]:
        kept = [each[stride] / each[1] for each in rates.values() if {1, stride} <= each.keys()]
        yield Finding(f"stride {stride}, Google's compiler", fmean(kept), ESTIMATED)


# ---- Fig. 3 and 8


def _both_orders() -> AskedPoints:
    """Layers of ResNet with either order of K and both fetch policies, everything else alike; channel-last from
    banks.
    """
    points: dict[Any, Point] = {}
    for stride in STRIDES:
        layers = _layers(stride)
        for order, fetch in product(_ORDERS, _FETCHES):
            machine = load_hardware("tpu_v2", [f"mapping.k_order={order}", f"mapping.fetch={fetch}"])
            points[(order, fetch), stride] = point_of("fig_8", layers, machine, how="implicit_gemm")
        points["product", stride] = point_of("fig_4b", products(layers), load_hardware("tpu_v2"))
        points["banks", stride] = point_of("fig_3", layers, load_hardware("tpu_v2_banked"), how="channel_last")
    return points


def channel_last() -> Making:
    """Fig. 3: channel-last, whose fill takes as long while the product shrinks."""
    found = yield _both_orders()
    copies = "taps_fastest", "resident"
    ways = {"banks and a crossbar": "banks", "copies in the lanes": copies}
    banks = [found["banks", stride] for stride in STRIDES]
    conflicts = sum(int(each.figures["bank_conflict_cycles"]) for each in banks)
    banked = load_hardware("tpu_v2_banked")
    area = family_of(banked).area(banked)
    assert area is not None
    silicon = area.silicon
    # The claim is on growth by the number of ports, so all else is equal.
    larger, usual = (silicon.crossbar.area(ports, ports, 256, silicon.feature_nm) for ports in (256, 128))
    throughput = [Finding(label, _used(found[way, 1], found["product", 1])) for label, way in ways.items()]
    without = Finding("all strides, in a layout of windows", 100 * conflicts / sum(each.cycles for each in banks))
    return ExhibitFigures(
        [*_schedules(*copies)],
        {
            "full_throughput": throughput,
            "banks_without_conflict": [without],
            "channel_last_stride": _at_strides(_kept(found, ways, _used)),
            "crossbar_quadratic": [Finding("256 x 256 ports over 128 x 128", larger / usual, MODELLED)],
        },
    )


def channel_first() -> Making:
    """Fig. 8: channel-first, each tap fetched by itself."""
    found = yield _both_orders()
    last, first = (
        _at_strides(_kept(found, {f"{called}, {what}": (order, fetch) for fetch, what in _FETCHES.items()}, _used))
        for order, called in _ORDERS.items()
    )
    views = [*_schedules("channels_fastest", "per_tap")]
    return ExhibitFigures(views, {"channel_first_stride": first, "order_decides": last})


def _schedules(order: str, fetch: str) -> Iterator[ScheduleChart]:
    """The beginning of a layer at each stride: activity of HBM and array."""
    hardware = load_hardware("tpu_v2", [f"mapping.k_order={order}", f"mapping.fetch={fetch}"])
    for stride in STRIDES:
        layer = square(_DRAWN, stride)
        recording = prepared(layer, 8, hardware, "implicit_gemm").recorded()
        end = recording.cycles // _SHARE
        tracks = recording.drawn(0, end).tracks(0, end)
        fills = {index for index, step in enumerate(recording.program.rows) if step.label == "ifmap fill"}
        # A transfer either moves words, or waits until the lanes' ports take them.
        hbm = [
            (each.start, each.end, "ports" if each.name == "port_stall" else "fill" if each.step in fills else "other")
            for each in tracks["hbm"]
            if each.name != "blocked"
        ]
        array = [
            (each.start, each.end, each.name if each.name in ("busy", "starved", "port_stall") else "waiting")
            for each in tracks["systolic_array"]
        ]
        title = f"{layer.name}, stride {stride}: the first of {recording.cycles:,} cycles"
        yield ScheduleChart(title, {"HBM": _joined(hbm), "array": _joined(array)}, end)


def _joined(slots: list[Slot]) -> list[Slot]:
    """Touching slots of one kind, joined."""
    joined: list[Slot] = []
    for start, end, kind in slots:
        if joined and joined[-1][2] == kind and start - joined[-1][1] <= 1:
            start, *_ = joined.pop()
        joined.append((start, end, kind))
    return joined


# ---- Fig. 7


def in_hbm() -> Making:
    """Fig. 7: 3x3 layers of 64 channels with three layouts of the ifmap in HBM: bytes moved, and time."""
    layouts, channels = ("CHW", "HWC", "HWCN"), 64
    fetches = {"per_tap": "each tap by itself", "resident": "a patch for all taps"}
    layers = {at: square((at[0], channels, channels, 3), at[1]) for at in product((14, 28, 56), STRIDES)}
    found = yield {
        (layout, fetch, at): point_of(
            "fig_7", [layer], load_hardware("tpu_v2_hbm", [f"hbm.layout={layout}", f"mapping.fetch={fetch}"])
        )
        for layout, fetch in product(layouts, fetches)
        for at, layer in layers.items()
    }

    def bars(unit: str, figure: str, scale: float) -> BarChart:
        series = {layout: [found[layout, "per_tap", at].figure(figure) / scale for at in layers] for layout in layouts}
        groups = [f"{width}, stride {stride}" for width, stride in layers]
        return BarChart("each tap fetched by itself", groups, series, unit)

    slower: dict[bool, list[Finding]] = {True: [], False: []}
    for (fetch, what), at in product(fetches.items(), sorted(layers, key=lambda at: at[1])):
        # Only the layouts differ, so the ratio is their effect alone.
        ratio = found["CHW", fetch, at].cycles / found["HWC", fetch, at].cycles
        slower[at[1] == 1].append(Finding(f"{at[0]} columns, stride {at[1]}, {what}", ratio))
    views = [
        bars("bytes moved over bytes wanted", "hbm_overfetch", 1),
        bars("time (thousand cycles)", "cycles", 1e3),
    ]
    return ExhibitFigures(views, {"layout_stride_1": slower[True], "layout_strides": slower[False]})
