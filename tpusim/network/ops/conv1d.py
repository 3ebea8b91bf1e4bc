"""The 1-D convolution: a 2-D one over maps of one row."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Annotated, ClassVar, TypeAlias

from tpusim.base.errors import InputError
from tpusim.input.form import Name, validated
from tpusim.network.ops.array_op import Conv2d, GroupedOp, Tensors
from tpusim.network.ops.op import MOST_SIDE, Channels, Ends, Index, KernelAxis, Same, Size, padding

_Padding: TypeAlias = Annotated[Ends | Same, padding(MOST_SIDE, (2,), "a whole number, [before, after]")]


@validated
class Conv1d(GroupedOp):
    """A 1-D convolution of sequences of in_channels x in_length elements.

    Padding is (before, after), in Python also one number for both, "same" or "same_lower". Raises InputError, whose
    problems say which field, when no such convolution exists.
    """

    op: ClassVar[str] = "conv1d"
    grammar: ClassVar[str] = "length x channels > output channels, kernel, /stride, d dilation, p padding, g groups"
    sized_by: ClassVar[Mapping[str, int]] = {"in_channels": 0, "in_length": 2}

    name: Annotated[str, Name()]
    in_channels: Channels
    in_length: Size
    out_channels: Channels
    kernel: Size
    stride: Size = 1
    padding: _Padding = (0, 0)
    dilation: Size = 1
    groups: Channels = 1

    def __post_init__(self) -> None:
        problems = [*self._group_problems(), *self.axis.problems()]
        if problems:
            raise InputError(problems)

    @property
    def axis(self) -> KernelAxis:
        """Its length."""
        return KernelAxis("length", self.in_length, self.kernel, self.stride, self.dilation, self.padding)

    @property
    def out_length(self) -> int:
        """Elements of a channel of the ofmap."""
        return self.axis.outputs

    @property
    def shape_key(self) -> Hashable:
        """Equal for layers that differ in their names, or in how the same padding is written."""
        return self.op, self._plane.shape_key

    @property
    def text(self) -> str:
        """ "1500x384>512 3/2" is length x channels > channels, kernel / stride; p is before x after, where uneven."""
        (before, after), text = self.axis.ends, f"{self.in_length}x{self.in_channels}>{self.out_channels} {self.kernel}"
        text += f"/{self.stride}" if self.stride > 1 else ""
        text += f" d{self.dilation}" if self.dilation > 1 else ""
        text += f" p{before}x{after}" if before != after else ""
        return text + (f" g{self.groups}" if self.groups > 1 else "")

    def tensors(self, batch: int) -> Tensors:
        return self._plane.tensors(batch)

    def convolution(self, batch: int) -> tuple[Conv2d, int]:
        """A 2-D convolution over maps of one row."""
        return self._plane, batch

    def element_name(self, index: Index) -> tuple[tuple[str, ...], Index]:
        """Without the row, of which there is one."""
        channel, _, position, image = index
        return ("channel", "position", "image"), (channel, position, image)

    @property
    def _plane(self) -> Conv2d:
        sizes = self.in_channels, 1, self.in_length, self.out_channels
        (before, after), steps = self.axis.ends, ((1, self.kernel), (1, self.stride))
        return Conv2d(self.name, *sizes, *steps, (0, before, 0, after), (1, self.dilation), self.groups)
