"""What a collective on a slice takes, and why: time, bandwidth, links, what a chip does meanwhile, a closed form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import prod

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.machines.tpu.slices.algorithms.registry import CompilerChoice, chosen
from tpusim.machines.tpu.slices.algorithms.ring import ring_through
from tpusim.machines.tpu.slices.collective import OPS, Collective
from tpusim.machines.tpu.slices.exchange import Rates, ServerName, rates_of
from tpusim.machines.tpu.slices.mesh_placement import MeshPlacement, placed, plain_mesh
from tpusim.machines.tpu.slices.slice import ChipSlice
from tpusim.machines.tpu.slices.timing import TimedExchange, timed
from tpusim.machines.tpu.slices.torus import Group, LinkPort, Place

LAUNCH, SENDS, ADDS, MOVES, WAITS = "launch", "sends", "adds", "moves", "neighbour_wait"
"""What a chip does: it has not begun; a link of it carries bytes; it adds; it moves bytes in memory; it waits for a
neighbour.
"""

MOST_BYTES = 2**40


@dataclass(frozen=True)
class Question:
    """What is to be timed: an op and its bytes, over some axes of a mesh on a slice.

    Attributes:
        place: the slice.
        op: a name of `OPS`.
        size: bytes, in the sense of the op.
        axes: axes of the mesh along which chips take part together; none: all that have more than one chip.
        mesh: the mesh, as "data=2,tensor=8"; empty: the axes of the slice.
        element_bytes: bytes of an element.
        algorithm: name of an algorithm; empty: what the compiler takes.
    """

    place: ChipSlice
    op: str
    size: int
    axes: tuple[str, ...] = ()
    mesh: str = ""
    element_bytes: int = 2
    algorithm: str = ""

    @cached_property
    def laid(self) -> MeshPlacement:
        """The mesh on the slice. Raises InputError."""
        return placed(self.place, self.mesh) if self.mesh else plain_mesh(self.place)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The axes, by name."""
        every = tuple(name for name, spans in self.laid.axes.items() if prod(span.many for span in spans) > 1)
        return self.axes or every

    @cached_property
    def collective(self) -> Collective:
        """The collective. Raises InputError where it cannot be asked for."""
        if self.op not in OPS:
            guess = did_you_mean(self.op, OPS) or ";"
            raise InputError(Problem(f"no collective {self.op!r}{guess} there is {', '.join(OPS)}", "OP"))
        group = self.laid.group(self.names)
        if group.size < 2:
            alone = f"{', '.join(self.names) or self.place.name} is one chip, which has nobody to talk to"
            if self.names:
                raise InputError(Problem(f"{alone}; name longer axes", "--axes"))
            fits = ", ".join(self.place.interconnect.fitting(4)) or "a larger one"
            raise InputError(Problem(f"{alone}; name a larger slice, such as {fits}", "--slice"))
        elements = self.size // self.element_bytes
        if elements < group.size or self.size > MOST_BYTES:
            says = f"write {group.size * self.element_bytes} B, an element a chip, to 1024 GiB"
            raise InputError(
                Problem(f"{self.size} B are too {'many' if elements > group.size else 'few'}; {says}", "--bytes")
            )
        if rest := self.size % self.element_bytes:
            near = f"{self.size - rest} B or {self.size - rest + self.element_bytes} B"
            says = f"{self.size} B are no whole number of elements of {self.element_bytes} B; write {near}"
            raise InputError(Problem(says, "--bytes"))
        return Collective(self.op, elements, self.element_bytes, group, self.place.interconnect.collectives)

    @cached_property
    def choice(self) -> CompilerChoice:
        """What the compiler takes."""
        return chosen(self.collective)

    @cached_property
    def rates(self) -> Rates:
        """The rates of its chips."""
        return rates_of(self.place, self.element_bytes)


@dataclass(frozen=True, eq=False)
class CollectiveTime:
    """A collective, timed.

    Attributes:
        question: what was asked.
        algorithm: name of the algorithm.
        timing: its messages, and what happened to them.
    """

    question: Question
    algorithm: str
    timing: TimedExchange

    @property
    def cycles(self) -> int:
        """Cycles until the last chip is done."""
        return self.timing.cycles

    @property
    def seconds(self) -> float:
        """The time."""
        return self.cycles / self.question.place.chip.clock_hz

    @property
    def bandwidth(self) -> float:
        """Bytes a second, as a benchmark counts them."""
        return float(self.question.collective.moved) / self.seconds

    @property
    def bound(self) -> float:
        """Seconds by the closed form: bytes over the links, with no hop and no launch."""
        return float(closed_form(self.question))

    @cached_property
    def links(self) -> Mapping[LinkPort, float]:
        """The part of the time for which each link of the chips that share links is held; unused ones are left out."""
        group = self.question.collective.group
        held = {name: cycles / self.cycles for name, cycles in
                zip(self.timing.messages.servers, self.timing.held, strict=True) if name.unit == "link"}  # fmt: skip
        exchange = self.timing.exchange
        if exchange.group is group:
            kind: Callable[[Place], Place] = group.kind if exchange.alike else lambda place: place
            of_kind: dict[Place, list[tuple[LinkPort, float]]] = {}
            for name, share in held.items():
                assert name.port is not None
                of_kind.setdefault(name.place, []).append((name.port, share))
            return {LinkPort(place, port.axis, port.way): share
                    for place in group.sharing for port, share in of_kind.get(kind(place), ())}  # fmt: skip
        return self._of_ring(group, held)

    def _of_ring(self, group: Group, held: Mapping[ServerName, float]) -> dict[LinkPort, float]:
        """Return the links of a ring through several axes, on the torus."""
        start = (0,) * len(group.torus.axes)
        order = ring_through(group).order
        found: dict[LinkPort, float] = {}
        ring = self.timing.exchange.group
        others = [place for place in group.sharing if group.rank(place) == 0] or [start]
        for first in others:
            members = group.members(first)
            for position in range(len(order)):
                for way in (1, -1):
                    share = next((part for name, part in held.items() if name.port is not None
                                  and name.place == ring.kind((position,)) and name.port.way == way), None)  # fmt: skip
                    here, there = (members[order[(position + step) % len(order)]] for step in (0, way))
                    between = group.torus.between(here, there)
                    if share is not None and len(between) == 1:
                        found[between[0]] = share
        return found

    @cached_property
    def last_chip(self) -> int:
        """Number of the chip that is done last, among those that stand for all."""
        steps, ends = self.timing.messages.steps, self.timing.log.ends
        return max(range(len(self.timing.messages.places)), key=lambda number: max(ends[number * steps :][:steps]))

    @cached_property
    def account(self) -> Mapping[str, int]:
        """The cycles of the chip that is done last, by what it does."""
        timing, place = self.timing, self.last_chip
        steps, ends = timing.messages.steps, timing.log.ends
        found = _states(timing, place, 0, timing.log.cycles)
        if timing.left_out:
            many, last = steps // timing.exchange.written, (place + 1) * steps
            behind = self.question.collective.emitters.passes * many
            end = max(ends[last - behind - many : last - behind])
            of_pass = _states(timing, place, end - timing.period, end)
            found = {state: cycles + timing.left_out * of_pass[state] for state, cycles in found.items()}
        return found

    @property
    def busiest(self) -> float:
        """The part of the time for which the busiest link is held."""
        return max(self.links.values(), default=0.0)


def _states(timing: TimedExchange, place: int, first: int, stop: int) -> dict[str, int]:
    """Return the cycles of a chip in a span of time by what it does."""
    found = dict.fromkeys((SENDS, ADDS, MOVES, WAITS, LAUNCH), 0)
    for begin, end, state in segments(timing, place, first, stop):
        found[state] += end - begin
    return found


_STATES = {"link": SENDS, "adder": ADDS, "memory": MOVES}
"""What a chip does while a unit of it works."""


def segments(timing: TimedExchange, place: int, first: int, stop: int) -> list[tuple[int, int, str]]:
    """Return what a chip does in a span of time, one thing after another: the first that holds of what there is."""
    own = timing.messages.places[place]
    mine = {number: _STATES[name.unit] for number, name in enumerate(timing.messages.servers) if name.place == own}
    held = [(first, timing.messages.launch, LAUNCH)]
    for visits, starts in zip(timing.messages.visits, timing.log.starts, strict=True):
        held += [(start, start + holds, mine[server])
                 for (server, holds, _), start in zip(visits, starts, strict=True) if server in mine]  # fmt: skip
    # Where something begins, and where it ends, within the span.
    spans = ((max(begin, first), min(end, stop), state) for begin, end, state in held)
    edges = [edge for begin, end, state in spans if begin < end for edge in ((begin, 1, state), (end, -1, state))]
    found, doing, at = list[tuple[int, int, str]](), Counter[str](), first
    for cycle, by, state in sorted([*edges, (stop, 0, WAITS)]):
        if cycle > at:
            does = next((each for each in (LAUNCH, *_STATES.values()) if doing[each]), WAITS)
            begun = found.pop()[0] if found and found[-1][2] == does else at
            found.append((begun, cycle, does))
            at = cycle
        doing[state] += by
    return found


def timed_collective(question: Question, whole: bool = False) -> CollectiveTime:
    """Time a collective by the algorithm that is asked for, or by that which the compiler takes. Raises InputError."""
    algorithm = question.algorithm or question.choice.algorithm
    return CollectiveTime(question, algorithm, timed(question.collective, algorithm, question.rates, whole))


def closed_form(question: Question) -> Fraction:
    """Seconds of a collective by bytes alone: two links an axis that closes, one of a line, each at its bandwidth.

    A gather brings all but a chip's own part over them, an all-reduce twice that. Of an all-to-all the middle of an
    axis counts, of a permute one link. The network between slices counts where it takes longer, as passes may overlap.
    """
    collective, links = question.collective, question.place.interconnect
    group, size, wire = collective.group, collective.bytes, links.link.bandwidth_bytes_per_s
    inside = [span for span in group.spans if not group.torus.axes[span.axis].direct]
    chips = prod(span.many for span in inside)
    ways = sum(2 if group.closed(span) else 1 for span in inside)
    dcn = links.dcn.bandwidth_bytes_per_s if links.dcn else 1
    slices = group.size // chips
    if collective.op == "permute":
        return Fraction(size, min(wire if inside else dcn, dcn if slices > 1 else wire))
    if collective.op == "all_to_all":
        # Half of what each half of an axis has crosses its middle, by two links each way where it closes.
        middle = [Fraction(size * span.many, (8 if group.closed(span) else 4) * wire) for span in inside]
        return max([*middle, Fraction(size * (slices - 1), slices * dcn)])
    times = OPS[collective.op].sent
    found = times * size * Fraction(chips - 1, chips) / (ways * wire) if inside else Fraction(0)
    return max(found, times * Fraction(size, chips) * Fraction(slices - 1, slices) / dcn)
