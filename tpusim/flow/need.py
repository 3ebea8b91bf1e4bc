"""What would end a run in its middle, known before it begins: a network that the machine's HBM does not hold, layers
that this computer has no room for, and values that could not be checked.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

from tpusim.base.errors import CapacityError, InputError, Problem
from tpusim.base.memory import free_bytes
from tpusim.flow.jobs import Job, Jobs
from tpusim.flow.lowerings import AUTO, fitting, tried
from tpusim.flow.numbers import ANY_ORDER, SMALL, Numbers
from tpusim.machines.family import CheckPlan, Machine, Need, family_of
from tpusim.memory.layout import FILTER
from tpusim.memory.tile import Tile
from tpusim.network.ops.array_op import ArrayOp, stored_bits
from tpusim.network.ops.op import OFMAP, Op
from tpusim.network.workload import INPUT, UPDATE, Source, Workload
from tpusim.result.records import HbmContents

# ---- the machine's HBM


class HbmNeed(NamedTuple):
    """Bytes of HBM that a network takes: weights, inputs and outputs, and caches, which are there all the time; and
    maps between layers, the most of them while the layer `at` runs.
    """

    weights: int
    ends: int
    between: int
    at: str
    caches: int = 0

    @property
    def total(self) -> int:
        """All bytes."""
        return self.weights + self.ends + self.between + self.caches

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by what they are for; caches only where there are some."""
        there = {"weights": self.weights, "inputs_and_outputs": self.ends, "maps_between_layers": self.between}
        return there | ({"caches": self.caches} if self.caches else {})


UNPADDED = Tile()
"""The tile of an element: tensors take what their elements take."""


def hbm_need(workload: Workload, machine: Machine, tile: Tile | None = None) -> HbmNeed:
    """Return what HBM has to hold for a network, at least, in tiles: by default in those of the machine.

    Weights, inputs and outputs of the network count all the time. A map counts from the layer that makes it to the
    last one that reads it, and what a layer reads and what it makes are there together. Of a value that several
    layers make, by additions or concatenations that take no time here, what they have made so far counts, up to the
    size that is read. A cache counts all the time. Where the workload does not say what a layer reads, it reads what
    the layer ahead makes. Updates of a training step replace what they read first: weights, and what an optimizer
    keeps of them. Not counted is what a lowering writes on the way, such as a lowered matrix.
    """
    tile, batch, known = tile or family_of(machine).tile(machine), workload.batch, workload.sources()
    made = {layer.name: tile.bytes(layer.shapes(batch)[OFMAP], 8 * machine.element_bytes) for layer in workload.layers}
    updates = {name for name, phase in workload.phases if phase == UPDATE}
    made |= dict.fromkeys(updates, 0)
    place = {name: at for at, name in enumerate(made)}
    reads = [*_reads(workload, machine, tile, place)]
    outputs = made.keys() - {name for sources in known.values() for source in sources for name in source.names}
    outputs -= {ahead.name for ahead, layer in pairwise(workload.layers) if layer.name not in known}
    lasts = {each.names: each.at for each in reads if each.of == "value"}
    values = {names: (size, lasts[names]) for names, size in _largest(reads, "value").items()}
    passing = [0] * len(made)
    for each in reads:
        passing[each.at] += each.size * (each.of == "passing")
    there = [
        held + passing[at] + (0 if name in outputs else made[name])
        for (name, at), held in zip(place.items(), _between(values, made, place), strict=True)
    ]
    most = max(there)
    # What updates replace stays, as weights do.
    trained = {name for each in updates for source in known[each] for name in source.names if name not in made}
    inputs = _largest(reads, "input")
    kept = sum(size for names, size in inputs.items() if {*names} <= trained)
    weights = kept + sum(each.size for each in reads if each.of == "weights")
    ends = sum(inputs.values()) - kept + sum(map(made.__getitem__, outputs))
    return HbmNeed(weights, ends, most, [*made][there.index(most)], sum(_largest(reads, "cache").values()))


class _Read(NamedTuple):
    """The tensor that the layer `at` a place reads: what it is `of`, the names that it comes from, and its bytes.

    A value comes from its makers, in order. What is passing comes from outside, for the one layer alone.
    """

    of: Literal["cache", "value", "input", "passing", "weights"]
    at: int
    names: tuple[str, ...]
    size: int


def _reads(workload: Workload, machine: Machine, tile: Tile, place: Mapping[str, int]) -> Iterator[_Read]:
    """Every tensor that every layer reads."""
    batch, known, ahead = workload.batch, workload.sources(), INPUT
    for at, layer in enumerate(workload.layers):
        first, *others = layer.reads(batch)
        told = dict(zip((first, *others), known.get(layer.name, (Source((ahead,)),)), strict=False))
        for tensor, shape in {**layer.sources(batch), **layer.reads(batch)}.items():
            names = told[tensor].names if tensor in told else ()
            makers = tuple(sorted({name for name in names if name in place}, key=place.__getitem__))
            size = tile.bytes(shape, 8 * machine.element_bytes)
            # Blocks of queries read parts of one cache, which is there as a whole.
            if tensor in told and (elements := told[tensor].cache):
                # Heads and tokens of a cache fill tiles whichever way round pads least: its vectors lie side by side.
                yield _Read("cache", at, names, tile.bytes((elements, 1, 1, 1), _stored_bits(layer, tensor, machine)))
            elif makers:
                yield _Read("value", at, makers, size)
            elif names and not any(name in known for name in names):
                yield _Read("input", at, names, size)
            elif names or (layer.name not in known and tensor in others and tensor != FILTER):
                yield _Read("passing", at, names, size)
            else:
                yield _Read("weights", at, names, tile.bytes(shape, _stored_bits(layer, tensor, machine)))
        ahead = layer.name


def _largest(reads: Sequence[_Read], of: str) -> dict[tuple[str, ...], int]:
    """Bytes of values, inputs or caches, by their names: the most that any layer reads of them."""
    found: dict[tuple[str, ...], int] = {}
    for each in reads:
        if each.of == of:
            found[each.names] = max(each.size, found.get(each.names, 0))
    return found


def _stored_bits(layer: Op, tensor: str, machine: Machine) -> int:
    """The bits of an element of a tensor that a layer reads, in HBM."""
    stored = layer.filter_stored if tensor == FILTER and isinstance(layer, ArrayOp) else "computed"
    return stored_bits(stored, machine.element_bytes)


def _between(
    values: Mapping[tuple[str, ...], tuple[int, int]], made: Mapping[str, int], place: Mapping[str, int]
) -> list[int]:
    """Return the bytes of maps that are there while each layer runs, without what the layer makes.

    `values` has, by the makers of a value in order, its size and the place of its last reader.
    """
    parts: dict[tuple[int, str], int] = {}
    starts: dict[int, int] = {}
    ends: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for makers, (size, last) in values.items():
        part = so_far = 0
        for maker, until in zip(makers, (*(place[each] for each in makers[1:]), last), strict=True):
            # Values that have had the same makers so far are one so far.
            part = parts.setdefault((part, maker), len(parts) + 1)
            so_far += made[maker]
            starts[part] = place[maker] + 1
            ends[part].append((until, min(size, so_far)))
    changes = [0] * (len(place) + 1)
    for part, start in starts.items():
        held = 0
        for (end, size), (before, _) in pairwise([*sorted(ends[part], reverse=True), (start - 1, 0)]):
            held = max(held, size)
            changes[before + 1] += held
            changes[end + 1] -= held
    return [*accumulate(changes)][:-1]


def hbm_use(workload: Workload, machine: Machine) -> HbmContents | None:
    """Return what HBM has to hold for a network, with padding and without; None where the machine holds any network."""
    capacity = family_of(machine).capacity(machine)
    if capacity is None:
        return None
    need, bare = hbm_need(workload, machine), hbm_need(workload, machine, UNPADDED)
    return HbmContents(capacity, need.total, bare.total, need.at, need.parts, bare.parts)


def held_in_hbm(workload: Workload, machine: Machine) -> HbmContents | None:
    """Return `hbm_use`. Raises CapacityError where that is more than the HBM holds, with what the network needs."""
    use = hbm_use(workload, machine)
    if use is None or use.need_bytes <= use.capacity_bytes:
        return use
    without = f" ({use.unpadded_bytes:,} B without padding)" if use.unpadded_bytes < use.need_bytes else ""
    needs = f"needs {use.need_bytes:,} B of HBM at batch {workload.batch}{without}"
    says = f"{needs}, and {machine.label} has {use.capacity_bytes:,} B"
    sizes = {part: (most, use.unpadded_parts.get(part, 0)) for part, most in use.parts.items()}
    told = {part: f"{most:,} B" + (f" ({least:,} B)" if least < most else "") for part, (most, least) in sizes.items()}
    weights, ends, between, *caches = told.values()
    parts = f"{weights} are weights, {ends} inputs and outputs, {between} maps between layers, while {use.at} runs"
    parts += "".join(f", {each} caches" for each in caches)
    fewer = "take fewer layers, or a machine that holds more"
    too_many = use.parts["weights"] > use.capacity_bytes
    advice = f"no batch is small enough; {fewer}" if too_many else f"take a smaller batch, or {fewer[5:]}"
    raise CapacityError(Problem(f"{says}: {parts}; {advice}", f"network {workload.name}"))


# ---- the memory of this computer

PROCESS_BYTES = 60_000_000
"""Bytes left to Python and NumPy, which a run must not use up."""


class AskedJob(NamedTuple):
    """A job with all that a run asks of it."""

    job: Job
    machine: Machine
    engine: str = "event"
    check: bool = True
    numbers: Numbers = SMALL


@dataclass(frozen=True)
class Room:
    """Memory needs of each kind of job, by `Job.kind`, and the bytes that are free beside the largest need; and what
    the machine's HBM has to hold.
    """

    needs: Mapping[Hashable, Need]
    spare: int
    hbm: HbmContents | None = None

    @property
    def kept(self) -> int:
        """Bytes for Programs that wait for the next layer of their shape."""
        return self.spare // 2

    @property
    def ahead(self) -> int:
        """Bytes for layers that are checked while the next is lowered; 0 if there is no room to lower it."""
        left = self.spare // 2 - max(need.program for need in self.needs.values())
        return max(need.total for need in self.needs.values()) + left if left >= 0 else 0


def need_of(asked: AskedJob, free: int = sys.maxsize) -> Need:
    """Memory needs of simulating a layer, by any lowering that may be chosen for it.

    Needs that surely exceed `free` are not worked out in full. If several lowerings are tried, a Program is held beside
    the fastest so far; the log of the event engine, about as large again, is gone by then.

    Raises:
        CapacityError: when the layer does not fit the machine.
    """
    (layer, batch, lowering, _), machine, engine, check, numbers = asked
    family, own = family_of(machine), numbers.of(layer)
    how = CheckPlan(engine, check, own.operand_bytes, own.output_bytes)
    names = tried(lowering, layer, batch, family, check and numbers.bounded)
    plans = [*fitting(names, lambda name: family.planned(layer, batch, machine, name, how, free))]
    # Only the fastest so far is kept beside the one that is tried, without its log, which is about half of its need.
    neediest, *others = sorted((plan.program for plan in plans for _ in range(plan.at_once)), reverse=True)
    return Need(
        neediest + sum(others[:1]) // 2,
        max(plan.values for plan in plans),
        max((plan.passes for plan in plans if plan.passes is not None), default=None),
    )


def room_for(jobs: Jobs, engine: str, check: bool, numbers: Numbers = SMALL) -> Room:
    """Look at every layer before the first is simulated.

    Raises:
        InputError: when one needs more memory than there is, names the neediest and says what would fit all layers; or
            when a layer cannot fit the machine, or the network its HBM (CapacityError).
    """
    hbm = held_in_hbm(jobs.work, jobs.machine)
    free = free_bytes() - PROCESS_BYTES
    kinds: dict[Hashable, AskedJob] = {}
    needs: dict[Hashable, Need] = {}
    for job, kind in zip(jobs.each, jobs.kinds, strict=True):
        if kind not in kinds:
            kinds[kind] = AskedJob(job, jobs.machine, engine, check, numbers)
            with job.placed():
                needs[kind] = need_of(kinds[kind], free)
    # The neediest come first: advice mostly fails because of them.
    neediest = sorted(kinds, key=lambda kind: -needs[kind].total)
    most = needs[neediest[0]]
    if most.total > free:
        raise _refusal([kinds[kind] for kind in neediest], most, free)
    return Room(needs, free - most.total, hbm)


def _refusal(jobs: Sequence[AskedJob], need: Need, free: int) -> InputError:
    """The error about the first of `jobs`, the neediest."""
    check, where = jobs[0].check, f"layer {jobs[0].job.layer.name}"
    if need.passes is None:
        says = f"needs about {_giga(need.total)} GB of memory, and {_giga(max(0, free))} GB are free"
        return InputError(Problem(f"{says}; take a smaller batch{', or check nothing' if check else ''}", where))
    problem = f"{need.passes:,} passes{' and the values to check' if check else ''}"
    problem += f" need about {_giga(need.total + PROCESS_BYTES)} GB of memory"
    problem += f", and {_giga(free + PROCESS_BYTES)} GB are free"
    return InputError(Problem(f"{problem}; {_advice(jobs, free)}", where))


def _advice(jobs: Sequence[AskedJob], free: int) -> str:
    """Options with which all layers would fit, as users write them."""
    first = jobs[0]
    fits = [text for text, others in _smaller(jobs) if _fit(others, free)][:1]
    if first.check and _fit([each._replace(check=False) for each in jobs], free):
        fits.append("no check")
    if not fits:
        larger = family_of(first.machine).larger(first.machine)
        fits = [text for text, one in larger if _fit([each._replace(machine=one) for each in jobs], free)][:1]
    return f"{' or '.join(fits)} would fit" if fits else "nothing like it would fit"


def _fit(jobs: Sequence[AskedJob], free: int) -> bool:
    try:
        return all(need_of(asked, free).total <= free for asked in jobs)
    except CapacityError:
        return False


def _smaller(jobs: Sequence[AskedJob]) -> Iterator[tuple[str, Sequence[AskedJob]]]:
    """The first layer with ever less input, and the others with the batch that goes with it."""
    first, *others = jobs
    layer, batch = first.job.layer, first.job.batch
    while (less := layer.with_less_input(batch)) is not None:
        layer, batch, text = less
        smaller = [first.job._replace(layer=layer, batch=batch), *(each.job._replace(batch=batch) for each in others)]
        yield text, [asked._replace(job=job) for asked, job in zip(jobs, smaller, strict=True)]


def _giga(size: int) -> str:
    return f"{size / 1e9:,.1f}"


# ---- values

_MOST_TOLD = 8


def check_numbers(jobs: Jobs, numbers: Numbers) -> None:
    """Raise InputError for layers whose values could not be checked: all of them, before the first is simulated."""
    family, machine = jobs.family, jobs.machine
    if numbers.in_array_order and not family.array_order:
        says = f"{machine.label} is {family.title}, and an array's order is a TPU's"
        raise InputError(f"sums array: {says}; take sums {ANY_ORDER}")
    problems: list[Problem] = []
    for layer, batch, name, _ in jobs.each:
        try:
            numbers.check(layer, batch)
        except InputError as error:
            problems += error.problems
        if numbers.bounded and name in family.unbounded:
            # A lowering that does not suit the layer is refused later, with a message of its own.
            with suppress(CapacityError):
                family.least(layer, batch, machine, name)
                says = f"no bound is proven for the roundings of {name}"
                advice = f"take another lowering, such as {AUTO}, or another dtype, or check nothing"
                problems.append(Problem(f"{says}; {advice}", f"layer {layer.name}"))
    if problems:
        raise InputError(problems[:_MOST_TOLD])
