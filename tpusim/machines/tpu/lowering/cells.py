"""A transposed convolution as the lowering sees it: cells of neighbouring outputs, one under each element of the ifmap.

A cell has as many rows and columns as the op's stride. Tap t brings element i to row `i * stride - padding + t *
dilation`: in every cell to the same row, its *phase*, and from one cell to the next from the next element. So cells are
to it what outputs are to a convolution of stride 1, and each output of a cell has taps of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from tpusim.base.errors import CapacityError, Problem, UnsuitableError
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.convolution import Cutting
from tpusim.machines.tpu.lowering.geometry import ConvShape, MapAxis, shape_with
from tpusim.machines.tpu.lowering.search import choose
from tpusim.machines.tpu.lowering.tiling import Tiling
from tpusim.network.ops import ArrayOp, ConvTranspose2d

IGNORED = frozenset({"transformation", "k_order", "patch", "search"})
"""Fields below `mapping` that mean nothing to transposed convolutions."""


@dataclass(frozen=True)
class CellAxis(MapAxis):
    """A spatial axis whose outputs are cells; the last may reach past the end.

    Attributes:
        count: outputs of the op.
        spread: its stride, which is the outputs of a cell.
        stands: for each tap the grid point under cell 0 and the phase.
    """

    count: int = 1
    spread: int = 1
    stands: tuple[tuple[int, int], ...] = ((0, 0),)

    @property
    def cell(self) -> int:
        """Outputs of the layer in one."""
        return self.spread

    @cached_property
    def outputs(self) -> int:
        """Number of cells."""
        return -(-self.count // self.spread)

    @property
    def phases(self) -> range:
        """The phases that have outputs."""
        return range(min(self.spread, self.count))

    def place(self, tap: int) -> int:
        """Grid points from cell 0 to the one on which a tap of it stands."""
        return self.stands[tap][0]

    def places(self, taps: range) -> range:
        """From the lowest to the highest of some taps."""
        every = [self.place(tap) for tap in taps]
        return range(min(every), max(every) + 1)

    def taps_of(self, phase: int) -> list[int]:
        """The taps whose products belong to it."""
        return [tap for tap in range(self.kernel) if self.stands[tap][1] == phase]


def cells_of(layer: ArrayOp, batch: int, hardware: Hardware) -> ConvShape:
    """The shape of a transposed convolution, on such a machine.

    Raises:
        UnsuitableError: when the layer is another op.
        CapacityError: when the machine fetches each tap by itself.
    """
    if not isinstance(layer, ConvTranspose2d):
        says = f"this lowering is for conv_transpose2d, not for {layer.op}"
        raise UnsuitableError(f"{says}; name it as the own lowering: of such layers")
    if hardware.mapping.fetch == "per_tap" and layer.kernel != (1, 1):
        problem = "the taps of a cell share what is fetched of a block; write resident"
        raise CapacityError(Problem(problem, "mapping.fetch"))
    return shape_with(layer, batch, (_axis(layer, 0), _axis(layer, 1)), layer.tensors(batch), hardware)


@lru_cache(maxsize=1 << 12)
def chosen(cutting: Cutting, shape: ConvShape, hardware: Hardware) -> Tiling[int]:
    """The tiling of such a shape by the estimate. A layer is asked how many steps it takes before it is lowered."""
    return choose(shape, hardware, cutting(shape, hardware))


def cell_axes(shape: ConvShape) -> tuple[CellAxis, CellAxis]:
    """Rows and columns of the cells of such a shape."""
    assert isinstance(shape.row, CellAxis)
    assert isinstance(shape.col, CellAxis)
    return shape.row, shape.col


def _axis(layer: ConvTranspose2d, axis: int) -> CellAxis:
    """The grid begins where the first tap of all stands under cell 0."""
    kernel, stride, shift = layer.kernel[axis], layer.stride[axis], layer.padding[axis]
    landed = [divmod(tap * layer.dilation[axis] - shift, stride) for tap in range(kernel)]
    lead = max(cells for cells, _ in landed)
    stands = tuple((lead - cells, phase) for cells, phase in landed)
    size, count = ((layer.in_height, layer.out_height), (layer.in_width, layer.out_width))[axis]
    return CellAxis(size, kernel, 1, (lead, 0), 1, count=count, spread=stride, stands=stands)
