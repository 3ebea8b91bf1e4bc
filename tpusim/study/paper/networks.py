"""Table I, Fig. 2, 17 and 18: explicit and implicit methods, network by network, on TPU v2 and on a V100."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from statistics import fmean
from typing import Any

from tpusim.machines.family import Machine, family_of, load_hardware
from tpusim.network.ops.array_op import Conv2d
from tpusim.study.paper.claims import COUNTED, Finding
from tpusim.study.paper.exhibit import (
    AskedPoints,
    BarChart,
    ExhibitFigures,
    FoundPoints,
    Making,
    Marks,
    TextTable,
    point_of,
)
from tpusim.study.paper.layers import LAYOUTS, LIBRARY, SEVEN, convolutions, ifmap_elements, products
from tpusim.study.sweep.points import Point

# ---- Table I

_STATED = {
    "alexnet": ("AlexNet", 1.39, 14.57), "resnet50": ("ResNet", 34.55, 81.11), "vgg16": ("VGG16", 34.65, 311.80),
    "yolov2": ("YOLO", 530.56, 869.50), "densenet121": ("DesNet", 1196.48, 5641.70),
}  # fmt: skip
"""Ifmaps and lowered ifmaps of Table I in MB."""
_EVEN_MAPS = {27: 28, 13: 14}
"""Sides of AlexNet's pooled maps in torchvision, and the sides that give the paper's numbers."""
_MIB = 2**20
_BYTES = 4


def lowered_sizes() -> Making:
    """Table I: sizes of ifmaps and lowered matrices, with a row for each variant of a network.

    Every variant is lowered by explicit im2col for one image; an ifmap that equals its lowered matrix counts as both.
    """
    plain = {(name, ""): convolutions(name, 1) for name in _STATED}
    sides = ((each, _EVEN_MAPS.get(each.in_height, each.in_height)) for each in plain["alexnet", ""])
    even = tuple(replace(each, in_height=side, in_width=side) for each, side in sides)
    straight = tuple(each for each in plain["resnet50", ""] if "downsample" not in each.name)
    # By network, and by the difference from the paper's network in words.
    variants = plain | {
        ("alexnet", "maps of 28 and 14 pixels a side, not 27 and 13"): even,
        ("resnet50", "without its four projections"): straight,
    }
    machine = load_hardware("tpu_v2")
    found = yield {each: point_of(each[0], layers, machine, 1, "explicit") for each, layers in variants.items()}
    rows, same, more = [], [], []
    for (network, variant), layers in variants.items():
        called, ifmap, lowered = _STATED[network]
        ifmaps = [_BYTES * ifmap_elements(each) for each in layers]
        matrices = zip(found[network, variant].layers, ifmaps, strict=True)
        own = sum(ifmaps) / _MIB
        theirs = sum(int(row["lowered_bytes"]) or ifmap_bytes for row, ifmap_bytes in matrices) / _MIB
        when = f"{called}{', ' if variant else ''}{variant}"
        rows.append((called, variant, *(f"{each:,.2f}" for each in (ifmap, own, lowered, theirs))))
        same += [
            Finding(f"of the ifmaps of {when}", own / ifmap, COUNTED),
            Finding(f"of its lowered ifmaps ({when})", theirs / lowered, COUNTED),
        ]
        more.append(Finding(when, theirs / own, COUNTED))
    head = ("network", "variant", "ifmaps, paper", "ifmaps, ours", "lowered, paper", "lowered, ours")
    return ExhibitFigures([TextTable(head, rows, "MiB")], {"table_1_sizes": same, "table_1_overhead": more})


# ---- on a V100, and Fig. 2

_LIBRARY = {layout: (LIBRARY, changes) for layout, changes in LAYOUTS.items()}
_MANY = 64
"""Batch of the comparisons."""


def _on_gpu(ways: Mapping[Any, tuple[str, tuple[str, ...]]], batch: int) -> AskedPoints:
    """Every network on a V100 in each way: a lowering, and changes of the machine."""
    return {
        (way, network): point_of(network, convolutions(network, batch), load_hardware("v100", changes), batch, how)
        for network in SEVEN
        for way, (how, changes) in ways.items()
    }


def _over(found: FoundPoints, one: Any, other: Any) -> list[float]:
    """Cycles of one way over cycles of another, network by network."""
    return [found[one, network].cycles / found[other, network].cycles for network in SEVEN]


def _by_network(title: str, series: Mapping[str, Sequence[float]], unit: str, marks: Marks | None = None) -> BarChart:
    """A group of bars for each of the seven networks, and one for their mean."""
    with_means = {label: [*values, fmean(values)] for label, values in series.items()}
    return BarChart(title, [*SEVEN.values(), "mean"], with_means, unit, marks or {})


def explicit_on_gpu() -> Making:
    """Fig. 2a: time of the explicit method over that of the library of a V100, which is implicit."""
    found = yield _on_gpu({**_LIBRARY, "explicit": ("explicit", ())}, _MANY)
    series = {f"over {layout}": [100 * (each - 1) for each in _over(found, "explicit", layout)] for layout in LAYOUTS}
    findings = [Finding(f"{label}, mean of seven networks", fmean(values)) for label, values in series.items()]
    return ExhibitFigures([_by_network("explicit on a V100", series, "% slower")], {"gpu_explicit": findings})


def explicit_on_tpu() -> Making:
    """Fig. 2b: implicit, explicit with the transformation first, and the product of the lowered matrices alone.

    The implicit method stacks by the paper's rule, or cuts K wherever the array is full.
    """
    sizes, stated = (4, 2), 1.23
    implicit = {"channel_first": "channel-first", "implicit_gemm": "dense passes"}
    points: dict[Any, Point] = {}
    for size, network in product(sizes, SEVEN):
        layers, plain = convolutions(network, _MANY), _of_elements(size)
        # The explicit method as in the paper: the lowered matrix is finished before the product begins.
        before = plain.with_overrides({"mapping.transformation": "before"})
        for how in implicit:
            points[(how, size), network] = point_of(network, layers, plain, _MANY, how)
        points[("explicit", size), network] = point_of(network, layers, before, _MANY, "explicit")
        points[("product", size), network] = point_of(network, products(layers), plain, _MANY)
    found = yield points

    def longer(one: str, others: Mapping[str, str]) -> list[Finding]:
        """Longer times in percent, as means over the networks."""
        return [
            Finding(f"{called}, {size} bytes an element", 100 * (fmean(_over(found, (one, size), (other, size))) - 1))
            for (other, called), size in product(others.items(), sizes)
        ]

    held = {"explicit": "explicit", "product": "product alone"}
    views = [
        _by_network(
            f"implicit: {label}",
            {
                f"{called}, {size} bytes": _over(found, (what, size), (how, size))
                for (what, called), size in product(held.items(), sizes)
            },
            "time over that of the implicit method",
            {f"the paper's mean: {stated}": stated},
        )
        for how, label in implicit.items()
    ]
    slower = longer("explicit", {how: f"than by {label}" for how, label in implicit.items()})
    return ExhibitFigures(
        views,
        {
            "explicit_slower": slower,
            "explicit_slower_by": slower,
            "transformation_overhead": longer("explicit", {"product": "over the product"}),
            "implicit_no_overhead": [
                each for how, label in implicit.items() for each in longer(how, {"product": label})
            ],
        },
    )


def _of_elements(size: int) -> Machine:
    """tpu_v2, or a machine like it with elements of `size` bytes: as many of them on chip, and in a word."""
    machine = load_hardware("tpu_v2")
    lanes = family_of(machine).lanes(machine)
    assert lanes, "a TPU has some"
    capacity = lanes.words * lanes.word_bytes * size // machine.element_bytes
    changes = {"vector_memory.element_bytes": size, "vector_memory.capacity": f"{capacity} B"}
    return machine.with_overrides(changes)


# ---- Fig. 17 and 18

_FEW = 8
_RATES = {"": (), ", half the rate of L2": ("l2.bytes_per_cycle=570",)}
"""Rates of L2: the fitted one, and about half of it."""
_REUSES = {"patch": "a patch in shared memory", "cache": "by the cache"}


def _by_blocks() -> AskedPoints:
    """Every network by the library, and by blocks that reuse taps in either way, or not at all."""
    blocks = {
        (reuse, rate): ("block_channel_first", (f"mapping.reuse={reuse}", *slow))
        for reuse, (rate, slow) in product((*_REUSES, "none"), _RATES.items())
    }
    return _on_gpu({**_LIBRARY, **blocks}, _FEW)


def blocks_on_gpu() -> Making:
    """Fig. 17: time of the blocks over time of the library."""
    found = yield _by_blocks()
    series = {
        f"{what}, over {layout}": _over(found, (reuse, ""), layout)
        for (reuse, what), layout in product(_REUSES.items(), LAYOUTS)
    }
    findings = [Finding(label, fmean(values)) for label, values in series.items()]
    bars = _by_network("channel-first blocks on a V100", series, "time over the library's")
    return ExhibitFigures([bars], {"gpu_networks": findings})


def strided_on_gpu() -> Making:
    """Fig. 18a: time saved on strided layers of these networks compared with the library, mean of the layers."""
    found = yield _by_blocks()
    findings = [
        Finding(f"{what}, over {layout}", _sooner(found, (reuse, ""), layout, lambda each: max(each.stride) > 1))
        for (reuse, what), layout in product(_REUSES.items(), LAYOUTS)
    ]
    return ExhibitFigures((), {"gpu_strided": findings})


def reuse_on_gpu() -> Making:
    """Fig. 18b: time saved by reusing elements between taps, mean of the layers with several taps."""
    found = yield _by_blocks()
    kinds: Mapping[str, Callable[[Conv2d], bool]] = {
        "stride 1": lambda each: max(each.stride) == 1 < max(each.kernel),
        "larger strides": lambda each: min(each.kernel) > max(each.stride) > 1,
    }
    findings = [
        Finding(f"{what}, {kind}{rate}", _sooner(found, (reuse, rate), ("none", rate), chosen))
        for (reuse, what), (kind, chosen), rate in product(_REUSES.items(), kinds.items(), _RATES)
    ]
    return ExhibitFigures((), {"gpu_reuse": findings})


def _sooner(found: FoundPoints, way: Any, other: Any, chosen: Callable[[Conv2d], bool]) -> float:
    """Percent of time saved in one way compared with another, mean of the chosen layers."""
    gains = [
        theirs / own
        for network in SEVEN
        for layer, own, theirs in zip(
            convolutions(network, _FEW),
            found[way, network].each("cycles"),
            found[other, network].each("cycles"),
            strict=True,
        )
        if chosen(layer)
    ]
    return 100 * (fmean(gains) - 1)
