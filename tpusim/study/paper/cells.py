"""Fig. 1, 5, 6, 10, 11 and 12: the lowered matrix, contents of lanes, and use of the ports, cell by cell."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import dropwhile, pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpusim import reference
from tpusim.flow.lowerings import prepared
from tpusim.machines.family import Machine, load_hardware
from tpusim.network.ops.array_op import ArrayOp, Conv2d
from tpusim.network.workload_file import load_workload
from tpusim.reference.products import lowered as lowered_matrix
from tpusim.result.vocabulary.states import ACCESSES
from tpusim.study.paper.claims import COUNTED, Finding
from tpusim.study.paper.exhibit import Cell, CellGrid, ExhibitFigures, Making, point_of
from tpusim.study.paper.layers import SEVEN, convolutions, ifmap_elements

Numbers = NDArray[np.float32]
Shape = tuple[int, int, int, int]
PADDING, EMPTY = 0, -1
"""Values that stand for padding and for empty words, in place of an element's number."""

_SMALL = Conv2d("fig_1", 2, 3, 3, 2, (2, 2))
"""A layer small enough to be read: two channels of 3x3, two filters of 2x2."""
_EIGHT = Conv2d("fig_5", 8, 5, 5, 8, (3, 3))
"""The layer of Fig. 5: eight channels of 5x5, a 3x3 kernel."""


def _numbered(what: str, count: int) -> list[str]:
    return [f"{what} {each + 1}" for each in range(count)]


def _channels(count: int) -> dict[int, str]:
    """A tone for each channel."""
    return dict(enumerate(_numbered("channel", count), 1))


# ---- elements by number


def numbered_ifmap(layer: ArrayOp, batch: int) -> Numbers:
    """The ifmap [channel, row, col, image] whose elements are their own numbers, from 1."""
    shape = layer.tensors(batch).ifmap
    return np.arange(1, prod(shape) + 1, dtype=np.float32).reshape(shape)


def place(element: float, shape: Shape) -> Shape:
    """Channel, row, col and image of an element of a shape, by its number."""
    channel, row, col, image = (int(each) for each in np.unravel_index(int(element) - 1, shape))
    return channel, row, col, image


def point_name(element: float, shape: Shape) -> str:
    """The paper's name of an element of a channel: "1A" is the first of the first row; "0" is padding."""
    if element == PADDING:
        return "0"
    _, row, col, _ = place(element, shape)
    return f"{row + 1}{chr(ord('A') + col)}"


def contents(layer: ArrayOp, batch: int, machine: Machine, lowering: str) -> Numbers:
    """Numbers of elements [lane, word, element], PADDING or EMPTY, after the fills of the ifmap.

    A later fill replaces the words of an earlier one.
    """
    given = {"ifmap": numbered_ifmap(layer, batch), "filter": np.zeros(layer.tensors(batch).filter, np.float32)}
    memory: Numbers = prepared(layer, batch, machine, lowering).lane_contents("ifmap", given, EMPTY)
    return memory


def in_use(memory: Numbers) -> Numbers:
    """The words that hold a part of the ifmap in any lane."""
    used: Numbers = memory[:, (memory != EMPTY).any(axis=(0, 2))]
    return used


def most_lanes(memory: Numbers) -> int:
    """The most lanes that hold one element."""
    _, lanes = np.unique([each for lane in memory for each in np.unique(lane) if each > PADDING], return_counts=True)
    return int(lanes.max())


# ---- Fig. 1 and 6


def matrix(layer: Conv2d, ifmap: Numbers, is_channel_last: bool) -> Numbers:
    """The lowered matrix [output, k] of one image, K by taps and then channels, or the other way round."""
    taps, (_, rows, cols, _) = prod(layer.kernel), layer.tensors(1).ofmap
    size = taps * layer.in_channels
    box = range(size), range(rows), range(cols), range(1)
    by_taps = lowered_matrix(layer, {"ifmap": ifmap}, box).reshape(size, -1)
    order = np.arange(size).reshape(taps, layer.in_channels)
    return np.ascontiguousarray(by_taps[(order.T if is_channel_last else order).ravel()].T)


def lowered_layer() -> Making:
    """Fig. 1: a small layer, its ifmaps, filters and lowered matrix."""
    yield {}
    ifmap = numbered_ifmap(_SMALL, 1)
    maps = [
        CellGrid(f"ifmap, {name}", [[Cell(point_name(each, ifmap.shape), tone) for each in row] for row in rows])
        for (tone, name), rows in zip(_channels(_SMALL.in_channels).items(), ifmap[..., 0], strict=True)
    ]
    networks = {called: convolutions(network, 1) for network, called in SEVEN.items()}
    most = {
        called: max(ifmap_elements(each.product) / ifmap_elements(each) / prod(each.kernel) for each in layers)
        for called, layers in networks.items()
    }
    small = matrix(_SMALL, ifmap, True).size / ifmap.size / prod(_SMALL.kernel)
    findings = [Finding("the layer drawn", small, COUNTED)]
    findings += [Finding(f"the layer of {called} with the most", each, COUNTED) for called, each in most.items()]
    # A column for each filter; rows by channel and then by tap.
    taps = [f"<{row + 1},{col + 1}>" for row, col in np.ndindex(_SMALL.kernel)]
    cells = [[Cell(tap, tone)] * _SMALL.out_channels for tone in _channels(_SMALL.in_channels) for tap in taps]
    filters = CellGrid("flattened filters", cells, columns=_numbered("filter", _SMALL.out_channels))
    views = [*maps, filters, _lowered(_SMALL, True, "lowered matrix, a row an output")]
    return ExhibitFigures(views, {"lowered_growth": findings})


def _lowered(layer: Conv2d, is_channel_last: bool, title: str) -> CellGrid:
    """The lowered matrix as cells; tones tell the channel."""
    ifmap = numbered_ifmap(layer, 1)
    numbers = matrix(layer, ifmap, is_channel_last)
    tones = [place(each, ifmap.shape)[0] + 1 for each in numbers[0]]
    cells = [
        [Cell(point_name(each, ifmap.shape), tone) for each, tone in zip(row, tones, strict=True)] for row in numbers
    ]
    return CellGrid(title, cells, rows=_numbered("output", len(cells)), tones=_channels(layer.in_channels))


def orders_of_columns() -> Making:
    """Fig. 6: both orders of the columns, which give the same product."""
    yield {}
    titles = {True: "channel-last: a channel's window after the other", False: "channel-first: all channels of a tap"}
    views = [_lowered(_SMALL, is_last, title) for is_last, title in titles.items()]
    findings = [Finding(each.text, _wrong_outputs(each), COUNTED) for each in (_SMALL, _EIGHT)]
    return ExhibitFigures(views, {"column_order": findings})


def _wrong_outputs(layer: Conv2d) -> int:
    """Number of outputs of either order that differ from the convolution's."""
    operands = reference.operands(layer, 1, seed=0)
    ifmap, filters = operands["ifmap"], operands["filter"]
    outputs = reference.compute(layer, operands).reshape(layer.out_channels, -1).T
    wrong = 0
    for is_channel_last in (True, False):
        by_tap = filters.reshape(layer.out_channels, prod(layer.kernel), layer.in_channels)
        weights = (by_tap.transpose(0, 2, 1) if is_channel_last else by_tap).reshape(layer.out_channels, -1)
        product = matrix(layer, ifmap.astype(np.float32), is_channel_last) @ weights.T.astype(np.float32)
        wrong += int((product != outputs).sum())
    return wrong


# ---- Fig. 5


def on_chip() -> Making:
    """Fig. 5: the element in each word of each lane; the words of the first window stand out.

    On tiny_4x4 with eight array rows and one element a word, as the figure has no batch.
    """
    yield {}
    hardware = load_hardware("tiny_4x4", ("array.size=8", "vector_memory.word_elements=1"))
    first, last = (contents(_EIGHT, 1, hardware, how) for how in ("channel_first", "channel_last"))
    findings = [
        Finding("channel_first, a tap at a time", most_lanes(first), COUNTED),
        Finding("channel_last without a crossbar, by copies", most_lanes(last), COUNTED),
    ]
    shape = _EIGHT.tensors(1).ifmap
    # Names as in the figure: rows are numbers, columns are letters.
    window = {f"{row + 1}{'ABC'[col]}" for row in range(3) for col in range(3)}
    names = [[point_name(each, shape) for each in lane] for lane in in_use(first)[:, :, 0]]
    cells = [[Cell(name, 2 if name in window else 1) for name in lane] for lane in names]
    tones = {2: "words of the first window, read in the first nine cycles", 1: "others"}
    grid = CellGrid("a channel a lane, a word (column) a pixel", cells, _numbered("lane", len(cells)), tones=tones)
    return ExhibitFigures([grid], {"fixed_row": findings})


# ---- Fig. 10 and 11

_BATCH = 2
_CLIENTS: Mapping[str, tuple[str, int]] = {"ifmap": ("R", 1), "result": ("W", 2)}
"""Letter and tone of the clients that the figures show; the DMA's words come before and after."""
_SHOWN = 24
"""Cycles shown, from the first read on."""


def one_tile() -> Making:
    """Fig. 10: a tile on an array of 4 x 4: contents of lanes, and turns of reads and writes."""
    yield {}
    run = _Example("fig10")
    stalls = Finding("the tile of the figure, cycles stalled at ports", run.stalled)
    turns = [Finding("reads of a lane, cycles apart", run.apart("ifmap")), Finding("its writes", run.apart("result"))]
    return ExhibitFigures([run.memories(), run.ports()], {"interleaved": [stalls], "every_second": turns})


def two_tiles() -> Making:
    """Fig. 11: the same layer with two tiles at a time."""
    layer = next(each for each in load_workload("tiny", _BATCH).layers if each.name == "fig11")
    machines = {"fig11": load_hardware("tiny_4x4"), "one tile": load_hardware("tiny_4x4", ["mapping.multi_tile=1"])}
    found = yield {name: point_of("fig11", [layer], machine, _BATCH) for name, machine in machines.items()}
    run = _Example("fig11")
    both, one = (found[key].figure("mapping_efficiency") for key in ("fig11", "one tile"))
    return ExhibitFigures(
        [run.memories(), run.ports()],
        {
            "two_tiles": [Finding("PEs in use, two tiles over one", both / one)],
            "duplication": [Finding("lanes that hold an element", most_lanes(run.memory), COUNTED)],
        },
    )


class _Example:
    """A layer of the workload `tiny`: contents of its memories, clients of lane 0's port over time, and stall cycles of
    the array after the first fill.
    """

    def __init__(self, name: str) -> None:
        hardware = load_hardware("tiny_4x4")
        layer = next(each for each in load_workload("tiny", _BATCH).layers if each.name == name)
        assert isinstance(layer, ArrayOp), "these are convolutions"
        tracks = prepared(layer, _BATCH, hardware, "channel_first").recorded().timeline().tracks
        self.owners = {cycle: each.name for each in tracks["port"] for cycle in range(each.start, each.end)}
        streamed = dropwhile(lambda each: each.name != "busy", tracks["systolic_array"])
        self.stalled = float(sum(each.end - each.start for each in streamed if each.name == "port_stall"))
        self.memory = contents(layer, _BATCH, hardware, "channel_first")
        self.shape = layer.tensors(_BATCH).ifmap
        self.lanes = _numbered("lane", len(self.memory))

    def apart(self, client: str) -> float:
        """Least cycles between two accesses of lane 0 by a client."""
        return float(np.diff([cycle for cycle, name in self.owners.items() if name == client]).min())

    def memories(self) -> CellGrid:
        """Contents of the vector memories, with the elements of a word below one another."""
        channels = self.shape[0]
        cells = [
            [Cell("\n".join(map(self._name, word)), lane % channels + 1) for word in words]
            for lane, words in enumerate(in_use(self.memory))
        ]
        title = "words of the vector memories: (row, column, channel, image)"
        return CellGrid(title, cells, self.lanes, tones=_channels(channels))

    def _name(self, element: float) -> str:
        channel, row, col, image = place(element, self.shape)
        return f"({row + 1},{col + 1},{channel + 1},{image + 1})"

    def ports(self) -> CellGrid:
        """Clients of the ports; every lane runs the schedule of lane 0 a cycle after its neighbour."""
        first = min(cycle for cycle, name in self.owners.items() if name == "ifmap")
        cycles = range(first, first + _SHOWN)
        cells = [
            [Cell(*_CLIENTS.get(self.owners.get(cycle - lane, ""), ("", 0))) for cycle in cycles]
            for lane in range(len(self.lanes))
        ]
        tones = {tone: f"{letter} {ACCESSES[letter].meaning}" for letter, tone in _CLIENTS.values()}
        return CellGrid("ports, cycle by cycle", cells, self.lanes, [str(cycle) for cycle in cycles], tones)


# ---- Fig. 12

_DRAWN = Conv2d("fig_12", 64, 32, 32, 128, (3, 3), padding=(1, 1))
"""A 3x3 kernel of two slabs of 32 channels: the subtiles 1 to 18 of the figure."""
_DEEP = Conv2d("deep", 512, 32, 32, 128, (3, 3), padding=(1, 1))
_STRIDED = Conv2d("strided", 64, 128, 128, 128, (3, 3), (4, 4))
_OVERLAPPING = Conv2d("overlapping", 8, 99, 99, 8, (3, 3), (2, 2))
"""Fig. 8c, of a map of 99 x 99."""
_ORDERS = {"taps_outside": "naive", "channels_outside": "reordered"}


def _products(layer: Conv2d, order: str = "channels_outside", reuse: str = "patch") -> Any:
    machine = load_hardware("v100", [f"mapping.order={order}", f"mapping.reuse={reuse}", "mapping.tile=128x128"])
    ready: Any = prepared(layer, 1, machine, "block_channel_first")
    return ready.program.products


def order_of_subtiles() -> Making:
    """Fig. 12: the subtiles of a block in both orders, and what reordering has to gain."""
    yield {}
    reordered = [Finding(f"{each.in_channels} channels", _apart(each), COUNTED) for each in (_DRAWN, _DEEP)]
    saved = [
        Finding(
            f"a block of 8x16 outputs, {each.text}",
            100 * (1 - _products(each).a_bytes / _products(each, reuse="none").a_bytes),
            COUNTED,
        )
        for each in (_DRAWN, _STRIDED)
    ]
    # Elements of a channel that taps <1,1> and <1,3> both read.
    rows, cols = (range(0, each.outputs * each.stride, each.stride) for each in _OVERLAPPING.axes)
    first, third = ({(row, col + tap) for row in rows for col in cols} for tap in (0, 2))
    overlap = [
        Finding("of what either reads", 100 * len(first & third) / len(first | third), COUNTED),
        Finding("of what one reads, as Fig. 8c counts a half", 100 * len(first & third) / len(first), COUNTED),
    ]
    # A row for each order, numbered as in the figure: tap by tap for a slab of channels, then for the next slab.
    subtiles, taps = [], prod(_DRAWN.kernel)
    for order in _ORDERS:
        runs = [step[0] for step in _products(_DRAWN, order).steps]
        slabs = [each.first // each.channels for each in runs]
        places = zip(slabs, runs, strict=True)
        subtiles.append([Cell(str(slab * taps + each.tap + 1), slab + 1) for slab, each in places])
    columns = [str(each + 1) for each in range(len(subtiles[0]))]
    tones = {1: "channels 1 to 32", 2: "channels 33 to 64"}
    grid = CellGrid("subtiles of matrix A, k-step by k-step", subtiles, [*_ORDERS.values()], columns, tones)
    return ExhibitFigures([grid], {"tap_order": reordered, "tap_bytes": saved, "tap_overlap": overlap})


def _apart(layer: Conv2d) -> float:
    """The most k-steps from a subtile to the next one of the same channels, after reordering."""
    places: dict[int, list[int]] = {}
    for at, step in enumerate(_products(layer).steps):
        places.setdefault(step[0].first, []).append(at)
    return float(max(later - sooner for each in places.values() for sooner, later in pairwise(each)))
