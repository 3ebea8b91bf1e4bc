"""What would end a run in its middle, known before it begins: layers that this computer has no room for, and values
that could not be checked; and a network that the machine's HBM does not hold (`flow.hbm_need`).
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from tpusim.base.errors import CapacityError, InputError, Problem
from tpusim.base.memory import free_bytes
from tpusim.flow.hbm_need import held_in_hbm
from tpusim.flow.jobs import Job, Jobs
from tpusim.flow.lowerings import AUTO, fitting, tried
from tpusim.flow.numbers import ANY_ORDER, SMALL, Numbers
from tpusim.machines.family import CheckPlan, Machine, Need, family_of
from tpusim.result.records import HbmContents

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


class Room(NamedTuple):
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
