"""The description of a layer by its lowering: areas of the memories, and units of work on the data in them.

An *area* is a ring of equal slots in a memory. A *unit* is the work done at a time: it names the keys that it needs,
does *acts* (passes, vector work) on their slots, and may leave a result that goes to HBM. A *piece* is a part of a load
that is brought by itself, an *atom* the smallest part of a load that an act can wait for. Units of one *body* make up
one turn of the loop. *Gap* u of the DMA queue lies ahead of unit u. There are no waits and no addresses here:
`scheduler` decides when, and where.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from tpusim.machines.tpu.program.addresses import Feed
from tpusim.machines.tpu.program.program import StepCounts
from tpusim.machines.tpu.program.steps import Finish, Step, Vector
from tpusim.machines.tpu.program.tensors import Tensor
from tpusim.machines.tpu.program.transfers import Fill, InboundTransfer, Spill, Transfer, Work
from tpusim.memory.hbm_layout import Region

Key: TypeAlias = Any
"""Identifies the data that a slot holds: any hashable value."""
Gaps: TypeAlias = Callable[[int, int, int], range]
"""Gaps in which a load may be brought, given three units: the last user of its slot (or -1), the first user of the
load, and the first user of the load ahead of it in the ring.
"""


Moved = TypeVar("Moved", bound=Transfer)


class Moves(NamedTuple):
    """Data that one transfer moves, in parts of lanes or of banks, and the work on it.

    `regions` None: just the elements of the parts.
    """

    tensor: Tensor
    parts: tuple[Any, ...]
    bytes: int
    regions: tuple[Region, ...] | None = None
    work: Work | None = None

    def by(self, kind: Callable[..., Moved]) -> Moved:
        """The transfer of a kind, without waits."""
        work = {"work": self.work} if self.work else {}
        return kind((), self.tensor, self.parts, self.bytes, regions=self.regions, **work)


class EqualMoves(NamedTuple):
    """Moves that are equal but for where their slots are, and for where in the tensor their elements are.

    Attributes:
        key: what equal moves have in common.
        origin: an element of the tensor, a number for each axis; relative to it, equal moves move the same elements.
    """

    key: Hashable
    origin: Sequence[int]


class SlotNeed(NamedTuple):
    """A key that is needed in an area."""

    area: str
    key: Key


class Piece(NamedTuple):
    """A part of a load that is brought by itself.

    Attributes:
        early: rank of the piece for the unit that needs the load: pieces of several loads are brought in this order.
        atoms: numbers of the atoms that are there once the piece has come.
        brings: transfers or vector steps, given the first word of its slot, and of each need that is in an
            area; none if all of the piece is padding.
        needs: keys that must be there first: in areas, or left by units, by the name of their strand ("" for these
        units).
        steps: most steps that bring the piece.
        chained: whether each of its steps works on what the one before has brought.
        alike: what the transfers are, if other pieces of the area are brought by equal ones.
    """

    early: int
    atoms: Sequence[int]
    brings: Callable[..., Iterable[Moves | Vector]]
    needs: tuple[SlotNeed, ...] = ()
    steps: int = 1
    chained: bool = False
    alike: EqualMoves | None = None


@dataclass(frozen=True)
class Area:
    """A ring of `count` slots of `words` words each, in the first `lanes` lanes.

    Attributes:
        name: name by which needs refer to it.
        tensor: name of the buffer that the ring makes.
        cut: pieces of a key, given the number of gaps to spread the load over and whether pieces should grow from a
            small one. None: nothing is brought, and acts write the slots.
        ready: cycles from the arrival of a key until its first unit may begin.
        late: whether loads come last in a gap, behind the spill that frees their slot.
        gaps: gaps of its loads, if other than the policy's.
        live: for keys that roll through one slot like a window: the rows that units of a key read.
        depth: rows that such a window holds.
        memory: memory of the ring; each memory has words of its own.
        fill: kind of transfer that brings a piece.
    """

    name: str
    tensor: str
    words: int
    count: int
    lanes: int
    cut: Callable[[Key, int, bool], Sequence[Piece]] | None = None
    ready: Callable[[Key], int] | None = None
    late: bool = False
    gaps: Gaps | None = None
    live: Callable[[Key], range] | None = None
    depth: int = 0
    memory: str = "lanes"
    fill: Callable[..., InboundTransfer] = Fill


class Unit(NamedTuple):
    """The work that is done at a time.

    Attributes:
        needs: keys to be read or written; acts refer to them by their place in this tuple.
        body: turn of the loop that the unit belongs to; None: to no turn.
        about: data that the lowering needs when it is asked for acts and spills.
        passes, steps: numbers of passes and vector steps of its acts.
        leaves: place of the need whose slot is spilled once the unit is over; -1 for none.
        gap: whether a gap lies ahead of it; otherwise it directly continues the work of the unit ahead.
        makes: key by which pieces refer to its result.
        beside: places of needs with words beside those that the spill of its result moves: of the work on these.
        tallies: the one of these places whose words the spill writes; -1 for none.
        array: array with weights of its own that takes the passes; -1: the one whose turn it is by its sums.
        fill: elements in use in each word that the passes stream, where they are fewer than in other units; 0: as many.
        idle: cycles that a body which begins with the unit takes for outputs that it has and the layer has not.
        ahead: cycles of work for the body that the unit begins, if it begins one, which no step shows.
    """

    needs: tuple[SlotNeed, ...]
    body: Key
    about: Key
    passes: int = 0
    steps: int = 0
    leaves: int = -1
    gap: bool = True
    makes: Key = None
    beside: tuple[int, ...] = ()
    tallies: int = -1
    array: int = -1
    fill: int = 0
    idle: int = 0
    ahead: int = 0


class Touch(NamedTuple):
    """Atoms of a need that an act reads. None: all atoms. Empty: the act uses the slot, but has waited for it
    before.
    """

    need: int
    atoms: Sequence[int] | None = None


class Bias(NamedTuple):
    """A word of biases that a preload takes with its weights."""

    read: Touch
    word: int


class Pass(NamedTuple):
    """Weights are preloaded, and words stream past them: two steps.

    `base` is the first of `weight_words`, `result` the first word of the sums, in the slot of need `sums`. A pass that
    `begins` sums needs a free slot, or one with values brought for it; otherwise it adds to the sums.
    """

    weights: Touch
    data: Touch | None
    sums: int
    begins: bool
    base: int
    weight_words: int
    rows: int
    cols: int
    reads: Feed
    result: int
    words: int
    finish: tuple[Finish, ...] = ()
    bias: Bias | None = None


class VectorWork(NamedTuple):
    """Steps of the vector unit that all have the same waits, which are not written down yet.

    `writes` is the place of a need, or -1; if the work `begins` it, the slot must be free.
    """

    steps: Sequence[Vector]
    reads: tuple[Touch, ...] = ()
    writes: int = -1
    begins: bool = False


Act: TypeAlias = Pass | VectorWork


class Policy(NamedTuple):
    """Policy by which a machine, or a lowering, has its units run.

    Attributes:
        order: areas with loads, in the order in which loads are brought that are wanted at the same time.
        gaps: gaps in which a load may be brought; with the slots of an area, they tell how far ahead loads come.
        lag: gaps between the end of a unit and the spill of its result; 0: at once.
        grows: whether the first loads come in growing pieces.
        drains: whether a body begins only when the one before has ended.
        whole: whether the first pass of a body waits for all needs behind the same gap.
        pipelined: whether bodies are steps of a pipeline: their first preloads, too, wait for all needs behind the same
            gap, and results leave once all behind it has been computed.
        turn: cycles of a turn of the loop over bodies.
        serial: whether every computing step waits for the one before.
        by_area: whether a gap brings loads area by area, in place of those that are wanted first.
        arrays: number of arrays with weights of their own, which take sums in turn.
    """

    order: tuple[str, ...]
    gaps: Gaps
    lag: int = 0
    grows: bool = False
    drains: bool = False
    whole: bool = False
    pipelined: bool = False
    turn: int = 0
    serial: bool = False
    by_area: bool = False
    arrays: int = 1


class Units(ABC):
    """A layer in the form that the scheduler takes.

    Attributes:
        word_fill: elements in use in a word.
        tensors: tensors in HBM.
        policy: policy by which units are run.
        moves_words: whether words may stand elsewhere than in their slot, so that each step has addresses of its own.
        intermediates: elements of tensors that are written and read again.
        strands: other units, by name, that are run only as far as pieces need their results.
        before: whether all strands end before the first unit, as they share words with it.
    """

    word_fill: int
    tensors: tuple[Tensor, ...]
    policy: Policy
    moves_words: bool = False
    intermediates: int = 0
    strands: Mapping[str, Units] = {}
    before: bool = False

    @property
    def more(self) -> Mapping[str, Any]:
        """Fields that the Program has beside tensors, buffers and steps, by their names."""
        return {}

    @property
    def follows(self) -> Hashable:
        """A key of all that the Program follows from; None where nobody knows."""
        return None

    @property
    @abstractmethod
    def areas(self) -> tuple[Area, ...]:
        """Areas, in the order of their places."""

    @abstractmethod
    def units(self) -> Iterable[Unit]:
        """Units, in the order in which they run."""

    @abstractmethod
    def acts(self, unit: Unit, bases: Sequence[int]) -> Iterable[Act]:
        """Acts of a unit; `bases` are the first words of its needs."""

    def alike(self, unit: Unit) -> Hashable:
        """A key that units share whose acts are equal, but for where their slots are; None where nobody knows."""
        return None

    @property
    def turns(self) -> int:
        """Turns of its loops, if these are long and each may be like the last; 0 where nobody knows."""
        return 0

    def of_turns(self, turns: Sequence[int]) -> Units:
        """The units of some turns alone."""
        raise NotImplementedError

    def turn_of(self, unit: Unit) -> tuple[Hashable, int]:
        """The loop and the turn that a unit belongs to."""
        raise NotImplementedError

    def channels(self, unit: Unit) -> tuple[int, ...]:
        """Output channel of each lane in the words that a unit leaves; empty where words differ in that."""
        return ()

    @abstractmethod
    def spill(self, unit: Unit, base: int) -> Moves:
        """Moves of a unit's result, from the slot that begins at word `base`."""

    def left_alike(self, unit: Unit) -> EqualMoves | None:
        """The kind of the moves of a unit's result, and of the work on their way; None where each is its own."""
        return None

    def worked(self, unit: Unit, bases: Sequence[int], moves: Moves) -> Moves:
        """The moves of a unit's result with the work on their way, if there is any."""
        return moves

    def leaving(self, moves: Moves) -> Iterable[Step]:
        """Recipes by which a result leaves its slot: a spill."""
        yield moves.by(Spill)

    def counted(self) -> StepCounts | None:
        """Numbers of steps by a formula, for layers with too many units to list; None if the scheduler is to count."""
        return None


def in_one(
    brings: Callable[[Key, int], Iterable[Moves]],
    steps: int = 1,
    alike: Callable[[Key], EqualMoves | None] = lambda key: None,
) -> Callable[[Key, int, bool], Sequence[Piece]]:
    """A cut that leaves loads whole; `brings` gives the `steps` transfers of a key, from a word on, and `alike` what
    they are.
    """
    # One piece with one atom: whoever needs any of the load waits for all of it.
    return lambda key, gaps, grows: [Piece(0, (0,), partial(brings, key), steps=steps, alike=alike(key))]


# ---- when a load may be brought: what `Policy.gaps` and `Area.gaps` may be


def one_ahead_if_free(freed: int, first: int, ahead: int) -> range:
    """While the unit ahead runs, or as soon as the slot is free after that."""
    # A slot is free one gap behind its last user.
    gap = max(freed + 1, first - 1, 0)
    return range(gap, gap + 1)


def beside(freed: int, first: int, ahead: int) -> range:
    """Load in any gap from the second behind the last user of the slot up to the unit that needs the load."""
    # The gap right behind the last user belongs to the spill of its result.
    return range(min(freed + 2, first), first + 1)


def when_free(freed: int, first: int, ahead: int) -> range:
    """Load once the slot is free, but not before the load ahead of it is used."""
    gap = min(max(ahead, freed + 1), first)
    return range(gap, gap + 1)


def with_the_spill(lag: int) -> Gaps:
    """When the last user of the slot is spilled, `lag` gaps behind its last use; first loads come ahead of
    all units.
    """
    # A slot that nobody has used yet waits for no spill.
    return lambda freed, first, ahead: range(freed + lag, freed + lag + 1) if freed >= 0 else range(1)


at_once = with_the_spill(1)
"""Load once the slot is free."""


def with_the_one_ahead(freed: int, first: int, ahead: int) -> range:
    """Load when the load before is first used. Where the slot is not free then, later transfers of the queue wait."""
    return range(ahead, ahead + 1)


def when_needed(freed: int, first: int, ahead: int) -> range:
    """Right before the first unit that needs it."""
    return range(first, first + 1)
