"""Machines and layers for the tests: small ones by hand, random ones by hypothesis."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from fractions import Fraction
from functools import cache, lru_cache
from string import printable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tpusim import reference
from tpusim.base.units import FREQUENCY
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.registry import LOWERINGS
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import Fill, Spill
from tpusim.machines.tpu.sections import (
    Array,
    BlockSizes,
    Functions,
    Hbm,
    MappingPolicy,
    Sequencer,
    Slots,
    VectorMemory,
    VectorUnit,
)
from tpusim.memory.dram.device import Device, read_device
from tpusim.network.ops import OPS
from tpusim.network.ops.array_op import ArrayOp, Conv1d, Conv2d, ConvTranspose2d, Gemm
from tpusim.network.ops.channels import ChannelMaskedSums, ChannelMean, ChannelProducts, ChannelSum, ChannelVariance
from tpusim.network.ops.deform_conv2d import KINDS, DeformConv2d
from tpusim.network.ops.elementwise import (
    KEPT,
    ROWS,
    Arithmetic,
    Chosen,
    Clip,
    Gelu,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    Power,
    Rotary,
    SoftCap,
)
from tpusim.network.ops.gradients import Conv2dFilterGradient, Conv2dInputGradient
from tpusim.network.ops.moves import AXES, ChannelShuffle, Embedding, Move, Pad, Slice, Spread, Transpose, Upsample
from tpusim.network.ops.op import Op, VectorOp
from tpusim.network.ops.pool2d import Pool2d, Pool2dChoice, Pool2dGradient
from tpusim.network.ops.rows import (
    BETAS,
    CrossEntropy,
    CrossEntropyGradient,
    LayerNorm,
    LayerNormGradient,
    Lrn,
    ReduceMean,
    RmsNorm,
    RmsNormGradient,
    RowOp,
    Softmax,
    SoftmaxGradient,
    SumExp,
    SumSquares,
    TopK,
)
from tpusim.network.ops.training import (
    AdamSecond,
    AdamStep,
    BatchNormOffset,
    BatchNormSlope,
    MeanOfTotal,
    OverDeviation,
    Shortcut,
    VarianceOfSquares,
    WeightedSum,
)

Fields = Mapping[str, Any]
"""Fields of a part of a machine."""


def machine(
    rows: int = 4,
    cols: int = 4,
    *,
    word_elements: int = 2,
    capacity_words: int = 4096,
    bank_words: int = 4096,
    alus: int | None = None,
    bytes_per_cycle: int = 64,
    latency_cycles: int = 5,
    array: Fields | None = None,
    vector_memory: Fields | None = None,
    vector_unit: Fields | None = None,
    hbm: Fields | None = None,
    sequencer: Fields | None = None,
    mapping: Fields | None = None,
) -> Hardware:
    """A machine at 1 GHz, so that GB/s are bytes a cycle and ns are cycles: its sizes, and fields of its parts."""
    word_bytes = word_elements * 4
    return Hardware(
        name="test",
        clock_hz=10**9,
        array=Array(**{"rows": rows, "cols": cols, "weight_buffers": 2, **(array or {})}),
        vector_memory=VectorMemory(
            capacity_bytes=capacity_words * word_bytes,
            word_elements=word_elements,
            element_bytes=4,
            bank_capacity_bytes=bank_words * word_bytes,
            **(vector_memory or {}),
        ),
        vector_unit=VectorUnit(
            alus=alus or 2 * max(rows, cols), **{"slots": None, "functions": FUNCTIONS, **(vector_unit or {})}
        ),
        hbm=Hbm(
            bandwidth_bytes_per_s=bytes_per_cycle * 10**9,
            latency_ps=latency_cycles * 1000,
            **{"burst_bytes": 64, "channel_multiple": 1, "alignment_bytes": 4096, **(hbm or {})},
        ),
        sequencer=Sequencer(**(sequencer or {})),
        mapping=MappingPolicy(**(mapping or {})),
    )


FUNCTIONS = Functions(exp=(3, 4), tanh=(5, 1), erf=(2, 9), divide=(1, 2), reciprocal_root=(4, 1))


def dram(
    *,
    channels: int = 2,
    bank_groups: int = 2,
    banks: int = 2,
    columns: int = 4,
    burst_bytes: int = 64,
    clock_hz: int = 10**9,
    mapping: str = "rorabgbachco",
    times: Mapping[str, int] | None = None,
    requests: Mapping[str, int] | None = None,
    queue: int = 8,
    **more: Any,
) -> Device:
    """A small DRAM of 16 rows a bank, times in cycles."""
    plain = {
        "tBURST": 2, "tCL": 5, "tCWL": 2, "tRCDRD": 4, "tRCDWR": 3, "tRP": 4, "tRAS": 9, "tRRD_S": 2, "tRRD_L": 3,
        "tFAW": 12, "tCCD_S": 1, "tCCD_L": 2, "tRTP": 3, "tWR": 5, "tWTR_S": 2, "tWTR_L": 3, "tRTRS": 1, "tRFC": 20,
        "tRFC_bank": 10, "tREFI": 150,
    }  # fmt: skip
    return read_device({
        "name": "small",
        "clock": FREQUENCY.format(clock_hz),
        "organisation": {
            "channels": channels, "bank_groups": bank_groups, "banks": banks, "rows": 16, "columns": columns,
            "burst": f"{burst_bytes} B",
        },
        "timing": {**plain, **(times or {})},
        "mapping": mapping,
        "controller": {"transaction_queue": queue, "command_queue": 4},
        "requests": dict(requests or {}),
        **more,
    })  # fmt: skip


@st.composite
def drams(draw: st.DrawFn, burst_bytes: int) -> Device:
    """Of one channel to four, with clocks that are no multiple of a machine's, with and without refresh."""
    refresh = draw(st.sampled_from(["none", "all_banks", "per_bank"]))
    times = draw(st.sampled_from([{}, {"tCL": 0, "tCWL": 0}, {"tCCD_L": 4, "tRRD_L": 6, "tFAW": 30, "tWTR_L": 9}]))
    return dram(
        channels=draw(st.sampled_from([1, 2, 4])),
        bank_groups=draw(st.sampled_from([1, 2])),
        banks=draw(st.sampled_from([1, 2, 4])),
        columns=draw(st.sampled_from([1, 4, 16])),
        burst_bytes=burst_bytes,
        clock_hz=draw(st.sampled_from([10**9, 10**9 * 7 // 5, 333_333_333, 1_953_125_000])),
        mapping=draw(st.sampled_from(["rorabgbachco", "robabgracoch", "row:bank:column:channel"])),
        # A bank is refreshed in an eighth of the time between two refreshes of all.
        times={**times, "tREFI": 1000 if refresh == "per_bank" else 150},
        requests=draw(st.sampled_from([{}, {"per_cycle": 1}, {"lookahead": 4}, {"outstanding": 3}])),
        queue=draw(st.sampled_from([1, 2, 8])),
        hash=draw(st.sampled_from(["none", "row"])),
        page=draw(st.sampled_from(["open", "open", "closed"])),
        refresh=refresh,
    )


def conv(
    in_channels: int,
    size: int,
    out_channels: int,
    kernel: int,
    stride: int = 1,
    padding: int = 0,
    **more: Any,
) -> Conv2d:
    """A square convolution."""
    shape: dict[str, Any] = {"dilation": (1, 1), "groups": 1, **more}
    return Conv2d(
        name="conv",
        in_channels=in_channels,
        in_height=size,
        in_width=size,
        out_channels=out_channels,
        kernel=(kernel, kernel),
        stride=(stride, stride),
        padding=(padding, padding),
        **shape,
    )


def convolved(layer: ArrayOp, ifmap: Any, filter_: Any, *box: Any) -> Any:
    """What the reference makes of an ifmap and a filter."""
    return reference.compute(layer, {"ifmap": ifmap, "filter": filter_}, *box)


def cases(share: float = 1.0, usual: int = 24) -> int:
    """Random cases of a test: its share of the TPUSIM_CASES that a proof by hand asks for, or of the `usual` ones.

    Where the proof sets TPUSIM_SHARES to "whole", each test has as many.
    """
    share = 1.0 if os.environ.get("TPUSIM_SHARES") == "whole" else share
    return max(1, int(int(os.environ.get("TPUSIM_CASES", usual)) * share))


LETTERS = f"{printable}\0µ²½٣Ωäß層→\x85\u2028\ufeff\ud7ff😀"
"""Of texts: what ASCII has, and of each kind that Unicode has besides. To list all of it takes Hypothesis seconds."""


@lru_cache(maxsize=None, typed=True)
def among(*choices: Any) -> st.SearchStrategy[Any]:
    """One of them; made once, as Hypothesis takes longer to make such a strategy than to draw from it."""
    return st.sampled_from(choices)


LAYOUTS = ["HWCN", "HWCN", "CHW", "HWC", "WNCH", {"ifmap": "HWC", "ofmap": "CHW"}, {"ifmap": "CHWN", "filter": "OHWI"},
           {"lowered": "HCWN", "filter": "HWIO"}]  # fmt: skip
"""Ways of tensors in HBM: one for all, and some for those they name."""
_LAYOUTS = st.sampled_from(LAYOUTS)

_SLOTS = st.none() | st.fixed_dictionaries({
    "loads": among(1, 1, 2, 3), "stores": among(1, 1, 2), "register_bytes": among(4, 16, 32, 64),
    "lanes": among(1, 4, 128), "registers": among(1, 2, 3, 8), "latency": among(0, 2, 5),
    "packed": among(True, True, False), "lookup_cycles": among(0, 1, Fraction(7, 2)),
    "turn_cycles": among(0, 3, Fraction(5, 2)), "body_cycles": among(0, 0, 1, 40), "window": among(1, 7, 1024),
    "sum_cycles": among(0, 9), "bare_cycles": among(0, 3, 50), "bare_window": among(1, 16), "map_cycles": among(0, 5),
    "spread_cycles": among(0, 2), "turn_body_cycles": among(0, 30), "turn_window": among(1, 12),
}).map(lambda fields: Slots(**fields))  # fmt: skip


@st.composite
def machines(draw: st.DrawFn, largest: int = 24, words: st.SearchStrategy[int] | None = None) -> Hardware:
    """Arrays 1..`largest` on a side, words 1..16, tight and ample memories, slow and fast HBM."""
    return machine(
        rows=draw(st.integers(1, largest)),
        cols=draw(st.integers(1, largest)),
        word_elements=draw(st.integers(1, 16) if words is None else words),
        capacity_words=draw(among(12, 24, 60, 150, 1000, 8000)),
        alus=draw(among(1, 4, 16, 64, 1000)),
        bytes_per_cycle=draw(among(1, 7, 64, 1000, 5000)),
        latency_cycles=draw(among(1, 3, 40, 200)),
        array={
            "weight_buffers": draw(st.integers(1, 2)),
            "count": draw(among(1, 1, 1, 2, 3, 16)),
            "weights_per_cycle": draw(among(1, 1, 1, 2, 3, 16)),
            "elements_per_cycle": draw(among(1, 1, 1, 2, 2, 3, 5, 16)),
            "pes_per_cycle": draw(among(1, 1, 1, 2, 2, 3, 5, 40)),
            "streamed": draw(among("used", "used", "all")),
        },
        vector_memory={"ports": draw(among("shared", "shared", "separate"))},
        hbm={
            "burst_bytes": draw(among(4, 64)),
            "channel_multiple": draw(among(1, 1, 8, 128)),
            "layout": draw(_LAYOUTS),
            "alignment_bytes": draw(among(1, 64, 4096)),
        },
        vector_unit={
            "unpack_cycles": draw(among(0, 0, 1, 6, "5/3")),
            "pack_cycles": draw(among(0, 0, 2, 14, 13.4)),
            "stack_cycles": draw(among(0, 0, 1, 0.75, "1/3")),
            "stack_by": draw(among("copy", "column", "word")),
            "transpose_cycles": draw(among(0, 0, 9, 64)),
            "transpose_words": draw(among(1, 2, 8)),
            "gather_cycles": draw(among(0, 0, "2/3", 3)),
            "relayout_cycles": draw(among(0, 8, "7/5", 30)),
            "convert_cycles": draw(among(0, 0, "8/3")),
            "convert_weight_cycles": draw(among(0, 0, "5/2")),
            "convert_result_cycles": draw(among(0, 0, 3, "9/4")),
            "scalar_words": draw(among(1, 2, 2, 8)),
            "operand_cycles": draw(among(0, 0, "7/4")),
            "result_cycles": draw(among(0, 0, "1/2", 6)),
            "ready_cycles": draw(among(0, 0, 4.5)),
            "widen": draw(among(0, 1, 2)),
            "narrow": draw(among(0, "1/2")),
            "arithmetic": draw(among("widened", "narrow")),
            "slots": draw(_SLOTS),
        },
        mapping={
            "entry": draw(among("ready", "ready", "relaid")),
            "multi_tile": draw(among("auto", "auto", "rows", 1, 2, 3, 5, 9)),
            "loop_order": draw(among("auto", "auto", "block_major", "filter_major")),
            "chunks": draw(among("auto", "auto", "needed")),
        },
        sequencer={
            "launch_cycles": draw(among(0, 0, 17)),
            "between_blocks": draw(among("overlap", "overlap", "drain")),
            "block_cycles": draw(among(0, 0, 3, 40)),
            "loop_cycles": draw(among(0, 0, 20)),
        },
    )


@cache
def blocks(most: int = 40) -> st.SearchStrategy[BlockSizes]:
    """Half of the time none is given; else some of its sizes, those above the layer's among them."""
    sizes = st.one_of(st.just("auto"), st.integers(1, 9), st.integers(1, most))
    given = st.builds(BlockSizes, **dict.fromkeys(BlockSizes.model_fields, sizes))
    return st.one_of(st.just(BlockSizes()), given)


@st.composite
def machines_of_all_kinds(draw: st.DrawFn, largest: int = 24, words: st.SearchStrategy[int] | None = None) -> Hardware:
    """Those, with every choice that a lowering may be given; now and then the ifmap has banks, or HBM has."""
    hardware = draw(machines(largest, words))
    sizes = st.one_of(st.just("auto"), st.just("auto"), st.integers(1, 40))
    choices: dict[str, Any] = {
        "fetch": draw(among("resident", "resident", "per_tap")),
        "k_order": draw(among("channels_fastest", "taps_fastest")),
        "transformation": draw(among("overlapped", "before", "on_chip")),
        "multi_tile": draw(among(hardware.mapping.multi_tile, "dense", "dense_taps", "dense_rows")),
        "patch": draw(among("touched", "touched", "window")),
        "layout": draw(among("plain", "plain", "least_padding")),
        "column_folds": draw(among("one", "all")),
        "loads": draw(among("pieces", "whole", "windows")),
        "window_bytes": draw(among(2**34, 40, 4096)),
        "window_cycles": draw(among(0, 300)),
        "window_results": draw(among(Fraction(1), Fraction(3))),
        "window_bandwidth": draw(among(Fraction(1), Fraction(3, 4))),
        "strips": draw(among("balanced", "one_image")),
        "row_windows": draw(among(0, 0, 2, 4)),
        "transposed_channels": draw(among(0, 0, 2, 8)),
        **{f"block_{axis}": draw(sizes) for axis in "mkn"},
        "block": draw(blocks()),
    }
    if choices["block"].given:
        choices["block_m"] = "auto"
    if draw(st.integers(0, 5)) == 0:
        banks = {
            "organization": "banked",
            "banks": draw(among("lanes", 1, 2, 3, 8, 13)),
            "bank_ports": draw(st.integers(1, 3)),
            "bank_map": draw(among("window", "chw", "hwc")),
            "bank_capacity_bytes": 2**22,
        }
        array = hardware.array.model_copy(update={"count": 1})
        memory = hardware.vector_memory.model_copy(update=banks)
        hardware = hardware.model_copy(update={"array": array, "vector_memory": memory})
        choices["fetch"] = "resident"
        choices["block"] = choices["block"].model_copy(update={"taps": "auto", "in_channels": "auto"})
    if draw(st.integers(0, 5)) == 0:
        device = draw(drams(hardware.hbm.burst_bytes))
        hardware = hardware.model_copy(
            update={"hbm": hardware.hbm.model_copy(update={"model": "banks", "device": device})}
        )
    return hardware.model_copy(update={"mapping": hardware.mapping.model_copy(update=choices)})


@st.composite
def gemms(draw: st.DrawFn, largest: int = 40) -> Gemm:
    """Matrix products below and above the array; now and then a few of them side by side, or of narrow weights."""
    m, n, k = (draw(st.integers(1, largest)) for _ in range(3))
    groups = draw(st.sampled_from((1, 1, 1, 2, 3)))
    stored = draw(st.sampled_from(("computed", "computed", "int8", "int4")))
    return Gemm("gemm", m, -(-n // groups), -(-k // groups), groups, stored=stored)


def paddings(most: int = 3) -> st.SearchStrategy[Any]:
    """Mostly as much on opposite sides; now and then any on each, or as much as a word says."""
    sides = st.integers(0, most)
    same = st.sampled_from(["same", "same_lower"])
    return st.one_of(st.tuples(sides, sides), st.tuples(sides, sides), st.tuples(*[sides] * 4), same)


@st.composite
def convs(draw: st.DrawFn, channels: int = 30, size: int = 12) -> Conv2d:
    """Kernels 1..5, strides 1..4, dilations 1..3, padding of every kind, rectangular throughout, sometimes grouped."""
    kernel, stride, dilation = (
        (draw(st.integers(low, high)), draw(st.integers(low, high))) for low, high in ((1, 5), (1, 4), (1, 3))
    )
    padding = draw(paddings())
    added = (kernel[0] * 9, kernel[1] * 9) if isinstance(padding, str) else np.add(padding[:2], padding[-2:])
    least = [max(1, d * (k - 1) + 1 - int(p)) for k, p, d in zip(kernel, added, dilation, strict=True)]
    groups = draw(st.sampled_from([each for each in (1, 1, 1, 2, 3) if each <= channels]))
    return Conv2d(
        name="conv",
        in_channels=groups * draw(st.integers(1, channels // groups)),
        in_height=least[0] + draw(st.integers(0, size)),
        in_width=least[1] + draw(st.integers(0, size)),
        out_channels=groups * draw(st.integers(1, channels // groups)),
        kernel=kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
    )


@st.composite
def grouped_convs(draw: st.DrawFn, size: int = 3) -> Conv2d:
    """Few channels in each of several groups, one each now and then."""
    layer, groups = draw(convs(channels=1, size=size)), draw(st.integers(2, 20))
    into, out = draw(st.sampled_from([(1, 1), (1, 1), (1, 2), (2, 1), (2, 2), (3, 2), (4, 4)]))
    return replace(layer, in_channels=groups * into, out_channels=groups * out, groups=groups)


@st.composite
def depthwise(draw: st.DrawFn, channels: int = 20, size: int = 12) -> Conv2d:
    """Those of convs with one input channel a group, and up to three output channels."""
    layer = draw(convs(3, size))
    groups = draw(st.integers(2, channels))
    return replace(layer, in_channels=groups, groups=groups, out_channels=groups * draw(st.integers(1, 3)))


@st.composite
def transposed_convs(draw: st.DrawFn, channels: int = 10, size: int = 4) -> ConvTranspose2d:
    """Kernels 1..5, strides 1..4, dilations 1..3, cut off and added to, rectangular throughout, sometimes grouped."""
    kernel, stride, dilation, sides = (
        (draw(st.integers(1, high)), draw(st.integers(1, high))) for high in (5, 4, 3, size)
    )
    added = tuple(draw(st.integers(0, max(each) - 1)) for each in zip(stride, dilation, strict=True))
    whole = [
        (side - 1) * s + d * (k - 1) + 1 + more
        for side, s, d, k, more in zip(sides, stride, dilation, kernel, added, strict=True)
    ]
    cut = tuple(draw(st.integers(0, min(4, (each - 1) // 2))) for each in whole)
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    into, out = (groups * draw(st.integers(1, channels // groups)) for _ in range(2))
    return ConvTranspose2d("transposed", into, *sides, out, kernel, stride, cut, added, dilation, groups)


@st.composite
def conv_gradients(draw: st.DrawFn, channels: int = 10, size: int = 4) -> Conv2dInputGradient | Conv2dFilterGradient:
    """Gradients of convolutions of every kind."""
    layer = draw(convs(channels, size).filter(has_gradients))
    kind = draw(st.sampled_from([Conv2dInputGradient, Conv2dFilterGradient]))
    return kind("gradient", *(getattr(layer, each.name) for each in fields(layer) if each.name != "name"))


def has_gradients(layer: Conv2d) -> bool:
    """Whether some tap stands on the map; where windows lie on padding alone, the filter has no gradient."""
    return all((axis.outputs - 1) * axis.stride + axis.reach > axis.ends[0] for axis in layer.axes)


@st.composite
def deform_convs(draw: st.DrawFn, channels: int = 8, size: int = 4) -> DeformConv2d:
    """Kernels 1..3, strides and dilations 1 and 2, offsets of every kind, in groups of both kinds, masked or not."""
    kernel, stride, dilation, padding = (
        (draw(st.integers(low, high)), draw(st.integers(low, high))) for low, high in ((1, 3), (1, 2), (1, 2), (0, 2))
    )
    sides = [
        max(1, d * (k - 1) + 1 - 2 * p) + draw(st.integers(0, size))
        for k, p, d in zip(kernel, padding, dilation, strict=True)
    ]
    groups, sampled = (draw(st.sampled_from([1, 1, 2])) for _ in range(2))
    into = max(groups, sampled) * draw(st.integers(1, channels // 2))
    out = groups * draw(st.integers(1, channels // groups))
    more = {"modulated": draw(st.booleans()), "offsets": draw(st.sampled_from(["random", "random", *KINDS]))}
    return DeformConv2d("deformed", into, *sides, out, kernel, stride, padding, dilation, groups, sampled, **more)


def with_resident_taps(hardware: Hardware) -> Hardware:
    """The machine, fetching what all taps of a block need."""
    return hardware.model_copy(update={"mapping": hardware.mapping.model_copy(update={"fetch": "resident"})})


GENERAL = sorted(name for name, each in LOWERINGS.items() if not each.partial)
"""Lowerings that any layer can be asked for."""
OF_CELLS = frozenset({"stride_phases", "zero_insertion"})
"""Those of transposed convolutions; they fetch what all taps need, from lanes."""


def lowerings_of(layer: Op) -> frozenset[str]:
    """Those that know such a layer."""
    if isinstance(layer, ArrayOp) and layer.scatter:
        return OF_CELLS
    if isinstance(layer, DeformConv2d):
        return frozenset({"deformable"})
    # The channels of a filter's gradient grow with the batch; of one image alone they may be as many as its groups.
    conv, _ = layer.convolution(2)
    return frozenset(GENERAL) | ({"vector"} if 1 < conv.groups == conv.in_channels else set())


@st.composite
def sequences(draw: st.DrawFn, channels: int = 30, length: int = 40) -> Conv1d:
    """1-D convolutions, some longer than what they move over without its padding."""
    kernel, stride, dilation = draw(st.integers(1, 9)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    ends = st.tuples(st.integers(0, 6), st.integers(0, 6))
    padding = draw(st.one_of(ends, ends, st.sampled_from(["same", "same_lower"])))
    least = 1 if isinstance(padding, str) else max(1, dilation * (kernel - 1) + 1 - sum(padding))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    return Conv1d(
        name="sequence",
        in_channels=groups * draw(st.integers(1, channels // groups)),
        in_length=least + draw(st.integers(0, length)),
        out_channels=groups * draw(st.integers(1, channels // groups)),
        kernel=kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
    )


def layers() -> st.SearchStrategy[Conv2d | Conv1d | Gemm]:
    """Convolutions, and GEMMs and sequences now and then."""
    return st.one_of(convs(), convs(), convs(), sequences(), gemms())


def small_layers() -> st.SearchStrategy[Conv2d | Conv1d | Gemm]:
    """Layers for an engine that takes time for every cycle."""
    small = {"channels": 10, "size": 3}
    return st.one_of(
        convs(**small), convs(**small), sequences(10, 9), gemms(largest=30), depthwise(**small), grouped_convs(2)
    )


def fills(program: Program, tensor: str) -> list[Fill]:
    """The fills of one tensor, in order."""
    return [step for step in program.rows if isinstance(step, Fill) and step.tensor.name == tensor]


def spills(program: Program) -> list[Spill]:
    """All spills, in order."""
    return [step for step in program.rows if isinstance(step, Spill)]


@st.composite
def pools(
    draw: st.DrawFn, channels: int = 10, size: int = 5, kinds: Sequence[str] = ("max", "average", "min")
) -> Pool2d:
    """Kernels 1..4 of these kinds, padded up to what a window still sees, ceil mode, and all of a map now and then."""
    kernel, stride, dilation = (
        (draw(st.integers(1, high)), draw(st.integers(1, high))) for high in (4, 3, draw(st.sampled_from([1, 1, 2])))
    )
    # Windows are at most half padding, so that none stands on padding alone.
    pads = tuple(draw(st.integers(0, kernel[axis] // 2 if dilation[axis] == 1 else 0)) for axis in (0, 1, 0, 1))
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    sides = [max(1, each + draw(st.integers(0, size))) for each in reach]
    if draw(st.integers(0, 4)) == 0:
        kernel, stride, dilation, pads = (sides[0], sides[1]), (1, 1), (1, 1), (0, 0, 0, 0)
    return Pool2d(
        name="pool",
        kind=draw(st.sampled_from(kinds)),
        channels=draw(st.integers(1, channels)),
        in_height=sides[0],
        in_width=sides[1],
        kernel=kernel,
        stride=stride,
        padding=pads,
        dilation=dilation,
        ceil_mode=draw(st.booleans()),
        count_include_pad=draw(st.booleans()),
    )


@st.composite
def pools_on_the_way_back(draw: st.DrawFn, channels: int = 10, size: int = 5) -> Pool2d:
    """Choices of pools, and their gradients."""
    pool = draw(pools(channels, size, ("max", "average")))
    fields = {each.name: getattr(pool, each.name) for each in dataclasses.fields(pool)}
    return Pool2dChoice(**fields) if pool.kind == "max" and draw(st.booleans()) else Pool2dGradient(**fields)


@st.composite
def pointwise(draw: st.DrawFn, channels: int = 12, size: int = 5) -> VectorOp:
    """Of every kind, with every operand, on maps of a batch and on rows."""
    sizes: dict[str, Any] = {
        "name": "op",
        "channels": draw(st.integers(1, channels)),
        "height": draw(st.integers(1, size)),
        "width": draw(st.integers(1, size)),
        "images": draw(st.sampled_from([0, 0, 0, 1, 11])),
    }
    parts = st.integers(-8, 8).map(lambda number: number / 4)
    with_fields = [LeakyRelu, Clip, HardSigmoid, HardSwish, Gelu, Power, SoftCap, WeightedSum, AdamSecond, AdamStep]
    with_fields += [OverDeviation, BatchNormSlope, BatchNormOffset, Shortcut, MeanOfTotal, VarianceOfSquares]
    kind: Any = draw(st.sampled_from([*(OPS[op] for op in ROWS), *with_fields]))
    if issubclass(kind, Gelu):
        return kind(**sizes, approximate=draw(st.sampled_from(["none", "tanh"])))
    if kind is SoftCap:
        return kind(**sizes, cap=draw(st.sampled_from([0.3, 2.0, 50.0])))
    if kind is Power:
        return kind(**sizes, exponent=draw(st.sampled_from([2, 3])))
    if issubclass(kind, Chosen):
        return kind(**sizes, condition=draw(st.sampled_from([*KEPT])))
    if issubclass(kind, Arithmetic):
        return kind(
            **sizes, other=draw(st.sampled_from(["each", "each", "map", "channel", "image", "pixel", "number"]))
        )
    if issubclass(kind, LeakyRelu):
        return kind(**sizes, slope=draw(st.sampled_from([0.0, 0.125, 0.1, 0.01])))
    if issubclass(kind, Clip):
        low, high = sorted((draw(parts), draw(parts)))
        return kind(**sizes, min=low, max=high)
    if kind is WeightedSum:
        return kind(**sizes, factor=draw(parts), other_factor=draw(st.sampled_from([1.0, -1.0, -0.1])))
    if kind is AdamStep:
        return kind(**sizes, rate=draw(parts), epsilon=draw(st.sampled_from([1e-8, 0.5])))
    if kind is Shortcut:
        return kind(**sizes, both=draw(st.booleans()))
    if kind in (BatchNormSlope, BatchNormOffset, MeanOfTotal, VarianceOfSquares):
        return kind(**sizes, elements=draw(st.integers(1, 99)))
    if kind is HardSigmoid:
        return kind(**sizes, alpha=draw(parts), beta=draw(parts))
    return kind(**sizes)


NORMS = LayerNorm, RmsNorm, LayerNormGradient, RmsNormGradient


def row_ops(channels: int = 40, rows: int = 30) -> st.SearchStrategy[RowOp]:
    """Of every kind, of few rows and of many."""
    images = st.sampled_from([0, 0, 1, 2, 7, rows])
    sizes: dict[str, Any] = {"name": st.just("rows"), "channels": st.integers(1, channels), "images": images}
    norms = (st.builds(kind, **sizes, epsilon=st.sampled_from([1e-5, 0.5])) for kind in NORMS)
    gradients = st.builds(CrossEntropyGradient, **sizes, factor=st.sampled_from([1.0, -0.1]))
    others = (
        st.builds(kind, **sizes) for kind in (Softmax, SoftmaxGradient, ReduceMean, SumExp, SumSquares, CrossEntropy)
    )
    return st.one_of(*norms, gradients, masked(channels, images), routed(channels, images), *others)


@st.composite
def routed(draw: st.DrawFn, channels: int, images: st.SearchStrategy[int]) -> TopK:
    """Rows of which some numbers are kept, or all."""
    experts = draw(st.integers(1, channels))
    return TopK("rows", experts, draw(images), draw(st.integers(1, min(experts, 8))), draw(st.booleans()))


@st.composite
def masked(draw: st.DrawFn, channels: int, images: st.SearchStrategy[int]) -> Softmax:
    """Softmax of queries that see some keys."""
    keys = draw(st.integers(1, channels))
    window = draw(st.sampled_from([0, 0, 1, 3, keys]))
    return Softmax("rows", keys, draw(images), queries=draw(st.integers(1, keys)), window=window)


@st.composite
def channel_ops(draw: st.DrawFn, channels: int = 20, size: int = 7) -> ChannelSum:
    """Of every kind."""
    kind = draw(st.sampled_from([ChannelSum, ChannelMean, ChannelVariance, ChannelProducts, ChannelMaskedSums]))
    sides = st.integers(1, size)
    images = draw(st.sampled_from([0, 0, 1, 5, 12]))
    more = {"centred": draw(st.booleans())} if kind is ChannelProducts else {}
    return kind("sums", draw(st.integers(1, channels)), draw(sides), draw(sides), images, **more)


@st.composite
def moves(draw: st.DrawFn, channels: int = 12, size: int = 5) -> Move:
    """Of every kind, along every axis."""
    sizes: dict[str, Any] = {
        "name": "move",
        "channels": draw(st.integers(1, channels)),
        "height": draw(st.integers(1, size)),
        "width": draw(st.integers(1, size)),
        "images": draw(st.sampled_from([0, 0, 0, 1, 11])),
    }
    kind = draw(st.sampled_from([Transpose, Transpose, ChannelShuffle, Slice, Pad, Upsample, Spread, Embedding]))
    if kind is Embedding:
        words, rows, seed = (draw(st.integers(1, most)) for most in (60, 3 * channels, 5))
        return kind("move", sizes["channels"], words, rows, seed)
    if kind is Transpose:
        return kind(**sizes, order=tuple(draw(st.permutations(AXES))))
    if kind is ChannelShuffle:
        groups = [each for each in range(1, channels + 1) if sizes["channels"] % each == 0]
        return kind(**sizes, groups=draw(st.sampled_from(groups)))
    if kind is Slice:
        axis = draw(st.sampled_from(AXES))
        # A batch has one image at least.
        stop = draw(st.integers(1, sizes[axis] or 1))
        return kind(**sizes, axis=axis, start=draw(st.integers(0, stop - 1)), stop=stop, step=draw(st.integers(1, 3)))
    if kind is Pad:
        return kind(**sizes, padding=tuple(draw(st.tuples(*[st.integers(0, 3)] * 4))))
    if kind is Spread:
        step = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        sides = (sizes["height"], sizes["width"])
        high, wide = ((side - 1) * by + draw(st.integers(1, 4)) for side, by in zip(sides, step, strict=True))
        return kind(**sizes, step=step, out_height=high, out_width=wide)
    return Upsample(**sizes, scale=(draw(st.integers(1, 3)), draw(st.integers(1, 3))))


@st.composite
def lrns(draw: st.DrawFn, channels: int = 12, size: int = 5) -> Lrn:
    """Of few channels and many, of which some or all are summed up."""
    return Lrn(
        "lrn",
        draw(st.integers(1, channels)),
        draw(st.integers(1, size)),
        draw(st.integers(1, size)),
        draw(st.sampled_from([0, 0, 1, 11])),
        size=draw(st.integers(1, 7)),
        alpha=draw(st.sampled_from([0.0, 1e-4, 0.5])),
        beta=draw(st.sampled_from(BETAS)),
        bias=draw(st.sampled_from([1.0, 0.25])),
    )


@st.composite
def rotaries(draw: st.DrawFn, channels: int = 12, size: int = 5) -> Rotary:
    """Of few channels and many, on rows of a few tokens."""
    return Rotary(
        "rotary",
        2 * draw(st.integers(1, channels)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, size)),
        draw(st.sampled_from([0, 0, 1, 11])),
        base=draw(st.sampled_from([10000.0, 3.5])),
        start=draw(st.sampled_from([0, 0, 99])),
        back=draw(st.booleans()),
    )


def vector_ops(channels: int = 12, size: int = 5) -> st.SearchStrategy[VectorOp]:
    """Pooling and its gradient, what is done element by element, what only moves elements, LRN and rotations."""
    kinds = pools, pools_on_the_way_back, pointwise, moves, lrns, rotaries
    return st.one_of(*(kind(channels, size) for kind in kinds))
