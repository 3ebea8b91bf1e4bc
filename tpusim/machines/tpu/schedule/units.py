"""What a lowering says of a layer: areas of the memories, and units of work on what stands in them.

An *area* is a ring of equal slots in a memory. A *unit* is what is worked on at a time: it names the keys that it
needs, does *acts* (passes, vector work) on their slots, and may leave a result that goes to HBM. A *piece* is a part of
a load that is brought by itself, an *atom* what an act can wait for of a load. Units of one *body* make up one turn of
the loop. *Gap* u of the DMA queue lies ahead of unit u. No wait and no address is in any of this: `scheduler` says
when, and where.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from tpusim.machines.tpu.program.addresses import Feed
from tpusim.machines.tpu.program.program import StepCounts
from tpusim.machines.tpu.program.steps import NO_SCALARS, Finish, Scalars, Step
from tpusim.machines.tpu.program.transfers import Fill, Inbound, Spill, Tensor
from tpusim.memory.layout import Region

Key: TypeAlias = Any
"""Whatever tells what is wanted apart: hashable."""
Gaps: TypeAlias = Callable[[int, int, int], range]
"""The gaps in which a load may be brought, of three units: the last that used its slot (or -1), the first that needs
the load, and the first that needs the load ahead of it in the ring."""


class Moves(NamedTuple):
    """What one transfer moves, in parts of lanes or of banks; `regions` None: just the elements of the parts."""

    tensor: Tensor
    parts: tuple[Any, ...]
    bytes: int
    regions: tuple[Region, ...] | None = None


class Compute(NamedTuple):
    """A step of the vector unit without its waits: the fields of `Vector` by their names."""

    operation: str
    operands: tuple[Feed, ...]
    writes: Feed
    words: int
    scalars: Scalars = NO_SCALARS
    coefficients: tuple[float, ...] = ()


class SlotNeed(NamedTuple):
    """A key that is wanted in an area."""

    area: str
    key: Key


class Piece(NamedTuple):
    """A part of a load that is brought by itself.

    Attributes:
        early: when the unit that wants the load wants this piece: pieces of several loads are brought in that order.
        atoms: the numbers of what is there once the piece has come.
        brings: transfers, or steps of the vector unit, given the first word of its slot, and of each need that is in an
            area; none of them where all of the piece is padding.
        needs: what must be there before, in areas; or left by units, by the name of their strand, "" for these units.
        steps: how many there are at most.
    """

    early: int
    atoms: Sequence[int]
    brings: Callable[..., Iterable[Moves | Compute]]
    needs: tuple[SlotNeed, ...] = ()
    steps: int = 1


@dataclass(frozen=True)
class Area:
    """A ring of `count` slots of `words` words each, in the first `lanes` lanes.

    Attributes:
        name: what needs call it.
        tensor: the name of the buffer that the ring makes.
        cut: the pieces of a key, given the gaps that the load may be spread over and whether pieces should grow from a
            small one; None: nothing is brought, acts write the slots.
        ready: cycles from the arrival of a key until its first unit may begin.
        late: whether loads come behind all else of a gap, the spill that frees their slot included.
        gaps: those of its loads, where they differ from the policy's.
        live: of keys that roll through one slot as through a window: the rows that units of a key read.
        depth: rows that such a window holds.
        memory: the memory that the ring is in; each has words of its own.
        fill: the transfer that brings a piece.
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
    fill: Callable[..., Inbound] = Fill


class Unit(NamedTuple):
    """What is worked on at a time.

    Attributes:
        needs: keys to be read or written; acts name them by their place in this tuple.
        body: units with equal bodies belong to one turn of the loop; None: to none.
        about: whatever the lowering wants to know again when it is asked for acts and spills.
        passes, steps: passes and vector steps that its acts are.
        leaves: the place of the need whose slot is spilled once the unit is over; -1: it leaves nothing.
        gap: whether there is a gap ahead of it; else it goes on at once with what the unit ahead has begun.
        makes: the key by which pieces need what it leaves.
    """

    needs: tuple[SlotNeed, ...]
    body: Key
    about: Key
    passes: int = 0
    steps: int = 0
    leaves: int = -1
    gap: bool = True
    makes: Key = None


class Touch(NamedTuple):
    """Atoms of a need that an act reads. Not given: all. Empty: the act uses the slot, and has waited before."""

    need: int
    atoms: Sequence[int] | None = None


class Bias(NamedTuple):
    """The word of biases that a preload takes with its weights."""

    read: Touch
    word: int


class Pass(NamedTuple):
    """Weights are preloaded, words stream past them: two steps.

    `base` is the first of `weight_words`, `result` that of the sums, which stand in the slot of need `sums`. Where the
    pass `begins` sums, the slot must be free, or has what was brought for them; else it adds to them.
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
    """Steps of the vector unit, all of which wait for the same. `writes` is the place of a need, or -1; where the work
    `begins` it, its slot must be free.
    """

    steps: Sequence[Compute]
    reads: tuple[Touch, ...] = ()
    writes: int = -1
    begins: bool = False


Act: TypeAlias = Pass | VectorWork


class Policy(NamedTuple):
    """How a machine, or a lowering, wants units to be run.

    Attributes:
        order: brought areas, the first one first where several are wanted at once.
        gaps: in which gaps a load may be brought: with the slots of its area, how far ahead of its use.
        lag: gaps between the end of a unit and the spill of what it leaves; 0: at once.
        grows: whether the first loads come in growing pieces.
        drains: whether a body begins only when the one before has ended.
        whole: whether the first pass of a body waits for all that is needed behind the same gap.
        complete: whether what a unit leaves goes once all that is behind the same gap has been computed.
        turn: cycles that a turn of the loop over bodies takes.
        serial: whether all that computes waits for what computed before.
        by_area: whether a gap brings area by area, instead of what is wanted first.
        arrays: arrays with weights of their own, to which sums are dealt out in turn.
    """

    order: tuple[str, ...]
    gaps: Gaps
    lag: int = 0
    grows: bool = False
    drains: bool = False
    whole: bool = False
    complete: bool = False
    turn: int = 0
    serial: bool = False
    by_area: bool = False
    arrays: int = 1


class Units(ABC):
    """A layer as the scheduler wants it.

    Attributes:
        word_fill: elements of a word in use.
        tensors: what is in HBM.
        policy: how units are to be run.
        intermediates: elements of tensors that are written and read again.
        strands: units beside these, by name, that are run only as far as pieces need what they leave.
        before: whether all strands end before the first unit, as they share words with it.
    """

    word_fill: int
    tensors: tuple[Tensor, ...]
    policy: Policy
    intermediates: int = 0
    strands: Mapping[str, Units] = {}
    before: bool = False

    @property
    def more(self) -> Mapping[str, Any]:
        """Fields that the Program has beside tensors, buffers and steps, by their names."""
        return {}

    @property
    @abstractmethod
    def areas(self) -> tuple[Area, ...]:
        """Areas in the order in which they stand."""

    @abstractmethod
    def units(self) -> Iterable[Unit]:
        """Units in the order in which they run."""

    @abstractmethod
    def acts(self, unit: Unit, bases: Sequence[int]) -> Iterable[Act]:
        """What a unit does; `bases` are the first words of its needs."""

    def channels(self, unit: Unit) -> tuple[int, ...]:
        """The output channel of each lane in the words that a unit leaves; nothing where words differ in that."""
        return ()

    @abstractmethod
    def spill(self, unit: Unit, base: int) -> Moves:
        """What a unit leaves, in the slot that begins at word `base`."""

    def leaving(self, after: tuple[int, ...], moves: Moves) -> Iterable[Step]:
        """The steps by which a result leaves its slot: a spill."""
        yield Spill(after, *moves[:3], regions=moves.regions)

    def counted(self) -> StepCounts | None:
        """The steps by a formula, for layers whose units are too many to list; None where `scheduler` is to count."""
        return None


def in_one(
    brings: Callable[[Key, int], Iterable[Moves]], steps: int = 1
) -> Callable[[Key, int, bool], Sequence[Piece]]:
    """A cut of an area that leaves loads whole: `brings` gives the `steps` transfers of a key, from a word on."""
    return lambda key, gaps, grows: [Piece(0, (0,), partial(brings, key), steps=steps)]


# ---- when a load may be brought: what `Policy.gaps` and `Area.gaps` may be


def one_ahead_if_free(freed: int, first: int, ahead: int) -> range:
    """While the unit ahead runs, if the slot is free by then."""
    gap = max(freed + 1, first - 1, 0)
    return range(gap, gap + 1)


def beside(freed: int, first: int, ahead: int) -> range:
    """In any gap from the second behind the last user of the slot on, up to the unit that needs the load."""
    return range(min(freed + 2, first), first + 1)


def when_free(freed: int, first: int, ahead: int) -> range:
    """As soon as the slot is free, but not before the load ahead of it is used."""
    gap = min(max(ahead, freed + 1), first)
    return range(gap, gap + 1)


def with_the_spill(lag: int) -> Gaps:
    """When what had the slot is spilled, `lag` gaps behind its last use; the first load ahead of all units."""
    return lambda freed, first, ahead: range(freed + lag, freed + lag + 1) if freed >= 0 else range(1)


at_once = with_the_spill(1)
"""As soon as the slot is free."""


def with_the_one_ahead(freed: int, first: int, ahead: int) -> range:
    """When the load ahead of it is used for the first time, free slot or not: transfers behind it in the queue wait."""
    return range(ahead, ahead + 1)


def when_needed(freed: int, first: int, ahead: int) -> range:
    """Right before the first unit that needs it."""
    return range(first, first + 1)
