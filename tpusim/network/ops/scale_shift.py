"""A scale and a shift for each channel: what is left of a batch normalization when a network is only run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tpusim.input.form import validated
from tpusim.network.ops.op import OFMAP, Shape
from tpusim.network.ops.pointwise import Pointwise


@validated
class ScaleShift(Pointwise):
    """The ifmap times the channel's scale, and the channel's shift added."""

    op: ClassVar[str] = "scale_shift"
    grammar: ClassVar[str] = "rows x columns x channels"

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """With two numbers a channel."""
        channel = self.channels, 1, 1, 1
        return {"ifmap": self.map(batch), "scale": channel, "shift": channel, OFMAP: self.map(batch)}
