"""Minimal filtering of a layer on a machine: its folds and tiles, and what vector unit and array take for them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tpusim.machines.tpu.definition.beat import Beat, beat_of
from tpusim.machines.tpu.definition.frame import IFMAP, PSUM, RESULT, Frame, frame_of
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.geometry import ConvShape
from tpusim.machines.tpu.lowering.maps import portions
from tpusim.machines.tpu.lowering.minimal_filtering import Line, MinimalFiltering, Recipe
from tpusim.machines.tpu.lowering.tiling import col_folds, word_groups
from tpusim.machines.tpu.program.operations import OPERATIONS, Arity


class Tiles(NamedTuple):
    """The tiles of a block: how many `down` and `across`, the words of a grid point, the columns of its patch."""

    down: int
    across: int
    groups: int
    cols: int

    @property
    def words(self) -> int:
        """One a tile and word group: what a product streams."""
        return self.down * self.across * self.groups


@dataclass(frozen=True)
class Filtering:
    """Minimal filtering of a layer of that shape on a machine: folds, recipes and their pace."""

    shape: ConvShape
    hardware: Hardware
    by: MinimalFiltering

    @cached_property
    def row_folds(self) -> list[range]:
        """The input channels, one to an array row."""
        return portions(self.shape.channels, self.hardware.array.rows)

    @cached_property
    def col_folds(self) -> tuple[range, ...]:
        """The output channels, one to an array column."""
        return col_folds(self.shape.out_channels, self.hardware)

    @cached_property
    def word_groups(self) -> tuple[int, int]:
        """Words of a pixel, and elements used of each."""
        return word_groups(self.shape.word_images, self.hardware.vector_memory.word_elements)

    @cached_property
    def data(self) -> Recipe:
        """The fastest on this machine."""
        return min(self.by.data_recipes, key=self.pace)

    @cached_property
    def inverse(self) -> Recipe:
        """The same of results."""
        return min(self.by.inverse_recipes, key=self.pace)

    def pace(self, recipe: Recipe) -> int:
        """Cycles of the vector unit and the port for a word of every line."""
        return sum(self.beat(line).period for line in recipe)

    def beat(self, line: Line) -> Beat:
        """The beat of a word of a line."""
        counts, factors = Arity(len(line.factors), 0, len(line.factors)), tuple(map(float, line.factors.values()))
        operations = OPERATIONS["combine"].alu(counts, factors)
        return beat_of(counts.operands, operations, self.word_groups[1], self.hardware)

    def scratch_words(self, tiles: Tiles) -> int:
        """Words between stages: those of the data of a row fold, later the products and those of a column fold."""
        reach, words, row_words = self.by.reach, tiles.words, tiles.down * tiles.cols * tiles.groups
        more = temporaries(self.data)
        data = (reach + more) * row_words + more * reach * words
        inverse = (reach + self.by.outputs + temporaries(self.inverse)) * reach * words
        return max(data, inverse)

    def vector_cycles(self, tiles: Tiles) -> tuple[int, int]:
        """Those of the vector unit for the data of a row fold, and for the products of a column fold."""
        reach, words, row_words = self.by.reach, tiles.words, tiles.down * tiles.cols * tiles.groups
        data = (row_words + reach * words) * self.pace(self.data)
        return data, (reach + self.by.outputs) * words * self.pace(self.inverse)

    @cached_property
    def frame(self) -> Frame:
        """The port's period while products are streamed."""
        clients = (IFMAP, PSUM, RESULT) if len(self.row_folds) > 1 else (IFMAP, RESULT)
        return frame_of(self.hardware, self.word_groups[1], clients)

    @cached_property
    def weight_words(self) -> list[int]:
        """Words a lane needs for the weights of a product, by row fold."""
        word = self.hardware.vector_memory.word_elements
        return [-(-len(fold) // word) for fold in self.row_folds]

    def data_words(self, tiles: Tiles) -> int:
        """Words of the transformed data of a block."""
        return len(self.row_folds) * self.by.products * tiles.words

    @property
    def passes(self) -> int:
        """Passes of a block."""
        return self.by.products * len(self.row_folds) * len(self.col_folds)

    def tiles(self, rows: int, cols: int, groups: int) -> Tiles:
        """Those of a block of so many outputs and word groups, at most."""
        size = self.by.outputs
        return Tiles(-(-rows // size), -(-cols // size), groups, self.shape.col.most_stored(cols))

    @property
    def least_cycles(self) -> float:
        """Cycles below which no block lets a layer be: array and vector unit take turns."""
        row, col, (groups, _) = self.shape.row, self.shape.col, self.word_groups
        every = self.tiles(row.extent, col.extent, groups)
        stored = len(col.stored(range(col.extent), range(col.kernel)))
        data, inverse = self.vector_cycles(every._replace(cols=stored))
        streamed = self.passes * every.words * self.frame.period / self.hardware.array.count
        return len(self.row_folds) * data + len(self.col_folds) * inverse + streamed


def temporaries(recipe: Recipe) -> int:
    """What is kept beside inputs and outputs, at most."""
    return len({line.made for line in recipe if line.made.startswith("z")})
