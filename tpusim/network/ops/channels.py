"""Ops that sum up each channel over pixels and images: statistics of batch normalization, and gradients by channel."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Annotated, ClassVar

from tpusim.input.form import Truth, validated
from tpusim.network.ops.elementwise import MapOp, Other
from tpusim.network.ops.op import OFMAP, Shape

ABOUT = "about"
"""The source of a number for each channel, from which elements are measured."""


@validated
class ChannelSum(MapOp):
    """The sum of each channel over its pixels and all images: the gradient of a bias."""

    op: ClassVar[str] = "channel_sum"
    whole_channels: ClassVar[bool] = True
    grammar: ClassVar[str] = "rows x columns x channels, each of which is summed up"

    @property
    def operation(self) -> str:
        """The operation that makes a number of elements of the maps."""
        return "add"

    @property
    def sums(self) -> tuple[str, ...]:
        """By sum the operation that makes a number of elements of the maps and of the channel's numbers."""
        return (self.operation,)

    @property
    def text(self) -> str:
        """The shape in short: "56x56x64" is rows x cols x channels, n the images where these are not the batch."""
        return self.map_text

    def ends(self, batch: int) -> tuple[str, tuple[float, ...]]:
        """Return the operation on the sums that are left in the end, and its coefficients."""
        return "add", ()

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """Return shapes: the ofmap has a number for each channel, or one of each sum."""
        return {**MapOp.shapes(self, batch), OFMAP: (self.channels, len(self.sums), 1, 1)}

    def terms(self, batch: int) -> int:
        """Return the elements of a channel."""
        return prod(self.map(batch)[1:])


@validated
class ChannelMean(ChannelSum):
    """The mean of each channel over its pixels and all images."""

    op: ClassVar[str] = "channel_mean"

    def ends(self, batch: int) -> tuple[str, tuple[float, ...]]:
        """Return a sum's factor, in place of a division."""
        return "mean", (1 / self.terms(batch),)


@validated
class ChannelVariance(ChannelMean):
    """The mean of the squares of each channel's elements less its number `about`: the variance, if that is the mean."""

    op: ClassVar[str] = "channel_variance"
    exact: ClassVar[bool] = False
    beside: ClassVar[Mapping[str, Other]] = {ABOUT: "channel"}
    operation: ClassVar[str] = "squares_sum"


@validated
class ChannelProducts(ChannelSum):
    """The sum of the products of the ifmap and the other operand over each channel: the gradient of a scale.

    Attributes:
        centred: whether a channel's number, `about`, is first taken from the elements of the other operand, as a mean.
    """

    op: ClassVar[str] = "channel_products"

    centred: Annotated[bool, Truth()] = False

    @property
    def operation(self) -> str:
        return "centred_products" if self.centred else "sum_of_products"

    @property
    def beside(self) -> Mapping[str, Other]:  # type: ignore[override]
        return {"other": "each", ABOUT: "channel"} if self.centred else {"other": "each"}

    @property
    def text(self) -> str:
        """The shape in short: "56x56x64 centred" where a mean is taken from one map."""
        return self.map_text + " centred" * self.centred

    def terms(self, batch: int) -> int:
        """Return the products: of each element with another, and with the channel's number."""
        return (1 + self.centred) * ChannelSum.terms(self, batch)


@validated
class ChannelMaskedSums(ChannelSum):
    """Two sums of each channel: of the ifmap, and of its products with the other operand; both where the other operand
    times `scale` plus `shift` is above zero.

    The ifmap is the gradient of a relu behind a batch normalization, and the other operand is the map that the
    normalization has read. The sums give the gradients of its bias and its weight, and no map is stored between.
    """

    op: ClassVar[str] = "channel_masked_sums"
    beside: ClassVar[Mapping[str, Other]] = {"other": "each", "scale": "channel", "shift": "channel"}
    sums: ClassVar[tuple[str, ...]] = "masked_sum", "masked_products"
