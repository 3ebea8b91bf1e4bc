"""The description of a GPU: its parts, in one frozen record, read from YAML with units in the values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import field_validator, model_validator

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.base.units import BANDWIDTH, FREQUENCY, SIZE, TIME
from tpusim.input.document import Document
from tpusim.input.form import (
    FROM_YAML,
    Choice,
    FileModel,
    FileSection,
    Form,
    Name,
    Overrides,
    Quantity,
    Reader,
    Truth,
    rational,
    read_overrides,
    texts_of,
    whole,
    written,
)
from tpusim.input.scalars import dated_name, show
from tpusim.memory.timing import Pipe

_MOST = 65536
_SLOWEST = Fraction(1, 1000)
"""Below this value a rate or a share is a typing error, and blocks would take millions of cycles."""


class Sm(FileSection):
    """A streaming multiprocessor (SM).

    Attributes:
        count: SMs of the GPU.
        fma_per_cycle: multiplications and additions (MACs) that the tensor cores of an SM do in a cycle.
        shared_bytes: bytes of shared memory that blocks may take.
        unified_bytes: bytes of the memory that L1 and shared memory are parts of.
        shared_bytes_per_cycle: bytes that shared memory stores in a cycle.
        registers: registers of 32 bits.
        registers_per_output: registers that a block takes for each output of its tile.
        blocks: blocks that an SM holds together, at most.
        load_bytes_per_cycle: bytes that come from L2 in a cycle.
        loads_under_way: k-steps of which a block has the operands on their way.
        async_copy: whether operands go to shared memory by themselves, without registers and without instructions that
            store them.
        step_cycles: cycles of a k-step beyond storing and multiplying: addresses and barriers.
        tap_cycles: cycles more of a k-step that begins a tap whose offsets were worked out ahead.
        epilogue_bytes_per_cycle: bytes of results that an SM writes in a cycle.
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
    epilogue_bytes_per_cycle: Annotated[Fraction, rational(_MOST, _SLOWEST), written(8)]


class L2(FileSection):
    """The cache that all SMs share.

    Attributes:
        size_bytes: bytes that it holds.
        bytes_per_cycle: bytes that it hands out in a cycle.
        latency_cycles: cycles to the first byte.
        sector_bytes: bytes of a sector; reads take whole sectors.
    """

    size_bytes: Annotated[int, Quantity(SIZE, "16 GiB"), written("6 MiB", "size")]
    bytes_per_cycle: Annotated[Fraction, rational(2**20, _SLOWEST), written(1200)]
    latency_cycles: Annotated[int, whole(_MOST), written(400)]
    sector_bytes: Annotated[int, whole(4096), written(32)] = 32


class Dram(FileSection):
    """Off-chip memory.

    Attributes:
        bandwidth_bytes_per_s: bytes a second by its clock and width.
        reached: share of the bandwidth that programs reach.
        capacity_bytes: bytes that it holds; a network that takes more is refused before it runs. A machine without it
            takes any network.
    """

    bandwidth_bytes_per_s: Annotated[int, Quantity(BANDWIDTH, "1000 TB/s"), written("900 GB/s", "bandwidth")]
    reached: Annotated[Fraction, rational(1, _SLOWEST), written(0.8)]
    capacity_bytes: Annotated[int | None, Quantity(SIZE, "1024 GiB"), written("16 GiB", "capacity")] = None


class Launch(FileSection):
    """Time beside the work of kernels.

    Attributes:
        kernel_ps: time to launch a kernel.
        offsets_ps: time of the kernel that works out offsets.
        reduction_ps: time that adding up parts of sums takes beyond the bytes that it moves.
        strided_ps: time that a strided convolution takes beyond its work.
    """

    kernel_ps: Annotated[int, Quantity(TIME, "1 ms"), written("1 us", "kernel")]
    offsets_ps: Annotated[int, Quantity(TIME, "1 ms"), written("1.57 us", "offsets")]
    reduction_ps: Annotated[int, Quantity(TIME, "1 ms"), written("3 us", "reduction")]
    strided_ps: Annotated[int, Quantity(TIME, "1 ms"), written("5 us", "strided")]


class BlockTile(FileSection):
    """A tile: the outputs that a block makes.

    Attributes:
        m: outputs of the tile, rows of the product.
        n: channels of the tile, columns of the product.
        share: share of the tensor cores that a block by itself keeps busy; as many blocks work at a time as fill them.
        products: whether the tile is for matrix products alone, and not for convolutions.
    """

    m: Annotated[int, whole(4096), written(128)]
    n: Annotated[int, whole(4096), written(128)]
    share: Annotated[Fraction, rational(1, _SLOWEST)] = Fraction(1)
    products: Annotated[bool, Truth()] = False

    @property
    def text(self) -> str:
        """The tile as text, such as "128x64"."""
        return f"{self.m}x{self.n}"


class GpuMapping(FileSection):
    """Choices that lowerings follow.

    Attributes:
        k_step: channels of a k-step.
        tile: a tile of the machine, such as 128x64, or the one that is estimated to be fastest (`auto`).
        split_k: whether the sum of an output is cut among blocks where that is faster: of `all` layers, of `none`, or
            of all but strided convolutions (`auto`).
        pad_taps: whether every tap begins a k-step.
        order: order in which blocks stage taps and channels: `channels_outside` or `taps_outside`.
        reuse: how blocks reuse an element for several taps: from a `patch` of shared memory, by the `cache`, or not at
            all (`none`).
        layout: layout of feature maps; `NCHW` maps are transposed ahead.
    """

    k_step: Annotated[int, whole(1024), written(64)] = 32
    tile: Annotated[str, written("128x128")] = "auto"
    split_k: Annotated[Literal["auto", "all", "none"], Choice()] = "auto"
    pad_taps: Annotated[bool, Truth()] = True
    order: Annotated[Literal["channels_outside", "taps_outside"], Choice()] = "channels_outside"
    reuse: Annotated[Literal["patch", "cache", "none"], Choice()] = "patch"
    layout: Annotated[Literal["NHWC", "NCHW"], Choice()] = "NHWC"


_PS_PER_S = 10**12


class Gpu(FileModel):
    """A GPU: the whole machine, complete and immutable.

    Attributes:
        family: kind of machine; a file of a GPU says `gpu`.
        name: name of the machine in results; that of its file unless given.
        generation: generation of the GPU, and the year when it was announced, by which `tpusim list` sorts machines.
        clock_hz: frequency of the clock that cycles are counted in.
        element_bytes: bytes of an element.
        sm: the streaming multiprocessors; a section.
        l2: the cache that all SMs share; a section.
        dram: off-chip memory; a section.
        launch: time beside the work of kernels; a section.
        tiles: tiles that blocks may have, a list of sections.
        mapping: choices that lowerings follow; a section.
    """

    family: Annotated[Literal["gpu"], Choice()] = "gpu"
    name: Annotated[str, Name(), written("my_gpu")]
    generation: Annotated[str | None, Reader(dated_name, "a name and a year"), written("Volta, 2017")] = None
    clock_hz: Annotated[int, Quantity(FREQUENCY, "100 GHz"), written("1530 MHz", "clock")]
    element_bytes: Annotated[int, whole(64), written(4)] = 2
    sm: Sm
    l2: L2
    dram: Dram
    launch: Launch
    tiles: Annotated[tuple[BlockTile, ...], written("[{m: 128, n: 128}]")]
    mapping: GpuMapping = GpuMapping()

    @field_validator("tiles", mode="before")
    @classmethod
    def _listed(cls, tiles: object) -> object:
        if not isinstance(tiles, list | tuple):
            raise InputError(f"{show(tiles)} is no list of tiles; write a file with one such as [{{m: 128, n: 128}}]")
        return tiles

    @field_validator("tiles")
    @classmethod
    def _some_that_differ(cls, tiles: tuple[BlockTile, ...]) -> tuple[BlockTile, ...]:
        if all(tile.products for tile in tiles):
            raise InputError("no tile for convolutions; add one such as {m: 128, n: 128}")
        # Reversed, so that the first of equal tiles is the one that stays.
        first = {tile.text: at for at, tile in reversed([*enumerate(tiles)])}
        twice = [(at, tile.text) for at, tile in enumerate(tiles) if first[tile.text] != at]
        says = "is tiles[{}] already; leave one of them out"
        if twice:
            raise InputError([Problem(f"{text} {says.format(first[text])}", f"[{at}]") for at, text in twice])
        return tiles

    @model_validator(mode="after")
    def _has_its_shared_memory_and_its_tile(self) -> Self:
        sm = self.sm
        if sm.shared_bytes > sm.unified_bytes:
            whole = SIZE.format(sm.unified_bytes)
            message = f"{SIZE.format(sm.shared_bytes)} is a part of sm.unified, {whole}; set that higher, or this lower"
            raise InputError([Problem(message, "sm.shared")])
        names = [tile.text for tile in self.tiles]
        if self.mapping.tile not in ("auto", *names):
            hint = did_you_mean(self.mapping.tile, names) or ";"
            message = f"no tile {self.mapping.tile!r}{hint} write auto or one of {', '.join(names)}"
            raise InputError([Problem(message, "mapping.tile")])
        return self

    @property
    def pes(self) -> int:
        """Units that multiply and add, once a cycle each."""
        return self.sm.count * self.sm.fma_per_cycle

    @property
    def macs_per_cycle(self) -> int:
        """Multiplications and additions a cycle."""
        return self.pes

    @property
    def sram_bytes(self) -> int:
        """Bytes of L2 and of the memory of all SMs that L1 and shared memory are parts of."""
        return self.l2.size_bytes + self.sm.count * self.sm.unified_bytes

    @property
    def hbm_bytes_per_s(self) -> int:
        """Bytes a second that the DRAM moves at most."""
        return self.dram.bandwidth_bytes_per_s

    @property
    def pipe(self) -> Pipe:
        """The DRAM at the rate that programs reach."""
        return Pipe(self.l2.latency_cycles, self.dram.bandwidth_bytes_per_s * self.dram.reached / self.clock_hz)

    @property
    def launch_cycles(self) -> int:
        """Cycles of the launch of a kernel."""
        return self.cycles_of(self.launch.kernel_ps)

    def cycles_of(self, picoseconds: int) -> int:
        """Whole cycles of a time, rounded up."""
        return -(-picoseconds * self.clock_hz // _PS_PER_S)

    def resident(self, tile: BlockTile, staged_bytes: int) -> int:
        """Blocks of a tile that an SM holds together, each with `staged_bytes` of shared memory; 0 if there is no room
        for one.
        """
        by_registers = self.sm.registers // (self.sm.registers_per_output * tile.m * tile.n)
        return min(self.sm.blocks, by_registers, self.sm.shared_bytes // staged_bytes)

    def together(self, tile: BlockTile) -> int:
        """Blocks that multiply at a time."""
        return min(int(1 / tile.share), self.sm.blocks)

    def multiply_cycles(self, tile: BlockTile) -> int:
        """Cycles of a k-step of a block."""
        rate = self.sm.fma_per_cycle * tile.share
        return -(-Fraction(tile.m * tile.n * self.mapping.k_step) // rate)

    def to_dict(self) -> dict[str, Any]:
        """The YAML form, units in the values; `Gpu.model_validate` gives an equal Gpu back."""
        written = self.model_dump(by_alias=True)
        return {key: value for key, value in written.items() if key != "generation" or value}

    def of_type(self, name: str) -> Self:
        """The machine itself: its file tells the time of half precision alone."""
        return self

    def with_overrides(self, overrides: Overrides) -> Gpu:
        """The machine with `PATH=VALUE` changes. Raises InputError."""
        return read(Document(self.name, self.to_dict()), overrides).telling(self.changes)


FORM = Form(Gpu)


def read(document: Document, overrides: Overrides) -> Gpu:
    """The GPU that a file describes. Raises InputError with every problem."""
    data: Mapping[str, Any] = {"name": Path(document.label.strip("<>")).stem, **document.data}
    given, refused = read_overrides(overrides, FORM)
    final = replace(document, data=data)
    for path, (value, where) in given.items():
        final = final.override(path, value, where)
    return FORM.read(final, FROM_YAML, refused).telling(texts_of(given))
