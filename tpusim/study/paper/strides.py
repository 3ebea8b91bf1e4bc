"""Fig. 3, 4b and 8: what the stride costs, by the order of K and by what is fetched."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from tpusim.machines.tpu import event
from tpusim.machines.tpu.description import load_hardware
from tpusim.machines.tpu.lowering.registry import lowered
from tpusim.network.ops.conv2d import Conv2d
from tpusim.study.paper.claim import ESTIMATED, MODELLED, Finding
from tpusim.study.paper.exhibit import Asked, Found, Shown
from tpusim.study.paper.found import point_of
from tpusim.study.paper.layers import RESNET, products, square
from tpusim.study.paper.views import Bars, Schedule, Series, Span
from tpusim.study.validation.sets import number_sets
from tpusim.technology.area import crossbar

_STRIDES = 1, 2, 4
_FETCHES = {"resident": "a patch for all taps", "per_tap": "each tap's points by themselves"}
_ORDERS = {"taps_fastest": "channel-last", "channels_fastest": "channel-first"}
"""Values of mapping.k_order, and what the paper calls them."""
_DRAWN = RESNET[1]
_SHARE = 6
"""Of a layer the first sixth is drawn."""


# ---- Fig. 4b


def asked() -> Asked:
    """Five layers of ResNet at each stride: implicit by both fetch policies, and the product alone."""
    points = {}
    for stride in _STRIDES:
        layers = [square(size, stride) for size in RESNET]
        for fetch in _FETCHES:
            points[f"{fetch} {stride}"] = point_of(
                "fig_4b", layers, load_hardware("tpu_v2", [f"mapping.fetch={fetch}"])
            )
        points[f"product {stride}"] = point_of("fig_4b", products(layers), load_hardware("tpu_v2"))
    return points


def make_strides(found: Found) -> Shown:
    """TFLOPS of each layer at each stride, beside those of the product."""
    names = [square(size).name for size in RESNET]
    ways = {**{fetch: f"implicit, {what}" for fetch, what in _FETCHES.items()}, "product": "GEMM alone"}
    views = [
        Bars(label, names, [Series(f"stride {stride}", _rates(found, key, stride)) for stride in _STRIDES], "TFLOPS")
        for key, label in ways.items()
    ]
    findings = [
        Finding(f"stride {stride}, {what}", _kept(found, fetch, stride))
        for stride in _STRIDES[1:]
        for fetch, what in _FETCHES.items()
    ]
    return Shown(views, {"stride_insensitive": [*findings, *_estimated()]})


def _rates(found: Found, way: str, stride: int) -> list[float]:
    return [float(row["tflops"]) for row in found[f"{way} {stride}"].layers]


def _kept(found: Found, way: str, stride: int) -> float:
    """TFLOPS at a stride over those at stride 1, mean of the layers."""
    pairs = zip(_rates(found, way, stride), _rates(found, way, 1), strict=True)
    return fmean(strided / plain for strided, plain in pairs)


def _estimated() -> Iterator[Finding]:
    """The same of what the compiler estimates for layers that fill the array."""
    rates: dict[tuple[int, int], dict[int, float]] = {}
    for case in number_sets()["micro"].cases:
        (layer,) = case.layers
        if isinstance(layer, Conv2d) and layer.in_channels % 128 == 0 and layer.kernel == (3, 3):
            of_size = rates.setdefault((layer.in_height, layer.in_channels), {})
            of_size[layer.stride[0]] = layer.macs(case.batch) / case.theirs
    for stride in _STRIDES[1:]:
        kept = [each[stride] / each[1] for each in rates.values() if {1, stride} <= each.keys()]
        yield Finding(f"stride {stride}, Google's compiler", fmean(kept), ESTIMATED)


# ---- Fig. 3 and 8


def orders_asked() -> Asked:
    """The same layers by either order of K and both fetch policies, everything else alike; channel-last from banks."""
    points = {}
    for stride in _STRIDES:
        layers = [square(size, stride) for size in RESNET]
        for order in _ORDERS:
            for fetch in _FETCHES:
                changes = [f"mapping.k_order={order}", f"mapping.fetch={fetch}"]
                machine = load_hardware("tpu_v2", changes)
                points[f"{order} {fetch} {stride}"] = point_of("fig_8", layers, machine, how="implicit_gemm")
        points[f"product {stride}"] = point_of("fig_4b", products(layers), load_hardware("tpu_v2"))
        points[f"banks {stride}"] = point_of("fig_3", layers, load_hardware("tpu_v2_banked"), how="channel_last")
    return points


def make_channel_last(found: Found) -> Shown:
    """Fig. 3: channel-last, whose fill stays as long while the product shrinks."""
    drops = [
        Finding(f"stride {stride}, {where}", _used(found, key, stride) / _used(found, key, 1))
        for stride in _STRIDES[1:]
        for key, where in (("banks", "banks and a crossbar"), ("taps_fastest resident", "copies in the lanes"))
    ]
    throughput = [
        Finding(where, _used(found, key, 1) / _used(found, "product", 1))
        for key, where in (("banks", "banks and a crossbar"), ("taps_fastest resident", "copies in the lanes"))
    ]
    conflicts = sum(int(found[f"banks {stride}"].figures["bank_conflict_cycles"]) for stride in _STRIDES)
    cycles = sum(found[f"banks {stride}"].cycles for stride in _STRIDES)
    silicon = load_hardware("tpu_v2_banked").silicon
    larger, usual = (crossbar(silicon, ports, ports, 256) for ports in (256, 128))
    return Shown(
        [*_schedules("taps_fastest", "resident")],
        {
            "full_throughput": throughput,
            "banks_without_conflict": [Finding("all strides, in a layout of windows", 100 * conflicts / cycles)],
            "channel_last_stride": drops,
            "crossbar_quadratic": [Finding("256 x 256 ports over 128 x 128", larger / usual, MODELLED)],
        },
    )


def make_channel_first(found: Found) -> Shown:
    """Fig. 8: channel-first, each tap fetched by itself."""
    drops = [
        Finding(f"stride {stride}, {what}", _used(found, key, stride) / _used(found, key, 1))
        for stride in _STRIDES[1:]
        for key, what in {
            f"{order} {fetch}": f"{called}, {fetched}"
            for order, called in _ORDERS.items()
            for fetch, fetched in _FETCHES.items()
        }.items()
    ]
    first, last = ([each for each in drops if called in each.when] for called in ("channel-first", "channel-last"))
    return Shown([*_schedules("channels_fastest", "per_tap")], {"channel_first_stride": first, "order_decides": last})


def _used(found: Found, way: str, stride: int) -> float:
    """PE utilisation, mean of the layers."""
    return fmean(float(row["pe_utilization"]) for row in found[f"{way} {stride}"].layers)


def _schedules(order: str, fetch: str) -> Iterator[Schedule]:
    """The beginning of a layer at each stride: what HBM and array do."""
    changes = [f"mapping.k_order={order}", f"mapping.fetch={fetch}"]
    hardware = load_hardware("tpu_v2", changes)
    for stride in _STRIDES:
        layer = square(_DRAWN, stride)
        program, _ = lowered(layer, 8, hardware, "implicit_gemm")
        recording = event.record(program, hardware)
        end = recording.cycles // _SHARE
        tracks = recording.timeline(0, end).clipped(0, end).tracks
        fills = {index for index, step in enumerate(program.steps) if step.label == "ifmap fill"}
        hbm = [
            Span(each.start, each.end, _transfer(each.name, each.step in fills))
            for each in tracks["hbm"]
            if each.name != "blocked"
        ]
        kinds = {"busy": "busy", "starved": "starved"}
        array = [Span(each.start, each.end, kinds.get(each.name, "waiting")) for each in tracks["systolic_array"]]
        title = f"{layer.name}, stride {stride}: the first of {recording.cycles:,} cycles"
        yield Schedule(title, [("HBM", _joined(hbm)), ("array", _joined(array))], end)


def _transfer(doing: str, is_fill: bool) -> str:
    """What a transfer does: it moves words, or waits until the lanes' ports take them."""
    return "ports" if doing == "port_stall" else "fill" if is_fill else "other"


def _joined(spans: list[Span]) -> list[Span]:
    """Spans of one kind that touch become one."""
    joined: list[Span] = []
    for each in spans:
        if joined and joined[-1].kind == each.kind and each.start - joined[-1].end <= 1:
            joined[-1] = Span(joined[-1].start, each.end, each.kind)
        else:
            joined.append(each)
    return joined
