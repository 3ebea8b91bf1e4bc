"""What only those ops answer that a systolic array does: they multiply maps by a filter."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Self

from tpusim.network.ops.op import Op, Shape

if TYPE_CHECKING:
    from tpusim.network.ops.conv2d import Conv2d


class Tensors(NamedTuple):
    """Shapes of the tensors of such a layer, in elements.

    Maps are [channel, row, col, image], the filter is [out_channel, tap_row, tap_col, in_channel of the group].
    """

    ifmap: Shape
    filter: Shape
    ofmap: Shape


class ArrayOp(Op):
    """Such an op: an ifmap, a filter, and MACs."""

    __slots__ = ()

    unit: ClassVar[Literal["array", "vector"]] = "array"

    @property
    @abstractmethod
    def folded(self) -> tuple[str, str]:
        """What row folds and column folds divide, in words: "64 input channels", "128 output channels"."""

    @abstractmethod
    def tensors(self, batch: int) -> Tensors:
        """Shapes of its tensors for `batch` images."""

    @abstractmethod
    def convolution(self, batch: int) -> tuple[Conv2d, int]:
        """The convolution that computes it on an array, and of how many images."""

    @abstractmethod
    def filled(self, rows: int, cols: int) -> tuple[Self, str]: ...

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """Those of its `tensors`."""
        return self.tensors(batch)._asdict()

    def terms(self, batch: int) -> int:
        """The products of one output."""
        return prod(self.tensors(batch).filter[1:])

    def weights(self, batch: int) -> int:
        return prod(self.tensors(batch).filter)

    def macs(self, batch: int) -> int:
        return self.outputs(batch) * self.terms(batch)
