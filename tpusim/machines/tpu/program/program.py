"""The waist of the hourglass: a lowering produces it, every interpreter runs it, and reports tell of it.

The Program says which words and lanes hold which elements, and in which order the units work. It holds no value and no
time: interpreters find out how long it takes. No other room reads the plan behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from operator import mul
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
from tpusim.machines.tpu.program.rows import Kind, Rows
from tpusim.machines.tpu.program.steps import Stream, Use, Vector
from tpusim.machines.tpu.program.tensors import LANES, Place, Tensor
from tpusim.machines.tpu.program.transfers import InboundTransfer, Keep, Prefetch, Spill, Transfer
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
    """Values of a tensor that the lowering itself has worked out, as 32-bit whole numbers in units of 1 / `parts`."""

    tensor: str
    numbers: bytes
    parts: int = 1

    @property
    def values(self) -> NDArray[np.float32]:
        """Values in the order of the tensor's elements, as the memories hold them."""
        return np.frombuffer(self.numbers, np.int32).astype(np.float32) / np.float32(self.parts)


@dataclass(frozen=True, slots=True)
class DerivedTensor:
    """A tensor made from an operand of the layer before the layer begins; it then lies in HBM like an operand."""

    tensor: str
    operand: str
    values: Callable[[NDArray[Any]], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class HandedTensor:
    """A tensor of one layer that earlier layers have made: their spills or, where it lies in the lanes, their Keeps.

    `same`: it is one of their tensors, element for element; otherwise its elements are given, as an operand's are.
    `placed`: each element is made of the elements at the same place in all sources; otherwise the places are unknown.
    """

    tensor: str
    sources: tuple[str, ...]
    same: bool
    placed: bool


@dataclass(frozen=True, slots=True)
class Pace:
    """What sets the frame of passes, beside the machine.

    Attributes:
        word_fill: elements of a word that a pass streams, and that its results fill.
        clients: the clients of ports that own slots while a pass streams.
        word_cycles: cycles that the vector unit takes to make a word ready.
        finishing: the most ALU operations that finish an element.
        queues: arrays with weights of their own that have slots.
        tables: tables of pointers that passes read through.
    """

    word_fill: int
    clients: Clients
    word_cycles: int = 0
    finishing: int = 0
    queues: int = 1
    tables: frozenset[PointerTable] = frozenset()

    def frame(self, hardware: Hardware) -> Frame:
        """The port's period while such passes run."""
        if hardware.array.queues > 1:
            # Arrays without passes of their own take no slots.
            hardware = hardware.having("array", count=self.queues)
        together = hardware.array.together
        pointer_words = max((table.a_frame(together) for table in self.tables), default=0)
        return frame_of(hardware, self.word_fill, self.clients, pointer_words, self.word_cycles, self.finishing)


@dataclass(frozen=True)
class Program:
    """A layer, lowered for a machine; or several layers, one after another, joined to one Program.

    Attributes:
        tensors: tensors, wherever they lie. Operands are in HBM before the first step; the others are written by
            spills, or brought to the scratch memory by prefetches.
        buffers: words of the vector memories that are in use.
        banked: words of banks that are in use, each area as if it lay in one lane.
        rows: steps in an order that is valid when they are executed one at a time. Steps that were made one by one
            become rows.
        word_fill: elements of a word that a pass streams, and that its results fill; of several layers or passes, the
            most.
        constants: tensors that come with the Program.
        word_cycles: cycles that the vector unit takes to make a word ready that a pass streams.
        derived: tensors that are made of the layer's operands.
        doubles: whether values may exceed what float32 holds exactly, so that interpreters use float64.
        layers: number of the layer, from 0, that each step belongs to; empty for a single layer.
        paces: pace of each layer's passes, for a Program of several layers that each have a frame of their own.
        handed: tensors that layers read and earlier layers have made.
    """

    tensors: tuple[Tensor, ...]
    buffers: tuple[Buffer, ...]
    rows: Rows
    word_fill: int
    banked: tuple[Buffer, ...] = ()
    constants: tuple[Constant, ...] = ()
    word_cycles: int = 0
    derived: tuple[DerivedTensor, ...] = ()
    doubles: bool = False
    layers: tuple[int, ...] = ()
    handed: tuple[HandedTensor, ...] = ()
    paces: tuple[Pace, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", Rows.of(self.rows))

    @property
    def number(self) -> type[Any]:
        """Type that interpreters compute with: it holds every value exactly."""
        return np.float64 if self.doubles else np.float32

    @cached_property
    def words(self) -> int:
        """Words of vector memory that a lane needs."""
        return max(buffer.base + buffer.words for buffer in self.buffers)

    @cached_property
    def bank_words(self) -> int:
        """Addresses that the Program needs in the banks."""
        return max((buffer.base + buffer.words for buffer in self.banked), default=0)

    def __str__(self) -> str:
        return str(self.rows)

    @cached_property
    def streams(self) -> tuple[Stream, ...]:
        """Streams, in the order in which the array takes them."""
        return self._made_of(Stream)

    @cached_property
    def passes(self) -> int:
        """The number of streams."""
        return sum(count for _, count in self.rows.done(Stream))

    @cached_property
    def arrays(self) -> list[int]:
        """Array of each preload and stream, -1 for other steps: a stream goes where its weights were loaded."""
        found: list[int] = self.rows.table["array"].tolist()
        return found

    @cached_property
    def vectors(self) -> tuple[Vector, ...]:
        """Vector steps, in order."""
        return self._made_of(Vector)

    def _made_of(self, kind: type[Kind]) -> tuple[Kind, ...]:
        return tuple([step for _, step in self.rows.steps(kind)])

    @cached_property
    def works(self) -> bool:
        """Whether the vector unit has steps of its own."""
        return any(True for _ in self.rows.done(Vector))

    @cached_property
    def accumulates(self) -> bool:
        """Whether any pass adds to partial sums; if so, the layer owns a partial-sum slot throughout."""
        return any(step.accumulate for step, _ in self.rows.done(Stream))

    @cached_property
    def tables(self) -> frozenset[PointerTable]:
        """Tables of pointers that passes read through."""
        return frozenset(step.reads.table for step, _ in self.rows.done(Stream) if step.reads.table)

    @cached_property
    def clients(self) -> Clients:
        """The clients of ports that own slots while a pass streams."""
        # A slot that no pass uses would only make the frame longer.
        own = {POINTER: bool(self.tables), PSUM: self.accumulates}
        return tuple(each for each in (IFMAP, POINTER, PSUM, RESULT) if own.get(each, True))

    def ports(self, hardware: Hardware) -> Ports:
        """Ports of a lane, each with the clients that share it; pointers and vector unit are left out if unused."""
        absent = {client for client, used in ((POINTER, self.tables), (VECTOR, self.works)) if not used}
        ports = (tuple(each for each in port if each not in absent) for port in ports_of(hardware))
        return tuple(clients for clients in ports if clients)

    @cached_property
    def pace(self) -> Pace:
        """Pace of the passes of a single layer; arrays with weights of their own share it if they have passes."""
        return Pace(self.word_fill, self.clients, self.word_cycles, self.finishing, self.queues, self.tables)

    def frame(self, hardware: Hardware) -> Frame:
        """The port's period while a single layer runs."""
        return self.pace.frame(hardware)

    def frames(self, hardware: Hardware) -> tuple[Frame, ...]:
        """The port's period at each pace, that of the first layer first."""
        return tuple(pace.frame(hardware) for pace in self._paced[0])

    @property
    def numbers_of_paces(self) -> NDArray[np.int32]:
        """Number of each step's pace among those of `frames`: a preload has that of its passes."""
        return self._paced[1]

    @property
    def all_paces(self) -> tuple[Pace, ...]:
        """The different paces, in the order of `frames`."""
        return self._paced[0]

    def fill_of(self, index: int) -> int:
        """Elements of a word in use at the pace of a step."""
        return self.all_paces[int(self.numbers_of_paces[index])].word_fill

    @cached_property
    def _paced(self) -> tuple[tuple[Pace, ...], NDArray[np.int32]]:
        """Different paces, and the number of each step's."""
        of_layers = self.paces or (self.pace,)
        known = {pace: number for number, pace in enumerate(dict.fromkeys(of_layers))}
        rows = self.rows
        own = np.array(self.layers, np.int32) if self.paces else np.zeros(len(rows), np.int32)
        numbers = np.array([known[each] for each in of_layers], np.int32)[own]
        fills = rows.told(lambda each: each.fill if isinstance(each, Stream) else 0)
        for at in np.flatnonzero(fills).tolist():
            pace = replace(of_layers[own[at]], word_fill=int(fills[at]))
            numbers[at] = numbers[rows.table["preload"][at]] = known.setdefault(pace, len(known))
        return (*known,), numbers

    @cached_property
    def queues(self) -> int:
        """Number of arrays with weights of their own, up to the last that has passes."""
        return max(1, 1 + int(self.rows.table["array"].max(initial=0)))

    @cached_property
    def finishing(self) -> int:
        """The most ALU operations that finish an element."""
        return max((sum(step.finishing) for step, _ in self.rows.done(Stream) if step.finish), default=0)

    def given(self, operands: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Tensors in HBM before the first step: the layer's operands, constants and derived tensors."""
        made = {each.tensor: each.values(operands[each.operand]) for each in self.derived if each.operand in operands}
        return {**operands, **{each.tensor: each.values for each in self.constants}, **made}

    def widest_word(self, elements: int) -> int:
        """The most numbers that a word holds: `elements`, or more where a tensor has smaller numbers."""
        own = (step for step, _ in self.rows.done(Transfer) if step.tensor.number_bytes)
        return max([elements, *(part.per_word for step in own for part in step.parts)])

    @cached_property
    def numbers_of_passes(self) -> dict[int, int]:
        """Number of the pass, from 0, that a preload or a stream belongs to."""
        preloads = self.rows.table["preload"]
        streams = np.flatnonzero(preloads >= 0)
        numbered = enumerate(zip(streams.tolist(), preloads[streams].tolist(), strict=True))
        return {place: number for number, (stream, preload) in numbered for place in (preload, stream)}

    @cached_property
    def written(self) -> frozenset[str]:
        """Names of the tensors that spills write or Keeps hold."""
        return frozenset(step.tensor.name for kind in (Spill, Keep) for step, _ in self.rows.done(kind))

    @cached_property
    def prefetched(self) -> frozenset[str]:
        """Names of the tensors that prefetches bring to the scratch memory."""
        return frozenset(step.to.name for step, _ in self.rows.done(Prefetch))

    @cached_property
    def checked(self) -> frozenset[str]:
        """Names of the written tensors whose values an oracle knows."""
        return frozenset(name for name in self.written if not self.tensor(name).exchanged)

    @cached_property
    def intermediates(self) -> frozenset[str]:
        """Names of the tensors that are written and read again: neither operands nor the outcome."""
        return self.written & {step.tensor.name for step, _ in self.rows.done(InboundTransfer)}

    @cached_property
    def makers(self) -> dict[str, tuple[str, ...]]:
        """Tensors that spills make a filled tensor of, by its name: itself, or tensors of earlier layers."""
        handed = {each.tensor: each.sources for each in self.handed}
        own = (*self.intermediates, *(each.name for each in self.tensors if each.place.base is not None))
        return {**{name: (name,) for name in own}, **handed}

    def sources(self, step: Transfer) -> list[int]:
        """Steps that write the tensor of a fill or a prefetch, and that it waits for: all of the tensor must be there
        first.
        """
        made, rows = self.makers.get(step.tensor.name, ()), self.rows
        # A spill reads nothing that other steps have brought to HBM.
        if not made or isinstance(step, Spill):
            return []
        writers = ((at, rows.recipe(at)) for at in step.after)
        return [at for at, each in writers if isinstance(each, Transfer) and each.written and each.written.name in made]

    def with_given_operands(self) -> Program:
        """The Program with given operands for every layer, in place of what earlier layers have made."""
        return replace(self, handed=tuple(replace(each, same=False) for each in self.handed))

    def copies(self, name: str) -> list[str]:
        """Names of the tensors that equal, element for element, what is made of tensor `name`."""
        return [each.tensor for each in self.handed if each.sources == (name,) and each.same]

    def instead(self, name: str) -> list[str]:
        """Names of the tensors whose given values replace tensor `name` where it stays, for those who read it there."""
        readers = [each.tensor for each in self.handed if each.sources == (name,) and not each.same]
        return [each for each in readers if self.tensor(each).place == LANES]

    def bytes_moved(self, tensor: str = "", kind: type[Transfer] = Transfer) -> int:
        """Bytes that transfers of a kind move over a bus, of a tensor or of all."""
        moves = self.rows.done(kind)
        return sum(step.hbm_bytes * count for step, count in moves if tensor in ("", step.tensor.name))

    def lying(self, names: Collection[str], place: Place) -> Program:
        """The Program with the tensors of these names at a place."""
        tensors = {each.name: replace(each, place=place) if each.name in names else each for each in self.tensors}
        recipes = [
            replace(each, tensor=tensors[each.tensor.name])
            if isinstance(each, Transfer) and each.tensor.name in names else each
            for each in self.rows.recipes
        ]  # fmt: skip
        return replace(self, tensors=tuple(tensors.values()), rows=self.rows.having(recipes)) if names else self

    def moved(self, words: int) -> Program:
        """The Program with all its words moved up by a number of `words`; its rows must be movable."""
        buffers = tuple([replace(each, base=each.base + words) for each in self.buffers])
        return replace(self, buffers=buffers, rows=self.rows.moved(words))

    def tensor(self, name: str) -> Tensor:
        """The tensor of a name."""
        return next(each for each in self.tensors if each.name == name)

    def lane_words(self, tensor: str = "") -> int:
        """Words of all lanes and banks set aside for one tensor, or for all; words that several tensors share count
        once.
        """
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
        """Use of the machine by all steps together; padding and lanes without a part make no access."""
        return _together([*zip(self._uses_of_recipes, self.rows.counts.tolist(), strict=True)])

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        """Use of the machine by each layer's steps, for a Program of several layers."""
        layers = np.array(self.layers, np.int64)
        done, counts = np.unique(layers << 32 | self.rows.table["recipe"], return_counts=True)
        # Few recipes are done in each layer.
        firsts = np.searchsorted(done >> 32, np.arange(layers.max(initial=-1) + 2))
        of = self._uses_of_recipes
        every = [*zip((done & 0xFFFFFFFF).tolist(), counts.tolist(), strict=True)]
        return tuple(
            _together([(of[recipe], count) for recipe, count in every[first:end]]) for first, end in pairwise(firsts)
        )

    @cached_property
    def _uses_of_recipes(self) -> list[Use]:
        return [each.use for each in self.rows.recipes]

    @cached_property
    def last_passes(self) -> tuple[int, ...]:
        """Number of the last pass or vector step of each layer, for a Program of several layers."""
        steps = self.rows.are(Stream | Vector)
        last = {layer: index for index, layer in enumerate(self.layers) if steps[index]}
        return tuple(last.values())


def _together(uses: Sequence[tuple[Use, int]]) -> Use:
    """Uses that come so often each. Python's numbers have no end, which bytes of a giant layer need."""
    counts = [count for _, count in uses]
    return Use(*(sum(map(mul, each, counts)) for each in zip(*(use for use, _ in uses), strict=True)))


@dataclass(frozen=True)
class Explanation:
    """An account of how a layer was lowered, for people.

    Attributes:
        multi_tile: taps stacked in a pass.
        blocking: how the layer was cut up, as results show it.
        choices: choices of the lowering, by name, for figures that depend on them.
        aspects: sentences about the lowering, by aspect, in the order in which reports show them.
    """

    multi_tile: int
    blocking: Blocking
    choices: Mapping[str, int | str]
    aspects: Mapping[str, str]


class StepCounts(NamedTuple):
    """Numbers of steps that a Program will have, before it is written: passes, and about as many fills and spills as
    given.

    `intermediates` counts the elements of tensors that the Program writes and reads again.
    """

    passes: int
    transfers: int
    intermediates: int = 0


ExplainedProgram: TypeAlias = tuple[Program, Explanation]
