"""Ops of whole rows: softmax, layer normalization, means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from tpusim.base.errors import InputError, Problem
from tpusim.input.form import Real, validated
from tpusim.network.ops.op import OFMAP, Shape
from tpusim.network.ops.row_op import RowOp, Stage


@validated
class Softmax(RowOp):
    """e to the power of each element less the largest of its row, over the sum of these."""

    op: ClassVar[str] = "softmax"
    exact: ClassVar[bool] = False

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The powers are worked out twice, rather than kept: so does XLA's code for TPUs."""
        return (
            Stage("maximum", joins="maximum", ends="maximum"),
            Stage("exp_sum", (0,), joins="add", ends="reciprocal_sum"),
            Stage("exp_scaled", (0, 1)),
        )


@validated
class LayerNorm(RowOp):
    """Each element less the mean of its row, over the root of `epsilon` more than the row's variance; then times the
    channel's scale, and its shift added.
    """

    op: ClassVar[str] = "layer_norm"
    exact: ClassVar[bool] = False

    epsilon: Annotated[float, Real()] = 1e-5

    def __post_init__(self) -> None:
        if self.epsilon <= 0:
            raise InputError(Problem(f"{self.epsilon} is not above zero; write one such as 1e-5", "epsilon"))

    @property
    def stages(self) -> tuple[Stage, ...]:
        part = 1 / self.channels
        return (
            Stage("add", joins="add", ends="mean", coefficients=(part,)),
            Stage("squares_sum", (0,), joins="add", ends="reciprocal_root", coefficients=(part, self.epsilon)),
            Stage("normalize", (0, 1), ("scale", "shift")),
        )

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """With two numbers a channel."""
        channel = self.channels, 1, 1, 1
        return {"ifmap": self.rows(batch), "scale": channel, "shift": channel, OFMAP: self.rows(batch)}


@validated
class ReduceMean(RowOp):
    """The mean of each row."""

    op: ClassVar[str] = "reduce_mean"

    @property
    def stages(self) -> tuple[Stage, ...]:
        return (Stage("add", joins="add", ends="mean", coefficients=(1 / self.channels,)),)

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """One number comes out of a row."""
        return {"ifmap": self.rows(batch), OFMAP: (1, 1, 1, self.images or batch)}


_ABOUT = "about"


@validated
class _SumAbout(RowOp):
    """A sum over each row, of its elements less a number that is given for the row."""

    exact: ClassVar[bool] = False

    _of_elements: ClassVar[str]
    """What makes a number of some elements, and of the number that is given."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        return Stage("", given=_ABOUT), Stage(self._of_elements, (0,), joins="add", ends="add")

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """One number for a row goes in beside it, and one comes out."""
        one = 1, 1, 1, self.images or batch
        return {"ifmap": self.rows(batch), _ABOUT: one, OFMAP: one}


@validated
class SumExp(_SumAbout):
    """The sum of e to the power of each element less the row's number: what a softmax divides by."""

    op: ClassVar[str] = "sum_exp"
    _of_elements: ClassVar[str] = "exp_sum"


@validated
class SumSquares(_SumAbout):
    """The sum of the squares of each element less the row's number: a variance, if that is the mean."""

    op: ClassVar[str] = "sum_squares"
    _of_elements: ClassVar[str] = "squares_sum"
