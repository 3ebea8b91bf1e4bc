"""What every op answers about itself, so that nobody above asks which op it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import Field, fields
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

if TYPE_CHECKING:
    from tpusim.network.ops.conv2d import Conv2d

Shape: TypeAlias = tuple[int, int, int, int]
Index: TypeAlias = tuple[int, ...]

MOST_CHANNELS = 2**24
"""Beyond this a size is a slip, not a network."""


class Tensors(NamedTuple):
    """Shapes of the tensors of a layer, in elements.

    Maps are [channel, row, col, image], the filter is [out_channel, tap_row, tap_col, in_channel of the group].
    """

    ifmap: Shape
    filter: Shape
    ofmap: Shape


class Op(ABC):
    """A layer of a network: one operation, and the sizes of what it works on. Ops are frozen dataclasses."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    op: ClassVar[str]
    """Its name in files."""
    counted_by: ClassVar[Literal["image", "row"]] = "image"
    """What its input comes in."""
    spatial: ClassVar[bool] = True
    """Whether its maps have rows and columns, over which a kernel moves."""
    grammar: ClassVar[str]
    """How its `text` is to be read."""

    name: str

    @property
    def shape_key(self) -> Hashable:
        """Equal for layers that differ in nothing but their name."""
        sizes = (getattr(self, field.name) for field in fields(self) if field.name != "name")
        return (self.op, *sizes)

    @property
    def sample_parts(self) -> int:
        """Equal parts of one that what is multiplied with the filter is counted in, of an ifmap of whole numbers."""
        return 1

    @property
    @abstractmethod
    def text(self) -> str:
        """The shape in short."""

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

    def element_name(self, index: Index) -> tuple[tuple[str, ...], Index]:
        """Axes and index by which its user knows the element of the ofmap at `index`."""
        return ("channel", "row", "col", "image"), index

    def with_more_input(self, batch: int) -> tuple[Self, int, str]:
        """A layer and batch of twice the input, and in words what was changed."""
        return self, 2 * batch, f"--batch {2 * batch}"

    def with_less_input(self, batch: int) -> tuple[Self, int, str] | None:
        """A layer and batch of half the input, rounded down, and in words what it has; None where nothing is left."""
        return (self, batch // 2, f"--batch {batch // 2}") if batch > 1 else None

    @abstractmethod
    def filled(self, rows: int, cols: int) -> tuple[Self, str]:
        """The layer with channels rounded up so that they fill `rows` x `cols` PEs, and in words what was changed."""

    def outputs(self, batch: int) -> int:
        """Elements of the ofmaps of `batch` images."""
        return prod(self.tensors(batch).ofmap)

    def operands(self, batch: int) -> int:
        """Elements of the ifmaps of `batch` images and of the filter."""
        ifmap, filter_, _ = self.tensors(batch)
        return prod(ifmap) + prod(filter_)

    def macs(self, batch: int) -> int:
        """Multiply-accumulates for `batch` images, those with padding zeros included."""
        return self.outputs(batch) * prod(self.tensors(batch).filter[1:])
