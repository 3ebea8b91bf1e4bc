"""The jobs of a run: its layers as they run, each with its lowering, settled once, and those that `--layers` picks.

Whatever follows, from the look at memory to the last report, takes jobs and asks for no lowering again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import NamedTuple

from tpusim.base.errors import CapacityError, InputError, did_you_mean
from tpusim.flow.fusion import fused
from tpusim.flow.lowerings import AUTO, by_name, check_known, check_own, usual, with_usual_lowerings
from tpusim.flow.numbers import INTEGERS
from tpusim.machines.family import Family, Machine, family_of
from tpusim.machines.lowered import LayerWatch, unheard
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload


class Job(NamedTuple):
    """A layer as it runs.

    Attributes:
        lowering: the one by which it runs, or `auto`, where that is found by timing.
        where: the place that names its lowering, where it is the layer's own.
    """

    layer: Op
    batch: int
    lowering: str
    where: str | None = None

    @property
    def kind(self) -> Hashable:
        """Equal for jobs that share a Program."""
        return self.layer.shape_key, self.lowering

    def alone(self, hardware: Machine, dtype: str = INTEGERS) -> Jobs:
        """The job by itself, as a layer of no network."""
        work = Workload(self.layer.name, self.batch, (self.layer,))
        return Jobs(work, hardware, self.lowering, (self._replace(where=None),), dtype)

    @contextmanager
    def placed(self) -> Iterator[None]:
        """Place an error about the layer's own lowering at the line of the file that names it."""
        try:
            yield
        except CapacityError as error:
            if self.where is None:
                raise
            raise type(error)([replace(each, where=f"{self.where}: {each.where}") for each in error.problems]) from None


@dataclass(frozen=True)
class Jobs:
    """All that is to run, and the machine that runs it.

    Attributes:
        work: the workload in the form in which its layers run.
        hardware: the machine as its file describes it.
        lowering: that of all layers that have none of their own.
        each: a job for each layer of `work`, in network order.
        dtype: the type of numbers that the machine runs.
    """

    work: Workload
    hardware: Machine
    lowering: str
    each: tuple[Job, ...]
    dtype: str = INTEGERS

    @cached_property
    def machine(self) -> Machine:
        """The machine as it runs numbers of that type."""
        return self.hardware.of_type(self.dtype)

    @property
    def family(self) -> Family:
        """The family of the machine."""
        return family_of(self.hardware)

    @cached_property
    def kinds(self) -> tuple[Hashable, ...]:
        """The kind of each job; those of a kind share a Program."""
        return tuple(job.kind for job in self.each)

    def on(self, hardware: Machine) -> Jobs:
        """Jobs of the same layers on another machine of the family."""
        return replace(self, hardware=hardware)

    def only(self, names: Iterable[str]) -> Jobs:
        """The jobs of the layers of these names."""
        wanted = {*names}
        some = tuple(job for job in self.each if job.layer.name in wanted)
        return replace(self, work=self.work.with_layers(lambda layer: layer.name in wanted), each=some)

    def picked(self, wanted: str) -> Jobs:
        """The jobs that a glob of names picks, or the first and the last: conv1..maxpool.

        Raises:
            InputError: when there is none, or the first comes after the last.
        """
        return self if wanted == "*" else self.only(names_picked(self.work, wanted))


def resolve(
    workload: Workload,
    hardware: Machine,
    lowering: str | None = None,
    *,
    layers: str = "*",
    dtype: str = INTEGERS,
    watch: LayerWatch = unheard,
) -> Jobs:
    """Settle what runs: the lowering of each layer, and what rides on the results of what.

    `lowering` may name lowerings of single layers, by patterns of their names. Layers that are not picked by `layers`
    stay, as the others count on their places, but `auto` times none of them; `watch` is told of each layer that it
    times.

    On a machine that fuses, layers that the workload's file leaves out run as well.

    Raises:
        InputError: an unknown lowering, at its place, a pattern that fits no layer, or, under `auto`, `layers` that
            begin or end nowhere.
    """
    family, machine = family_of(hardware), hardware.of_type(dtype)
    if workload.entire and family.fusing(machine):
        workload = workload.entire
    check_own(workload, family)
    # Patterns go before files, and what nobody names goes by the family's first lowering, or by what suits the layer.
    work, named = by_name(workload, lowering, family)
    every = usual(family) if named is None else named
    check_known(every, family)
    work = with_usual_lowerings(work, machine) if named is None else work
    asked = {layer.name: every for layer in work.layers} | {each.layer: each.lowering for each in work.lowerings}
    # What rides depends on who carries it; names of layers stay, so each keeps its lowering.
    timed = names_wanted(work, layers) if every == AUTO else ()
    work = fused(work, machine, asked, timed, watch)
    places = {each.layer: each.where for each in work.lowerings}
    each = (
        Job(layer, work.batch, family.meant(layer, asked[layer.name]), places.get(layer.name)) for layer in work.layers
    )
    return Jobs(work, hardware, every, tuple(each), dtype)


def alone(layer: Op, batch: int, hardware: Machine, lowering: str) -> Jobs:
    """A layer of no network, by a lowering. Raises InputError where the name is unknown."""
    check_known(lowering, family_of(hardware))
    return Job(layer, batch, family_of(hardware).meant(layer, lowering)).alone(hardware)


# ---- layers picked by a glob of names, or by the first and the last: conv1..maxpool


TO = ".."
"""Separates the first layer from the last; without one of them, the range is open at that end."""


def names_picked(workload: Workload, wanted: str) -> frozenset[str]:
    """Names of the picked layers. Raises InputError when there is none, or the first comes after the last."""
    if names := names_wanted(workload, wanted):
        return names
    raise InputError(f"no layer of {workload.name} matches {wanted!r}{_instead(workload, wanted)}")


def names_wanted(workload: Workload, wanted: str) -> frozenset[str]:
    """Names of the picked layers; none if no name matches.

    Raises:
        InputError: there is no such first or last layer, or they stand the other way round.
    """
    if not isinstance(wanted, str):
        raise InputError(f"{wanted!r} is no text; name a layer, a pattern of names, or the first and the last")
    names = [layer.name for layer in workload.layers]
    matching = frozenset(name for name in names if fnmatchcase(name, wanted))
    if TO not in wanted or matching:
        return matching
    first, _, last = wanted.partition(TO)
    begin = _place(workload, names, first, wanted) if first else 0
    end = _place(workload, names, last, wanted) if last else len(names) - 1
    if begin > end:
        raise InputError(f"{wanted}: {first} comes after {last} in {workload.name}; name the first layer first")
    return frozenset(names[begin : end + 1])


def _place(workload: Workload, names: Sequence[str], name: str, wanted: str) -> int:
    """Place of a layer, or of the layer on whose results it rides."""
    bearers = {rider: bearer for bearer, riders in workload.riders for rider in riders}
    if (there := bearers.get(name, name)) in names:
        return names.index(there)
    raise InputError(f"{wanted}: {workload.name} has no layer {name!r}{_instead(workload, name)}")


def _instead(workload: Workload, wanted: str) -> str:
    """The end of a message about a name that no layer has: what may have been meant."""
    riding = [(name, bearer) for bearer, riders in workload.riders for name in riders if fnmatchcase(name, wanted)]
    if riding:
        name, bearer = riding[0]
        more = f", and {len(riding) - 1:,} more do so on those of others" if len(riding) > 1 else ""
        return f": {name} rides on the results of {bearer}{more}; name that, or leave sequencer.fusion out"
    names = [layer.name for layer in workload.layers]
    left_out = len(workload.never_timed) < len(workload.not_timed)
    more = "; layers that are not the array's are left out, and ops all has them" if left_out else ""
    hint = did_you_mean(wanted, names) or ";"
    return f"{hint} it has {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}{more}"
