"""Fig. 2b: explicit im2col against the implicit method, and against the product alone."""

from __future__ import annotations

from statistics import fmean

from tpusim.machines.tpu.description import Hardware, load_hardware
from tpusim.study.paper.claim import Finding
from tpusim.study.paper.exhibit import Asked, Found, Shown
from tpusim.study.paper.found import point_of
from tpusim.study.paper.layers import SEVEN, convolutions, products
from tpusim.study.paper.views import Bars, Mark, Series

BATCH = 64
_BYTES = 4, 2
_STATED = 1.23
"""The mean of the paper's bars."""
_IMPLICIT = {"channel_first": "channel-first", "implicit_gemm": "dense passes"}
"""Lowerings, and what they are called here: the paper's rule of stacking, and K cut wherever the array is full."""


def _machine(element_bytes: int) -> Hardware:
    """tpu_v2, or one like it whose elements have so many bytes: as many of them on chip, words alike."""
    machine = load_hardware("tpu_v2")
    memory = machine.vector_memory
    capacity = memory.capacity_bytes * element_bytes // memory.element_bytes
    changes = {"vector_memory.element_bytes": element_bytes, "vector_memory.capacity": f"{capacity} B"}
    return machine.with_overrides(changes)


def asked() -> Asked:
    """Each network implicit, explicit with the transformation first, and as the product of its lowered matrices."""
    points = {}
    for size in _BYTES:
        plain = _machine(size)
        first = plain.with_overrides({"mapping.transformation": "before"})
        for network in SEVEN:
            layers, key = convolutions(network, BATCH), f"{network} {size}"
            for how in _IMPLICIT:
                points[f"{key} {how}"] = point_of(network, layers, plain, BATCH, how)
            points[f"{key} explicit"] = point_of(network, layers, first, BATCH, "explicit")
            points[f"{key} product"] = point_of(network, products(layers), plain, BATCH)
    return points


def make(found: Found) -> Shown:
    """Time over that of the implicit method, network by network."""
    than = {how: f"than by {label}" for how, label in _IMPLICIT.items()}
    slower = _means(found, "explicit", than)
    overhead = _means(found, "explicit", {"product": "over the product"})
    implicit = [each for how, label in _IMPLICIT.items() for each in _means(found, how, {"product": label})]
    return Shown(
        [_picture(found, how, label) for how, label in _IMPLICIT.items()],
        {
            "explicit_slower": slower,
            "explicit_slower_by": slower,
            "transformation_overhead": overhead,
            "implicit_no_overhead": implicit,
        },
    )


def _picture(found: Found, how: str, label: str) -> Bars:
    def over(network: str, size: int, what: str) -> float:
        return found[f"{network} {size} {what}"].cycles / found[f"{network} {size} {how}"].cycles

    columns = [
        Series(f"{called}, {size} bytes", [*each, fmean(each)])
        for what, called in (("explicit", "explicit"), ("product", "product alone"))
        for size in _BYTES
        for each in ([over(network, size, what) for network in SEVEN],)
    ]
    groups = [*SEVEN.values(), "mean"]
    marks = [Mark(f"the paper's mean: {_STATED}", _STATED)]
    return Bars(f"implicit: {label}", groups, columns, "time over that of the implicit method", marks)


def _percent(found: Found, size: int, one: str, other: str) -> float:
    """How much longer one takes than the other, on the mean of the networks."""
    pairs = ((found[f"{network} {size} {each}"].cycles for each in (one, other)) for network in SEVEN)
    return 100 * (fmean(a / b for a, b in pairs) - 1)


def _means(found: Found, one: str, others: dict[str, str]) -> list[Finding]:
    return [
        Finding(f"{called}, {size} bytes an element", _percent(found, size, one, how))
        for how, called in others.items()
        for size in _BYTES
    ]
