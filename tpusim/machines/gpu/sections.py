"""The parts of a GPU, each a section of its file, with units in the values."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

from tpusim.base.units import BANDWIDTH, SIZE, TIME
from tpusim.input.form import Choice, FileSection, Quantity, Rational, Truth, whole, written

_MOST = 65536
_SLOWEST = Fraction(1, 1000)
"""Below this a rate or a share is a slip, and blocks would take millions of cycles."""


class Sm(FileSection):
    """One streaming multiprocessor, of which there are `count`.

    Its tensor cores do `fma_per_cycle` multiplications and additions. It has `registers` of 32 bits, a block takes
    `registers_per_output` of them for each output of its tile, and shared memory for what is staged; at most
    `blocks` are there together. What comes from L2 takes `load_bytes_per_cycle` of its port, what is staged the
    bandwidth of shared memory. A block has the operands of `loads_under_way` k-steps on their way; under `async_copy`
    they need no registers, and no instructions to store them. A k-step takes `step_cycles` beyond storing and
    multiplying: addresses and barriers; one that begins a tap of which the offsets were worked out ahead, `tap_cycles`
    more. Results leave at `epilogue_bytes_per_cycle`.
    """

    count: Annotated[int, whole(_MOST), written(80)]
    fma_per_cycle: Annotated[int, whole(_MOST), written(512)]
    shared_bytes: Annotated[int, Quantity(SIZE, "16 MiB"), written("96 KiB", "shared")]
    unified_bytes: Annotated[int, Quantity(SIZE, "16 MiB"), written("128 KiB", "unified")]
    shared_bytes_per_cycle: Annotated[int, whole(_MOST), written(128)]
    registers: Annotated[int, whole(2**24), written(65536)]
    registers_per_output: Annotated[int, whole(64), written(2)]
    blocks: Annotated[int, whole(1024), written(32)]
    load_bytes_per_cycle: Annotated[int, whole(_MOST), written(64)]
    loads_under_way: Annotated[int, whole(64), written(1)]
    async_copy: Annotated[bool, Truth()] = False
    step_cycles: Annotated[int, whole(_MOST, least=0), written(200)]
    tap_cycles: Annotated[int, whole(_MOST, least=0), written(200)]
    epilogue_bytes_per_cycle: Annotated[Fraction, Rational(_MOST, _SLOWEST), written(8)]


class L2(FileSection):
    """The cache that all SMs share: bytes a cycle that it hands out, cycles to the first of them, bytes of a sector."""

    size_bytes: Annotated[int, Quantity(SIZE, "16 GiB"), written("6 MiB", "size")]
    bytes_per_cycle: Annotated[Fraction, Rational(2**20, _SLOWEST), written(1200)]
    latency_cycles: Annotated[int, whole(_MOST), written(400)]
    sector_bytes: Annotated[int, whole(4096), written(32)] = 32


class Dram(FileSection):
    """Off-chip memory: bytes a second by its clock and width, and the share of them that is `reached`."""

    bandwidth_bytes_per_s: Annotated[int, Quantity(BANDWIDTH, "1000 TB/s"), written("900 GB/s", "bandwidth")]
    reached: Annotated[Fraction, Rational(1, _SLOWEST), written(0.8)]


class Launch(FileSection):
    """What comes beside work: the launch of a kernel, one that works offsets out, what sums of parts take beyond the
    bytes that they move, and what strides take.
    """

    kernel_ps: Annotated[int, Quantity(TIME, "1 ms"), written("1 us", "kernel")]
    offsets_ps: Annotated[int, Quantity(TIME, "1 ms"), written("1.57 us", "offsets")]
    reduction_ps: Annotated[int, Quantity(TIME, "1 ms"), written("3 us", "reduction")]
    strided_ps: Annotated[int, Quantity(TIME, "1 ms"), written("5 us", "strided")]


class Tile(FileSection):
    """What a block makes: `m` outputs of `n` channels.

    A block by itself keeps a `share` of the tensor cores busy; so many of them work at a time as fill one. One that
    is for `products` alone is not for convolutions.
    """

    m: Annotated[int, whole(4096), written(128)]
    n: Annotated[int, whole(4096), written(128)]
    share: Annotated[Fraction, Rational(1, _SLOWEST)] = Fraction(1)
    products: Annotated[bool, Truth()] = False

    @property
    def text(self) -> str:
        """ "128x64"."""
        return f"{self.m}x{self.n}"


class Mapping(FileSection):
    """What lowerings are to follow; each is a switch.

    `tile` is one of the machine's tiles, or `auto`, the one that is estimated to be fastest; `split_k` cuts the sum
    among blocks where that is faster: `auto` leaves strided convolutions whole. `pad_taps` has every tap begin a
    k-step. Blocks that stage taps go by `order`, and where they can read an element once for several taps `reuse` it in
    a `patch` of shared memory, by the `cache`, or not. Under `layout` NCHW maps are transposed ahead.
    """

    k_step: Annotated[int, whole(1024)] = 32
    tile: str = "auto"
    split_k: Annotated[Literal["auto", "all", "none"], Choice()] = "auto"
    pad_taps: Annotated[bool, Truth()] = True
    order: Annotated[Literal["channels_outside", "taps_outside"], Choice()] = "channels_outside"
    reuse: Annotated[Literal["patch", "cache", "none"], Choice()] = "patch"
    layout: Annotated[Literal["NHWC", "NCHW"], Choice()] = "NHWC"
