"""Pointwise ops of a training step that have fields of their own: gradients of activations."""

from __future__ import annotations

from typing import ClassVar

from tpusim.input.form import validated
from tpusim.network.ops.elementwise import Clip, Gelu, Gradient, LeakyRelu


@validated
class LeakyReluGradient(Gradient, LeakyRelu):
    """The ifmap where the other operand, what the leaky relu made or read, is above zero; elsewhere times `slope`.

    Attributes:
        slope: factor of elements below zero, from 0 to 1.
    """

    op: ClassVar[str] = "leaky_relu_gradient"


@validated
class ClipGradient(Gradient, Clip):
    """The ifmap where the other operand, what the clip made or read, lies between `min` and `max`; elsewhere zero.

    Attributes:
        min: least that is left.
        max: most that is left.
    """

    op: ClassVar[str] = "clip_gradient"


@validated
class GeluGradient(Gradient, Gelu):
    """The ifmap times the slope of gelu at the other operand.

    Attributes:
        approximate: how the share is worked out: by the error function (`none`), or by `tanh`.
    """

    op: ClassVar[str] = "gelu_gradient"

    @property
    def operation(self) -> str:
        """The machine's operation: the form by tanh has its own."""
        return "gelu_gradient" if self.approximate == "none" else "gelu_tanh_gradient"
