"""The matrix product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

from tpusim.input.form import Name, validated, whole
from tpusim.network.ops.array_op import ArrayOp, Tensors
from tpusim.network.ops.conv2d import Conv2d
from tpusim.network.ops.op import MOST_CHANNELS, Index


@validated
class Gemm(ArrayOp):
    """A matrix product (m, k) x (k, n). Its m already counts the whole batch, which changes nothing else.

    To an array it is a convolution of m images of one pixel and k channels.
    """

    op: ClassVar[str] = "gemm"
    grammar: ClassVar[str] = "m x k > n"
    sized_by: ClassVar[Mapping[str, int]] = {"k": 0, "m": 3}
    counted_by: ClassVar[Literal["row"]] = "row"
    spatial: ClassVar[bool] = False

    name: Annotated[str, Name()]
    m: Annotated[int, whole(MOST_CHANNELS)]
    n: Annotated[int, whole(MOST_CHANNELS)]
    k: Annotated[int, whole(MOST_CHANNELS)]

    @property
    def text(self) -> str:
        """ "8x512>1000" is m x k > n."""
        return f"{self.m}x{self.k}>{self.n}"

    @property
    def folded(self) -> tuple[str, str]:
        return f"k = {self.k}", f"n = {self.n}"

    def tensors(self, batch: int) -> Tensors:
        """The first factor is the ifmap, the second the filter."""
        return Tensors((self.k, 1, 1, self.m), (self.n, 1, 1, self.k), (self.n, 1, 1, self.m))

    def convolution(self, batch: int) -> tuple[Conv2d, int]:
        """A 1x1 convolution; the rows are its images."""
        return Conv2d(self.name, self.k, 1, 1, self.n, (1, 1)), self.m

    def element_name(self, index: Index) -> tuple[tuple[str, ...], Index]:
        """Row and column of the product."""
        channel, _, _, image = index
        return ("m", "n"), (image, channel)

    def with_more_input(self, batch: int) -> tuple[Self, int, str]:
        """Twice the rows."""
        return replace(self, m=2 * self.m), batch, f"m={2 * self.m}"

    def with_less_input(self, batch: int) -> tuple[Self, int, str] | None:
        """Half the rows."""
        return (replace(self, m=self.m // 2), batch, f"m={self.m // 2}") if self.m > 1 else None

    def filled(self, rows: int, cols: int) -> tuple[Self, str]:
        k, n = -(-self.k // rows) * rows, -(-self.n // cols) * cols
        return replace(self, k=k, n=n), f"k={k} n={n}"
