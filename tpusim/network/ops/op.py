"""What every op answers about itself, so that nobody above asks which op it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import Field, fields
from math import prod
from typing import Any, ClassVar, Literal, Self, TypeAlias

Shape: TypeAlias = tuple[int, int, int, int]
Index: TypeAlias = tuple[int, ...]

MOST_CHANNELS = 2**24
"""Beyond this a size is a slip, not a network."""

OFMAP = "ofmap"
"""The name of what an op makes, among its tensors."""


class Op(ABC):
    """A layer of a network: one operation, and the sizes of what it works on. Ops are frozen dataclasses."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    op: ClassVar[str]
    """Its name in files."""
    unit: ClassVar[Literal["array", "vector"]]
    """What of a machine does it: a systolic array, or a vector unit by itself."""
    counted_by: ClassVar[Literal["image", "row"]] = "image"
    """What its input comes in."""
    spatial: ClassVar[bool] = True
    """Whether its maps have rows and columns, over which a kernel moves."""
    whole_rows: ClassVar[bool] = False
    """Whether an output takes all channels of an image, of an op that no array does."""
    exact: ClassVar[bool] = True
    """Whether what it makes of small whole numbers is held without a rounding, or rounded alike by all."""
    positive: ClassVar[bool] = False
    """Whether what it reads has to be zero or more."""
    grammar: ClassVar[str]
    """How its `text` is to be read."""
    sized_by: ClassVar[Mapping[str, int]]
    """Its fields that say of what size its ifmap is, each with the axis of [channel, row, col, image] that it is of."""

    name: str

    @property
    def shape_key(self) -> Hashable:
        """Equal for layers that differ in nothing but their name."""
        sizes = (getattr(self, field.name) for field in fields(self) if field.name != "name")
        return (self.op, *sizes)

    @property
    def core(self) -> Op:
        """What it is without what is fused to it; itself where nothing is."""
        return self

    @property
    def sample_parts(self) -> int:
        """Equal parts of one that what is summed up is counted in, of sources of whole numbers."""
        return 1

    @property
    @abstractmethod
    def text(self) -> str:
        """The shape in short."""

    @abstractmethod
    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """Shapes of its tensors for `batch` images, by name: what it reads, then the `ofmap`.

        Maps are [channel, row, col, image]; the filter, where there is one, is
        [out_channel, tap_row, tap_col, in_channel of the group].
        """

    def sources(self, batch: int) -> dict[str, Shape]:
        """Those that it reads, in order."""
        return {name: shape for name, shape in self.shapes(batch).items() if name != OFMAP}

    def reads(self, batch: int) -> dict[str, Shape]:
        """What of it other layers may have made, in the order in which files name them; the ifmap is the first."""
        return self.sources(batch)

    @abstractmethod
    def terms(self, batch: int) -> int:
        """Numbers, or products of two, that one output sums up."""

    def element_name(self, index: Index) -> tuple[tuple[str, ...], Index]:
        """Axes and index by which its user knows the element of the ofmap at `index`."""
        return ("channel", "row", "col", "image"), index

    def with_more_input(self, batch: int) -> tuple[Self, int, str]:
        """A layer and batch of twice the input, and in words what was changed."""
        return self, 2 * batch, f"--batch {2 * batch}"

    def with_less_input(self, batch: int) -> tuple[Self, int, str] | None:
        """A layer and batch of half the input, rounded down, and in words what it has; None where nothing is left."""
        return (self, batch // 2, f"--batch {batch // 2}") if batch > 1 else None

    def filled(self, rows: int, cols: int) -> tuple[Self, str] | None:
        """The layer with channels rounded up so that they fill `rows` x `cols` PEs, and in words what was changed.

        None where no PE works on it.
        """
        return None

    def outputs(self, batch: int) -> int:
        """Elements of the ofmaps of `batch` images."""
        return prod(self.shapes(batch)[OFMAP])

    def operands(self, batch: int) -> int:
        """Elements of all that is read for `batch` images."""
        return sum(map(prod, self.sources(batch).values()))

    def weights(self, batch: int) -> int:
        """Elements that an array holds while others pass: those of the filter."""
        return 0

    def macs(self, batch: int) -> int:
        """Multiply-accumulates of an array for `batch` images, those with padding zeros included."""
        return 0
