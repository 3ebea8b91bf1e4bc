"""What a GPU is: one frozen description, read from YAML with its units in the values."""

from __future__ import annotations

from collections.abc import Mapping as Values
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import field_validator, model_validator

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.base.units import FREQUENCY, SIZE
from tpusim.input.document import Document
from tpusim.input.form import (
    FROM_YAML,
    Choice,
    FileSection,
    Form,
    Name,
    Overrides,
    Quantity,
    read_overrides,
    whole,
    written,
)
from tpusim.input.scalars import show
from tpusim.machines.gpu.sections import L2, Dram, Launch, Mapping, Sm, Tile
from tpusim.memory.timing import Pipe

_PS_PER_S = 10**12


class Gpu(FileSection):
    """The whole machine, complete and immutable."""

    family: Annotated[Literal["gpu"], Choice()] = "gpu"
    name: Annotated[str, Name(), written("my_gpu")]
    clock_hz: Annotated[int, Quantity(FREQUENCY, "100 GHz"), written("1530 MHz", "clock")]
    element_bytes: Annotated[int, whole(64)] = 2
    sm: Sm
    l2: L2
    dram: Dram
    launch: Launch
    tiles: tuple[Tile, ...]
    mapping: Mapping = Mapping()

    @field_validator("tiles", mode="before")
    @classmethod
    def _listed(cls, tiles: object) -> object:
        if not isinstance(tiles, list | tuple):
            raise InputError(f"{show(tiles)} is no list of tiles; write a file with one such as [{{m: 128, n: 128}}]")
        return tiles

    @field_validator("tiles")
    @classmethod
    def _some(cls, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        if all(tile.products for tile in tiles):
            raise InputError("no tile for convolutions; add one such as {m: 128, n: 128}")
        return tiles

    @field_validator("tiles")
    @classmethod
    def _differ(cls, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        first = {tile.text: at for at, tile in reversed([*enumerate(tiles)])}
        twice = [(at, tile.text) for at, tile in enumerate(tiles) if first[tile.text] != at]
        says = "is tiles[{}] already; leave one of them out"
        if twice:
            raise InputError([Problem(f"{text} {says.format(first[text])}", f"[{at}]") for at, text in twice])
        return tiles

    @model_validator(mode="after")
    def _has_its_shared_memory(self) -> Self:
        sm = self.sm
        if sm.shared_bytes > sm.unified_bytes:
            whole = SIZE.format(sm.unified_bytes)
            message = f"{SIZE.format(sm.shared_bytes)} is a part of sm.unified, {whole}; set that higher, or this lower"
            raise InputError([Problem(message, "sm.shared")])
        return self

    @model_validator(mode="after")
    def _knows_its_tile(self) -> Self:
        names = [tile.text for tile in self.tiles]
        if self.mapping.tile not in ("auto", *names):
            hint = did_you_mean(self.mapping.tile, names) or ";"
            message = f"no tile {self.mapping.tile!r}{hint} write auto or one of {', '.join(names)}"
            raise InputError([Problem(message, "mapping.tile")])
        return self

    @property
    def pes(self) -> int:
        """Multiplications and additions a cycle."""
        return self.sm.count * self.sm.fma_per_cycle

    @property
    def sram_bytes(self) -> int:
        """Bytes of L2, and of what L1 and shared memory are made of."""
        return self.l2.size_bytes + self.sm.count * self.sm.unified_bytes

    @property
    def hbm_bytes_per_s(self) -> int:
        """Bytes a second that the DRAM moves at most."""
        return self.dram.bandwidth_bytes_per_s

    @property
    def pipe(self) -> Pipe:
        """The DRAM, at the rate that is reached."""
        return Pipe(self.l2.latency_cycles, self.dram.bandwidth_bytes_per_s * self.dram.reached / self.clock_hz)

    def cycles_of(self, picoseconds: int) -> int:
        """Whole cycles of a time, rounded up."""
        return -(-picoseconds * self.clock_hz // _PS_PER_S)

    def resident(self, tile: Tile, staged_bytes: int) -> int:
        """Blocks of a tile that an SM holds together, each with so many bytes of shared memory; perhaps 0."""
        by_registers = self.sm.registers // (self.sm.registers_per_output * tile.m * tile.n)
        return min(self.sm.blocks, by_registers, self.sm.shared_bytes // staged_bytes)

    def together(self, tile: Tile) -> int:
        """Blocks that multiply at a time."""
        return min(int(1 / tile.share), self.sm.blocks)

    def multiply_cycles(self, tile: Tile) -> int:
        """Cycles of a k-step of a block."""
        rate = self.sm.fma_per_cycle * tile.share
        return -(-Fraction(tile.m * tile.n * self.mapping.k_step) // rate)

    def to_dict(self) -> dict[str, Any]:
        """The YAML form, units in the values; `Gpu.model_validate` gives an equal one back."""
        return self.model_dump(by_alias=True)

    def with_overrides(self, overrides: Overrides) -> Gpu:
        """This machine with `PATH=VALUE` changes. Raises InputError."""
        return read(Document(self.name, self.to_dict()), overrides)


FORM = Form(Gpu)


def read(document: Document, overrides: Overrides) -> Gpu:
    """The GPU that a file describes. Raises InputError with every problem."""
    data: Values[str, Any] = {"name": Path(document.label.strip("<>")).stem, **document.data}
    given, refused = read_overrides(overrides, FORM)
    final = replace(document, data=data)
    for path, (value, where) in given.items():
        final = final.override(path, value, where)
    return FORM.read(final, FROM_YAML, refused)
