"""The waist of the hourglass: what a lowering produces and every interpreter runs.

A `Program` is tensors and a short list of steps. It says *what* happens in which order, never *when*: time belongs
to the engines.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tpusim.machines.tpu.definition.frame import IFMAP, PSUM, RESULT, Clients
from tpusim.machines.tpu.program.steps import Fill, Spill, Step, Stream, Transfer, Use
from tpusim.machines.tpu.program.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Buffer:
    """Words [base, base + words) of the first `lanes` lanes, set aside for a tensor."""

    tensor: str
    base: int
    words: int
    lanes: int


@dataclass(frozen=True)
class Program:
    """One layer, lowered for one machine.

    Attributes:
        tensors: those in HBM, by what steps call them. Operands are there before the first step; the others are
            written by spills.
        buffers: the vector memory in use.
        banked: the words of all banks in use, each area as if it lay in one lane.
        steps: in an order that is valid when they are executed one at a time.
        word_fill: elements of a word that a pass streams, and that its results fill.
    """

    tensors: tuple[Tensor, ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    word_fill: int
    banked: tuple[Buffer, ...] = ()

    @cached_property
    def words(self) -> int:
        """Words of vector memory that a lane needs."""
        return max(buffer.base + buffer.words for buffer in self.buffers)

    @cached_property
    def bank_words(self) -> int:
        """Addresses that it needs of the banks."""
        return max((buffer.base + buffer.words for buffer in self.banked), default=0)

    @cached_property
    def streams(self) -> tuple[Stream, ...]:
        """The passes, in the order the array takes them."""
        return tuple(step for step in self.steps if isinstance(step, Stream))

    @cached_property
    def accumulates(self) -> bool:
        """Whether any pass adds to partial sums: such a layer owns a partial-sum slot throughout."""
        return any(step.accumulate for step in self.streams)

    @cached_property
    def clients(self) -> Clients:
        """Those of the ports that own slots while a pass streams."""
        return (IFMAP, PSUM, RESULT) if self.accumulates else (IFMAP, RESULT)

    @cached_property
    def passes(self) -> dict[int, int]:
        """The number of the pass, from 0, that a preload or a stream belongs to."""
        numbered = enumerate((index, step) for index, step in enumerate(self.steps) if isinstance(step, Stream))
        return {place: number for number, (index, step) in numbered for place in (step.preload, index)}

    @cached_property
    def written(self) -> frozenset[str]:
        """The names of the tensors that spills write."""
        return frozenset(step.tensor.name for step in self.steps if isinstance(step, Spill))

    @cached_property
    def intermediates(self) -> frozenset[str]:
        """The names of the tensors that are written and read again: neither operands nor the outcome."""
        return self.written & {step.tensor.name for step in self.steps if isinstance(step, Fill)}

    def sources(self, step: Transfer) -> list[int]:
        """The spills of its own tensor that a fill waits for: all they wrote must be in HBM when it begins."""
        if not isinstance(step, Fill) or step.tensor.name not in self.intermediates:
            return []
        waits = ((each, self.steps[each]) for each in step.after)
        return [index for index, each in waits if isinstance(each, Spill) and each.tensor == step.tensor]

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name."""
        return next(each for each in self.tensors if each.name == name)

    def lane_words(self, tensor: str = "") -> int:
        """Words of all lanes and banks set aside, for one tensor or for all."""
        buffers = (*self.buffers, *self.banked)
        return sum(each.words * each.lanes for each in buffers if tensor in ("", each.tensor))

    @cached_property
    def use(self) -> Use:
        """What all steps together take of the machine; padding and lanes without work make no access."""
        return Use(*map(sum, zip(*(step.use for step in self.steps), strict=True)))
