"""The waist of the hourglass: what a lowering produces and every interpreter runs.

A `Program` is tensors and a short list of steps. It says *what* happens in which order, never *when*: time belongs
to the engines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.definition.frame import (
    IFMAP,
    POINTER,
    PSUM,
    RESULT,
    VECTOR,
    Clients,
    Frame,
    Ports,
    frame_of,
    ports_of,
)
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.pointers import PointerTable
from tpusim.machines.tpu.program.steps import Fill, Inbound, Spill, Step, Stream, Transfer, Use, Vector
from tpusim.machines.tpu.program.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Buffer:
    """Words [base, base + words) of the first `lanes` lanes, set aside for a tensor."""

    tensor: str
    base: int
    words: int
    lanes: int


@dataclass(frozen=True, slots=True)
class Constant:
    """The numbers of a tensor that the lowering itself has worked out: 32-bit whole ones, so many `parts` to one."""

    tensor: str
    numbers: bytes
    parts: int = 1

    @property
    def values(self) -> NDArray[np.float32]:
        """In the order of the tensor's elements, as the memories hold them."""
        return np.frombuffer(self.numbers, np.int32).astype(np.float32) / np.float32(self.parts)


@dataclass(frozen=True, slots=True)
class Derived:
    """A tensor that is made of an operand of the layer before the layer begins, and then lies in HBM like one."""

    tensor: str
    operand: str
    values: Callable[[NDArray[Any]], NDArray[Any]]


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
        constants: operands that come with the Program.
        word_cycles: that the vector unit takes to make a word ready which a pass streams.
        derived: operands that are made of the layer's.
        doubles: whether its values may grow beyond what float32 holds exactly, so that interpreters take float64.
    """

    tensors: tuple[Tensor, ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    word_fill: int
    banked: tuple[Buffer, ...] = ()
    constants: tuple[Constant, ...] = ()
    word_cycles: int = 0
    derived: tuple[Derived, ...] = ()
    doubles: bool = False

    @property
    def number(self) -> type[Any]:
        """What interpreters compute with: it holds every value exactly."""
        return np.float64 if self.doubles else np.float32

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
    def vectors(self) -> tuple[Vector, ...]:
        """What the vector unit does by itself, in order."""
        return tuple(step for step in self.steps if isinstance(step, Vector))

    @cached_property
    def accumulates(self) -> bool:
        """Whether any pass adds to partial sums: such a layer owns a partial-sum slot throughout."""
        return any(step.accumulate for step in self.streams)

    @cached_property
    def tables(self) -> frozenset[PointerTable]:
        """The tables of pointers that passes read through."""
        return frozenset(step.reads.table for step in self.streams if step.reads.table)

    @cached_property
    def clients(self) -> Clients:
        """Those of the ports that own slots while a pass streams."""
        own = {POINTER: bool(self.tables), PSUM: self.accumulates}
        return tuple(each for each in (IFMAP, POINTER, PSUM, RESULT) if own.get(each, True))

    def ports(self, hardware: Hardware) -> Ports:
        """The ports of a lane, each with the clients that share it: of pointers and vector unit, those there are."""
        absent = {client for client, used in ((POINTER, self.tables), (VECTOR, self.vectors)) if not used}
        ports = (tuple(each for each in port if each not in absent) for port in ports_of(hardware))
        return tuple(clients for clients in ports if clients)

    def frame(self, hardware: Hardware) -> Frame:
        """The port's period while the layer runs."""
        arrays = hardware.array.count
        pointer_words = max((table.a_frame(arrays) for table in self.tables), default=0)
        return frame_of(hardware, self.word_fill, self.clients, pointer_words, self.word_cycles)

    def given(self, operands: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The tensors that are there before the first step: the layer's operands, and the Program's own."""
        made = {each.tensor: each.values(operands[each.operand]) for each in self.derived if each.operand in operands}
        return {**operands, **{each.tensor: each.values for each in self.constants}, **made}

    def widest_word(self, elements: int) -> int:
        """Numbers that a word holds at most: `elements`, or more that are smaller."""
        own = (step for step in self.steps if isinstance(step, Transfer) and step.tensor.number_bytes)
        return max([elements, *(part.per_word for step in own for part in step.parts)])

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
        return self.written & {step.tensor.name for step in self.steps if isinstance(step, Inbound)}

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
