"""Pointwise ops of a training step that have fields of their own: gradients of activations."""

from __future__ import annotations

from typing import ClassVar

from tpusim.input.form import validated
from tpusim.network.ops.elementwise import Clip, Gelu, Gradient, LeakyRelu


@validated
class LeakyReluGradient(Gradient, LeakyRelu):
    """The ifmap where the other operand, what the leaky relu made or read, is above zero; elsewhere times `slope`."""

    op: ClassVar[str] = "leaky_relu_gradient"


@validated
class ClipGradient(Gradient, Clip):
    """The ifmap where the other operand, what the clip made or read, lies between `min` and `max`; elsewhere zero."""

    op: ClassVar[str] = "clip_gradient"


@validated
class GeluGradient(Gradient, Gelu):
    """The ifmap times the slope of gelu at the other operand."""

    op: ClassVar[str] = "gelu_gradient"

    @property
    def operation(self) -> str:
        """The machine's operation: the form by tanh has its own."""
        return "gelu_gradient" if self.approximate == "none" else "gelu_tanh_gradient"
