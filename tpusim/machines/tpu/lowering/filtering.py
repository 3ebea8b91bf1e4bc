"""A layer convolved in tiles on a machine: its folds and tiles, and what vector unit and array take for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from tpusim.machines.tpu.definition import IFMAP, PSUM, RESULT, Beat, Frame, beat_of, frame_of
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.block import portions
from tpusim.machines.tpu.lowering.geometry import ConvShape
from tpusim.machines.tpu.lowering.recipe import Recipe, operations
from tpusim.machines.tpu.lowering.tile_algorithm import Mix, TileAlgorithm
from tpusim.machines.tpu.lowering.tiling import col_folds, word_groups


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


class Recipes(NamedTuple):
    """The recipes of the transforms down and across."""

    down: Recipe
    across: Recipe


@dataclass(frozen=True)
class Filtering:
    """A layer of that shape convolved in tiles on a machine: folds, recipes and their pace.

    Recipes are the fastest on the machine, or those which want the fewest places between.
    """

    shape: ConvShape
    hardware: Hardware
    by: TileAlgorithm
    fewest_places: bool = False

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
    def data(self) -> Recipes:
        """The recipes by which data is transformed."""
        return Recipes(self._best(self.by.down.data), self._best(self.by.across.data))

    @cached_property
    def inverse(self) -> Recipes:
        """The recipes by which results are transformed back."""
        return Recipes(self._best(self.by.down.inverse), self._best(self.by.across.inverse))

    def _best(self, recipes: Sequence[Recipe]) -> Recipe:
        def cost(recipe: Recipe) -> tuple[int, int]:
            cycles, places = self.pace(recipe), recipe.temporaries
            return (places, cycles) if self.fewest_places else (cycles, places)

        return min(recipes, key=cost)

    def pace(self, recipe: Recipe) -> int:
        """Cycles of the vector unit and the port for a word of every line."""
        return sum(lines * self.beat(*kind).period for kind, lines in recipe.kinds.items())

    def mixed(self, mixes: tuple[Mix, ...]) -> int:
        """The same for a tile of mixes."""
        kinds = ((mix.made.size, operations(factor for _, factor in mix.terms), len(mix.terms)) for mix in mixes)
        return sum(words * self.beat(operands, each).period for words, each, operands in kinds)

    def beat(self, operands: int, operations: int) -> Beat:
        """The beat of a word of a sum of so many operands, which takes so many operations."""
        return beat_of(operands, operations, self.word_groups[1], self.hardware)

    def scratch_words(self, tiles: Tiles) -> int:
        """Words between stages: those of the data of a row fold, later the products and those of a column fold."""
        by, words, row_words = self.by, tiles.words, tiles.down * tiles.cols * tiles.groups
        first, second = (recipe.temporaries for recipe in self.data)
        data = (by.down.reach + first) * row_words + second * by.down.reach * words
        return max(data, self._inverse_words * words)

    @cached_property
    def _inverse_words(self) -> int:
        """Words of a tile from its products to its outputs."""
        by, (first, second) = self.by, (recipe.temporaries for recipe in self.inverse)
        between = max(first * by.across.reach, second * by.down.outputs)
        return by.result_places + by.down.outputs * by.across.reach + between

    def vector_cycles(self, tiles: Tiles) -> tuple[int, int]:
        """Those of the vector unit for the data of a row fold, and for the products of a column fold."""
        by, words, row_words = self.by, tiles.words, tiles.down * tiles.cols * tiles.groups
        data = row_words * self.pace(self.data.down) + by.down.reach * words * self.pace(self.data.across)
        inverse = by.across.reach * self.pace(self.inverse.down) + by.down.outputs * self.pace(self.inverse.across)
        return data + words * self.mixed(by.data_mixes), words * (inverse + self.mixed(by.result_mixes))

    @cached_property
    def frame(self) -> Frame:
        """The port's period while products are streamed."""
        clients = (IFMAP, PSUM, RESULT) if len(self.row_folds) > 1 or self.by.adds else (IFMAP, RESULT)
        return frame_of(self.hardware, self.word_groups[1], clients)

    @cached_property
    def weight_words(self) -> list[int]:
        """Words a lane needs for the weights of a product, by row fold."""
        word = self.hardware.vector_memory.word_elements
        return [-(-len(fold) // word) for fold in self.row_folds]

    def data_words(self, tiles: Tiles) -> int:
        """Words of the transformed data of a block."""
        return len(self.row_folds) * self.by.data_places * tiles.words

    @property
    def passes(self) -> int:
        """Passes of a block."""
        return len(self.by.products) * len(self.row_folds) * len(self.col_folds)

    def tiles(self, rows: int, cols: int, groups: int) -> Tiles:
        """Those of a block of so many outputs and word groups, at most."""
        down, across = self.by.down.outputs, self.by.across.outputs
        return Tiles(-(-rows // down), -(-cols // across), groups, self.shape.col.most_stored(cols))

    @property
    def least_cycles(self) -> float:
        """Cycles below which no block lets a layer be: array and vector unit take turns."""
        row, col, (groups, _) = self.shape.row, self.shape.col, self.word_groups
        every = self.tiles(row.extent, col.extent, groups)
        stored = len(col.stored(range(col.extent), range(col.kernel)))
        data, inverse = self.vector_cycles(every._replace(cols=stored))
        streamed = self._least_streamed(every.words)
        return len(self.row_folds) * data + len(self.col_folds) * (inverse + streamed)

    def _least_streamed(self, words: int) -> float:
        """Cycles of the array for a column fold of a layer of so many words.

        Blocks have no more of them than fit. A pass takes at least as long as the next one's weights; a block's
        first ones may come while the vector unit works.
        """
        a_word = len(self.row_folds) * self.by.data_places + replace(self, fewest_places=True)._inverse_words
        weights = -(-words // max(1, self.hardware.capacity_words // a_word)) * self.hardware.preload_cycles
        streams = (len(each.data) * words * self.frame.period / self.hardware.array.count for each in self.by.products)
        return len(self.row_folds) * sum(max(stream, weights) for stream in streams) - weights
