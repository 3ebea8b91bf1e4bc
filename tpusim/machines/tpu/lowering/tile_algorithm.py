"""What convolutions in tiles have in common: transforms along both axes, products place by place, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.lowering.recipe import Recipe


class AxisTransform(NamedTuple):
    """A transform of so many `taps` and `outputs` along an axis; `data`, `inverse`: ways to do it, to choose from."""

    taps: int
    outputs: int
    data: tuple[Recipe, ...]
    inverse: tuple[Recipe, ...]

    @property
    def reach(self) -> int:
        """Elements of a tile."""
        return self.outputs + self.taps - 1


class Grid(NamedTuple):
    """Places of a tile: `first`, and from there so many down and across, `apart` by so many places each way."""

    first: int
    down: int
    across: int
    apart: tuple[int, int]

    @property
    def size(self) -> int:
        """How many."""
        return self.down * self.across


class Mix(NamedTuple):
    """Place by place a sum of factors times what stands in grids of one size; it may be made in one of these."""

    made: Grid
    terms: tuple[tuple[Grid, float], ...]


class Product(NamedTuple):
    """What the weights of one product meet: data of these places, one after another. Sums go to places from `results`
    on, and are added to what stands there, or not.
    """

    data: tuple[int, ...]
    results: int
    adds: bool = False


@dataclass(frozen=True, eq=False)
class TileAlgorithm:
    """How tiles are convolved: transforms, products and the way back.

    Both axes' data transforms leave a tile in places row by row; mixes make more of them, or others.

    Attributes:
        name: in words.
        down, across: the transforms along the axes.
        products: those of a tile, each with weights of its own, in the order of the transformed filter.
        transformed: of the filters [out_channel, (row, col,) channel] the weights [product, out_channel, channel].
        data_mixes: what comes behind the transforms of data, in places of which there are `data_places`.
        result_mixes: what comes before the inverse transforms, of sums in as many places as `result_places`.
        outputs_scale: how much larger the outputs are for weights that are whole numbers.
        lost: how far at most an output is from the whole number that it should be, of so many channels; 0 where
            all is exact.
    """

    name: str
    down: AxisTransform
    across: AxisTransform
    products: tuple[Product, ...]
    transformed: Callable[[NDArray[Any]], NDArray[np.float64]]
    data_places: int
    result_places: int
    data_mixes: tuple[Mix, ...] = ()
    result_mixes: tuple[Mix, ...] = ()
    outputs_scale: int = 1
    lost: Callable[[int], float] = lambda _: 0.0

    @property
    def outputs(self) -> int:
        """Outputs of a tile."""
        return self.down.outputs * self.across.outputs

    @property
    def taps(self) -> int:
        """Taps of the filter."""
        return self.down.taps * self.across.taps

    @cached_property
    def multiplications(self) -> int:
        """Products of a tile, a number of data times a weight each."""
        return sum(len(product.data) for product in self.products)

    @cached_property
    def adds(self) -> bool:
        """Whether sums of products are added up for one channel."""
        return any(product.adds for product in self.products)
