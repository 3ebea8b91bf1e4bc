"""The transforms of a block of tiles as steps of the vector unit, one axis after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tpusim.machines.tpu.lowering.block import Block, Patch
from tpusim.machines.tpu.lowering.tile_algorithm import Grid, Mix, Product, Recipe, Tiles
from tpusim.machines.tpu.lowering.tile_plan import TilePlan
from tpusim.machines.tpu.program.addresses import Counter, Counters, Feed, LaneGroup
from tpusim.machines.tpu.schedule.units import Compute

At = Callable[[int], Counters]
"""The words of an input or an output, by its number."""


class Stage(NamedTuple):
    """A one-dimensional transform of many words: where inputs and outputs lie, and what is kept between."""

    recipe: Recipe
    inputs: At
    outputs: At
    between: int

    def steps(self, lanes: int) -> Iterator[Compute]:
        """A step a line."""
        words = self.inputs(0).words
        for line in self.recipe:
            operands = tuple(self._feed(name, words, lanes) for name in line.factors)
            factors = tuple(map(float, line.factors.values()))
            made = self._feed(line.made, words, lanes)
            yield Compute("combine", operands, made, words, coefficients=factors)

    def _feed(self, name: str, words: int, lanes: int) -> Feed:
        kind, number = name[0], int(name[1:])
        if kind == "z":
            return Feed((LaneGroup(0, lanes, in_turn(self.between + number * words, words)),))
        return Feed((LaneGroup(0, lanes, (self.inputs if kind == "x" else self.outputs)(number)),))


def in_turn(base: int, words: int) -> Counters:
    """Words that follow one another."""
    return Counters(base, (Counter(words, 0, 1, words, 1),))


def data_stages(work: TilePlan, block: Block, patch_base: int, scratch: int, data: int) -> tuple[Stage, Stage]:
    """From a patch to the transformed data of a row fold, at word `data`: down the columns, then along the rows.

    Tiles that lie side by side share columns, which are transformed once.
    """
    filtering, tiles, patch = work.filtering, work.tiles(block), work.patch(block)
    by, words, row_words = filtering.by, tiles.words, tiles.down * tiles.cols * tiles.groups
    reach, rows = by.down.reach, scratch
    between = rows + reach * row_words

    def along_a_row(number: int) -> Counters:
        """The element of that number of all transformed rows, of all tiles."""
        start = block.cols.start + number - patch.cols.start
        return Counters(
            rows,
            (
                Counter(reach * tiles.down, 0, 1, reach * tiles.down, tiles.cols * tiles.groups),
                Counter(tiles.across, start, by.across.outputs, len(patch.cols), tiles.groups),
                Counter(tiles.groups, 0, 1, tiles.groups, 1),
            ),
        )

    def product(number: int) -> Counters:
        """The products of that column of all transformed rows."""
        counters = Counter(reach, 0, 1, reach, by.across.reach * words), Counter(words, 0, 1, words, 1)
        return Counters(data + number * words, counters)

    def row_of_tiles(number: int) -> Counters:
        return in_turn(rows + number * row_words, row_words)

    first = Stage(filtering.data.down, _down(patch, patch_base, block, tiles, by.down.outputs), row_of_tiles, between)
    return first, Stage(filtering.data.across, along_a_row, product, between)


def _down(patch: Patch, base: int, block: Block, tiles: Tiles, size: int) -> At:
    """The row of that number of all tiles that lie below one another, all its columns."""

    def row(number: int) -> Counters:
        start = block.rows.start + number - patch.rows.start
        return Counters(
            base,
            (
                Counter(tiles.down, start, size, len(patch.rows), len(patch.cols) * tiles.groups),
                Counter(tiles.cols, 0, 1, len(patch.cols), tiles.groups),
                Counter(tiles.groups, 0, 1, tiles.groups, 1),
            ),
        )

    return row


def inverse_stages(work: TilePlan, block: Block, products: int, results: int) -> tuple[Stage, Stage]:
    """From the products of a column fold to its outputs; columns beyond the block are kept nowhere."""
    filtering, tiles = work.filtering, work.tiles(block)
    by, words = filtering.by, tiles.words
    reach, size, rows = by.across.reach, by.down.outputs, products + by.result_places * words
    between, width = rows + size * reach * words, len(block.cols) * tiles.groups

    def row(base: int) -> At:
        return lambda number: in_turn(base + number * reach * words, reach * words)

    def column(number: int) -> Counters:
        counters = Counter(size, 0, 1, size, reach * words), Counter(words, 0, 1, words, 1)
        return Counters(rows + number * words, counters)

    def outputs(number: int) -> Counters:
        """The output of that number of each row of all tiles."""
        return Counters(
            results,
            (
                Counter(size, 0, 1, size, width),
                Counter(tiles.down, 0, 1, tiles.down, size * width),
                Counter(tiles.across, number, by.across.outputs, len(block.cols), tiles.groups),
                Counter(tiles.groups, 0, 1, tiles.groups, 1),
            ),
        )

    down, across = filtering.inverse
    return Stage(down, row(products), row(rows), between), Stage(across, column, outputs, between)


def data_words(work: TilePlan, block: Block, fold: int) -> int:
    """Words of transformed data ahead of those of a row fold."""
    return fold * work.filtering.by.data_places * work.tiles(block).words


def mixed(mixes: tuple[Mix, ...], base: int, words: int, lanes: int) -> Iterator[Compute]:
    """A step a mix, of so many words a place."""

    def feed(grid: Grid) -> Feed:
        sides = zip((grid.down, grid.across), grid.apart, strict=True)
        counters = (Counter(count, 0, 1, count, apart * words) for count, apart in sides)
        pattern = Counters(base + grid.first * words, (*counters, Counter(words, 0, 1, words, 1)))
        return Feed((LaneGroup(0, lanes, pattern),))

    for mix in mixes:
        operands = tuple(feed(grid) for grid, _ in mix.terms)
        factors = tuple(float(factor) for _, factor in mix.terms)
        yield Compute("combine", operands, feed(mix.made), mix.made.size * words, coefficients=factors)


def streamed(product: Product, data: int, words: int) -> Counters:
    """The data that the weights of a product meet, place after place."""
    first, *others = product.data
    if not others:
        return in_turn(data + first * words, words)
    (second,) = others
    places = Counter(2, 0, 1, 2, (second - first) * words)
    return Counters(data + first * words, (places, Counter(words, 0, 1, words, 1)))
