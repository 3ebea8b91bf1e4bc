"""What bounds a collective: it is timed again with one thing made easier, over other axes, by other algorithms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from tpusim.base.units import BANDWIDTH
from tpusim.machines.tpu.slices.algorithms.registry import ALGORITHMS, algorithms_for
from tpusim.machines.tpu.slices.slice import ChipSlice
from tpusim.machines.tpu.slices.summary import CollectiveTime, Question, timed_collective


@dataclass(frozen=True, eq=False)
class EasierCollective:
    """A collective with something changed: what, in words, and what it takes then."""

    what: str
    made: CollectiveTime


@dataclass(frozen=True, eq=False)
class ExplainedCollective:
    """Why a collective takes its time.

    Attributes:
        made: the collective as it is.
        easier: the same with a part made faster, the one that gains most first.
        axes: the same bytes over other axes.
        algorithms: by the other algorithms of its op.
    """

    made: CollectiveTime
    easier: tuple[EasierCollective, ...]
    axes: tuple[EasierCollective, ...]
    algorithms: tuple[EasierCollective, ...]

    @property
    def gain(self) -> float:
        """The part of its time that the change saves which gains most."""
        return 1 - self.easier[0].made.seconds / self.made.seconds


def explain_collective(made: CollectiveTime) -> ExplainedCollective:
    """Time a collective with each change. Raises InputError."""
    question = replace(made.question, algorithm=made.algorithm)
    easier = [EasierCollective(what, timed_collective(replace(question, place=place)))
              for what, place in _easier(question.place)]  # fmt: skip
    others = [name for name in algorithms_for(question.op, question.collective.group) if name != made.algorithm]
    return ExplainedCollective(
        made,
        tuple(sorted(easier, key=lambda each: each.made.seconds)),
        tuple(EasierCollective(", ".join(each.question.names), each) for each in _elsewhere(made.question)),
        tuple(EasierCollective(f"{name}: {ALGORITHMS[name].about}", timed_collective(replace(question, algorithm=name)))
              for name in others),
    )  # fmt: skip


def _easier(place: ChipSlice) -> Iterator[tuple[str, ChipSlice]]:
    """Yield slices of which one thing is made easier, with the change in words."""
    links = place.interconnect
    link, emitters = links.link, links.collectives

    def changed(**sections: object) -> ChipSlice:
        return place.model_copy(update={"interconnect": links.model_copy(update=sections)})

    twice = 2 * link.bandwidth_bytes_per_s
    yield f"links of {BANDWIDTH.format(twice)}", changed(link=link.model_copy(update={"bandwidth_bytes_per_s": twice}))
    yield "hops that take no time", changed(link=link.model_copy(update={"hop_ps": 1}))
    yield "no launch", changed(collectives=emitters.model_copy(update={"launch_ps": 1}))
    apart = {"streams": "apart", "passes": max(2, emitters.passes)}
    if emitters.streams != "apart":
        yield "streams apart, two passes under way", changed(collectives=emitters.model_copy(update=apart))
    faster = links.chip.having("hbm", bandwidth_bytes_per_s=2 * links.chip.hbm_bytes_per_s)
    yield "twice the bandwidth of HBM", changed(chip=faster)
    if links.dcn and place.slices > 1:
        network = links.dcn.model_copy(update={"bandwidth_bytes_per_s": 2 * links.dcn.bandwidth_bytes_per_s})
        yield "twice the bandwidth between slices", changed(dcn=network)


def _elsewhere(question: Question) -> Iterator[CollectiveTime]:
    """Yield the collective over every other choice of axes that has more than a chip."""
    every = replace(question, axes=()).names
    for many in range(1, len(every) + 1):
        for names in combinations(every, many):
            if {*names} != {*question.names}:
                yield timed_collective(replace(question, axes=names, algorithm=""))
