"""GPUs for the tests: one of round numbers, and layers by hypothesis."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st

from tpusim.base.errors import InputError
from tpusim.input.document import parse_document
from tpusim.machines.gpu.definition import BlockPace
from tpusim.machines.gpu.description import Gpu, read
from tpusim.machines.gpu.lowering import LOWERINGS, layer_of
from tpusim.machines.gpu.program import GpuProgram
from tpusim.network.ops.array_op import Conv2d
from tpusim.network.ops.op import Op

SMALL = """
name: small
clock: 1 GHz
sm:
  count: 4
  fma_per_cycle: 512
  shared: 96 KiB
  unified: 128 KiB
  shared_bytes_per_cycle: 128
  registers: 65536
  registers_per_output: 2
  blocks: 32
  load_bytes_per_cycle: 64
  loads_under_way: 1
  step_cycles: 100
  tap_cycles: 50
  epilogue_bytes_per_cycle: 8
l2: {size: 6 MiB, bytes_per_cycle: 64, latency_cycles: 400}
dram: {bandwidth: 900 GB/s, reached: 0.75}
launch: {kernel: 1 us, offsets: 2 us, reduction: 1 us, strided: 5 us}
tiles:
  - {m: 128, n: 64}
  - {m: 64, n: 32, share: 0.5}
  - {m: 32, n: 128, products: true}
"""


@cache
def gpu(*changes: str) -> Gpu:
    """A GPU of round numbers, with such changes."""
    return read(parse_document(SMALL, "small.yaml"), changes)


def lowered(layer: Op, batch: int, machine: Gpu, lowering: str) -> GpuProgram:
    """A layer made ready."""
    return LOWERINGS[lowering](layer_of(layer, batch, machine))


def conv(channels: int, size: int, out: int, kernel: int, **more: Any) -> Conv2d:
    """A square convolution."""
    return Conv2d("conv", channels, size, size, out, (kernel, kernel), **more)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Conv2d, int]:
    """Strides 1, 2 and 4, dilations 1 and 2, tiles that are not filled, channels that fill no k-step."""
    small, sides = st.integers(1, 3), st.sampled_from([(1, 1), (2, 2), (4, 4), (1, 2)])
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    kernel, stride = (draw(st.integers(1, 4)), draw(st.integers(1, 4))), draw(sides)
    sizes = {
        "in_channels": groups * draw(st.integers(1, 70)),
        "in_height": draw(st.integers(7, 14)),
        "in_width": draw(st.integers(7, 14)),
        "out_channels": groups * draw(st.integers(1, 90)),
        "padding": (draw(small) - 1, draw(small) - 1),
        "dilation": (draw(st.integers(1, 2)), draw(st.integers(1, 2))),
    }
    layer = Conv2d("conv", kernel=kernel, stride=stride, groups=groups, **sizes)
    return layer, draw(st.integers(1, 4))


@st.composite
def mappings(draw: st.DrawFn) -> Gpu:
    """Every order and way to reuse, sums cut or not."""
    order = draw(st.sampled_from(["channels_outside", "taps_outside"]))
    reuse = draw(st.sampled_from(["patch", "cache", "none"]))
    split, pad = draw(st.sampled_from(["all", "none"])), draw(st.sampled_from(["true", "false"]))
    return gpu(
        f"mapping.order={order}", f"mapping.reuse={reuse}", f"mapping.split_k={split}", f"mapping.pad_taps={pad}"
    )


@st.composite
def paces(draw: st.DrawFn) -> BlockPace:
    """Short k-steps that repeat themselves, and perhaps a last one that does not."""
    held = draw(st.booleans())
    stage = st.tuples(st.integers(1, 30), st.integers(int(held), 8))
    body, number = draw(st.lists(stage, min_size=1, max_size=4)), draw(st.integers(1, 30))
    stages = [body[at % len(body)] for at in range(number)] + draw(st.lists(stage, max_size=1))
    return BlockPace(
        stages=tuple(stages),
        period=len(body),
        latency=draw(st.integers(1, 40)),
        step=draw(st.integers(0, 8)),
        multiply=draw(st.integers(1, 40)),
        epilogue=draw(st.integers(1, 30)),
        ahead=draw(st.integers(1, 4)),
        held=held,
        together=draw(st.integers(1, 3)),
    )


def fits(layer: Op, batch: int, machine: Gpu, lowering: str) -> GpuProgram | None:
    """The same, or None where a patch has no room."""
    try:
        return lowered(layer, batch, machine, lowering)
    except InputError:
        return None
