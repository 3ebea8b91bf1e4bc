"""Local response normalization: each element over a power of what its neighbours among the channels sum up to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from tpusim.base.errors import InputError, Problem
from tpusim.input.form import Real, validated
from tpusim.network.ops.elementwise import MapOp
from tpusim.network.ops.grouped import Channels
from tpusim.network.ops.kernel_axis import KernelAxis
from tpusim.network.ops.op import OFMAP, Shape
from tpusim.network.ops.vector_op import Window

BETAS = (0.5, 0.75, 1.0)
"""Powers that reciprocal roots, or a quotient, give."""


@validated
class Lrn(MapOp):
    """An element over (`bias` + `alpha` / `size` times the sum of squares) to the power of `beta`.

    That sum is over `size` channels around it, those that there are. As AlexNet has it, and ONNX; `beta` is 0.5, 0.75
    or 1.
    """

    op: ClassVar[str] = "lrn"
    grammar: ClassVar[str] = "rows x columns x channels, channels that are summed up"
    exact: ClassVar[bool] = False
    along_channels: ClassVar[bool] = True

    size: Channels = 5
    alpha: Annotated[float, Real()] = 1e-4
    beta: Annotated[float, Real()] = 0.75
    bias: Annotated[float, Real()] = 1.0

    def __post_init__(self) -> None:
        problems = []
        if self.alpha < 0:
            problems.append(Problem(f"{self.alpha} is below zero; write one such as 1e-4", "alpha"))
        if self.bias <= 0:
            problems.append(Problem(f"{self.bias} is not above zero; write one such as 1", "bias"))
        if self.beta not in BETAS:
            problems.append(Problem(f"{self.beta} is none of {', '.join(map(str, BETAS))}; write one of these", "beta"))
        if problems:
            raise InputError(problems)

    @property
    def operation(self) -> str:
        """The operation that takes the sum of squares, and the element itself."""
        return f"normalize_by_{100 * self.beta:.0f}"

    @property
    def joining(self) -> str:
        return "squares"

    @property
    def joining_more(self) -> str:
        return "squares_more"

    @property
    def text(self) -> str:
        """ "27x27x96 5" where five channels are summed up."""
        return f"{self.map_text} {self.size}"

    @property
    def axes(self) -> tuple[KernelAxis, KernelAxis]:
        """Channels, and what has windows of one element."""
        before, behind = (self.size - 1) // 2, self.size // 2
        along = KernelAxis("channels", self.channels, self.size, 1, 1, (before, behind))
        return along, KernelAxis("width", self.width, 1, 1, 1, (0, 0))

    @property
    def windows(self) -> tuple[tuple[Window, ...], tuple[Window, ...]]:
        """Those of each channel, and of one element."""
        before = (self.size - 1) // 2
        taps = (
            range(max(0, before - channel), min(self.size, self.channels + before - channel))
            for channel in range(self.channels)
        )
        return tuple(Window(each, self.size) for each in taps), (Window(range(1), 1),)

    def coefficients(self, counted: int) -> tuple[float, ...]:
        return self.alpha / self.size, self.bias

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """As large as what comes out."""
        return {"ifmap": self.map(batch), OFMAP: self.map(batch)}

    def terms(self, batch: int) -> int:
        """Channels that are summed up."""
        return min(self.size, self.channels)
