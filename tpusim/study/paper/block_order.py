"""Fig. 12: the order in which a block takes its subtiles, and what neighbouring ones have in common."""

from __future__ import annotations

from itertools import pairwise

from tpusim.machines.family import load_hardware
from tpusim.machines.gpu.description import Gpu
from tpusim.machines.gpu.lowering.layer import layer_of
from tpusim.machines.gpu.lowering.registry import LOWERINGS
from tpusim.machines.gpu.program.kernels import Products
from tpusim.network.ops.conv2d import Conv2d
from tpusim.study.paper.claim import COUNTED, Finding
from tpusim.study.paper.exhibit import Found, Shown
from tpusim.study.paper.views import Cell, Grid

_DRAWN = Conv2d("fig_12", 64, 32, 32, 128, (3, 3), padding=(1, 1))
"""A 3x3 kernel of two slabs of 32 channels: the subtiles 1 to 18 of the figure."""
_DEEP = Conv2d("deep", 512, 32, 32, 128, (3, 3), padding=(1, 1))
_STRIDED = Conv2d("strided", 64, 128, 128, 128, (3, 3), (4, 4))
_OVERLAPPING = Conv2d("overlapping", 8, 99, 99, 8, (3, 3), (2, 2))
"""Fig. 8c, of a map of 99 x 99."""
_ORDERS = {"taps_outside": "naive", "channels_outside": "reordered"}


def _products(layer: Conv2d, order: str, reuse: str = "patch") -> Products:
    machine = load_hardware("v100", [f"mapping.order={order}", f"mapping.reuse={reuse}", "mapping.tile=128x128"])
    assert isinstance(machine, Gpu), "v100 is a GPU"
    return LOWERINGS["block_channel_first"](layer_of(layer, 1, machine)).products


def make_order(_: Found) -> Shown:
    """The subtiles of a block in both orders, and what reordering has to gain."""
    reordered = [Finding(f"{each.in_channels} channels", _apart(each), COUNTED) for each in (_DRAWN, _DEEP)]
    saved = [Finding(f"a block of 8x16 outputs, {each.text}", _saved(each), COUNTED) for each in (_DRAWN, _STRIDED)]
    shared, all_of_one, all_of_both = _shared(_OVERLAPPING)
    overlap = [
        Finding("of what either reads", 100 * shared / all_of_both, COUNTED),
        Finding("of what one reads, as Fig. 8c counts a half", 100 * shared / all_of_one, COUNTED),
    ]
    return Shown([_subtiles()], {"tap_order": reordered, "tap_bytes": saved, "tap_overlap": overlap})


def _subtiles() -> Grid:
    """A row an order; numbered as the figure does, tap by tap of a slab of channels, then those of the next."""
    rows, taps = [], 9
    for order in _ORDERS:
        runs = [step[0] for step in _products(_DRAWN, order).steps]
        slabs = [each.first // each.channels for each in runs]
        rows.append([Cell(str(slab * taps + each.tap + 1), slab + 1) for slab, each in zip(slabs, runs, strict=True)])
    columns = [str(each + 1) for each in range(len(rows[0]))]
    tones = {1: "channels 1 to 32", 2: "channels 33 to 64"}
    return Grid("subtiles of matrix A, k-step by k-step", rows, [*_ORDERS.values()], columns, tones)


def _apart(layer: Conv2d) -> float:
    """K-steps from a subtile to the next of the same channels, at most, as reordered."""
    places: dict[int, list[int]] = {}
    for place, step in enumerate(_products(layer, "channels_outside").steps):
        places.setdefault(step[0].first, []).append(place)
    return float(max(later - sooner for each in places.values() for sooner, later in pairwise(each)))


def _saved(layer: Conv2d) -> float:
    """Percent of the bytes of matrix A that blocks need not fetch."""
    alone = _products(layer, "channels_outside", "none").a_bytes
    return 100 * (1 - _products(layer, "channels_outside").a_bytes / alone)


def _shared(layer: Conv2d) -> tuple[int, int, int]:
    """Elements of a channel that both taps <1,1> and <1,3> read, that one of them reads, and that either does."""
    rows, cols = (range(0, each.outputs * each.stride, each.stride) for each in layer.axes)
    first, third = ({(row, col + tap) for row in rows for col in cols} for tap in (0, 2))
    return len(first & third), len(first), len(first | third)
