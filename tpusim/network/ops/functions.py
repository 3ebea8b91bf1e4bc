"""Activations that take a function: exp, tanh, erf, and what is made of them. Their outputs are rounded."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from tpusim.input.fields import Choice
from tpusim.input.form import validated
from tpusim.network.ops.pointwise import Pointwise


class FunctionOp(Pointwise):
    """Such an op."""

    __slots__ = ()

    exact: ClassVar[bool] = False
    grammar: ClassVar[str] = "rows x columns x channels"


@validated
class Exp(FunctionOp):
    """e to the power of the element."""

    op: ClassVar[str] = "exp"


@validated
class Sqrt(FunctionOp):
    """The root of the element, which is not below zero."""

    op: ClassVar[str] = "sqrt"
    positive: ClassVar[bool] = True


@validated
class Tanh(FunctionOp):
    """The hyperbolic tangent."""

    op: ClassVar[str] = "tanh"


@validated
class Erf(FunctionOp):
    """The error function."""

    op: ClassVar[str] = "erf"


@validated
class Sigmoid(FunctionOp):
    """1 / (1 + exp(-x))."""

    op: ClassVar[str] = "sigmoid"


@validated
class Silu(FunctionOp):
    """The element times its sigmoid; also called swish."""

    op: ClassVar[str] = "silu"


@validated
class Gelu(FunctionOp):
    """The element times the share of the normal distribution below it: by erf, or `approximate: tanh`."""

    op: ClassVar[str] = "gelu"

    approximate: Annotated[Literal["none", "tanh"], Choice()] = "none"

    @property
    def operation(self) -> str:
        """Either has an operation of its own."""
        return "gelu" if self.approximate == "none" else "gelu_tanh"

    @property
    def text(self) -> str:
        """ "1x1x3072 tanh" where it is approximated."""
        return self.map_text + (" tanh" if self.approximate == "tanh" else "")
