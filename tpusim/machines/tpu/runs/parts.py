"""What the data path writes of a Program, part by part: for those who hold it against an oracle as it comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numpy.typing import ArrayLike

from tpusim.machines.lowered import Taker
from tpusim.machines.tpu import datapath
from tpusim.machines.tpu.datapath.memories import HbmTensor
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.check import check_program
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import Part, Spill, Tensor
from tpusim.reference import Operands


@dataclass(frozen=True)
class SpilledTensor:
    """A tensor and the parts of it that spills write, in their order: `machines.lowered.WrittenTensor`."""

    tensor: Tensor
    parts: Sequence[Part]

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self.tensor.shape

    def filled(self, content: ArrayLike) -> HbmTensor:
        """All of it in memory, each element of this value until a part is written."""
        return HbmTensor(self.tensor, content, self.parts)


@dataclass(frozen=True)
class ProgramInParts:
    """A Program whose values are taken as they are written: `machines.lowered.InParts`.

    Raises CheckFailed when the Program names what the machine does not have, or contradicts itself.
    """

    program: Program
    hardware: Hardware

    def __post_init__(self) -> None:
        check_program(self.program, self.hardware)

    @property
    def number(self) -> type[Any]:
        """What values are computed in."""
        return self.program.number

    @cached_property
    def checked(self) -> frozenset[str]:
        """The tensors that it writes and of which somebody knows what they should be."""
        return self.program.checked

    def written(self, name: str) -> SpilledTensor:
        """One of them."""
        spills = (step for step in self.program.steps if isinstance(step, Spill) and step.tensor.name == name)
        return SpilledTensor(self.program.tensor(name), [part for step in spills for part in step.parts])

    def run(self, operands: Operands, takers: Mapping[str, Taker], in_array_order: bool) -> None:
        """Compute it. Raises CheckFailed when a step addresses words or lanes that do not exist."""
        datapath.run(self.program, self.hardware, operands, takers, in_array_order=in_array_order)
