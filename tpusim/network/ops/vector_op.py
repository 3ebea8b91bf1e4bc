"""What ops answer that a vector unit does by itself: pooling, sums of maps, activations."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal, NamedTuple

from tpusim.network.ops.kernel_axis import KernelAxis
from tpusim.network.ops.op import Op


class Window(NamedTuple):
    """What an output sees along an axis: the taps that stand on elements, and how many of all taps count."""

    taps: range
    counted: int


class VectorOp(Op):
    """Such an op. An output is made of the elements under a window of the ifmap, and of one of each other source."""

    __slots__ = ()

    unit: ClassVar[Literal["array", "vector"]] = "vector"
    along_channels: ClassVar[bool] = False
    """Whether windows stand along the channels, not rows and columns. Then all elements under one are joined, and the
    operation takes what that gives, and the element in the middle.
    """

    @property
    @abstractmethod
    def operation(self) -> str:
        """What makes an output: a name that machines know."""

    @property
    def joining(self) -> str:
        """What makes one of the first of many elements, so that the operation takes that and what is left, later."""
        return self.operation

    @property
    def joining_more(self) -> str:
        """The same where what is joined so far comes first."""
        return self.joining

    @property
    @abstractmethod
    def axes(self) -> tuple[KernelAxis, KernelAxis]:
        """Height and width: where windows stand. Padding stands for no element."""

    @property
    @abstractmethod
    def windows(self) -> tuple[tuple[Window, ...], tuple[Window, ...]]:
        """The window of each row and of each column of the ofmap."""

    def coefficients(self, counted: int) -> tuple[float, ...]:
        """What the operation is given besides, for an output in whose window so many elements count."""
        return ()
