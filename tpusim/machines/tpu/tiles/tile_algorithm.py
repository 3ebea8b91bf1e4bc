"""Convolutions in tiles: transforms along both axes, products place by place, and inverse transforms.

A `Recipe` is a transform along one axis, line by line; a `TileAlgorithm` has the recipes of both axes; `Filtering`
works out what a layer takes of the vector unit and the array of a machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.cut.blocks import portions
from tpusim.machines.tpu.cut.geometry import ConvShape
from tpusim.machines.tpu.cut.tiling import col_folds
from tpusim.machines.tpu.definition import Beat, Frame, beat_of, frame_of, stream_clients
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.operations import OPERATIONS, Arity
from tpusim.network.ops.array_op import Conv2d

Factors: TypeAlias = Mapping[str, float]


class Line(NamedTuple):
    """A linear combination of known numbers: inputs x0, x1, ..., outputs y0, y1, ..., and temporaries z0, z1, ...

    A name may be computed several times, with a new value each time.
    """

    made: str
    factors: Factors


class Recipe(tuple[Line, ...]):
    """A one-dimensional transform, line by line."""

    @cached_property
    def kinds(self) -> Mapping[tuple[int, int], int]:
        """Number of lines by (operands, ALU operations)."""
        return Counter((len(line.factors), operations(line.factors.values())) for line in self)

    @cached_property
    def temporaries(self) -> int:
        """The most temporaries that are alive beside inputs and outputs."""
        return len({line.made for line in self if line.made.startswith("z")})


def operations(factors: Iterable[float]) -> int:
    """ALU operations of the vector unit for an element of a linear combination."""
    each = tuple(factors)
    return sum(OPERATIONS["combine"].work(Arity(len(each), 0, len(each)), each))


def row_by_row(matrix: Sequence[Sequence[float]]) -> Recipe:
    """A recipe that works out every output by itself."""
    return Recipe(
        Line(f"y{at}", {f"x{number}": factor for number, factor in enumerate(row) if factor})
        for at, row in enumerate(matrix)
    )


class AxisTransform(NamedTuple):
    """A transform of `taps` and `outputs` along an axis; `data` and `inverse` are alternatives to choose from."""

    taps: int
    outputs: int
    data: tuple[Recipe, ...]
    inverse: tuple[Recipe, ...]

    @property
    def reach(self) -> int:
        """Elements of a tile along the axis."""
        return self.outputs + self.taps - 1


class TilePlaces(NamedTuple):
    """Places of a tile: from `first` on, `down` by `across` of them, `apart` from one another each way."""

    first: int
    down: int
    across: int
    apart: tuple[int, int]

    @property
    def size(self) -> int:
        """Number of places."""
        return self.down * self.across


class Mix(NamedTuple):
    """A sum of factors times grids of one size, place by place; the result may overwrite one of the grids."""

    made: TilePlaces
    terms: tuple[tuple[TilePlaces, float], ...]


class TileProduct(NamedTuple):
    """A product of weights with data of these places, one after another. Sums go to places from `results` on, and
    replace or add to the numbers there.
    """

    data: tuple[int, ...]
    results: int
    adds: bool = False


@dataclass(frozen=True, eq=False)
class TileAlgorithm:
    """An algorithm for tiles: transforms, products and inverse transforms.

    Transforms of data along both axes leave a tile in places, row by row; mixes make further places.

    Attributes:
        name: name for people.
        down, across: transforms along the axes.
        products: products of a tile, each with weights of its own, in the order of the transformed filter.
        transformed: function from filters [out_channel, (row, col,) channel] to weights [product, out_channel,
        channel].
        data_mixes, data_places: mixes behind the transforms of data, and the number of places of data.
        result_mixes, result_places: mixes ahead of the inverse transforms, and the number of places of sums.
        outputs_scale: factor by which outputs are larger, so that weights are whole numbers.
        lost: largest distance of an output from the whole number that it should be, by number of channels; 0 if
            everything is exact.
    """

    name: str
    down: AxisTransform
    across: AxisTransform
    products: tuple[TileProduct, ...]
    transformed: Callable[[NDArray[Any]], NDArray[np.float64]]
    data_places: int
    result_places: int
    data_mixes: tuple[Mix, ...] = ()
    result_mixes: tuple[Mix, ...] = ()
    outputs_scale: int = 1
    lost: Callable[[int], float] = lambda _: 0.0

    @property
    def outputs(self) -> int:
        """Number of outputs of a tile."""
        return self.down.outputs * self.across.outputs

    @property
    def taps(self) -> int:
        """Number of taps of the filter."""
        return self.down.taps * self.across.taps

    @cached_property
    def multiplications(self) -> int:
        """Products of a tile: multiplications of a number of data by a weight."""
        return sum(len(product.data) for product in self.products)


TileChoice: TypeAlias = Callable[[Conv2d], TileAlgorithm]
"""A choice of tiles for a convolution; raises UnsuitableError for convolutions that it is not for."""


class Tiles(NamedTuple):
    """Tiles of a block: `down` by `across` of them, the words of a grid point, and the columns of the patch."""

    down: int
    across: int
    groups: int
    cols: int

    @property
    def words(self) -> int:
        """Words that a product streams: one for each tile and word group."""
        return self.down * self.across * self.groups


@dataclass(frozen=True)
class Filtering:
    """A layer convolved in tiles on a machine: folds, recipes and their pace.

    Recipes are the fastest on the machine, or, with `fewest_places`, the ones with the fewest temporaries.
    """

    shape: ConvShape
    hardware: Hardware
    by: TileAlgorithm
    fewest_places: bool = False

    @cached_property
    def row_folds(self) -> list[range]:
        """Input channels, one to an array row."""
        return portions(self.shape.channels, self.hardware.array.rows)

    @cached_property
    def col_folds(self) -> tuple[range, ...]:
        """Output channels, one to an array column."""
        return col_folds(self.shape.out_channels, self.hardware)

    @property
    def tile(self) -> tuple[int, int]:
        """(rows, columns) of the outputs of a tile."""
        return self.by.down.outputs, self.by.across.outputs

    @cached_property
    def word_groups(self) -> tuple[int, int]:
        """Words of a pixel, and elements used of each."""
        return self.shape.word_groups(self.hardware.vector_memory.word_elements)

    @cached_property
    def data(self) -> tuple[Recipe, Recipe]:
        """Recipes that transform data, down and across."""
        return self._best(self.by.down.data), self._best(self.by.across.data)

    @cached_property
    def inverse(self) -> tuple[Recipe, Recipe]:
        """Recipes that transform results back, down and across."""
        return self._best(self.by.down.inverse), self._best(self.by.across.inverse)

    def _best(self, recipes: Sequence[Recipe]) -> Recipe:
        def cost(recipe: Recipe) -> tuple[float, float]:
            cycles, places = self.pace(recipe), recipe.temporaries
            return (places, cycles) if self.fewest_places else (cycles, places)

        return min(recipes, key=cost)

    def pace(self, recipe: Recipe, lanes: int | None = None) -> float:
        """Cycles of the vector unit and the port for a word of every line, in some `lanes` or in all."""
        return sum(lines * self.beat(*kind, lanes).a_word for kind, lines in recipe.kinds.items())

    def mixed(self, mixes: tuple[Mix, ...], lanes: int | None = None) -> float:
        """Cycles of the vector unit and the port for a tile of mixes, in some `lanes` or in all."""
        kinds = ((mix.made.size, operations(factor for _, factor in mix.terms), len(mix.terms)) for mix in mixes)
        return sum(words * self.beat(operands, each, lanes).a_word for words, each, operands in kinds)

    def beat(self, operands: int, operations: int, lanes: int | None = None) -> Beat:
        """The beat of a word of a sum, from its operands and operations, in some `lanes` or in all."""
        unit = self.hardware.vector_unit
        # Only with slots are conversions operations of the ALUs.
        converted = operands * unit.widen + unit.narrow if unit.slots else 0
        every = operations + unit.rounding + converted
        return beat_of(operands, every, self.word_groups[1], self.hardware, lanes=lanes)

    def scratch_words(self, tiles: Tiles) -> int:
        """Words between stages: for the data of a row fold, and later for products and a column fold."""
        by, words, row_words = self.by, tiles.words, tiles.down * tiles.cols * tiles.groups
        first, second = (recipe.temporaries for recipe in self.data)
        data = (by.down.reach + first) * row_words + second * by.down.reach * words
        # Data and products are never there at once, so both use the same words.
        return max(data, self._inverse_words * words)

    @cached_property
    def _inverse_words(self) -> int:
        """Words of a tile from its products to its outputs."""
        by, (first, second) = self.by, (recipe.temporaries for recipe in self.inverse)
        between = max(first * by.across.reach, second * by.down.outputs)
        return by.result_places + by.down.outputs * by.across.reach + between

    def vector_cycles(self, tiles: Tiles) -> tuple[float, float]:
        """Cycles of the vector unit for the data of all row folds, and for the products of all column folds."""
        by, words, row_words = self.by, tiles.words, tiles.down * tiles.cols * tiles.groups

        def data(lanes: int) -> float:
            down, across = (self.pace(each, lanes) for each in self.data)
            return row_words * down + words * (by.down.reach * across + self.mixed(by.data_mixes, lanes))

        def inverse(lanes: int) -> float:
            down, across = (self.pace(each, lanes) for each in self.inverse)
            return words * (by.across.reach * down + by.down.outputs * across + self.mixed(by.result_mixes, lanes))

        def summed(cycles: Callable[[int], float], folds: Iterable[range]) -> float:
            return sum(times * cycles(lanes) for lanes, times in Counter(map(len, folds)).items())

        return summed(data, self.row_folds), summed(inverse, self.col_folds)

    @cached_property
    def frame(self) -> Frame:
        """The port's period while products are streamed."""
        # Only sums that are added to need a slot to be read again.
        adds = len(self.row_folds) > 1 or any(product.adds for product in self.by.products)
        return frame_of(self.hardware, self.word_groups[1], stream_clients(adds))

    @cached_property
    def weight_words(self) -> list[int]:
        """Words a lane needs for the weights of a product, by row fold."""
        word = self.hardware.vector_memory.word_elements
        return [-(-len(fold) // word) for fold in self.row_folds]

    @property
    def passes(self) -> int:
        """Passes of a block."""
        return len(self.by.products) * len(self.row_folds) * len(self.col_folds)

    def tiles(self, rows: int, cols: int, groups: int) -> Tiles:
        """The tiles of a block of at most `rows` by `cols` outputs and some word groups."""
        down, across = self.by.down.outputs, self.by.across.outputs
        return Tiles(-(-rows // down), -(-cols // across), groups, self.shape.col.most_stored(cols))

    @property
    def least_cycles(self) -> float:
        """Cycles that every block takes at least: array and vector unit take turns."""
        row, col, (groups, _) = self.shape.row, self.shape.col, self.word_groups
        every = self.tiles(row.extent, col.extent, groups)
        stored = len(col.stored(range(col.extent), range(col.kernel)))
        data, inverse = self.vector_cycles(every._replace(cols=stored))
        # No block has more words than fit. A pass takes at least as long as the weights of the next one; the first
        # weights of a block may come while the vector unit works.
        words, folds = every.words, len(self.row_folds)
        a_word = folds * self.by.data_places + replace(self, fewest_places=True)._inverse_words
        weights = -(-words // max(1, self.hardware.capacity_words // a_word)) * self.hardware.preload_cycles
        streams = (len(each.data) * words * self.frame.period / self.hardware.array.count for each in self.by.products)
        streamed = folds * sum(max(stream, weights) for stream in streams) - weights
        return data + inverse + len(self.col_folds) * streamed
