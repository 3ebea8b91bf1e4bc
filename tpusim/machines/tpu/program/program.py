"""The waist of the hourglass: what a lowering produces, every interpreter runs, and people are told.

The Program says which words and lanes hold which elements and in which order the units work. It holds no value, and no
time: interpreters find out how long it takes. Nobody reads the plan behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.definition import (
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
from tpusim.machines.tpu.program.addresses import PointerTable
from tpusim.machines.tpu.program.steps import Preload, Step, Stream, Use, Vector
from tpusim.machines.tpu.program.transfers import Inbound, Keep, Prefetch, Spill, Tensor, Transfer
from tpusim.result.records import Blocking


@dataclass(frozen=True, slots=True)
class Buffer:
    """Words [base, base + words) of the first `lanes` lanes, set aside for a tensor."""

    tensor: str
    base: int
    words: int
    lanes: int


@dataclass(frozen=True, slots=True)
class Constant:
    """The numbers of a tensor that the lowering itself has worked out: 32-bit whole ones, `parts` to a 1."""

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


@dataclass(frozen=True, slots=True)
class Handed:
    """A tensor of one layer that is what spills have made of others, those of layers before.

    `same`: it is one of them, element for element; else its elements are given as an operand's are. `placed`: each is
    made of those at its place in all of them; else what of them is where is not told. `stays`: it is read where a Keep
    has left its source, and never filled.
    """

    tensor: str
    sources: tuple[str, ...]
    same: bool
    placed: bool
    stays: bool = False


@dataclass(frozen=True)
class Program:
    """A layer, lowered for a machine; or several layers, one after another, joined to one Program.

    Attributes:
        tensors: those in HBM and the scratch memory, by what steps call them. Operands are in HBM before the first
            step; the others are written by spills, or brought to the scratch memory by prefetches.
        buffers: the vector memory in use.
        banked: the words of all banks in use, each area as if it lay in one lane.
        steps: in an order that is valid when they are executed one at a time.
        word_fill: elements of a word that a pass streams, and that its results fill.
        constants: operands that come with the Program.
        word_cycles: that the vector unit takes to make a word ready which a pass streams.
        derived: operands that are made of the layer's.
        doubles: whether its values may grow beyond what float32 holds exactly, so that interpreters take float64.
        layers: the number of the layer, from 0, that each step belongs to; nothing where there is but one.
        handed: the tensors of layers that others have made.
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
    layers: tuple[int, ...] = ()
    handed: tuple[Handed, ...] = ()

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

    def array_of(self, step: Step) -> int:
        """The array that a preload or a stream is for: a stream finds its weights where they were loaded."""
        loads = self.steps[step.preload] if isinstance(step, Stream) else step
        return loads.array if isinstance(loads, Preload) else 0

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
        """The clients of ports that own slots while a pass streams."""
        own = {POINTER: bool(self.tables), PSUM: self.accumulates}
        return tuple(each for each in (IFMAP, POINTER, PSUM, RESULT) if own.get(each, True))

    def ports(self, hardware: Hardware) -> Ports:
        """The ports of a lane, each with the clients that share it: of pointers and vector unit, those there are."""
        absent = {client for client, used in ((POINTER, self.tables), (VECTOR, self.vectors)) if not used}
        ports = (tuple(each for each in port if each not in absent) for port in ports_of(hardware))
        return tuple(clients for clients in ports if clients)

    def frame(self, hardware: Hardware) -> Frame:
        """The port's period while the layer runs: of arrays with weights of their own, those with passes share it."""
        if hardware.array.queues > 1:
            hardware = hardware.with_arrays(self.queues)
        together = hardware.array.together
        pointer_words = max((table.a_frame(together) for table in self.tables), default=0)
        return frame_of(hardware, self.word_fill, self.clients, pointer_words, self.word_cycles, self.finishing)

    @cached_property
    def queues(self) -> int:
        """Arrays with weights of their own, from the first to the last that has passes."""
        return 1 + max((step.array for step in self.steps if isinstance(step, Preload)), default=0)

    @cached_property
    def finishing(self) -> int:
        """ALU operations that finish an element at most."""
        return max((sum(step.finishing) for step in self.streams if step.finish), default=0)

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
        """The names of the tensors that spills write, or that are kept."""
        return frozenset(step.tensor.name for step in self.steps if isinstance(step, Spill | Keep))

    @cached_property
    def prefetched(self) -> frozenset[str]:
        """The names of the tensors that are brought from HBM to the scratch memory."""
        return frozenset(step.to.name for step in self.steps if isinstance(step, Prefetch))

    @cached_property
    def checked(self) -> frozenset[str]:
        """The names of the tensors of which somebody knows what they should be."""
        return frozenset(name for name in self.written if not self.tensor(name).on_the_way)

    @cached_property
    def intermediates(self) -> frozenset[str]:
        """The names of the tensors that are written and read again: neither operands nor the outcome."""
        return self.written & {step.tensor.name for step in self.steps if isinstance(step, Inbound)}

    @cached_property
    def makers(self) -> dict[str, tuple[str, ...]]:
        """By what is filled, the tensors that spills make it of: itself, or those of layers before. Of what lies in the
        scratch memory, and no layer before has made, it is itself.
        """
        handed = {each.tensor: each.sources for each in self.handed}
        own = (*self.intermediates, *(each.name for each in self.tensors if each.scratch is not None))
        return {**{name: (name,) for name in own}, **handed}

    def sources(self, step: Transfer) -> list[int]:
        """The steps that a fill or a prefetch waits for and that write its tensor: all of it must be there before."""
        made = self.makers.get(step.tensor.name, ())
        if not made or isinstance(step, Spill):
            return []
        writers = ((at, each) for at in step.after if isinstance(each := self.steps[at], Transfer))
        return [at for at, each in writers if each.written and each.written.name in made]

    def with_given_operands(self) -> Program:
        """What it is where each of several layers is given operands instead of what others have made."""
        return replace(self, handed=tuple(replace(each, same=False) for each in self.handed))

    def copies(self, name: str) -> list[str]:
        """The tensors that are, element for element, what is made of tensor `name`."""
        return [each.tensor for each in self.handed if each.sources == (name,) and each.same]

    def instead(self, name: str) -> list[str]:
        """The tensors that are given where tensor `name` stays: whoever reads it there is to find these."""
        return [each.tensor for each in self.handed if each.sources == (name,) and each.stays and not each.same]

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name."""
        return next(each for each in self.tensors if each.name == name)

    def lane_words(self, tensor: str = "") -> int:
        """Words of all lanes and banks set aside, for one tensor or for all; words that several share count once."""
        total = 0
        for memory in (self.buffers, self.banked):
            held = [each for each in memory if tensor in ("", each.tensor)]
            edges = sorted({edge for each in held for edge in (each.base, each.base + each.words)})
            # All buffers begin in the first lane, so between two edges the widest has the lanes of the others.
            for start, stop in pairwise(edges):
                sharing = (each.lanes for each in held if each.base <= start < each.base + each.words)
                total += (stop - start) * max(sharing, default=0)
        return total

    @cached_property
    def use(self) -> Use:
        """What all steps together take of the machine; padding and lanes without work make no access."""
        return _together(self.steps)

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        """What the steps of each layer take, of several layers."""
        return tuple(
            _together([step for step, layer in zip(self.steps, self.layers, strict=True) if layer == number])
            for number in range(max(self.layers, default=-1) + 1)
        )

    @cached_property
    def last_passes(self) -> tuple[int, ...]:
        """The last pass or vector step of each of several layers."""
        last = {
            layer: index
            for index, (step, layer) in enumerate(zip(self.steps, self.layers, strict=bool(self.layers)))
            if isinstance(step, Stream | Vector)
        }
        return tuple(last.values())


def _together(steps: Sequence[Step]) -> Use:
    return Use(*map(sum, zip(*(step.use for step in steps), strict=True)))


@dataclass(frozen=True)
class Explanation:
    """How a layer was lowered.

    Attributes:
        multi_tile: taps stacked in a pass.
        blocking: how it was cut up, as the result tells it.
        choices: what it chose, by name, for those who compute with it.
        aspects: in words, a sentence an aspect, in the order they are told.
    """

    multi_tile: int
    blocking: Blocking
    choices: Mapping[str, int | str]
    aspects: Mapping[str, str]


class StepCounts(NamedTuple):
    """How many steps a Program will have, before it is written down: passes, and fills and spills, about.

    `intermediates` counts the elements of tensors that it writes and reads again.
    """

    passes: int
    transfers: int
    intermediates: int = 0


ExplainedProgram: TypeAlias = tuple[Program, Explanation]
