"""Winograd's minimal filtering F(m x m, 3 x 3): m + 2 multiplications give m outputs of three taps, along each axis.

For a tile d of m + 2 by m + 2 elements and a filter g, the outputs are A' [(G g G') * (B' d B)] A, * element by
element. The matrices are those of A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016,
section 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.tiles.tile_algorithm import AxisTransform, Line, Recipe, TileAlgorithm, TileProduct, row_by_row
from tpusim.machines.tpu.tiles.tile_lowering import in_tiles, refused
from tpusim.network.ops.array_op import Conv2d

Matrix: TypeAlias = tuple[tuple[int, ...], ...]


TAPS = 3
"""Taps of a filter along each axis."""


@dataclass(frozen=True, eq=False)
class MinimalFiltering:
    """F(m x m, 3 x 3) for some m.

    Attributes:
        outputs: m.
        scale: factor of the filter's transform along each axis, which makes it whole numbers.
        data, filter, inverse: B', `scale` times G, and A'.
        shared_data, shared_inverse: recipes that compute common terms of several matrix rows once.
    """

    outputs: int
    scale: int
    data: Matrix
    filter: Matrix
    inverse: Matrix
    shared_data: tuple[Recipe, ...] = ()
    shared_inverse: tuple[Recipe, ...] = ()

    @cached_property
    def tiles(self) -> TileAlgorithm:
        """Tiles with this algorithm along both axes, with a product for every element of a tile."""
        data, inverse = (row_by_row(self.data), *self.shared_data), (row_by_row(self.inverse), *self.shared_inverse)
        axis = AxisTransform(TAPS, self.outputs, data, inverse)
        places = axis.reach**2
        return TileAlgorithm(
            name=f"F({self.outputs}x{self.outputs}, {TAPS}x{TAPS})",
            down=axis,
            across=axis,
            products=tuple(TileProduct((at,), at) for at in range(places)),
            transformed=self.transformed,
            data_places=places,
            result_places=places,
            outputs_scale=self.scale**2,
        )

    def transformed(self, filter_: NDArray[Any]) -> NDArray[np.float64]:
        """Filters [out_channel, (row, col,) channel] of all products, as [product, out_channel, channel]; scaled."""
        by_taps = filter_.reshape(len(filter_), TAPS, TAPS, -1).astype(np.float64)
        matrix = np.array(self.filter, np.float64)
        made: NDArray[np.float64] = np.einsum("ir,js,orsc->ijoc", matrix, matrix, by_taps, optimize=True)
        return made.reshape(-1, *made.shape[2:])


F2 = MinimalFiltering(
    outputs=2,
    scale=2,
    data=((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
    filter=((2, 0, 0), (1, 1, 1), (1, -1, 1), (0, 0, 2)),
    inverse=((1, 1, 1, 0), (0, 1, -1, -1)),
)
"""16 products for 4 outputs, which take 36 multiplications without it."""

F4 = MinimalFiltering(
    outputs=4,
    scale=24,
    data=((4, 0, -5, 0, 1, 0), (0, -4, -4, 1, 1, 0), (0, 4, -4, -1, 1, 0),
          (0, -2, -1, 2, 1, 0), (0, 2, -1, -2, 1, 0), (0, 4, 0, -5, 0, 1)),
    filter=((6, 0, 0), (-4, -4, -4), (-4, 4, -4), (1, 2, 4), (1, -2, 4), (0, 0, 24)),
    inverse=((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
    shared_data=(Recipe((
        Line("z0", {"x4": 1, "x2": -4}),
        Line("y2", {"x3": 1, "x1": -4}),
        Line("y0", {"z0": 1, "x0": 4, "x2": -1}),
        Line("y5", {"x5": 1, "y2": -1, "x3": -4}),
        Line("y1", {"z0": 1, "y2": 1}),
        Line("y2", {"z0": 1, "y2": -1}),
        Line("z0", {"x4": 1, "x2": -1}),
        Line("y4", {"x3": 1, "x1": -1}),
        Line("y3", {"z0": 1, "y4": 2}),
        Line("y4", {"z0": 1, "y4": -2}),
    )),),
    shared_inverse=(Recipe((
        Line("z0", {"x1": 1, "x2": 1}),
        Line("z1", {"x3": 1, "x4": 1}),
        Line("y0", {"x0": 1, "z0": 1, "z1": 1}),
        Line("y2", {"z0": 1, "z1": 4}),
        Line("z0", {"x1": 1, "x2": -1}),
        Line("z1", {"x3": 1, "x4": -1}),
        Line("y1", {"z0": 1, "z1": 2}),
        Line("y3", {"z0": 1, "z1": 8, "x5": 1}),
    )),),
)  # fmt: skip
"""36 products for 16 outputs, which take 144 multiplications without it."""


def tiles_of(by: MinimalFiltering, conv: Conv2d) -> TileAlgorithm:
    """Tiles of a convolution of 3 x 3 taps, stride 1 and one channel group; raises UnsuitableError for others."""
    if (conv.kernel, conv.stride, conv.dilation, conv.groups) != ((TAPS, TAPS), (1, 1), (1, 1), 1):
        raise refused(by.tiles.name, f"{TAPS} x {TAPS}", conv)
    return by.tiles


WINOGRAD_2 = in_tiles(
    "winograd_2",
    "3x3 convolutions in 2x2 tiles: the vector unit transforms, the array has 2.25 times fewer products",
    partial(tiles_of, F2),
)
WINOGRAD_4 = in_tiles(
    "winograd_4",
    "3x3 convolutions in 4x4 tiles: 4 times fewer products, and more to transform",
    partial(tiles_of, F4),
)
