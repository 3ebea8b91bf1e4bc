"""The waist of this room: a collective as steps that every chip takes alike, and these as messages that visit servers.

A server is anything that serves one message at a time: a link, the memory of a chip, what adds. All engines agree on
what a visit is; how long each takes is said here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from typing import NamedTuple

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.slices.slice import ChipSlice, cycles_of
from tpusim.machines.tpu.slices.torus import Group, LinkPort, Place

SUM_BYTES = 4
"""Bytes of a number that ALUs add: narrower ones are widened, and sums are narrowed again."""


class MovedPiece(NamedTuple):
    """Elements of a chip's memory, and where they go in that of another chip: to be stored, to be added, or both."""

    start: int
    stop: int
    stored: int | None = None
    added: int | None = None


@dataclass(frozen=True, eq=False)
class Way:
    """Where a step of a chip goes, the same for all chips: to a chip, over links; `origin` is the way back."""

    to: Callable[[Place], Place]
    origin: Callable[[Place], Place]
    ports: Callable[[Place], tuple[LinkPort, ...]]


@dataclass(frozen=True, eq=False, slots=True)
class ExchangeStep:
    """A step that every chip takes: `elements` go their `way`, `adds` where sums grow there.

    It begins when the steps `after` it, by number, have arrived at the chip. `elements` are the most of any chip;
    `piece` says which they are, and all chips take as long as that one. `label` is for people.
    """

    way: Way
    elements: int
    adds: bool
    after: tuple[int, ...]
    piece: Callable[[Place], MovedPiece]
    label: str


OperandRange = Callable[[int], tuple[int, int, int]]
"""By rank, the part of an operand that a chip holds: from an element to another, and where it stands in memory."""
ResultRanges = Callable[[int], Sequence[tuple[int, int]]]
"""By rank, the ranges of memory that are a chip's result, in order."""


@dataclass(frozen=True, eq=False)
class Exchange:
    """A collective as steps, in the order in which each chip issues them.

    Attributes:
        group: the chips that take part.
        steps: what each of them does.
        memory: elements of a chip's memory.
        holds: where operands stand in it before.
        leaves: where results stand in it after.
        order: rank in the collective of each rank of the group, where these differ.
        alike: whether chips of one kind of the group take alike.
        passes: passes over the elements, which take the same steps each.
        written: passes that the steps are of.
    """

    group: Group
    steps: Sequence[ExchangeStep]
    memory: int
    holds: OperandRange
    leaves: ResultRanges
    order: tuple[int, ...] | None = None
    alike: bool = True
    passes: int = 1
    written: int = 1

    def rank(self, place: Place) -> int:
        """Rank of a chip in the collective."""
        own = self.group.rank(place)
        return self.order[own] if self.order else own


class Visit(NamedTuple):
    """A message at a server: the cycles for which it holds it, and those after which it is at the next."""

    server: int
    holds: int
    passes: int


class ServerName(NamedTuple):
    """A server: "memory", "adder", or "link" with its port; and the chip that it belongs to."""

    unit: str
    place: Place
    port: LinkPort | None = None


@dataclass(frozen=True)
class Rates:
    """How long things take on a chip, in its cycles.

    Attributes:
        launch: cycles before the first step.
        link: bytes of data that a link carries in a cycle; of the network between slices where it leads there.
        hop: cycles of a hop over such a link.
        memory: bytes that the memory moves in a cycle.
        latency: cycles until its first byte.
        adds: elements that are added in a cycle.
    """

    launch: int
    link: tuple[Fraction, ...]
    hop: tuple[int, ...]
    memory: Fraction
    latency: int
    adds: Fraction

    def __post_init__(self) -> None:
        # A message that went on in the cycle it came would make the outcome depend on who looks first.
        assert min(self.latency, *self.hop) > 0, "whatever passes on takes a cycle at least"


def rates_of(place: ChipSlice, element_bytes: int, machine: Hardware | None = None) -> Rates:
    """Return the rates of a slice's chips for elements of a size; the last axis of joined slices is the network
    between them. Chips are a `machine` where one is given, else what the generation says.
    """
    links, chip = place.interconnect, machine or place.chip
    clock = chip.clock_hz
    wire = links.link.bandwidth_bytes_per_s * links.link.payload / clock
    rates, hops = [wire] * len(place.torus), [cycles_of(links.link.hop_ps, clock)] * len(place.torus)
    if place.slices > 1:
        assert links.dcn is not None, "checked when the slice was read"
        rates.append(Fraction(links.dcn.bandwidth_bytes_per_s, clock))
        hops.append(cycles_of(links.dcn.latency_ps, clock))
    emitters = links.collectives
    if emitters.adds == "vector_unit":
        unit = chip.vector_unit
        narrow = element_bytes < SUM_BYTES
        adds = unit.alus / (1 + (2 * unit.widen + unit.narrow) * narrow)
    else:
        adds = Fraction(emitters.adds_per_cycle)
    memory = chip.pipes["hbm"]
    launch = cycles_of(emitters.launch_ps, clock)
    return Rates(launch, tuple(rates), tuple(hops), memory.bytes_per_cycle, max(1, memory.latency), Fraction(adds))


@dataclass(frozen=True, eq=False)
class Messages:
    """The messages of some chips, numbered chip by chip, each chip's in the order of its steps.

    Attributes:
        places: the chips.
        servers: what is visited.
        visits: visits of each message.
        after: messages that have to arrive before it begins.
        steps: steps of a chip: message m is step m % steps of chip m // steps.
        launch: cycle at which messages begin that wait for none.
    """

    places: tuple[Place, ...]
    servers: tuple[ServerName, ...]
    visits: tuple[tuple[Visit, ...], ...]
    after: tuple[tuple[int, ...], ...]
    steps: int
    launch: int

    @cached_property
    def waiters(self) -> list[list[int]]:
        """Messages that wait for each."""
        found: list[list[int]] = [[] for _ in self.visits]
        for message, before in enumerate(self.after):
            for each in before:
                found[each].append(message)
        return found


class _Servers:
    """Servers by number, each made when somebody visits it; and what messages of a size take at each."""

    def __init__(self, kind: Callable[[Place], Place], rates: Rates, element_bytes: int) -> None:
        self._kind, self.rates, self._bytes = kind, rates, element_bytes
        self.known: dict[ServerName, int] = {}
        self._seen: dict[tuple[Place, int, int], int] = {}

    def of_chip(self, unit: str, place: Place) -> int:
        """Return the number of a chip's memory or adder."""
        name = ServerName(unit, self._kind(place))
        return self.known.setdefault(name, len(self.known))

    def link(self, port: LinkPort) -> int:
        """Return the number of a link."""
        if (found := self._seen.get(port)) is None:
            own = self._kind(port.place)
            name = ServerName("link", own, LinkPort(own, port.axis, port.way))
            found = self._seen[port] = self.known.setdefault(name, len(self.known))
        return found

    @cache  # noqa: B019 - the object lives as long as its answers are asked for
    def moved(self, elements: int) -> int:
        """Return the cycles in which memory moves elements."""
        return _whole(elements * self._bytes / self.rates.memory)

    @cache  # noqa: B019
    def carried(self, elements: int, axis: int) -> int:
        """Return the cycles in which a link carries them."""
        return _whole(elements * self._bytes / self.rates.link[axis])

    @cache  # noqa: B019
    def added(self, elements: int) -> int:
        """Return the cycles in which they are added."""
        return _whole(elements / self.rates.adds)


def messages_of(exchange: Exchange, rates: Rates, element_bytes: int, every: bool = False) -> Messages:
    """Return the messages of one chip of each kind, or of `every` chip whose group may share links with another's.

    What a chip of a kind receives is what its neighbour's kind sends.
    """
    group = exchange.group
    every = every or not exchange.alike
    places = group.sharing if every else group.kinds
    kind: Callable[[Place], Place] = (lambda place: place) if every else group.kind
    numbers = {place: number for number, place in enumerate(places)}
    servers = _Servers(kind, rates, element_bytes)
    many = len(exchange.steps)
    visits: list[tuple[Visit, ...]] = []
    after: list[tuple[int, ...]] = []
    for place in places:
        # Passes repeat the same steps: what they visit, and from where they come, is worked out once.
        known: dict[tuple[Way, int, bool], tuple[Visit, ...]] = {}
        origins: dict[Way, int] = {}
        for step in exchange.steps:
            key = step.way, step.elements, step.adds
            if key not in known:
                known[key] = _visits(step, place, servers)
            visits.append(known[key])
            waits = []
            for number in step.after:
                way = exchange.steps[number].way
                if way not in origins:
                    origins[way] = numbers[kind(way.origin(place))] * many
                waits.append(origins[way] + number)
            after.append(tuple(waits))
    return Messages(places, tuple(servers.known), tuple(visits), tuple(after), many, rates.launch)


def _visits(step: ExchangeStep, place: Place, servers: _Servers) -> tuple[Visit, ...]:
    """Return what a message goes through: it is read while it goes over the links, and stored when all of it is there.

    A hop that adds reads once more what stands there, adds, and writes the sum.
    """
    elements, rates = step.elements, servers.rates
    moved, there = servers.moved(elements), step.way.to(place)
    found = [Visit(servers.of_chip("memory", place), moved, rates.latency)]
    ports = step.way.ports(place)
    for number, port in enumerate(ports, 1):
        # Over several links the first bytes are a hop ahead of the last link, not the whole message.
        carried, hop = servers.carried(elements, port.axis), rates.hop[port.axis]
        found.append(Visit(servers.link(port), carried, hop + carried * (number == len(ports))))
    store = Visit(servers.of_chip("memory", there), moved, moved)
    if step.adds:
        added = servers.added(elements)
        found += [store, Visit(servers.of_chip("adder", there), added, added)]
    return (*found, store)


def _whole(cycles: Fraction) -> int:
    return max(1, -(-cycles.numerator // cycles.denominator))


@dataclass(frozen=True, eq=False)
class ExchangeLog:
    """What happened: the cycle at which each visit of each message was let in, and when the message had arrived."""

    starts: list[list[int]]
    ends: list[int]

    @cached_property
    def cycles(self) -> int:
        """Cycles until the last message has arrived."""
        return max(self.ends, default=0)
