"""Fig. 1, 5 and 6: the lowered matrix, the order of its columns, and where the ifmap stands on chip."""

from __future__ import annotations

from math import prod

import numpy as np

from tpusim import reference
from tpusim.machines.tpu.description import load_hardware
from tpusim.machines.tpu.lowering.registry import lowered
from tpusim.network.ops.conv2d import Conv2d
from tpusim.reference import lowered as lowered_matrix
from tpusim.study.paper.claim import COUNTED, Finding
from tpusim.study.paper.exhibit import Found, Shown
from tpusim.study.paper.layers import SEVEN, convolutions, ifmap_elements
from tpusim.study.paper.memory_contents import EMPTY, Numbers, contents, most_lanes, numbered_ifmap, point_name
from tpusim.study.paper.views import Cell, Grid

_SMALL = Conv2d("fig_1", 2, 3, 3, 2, (2, 2))
"""Small enough to be read: two channels of 3x3, two filters of 2x2."""
_EIGHT = Conv2d("fig_5", 8, 5, 5, 8, (3, 3))
"""That of Fig. 5: eight channels of 5x5, a 3x3 kernel."""
_MACHINE = ("array.size=8", "vector_memory.word_elements=1")
"""Of tiny_4x4: eight array rows, an element a word, as Fig. 5 has no batch."""


def _matrix(layer: Conv2d, ifmap: Numbers, channel_last: bool) -> Numbers:
    """The lowered matrix [output, k] of one image, K by taps and then channels, or the other way round."""
    taps, (_, rows, cols, _) = prod(layer.kernel), layer.tensors(1).ofmap
    size = taps * layer.in_channels
    box = range(size), range(rows), range(cols), range(1)
    by_taps = lowered_matrix.compute(layer, {"ifmap": ifmap}, box).reshape(size, -1)
    order = np.arange(size).reshape(taps, layer.in_channels)
    return np.ascontiguousarray(by_taps[(order.T if channel_last else order).ravel()].T)


# ---- Fig. 1


def make_lowered(_: Found) -> Shown:
    """A small layer: its ifmaps, filters and lowered matrix."""
    ifmap = numbered_ifmap(_SMALL, 1)
    views = [_map(ifmap, channel, f"ifmap, channel {channel + 1}") for channel in range(_SMALL.in_channels)]
    views += [_filters(_SMALL), _lowered(_SMALL, ifmap, True, "lowered matrix, a row an output")]
    most = {
        called: max(_growth(each) / prod(each.kernel) for each in convolutions(network, 1))
        for network, called in SEVEN.items()
    }
    small = _matrix(_SMALL, ifmap, True).size / ifmap.size / prod(_SMALL.kernel)
    findings = [Finding("the layer drawn", small, COUNTED)]
    findings += [Finding(f"the layer of {called} with the most", each, COUNTED) for called, each in most.items()]
    return Shown(views, {"lowered_growth": findings})


def _growth(layer: Conv2d) -> float:
    """The lowered matrix over the ifmap."""
    return ifmap_elements(layer.product) / ifmap_elements(layer)


def _map(ifmap: Numbers, channel: int, title: str) -> Grid:
    cells = [[Cell(point_name(each, ifmap.shape), channel + 1) for each in row] for row in ifmap[channel, :, :, 0]]
    return Grid(title, cells)


def _filters(layer: Conv2d) -> Grid:
    """Flattened: a column a filter, rows by channel and then tap."""
    taps = [f"{row + 1},{col + 1}" for row in range(layer.kernel[0]) for col in range(layer.kernel[1])]
    cells = [
        [Cell(f"<{tap}>", channel + 1) for _ in range(layer.out_channels)]
        for channel in range(layer.in_channels)
        for tap in taps
    ]
    return Grid("flattened filters", cells, columns=[f"filter {each + 1}" for each in range(layer.out_channels)])


def _lowered(layer: Conv2d, ifmap: Numbers, channel_last: bool, title: str) -> Grid:
    """Tones tell the channel."""
    matrix = _matrix(layer, ifmap, channel_last)
    channels = [channel for channel, *_ in (np.unravel_index(int(each) - 1, ifmap.shape) for each in matrix[0])]
    cells = [
        [Cell(point_name(each, ifmap.shape), int(channel) + 1) for each, channel in zip(row, channels, strict=True)]
        for row in matrix
    ]
    tones = {channel + 1: f"channel {channel + 1}" for channel in range(layer.in_channels)}
    return Grid(title, cells, rows=[f"output {each + 1}" for each in range(len(cells))], tones=tones)


# ---- Fig. 5


def make_on_chip(_: Found) -> Shown:
    """Which element stands in which word of which lane."""
    hardware = load_hardware("tiny_4x4", _MACHINE)
    stands = {}
    for how in ("channel_first", "channel_last"):
        program, _unused = lowered(_EIGHT, 1, hardware, how)
        stands[how] = contents(program, _EIGHT, 1, hardware)
    findings = [
        Finding("channel_first, a tap at a time", most_lanes(stands["channel_first"]), COUNTED),
        Finding("channel_last without a crossbar, by copies", most_lanes(stands["channel_last"]), COUNTED),
    ]
    return Shown([_lanes(stands["channel_first"])], {"fixed_row": findings})


def _lanes(memory: Numbers) -> Grid:
    """Words that hold a part of the ifmap; those of the first window stand out."""
    shape = _EIGHT.tensors(1).ifmap
    used = memory[:, (memory != EMPTY).any(axis=(0, 2)), 0]
    window = {f"{row + 1}{'ABC'[col]}" for row in range(3) for col in range(3)}
    cells = [
        [Cell(name, 2 if name in window else 1) for name in (point_name(each, shape) for each in lane)] for lane in used
    ]
    tones = {2: "words of the first window, read in the first nine cycles", 1: "others"}
    rows = [f"lane {lane + 1}" for lane in range(len(used))]
    return Grid("a channel a lane, a word (column) a pixel", cells, rows, tones=tones)


# ---- Fig. 6


def make_orders(_: Found) -> Shown:
    """Both orders of the columns, and that both give the same product."""
    ifmap = numbered_ifmap(_SMALL, 1)
    titles = {True: "channel-last: a channel's window after the other", False: "channel-first: all channels of a tap"}
    views = [_lowered(_SMALL, ifmap, last, title) for last, title in titles.items()]
    findings = [Finding(each.text, _wrong_outputs(each), COUNTED) for each in (_SMALL, _EIGHT)]
    return Shown(views, {"column_order": findings})


def _wrong_outputs(layer: Conv2d) -> int:
    """Outputs of either order that are not those of the convolution."""
    operands = reference.operands(layer, 1, seed=0)
    ifmap, filters = operands["ifmap"], operands["filter"]
    outputs = reference.compute(layer, operands).reshape(layer.out_channels, -1).T
    wrong = 0
    for channel_last in (True, False):
        by_tap = filters.reshape(layer.out_channels, prod(layer.kernel), layer.in_channels)
        weights = (by_tap.transpose(0, 2, 1) if channel_last else by_tap).reshape(layer.out_channels, -1)
        product = _matrix(layer, ifmap.astype(np.float32), channel_last) @ weights.T.astype(np.float32)
        wrong += int((product != outputs).sum())
    return wrong
