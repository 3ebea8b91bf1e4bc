"""What bounds a collective: it is timed again with one thing made easier, over other axes, by other algorithms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

from tpusim.base.units import BANDWIDTH
from tpusim.machines.tpu.slices.algorithms.registry import ALGORITHMS, algorithms_for
from tpusim.machines.tpu.slices.slice import ChipSlice
from tpusim.machines.tpu.slices.summary import CollectiveTime, Question, timed_collective

Changed = Mapping[str, CollectiveTime]
"""A collective with something changed, by what that is in words."""


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
    easier: Changed
    axes: Changed
    algorithms: Changed


def explain_collective(made: CollectiveTime) -> ExplainedCollective:
    """Time a collective with each change. Raises InputError."""
    question = replace(made.question, algorithm=made.algorithm)
    slices = easier_slices(question.place)
    easier = {each.what: timed_collective(replace(question, place=each.place)) for each in slices}
    others = [name for name in algorithms_for(question.op, question.collective.group) if name != made.algorithm]
    return ExplainedCollective(
        made,
        dict(sorted(easier.items(), key=lambda each: each[1].seconds)),
        {", ".join(each.question.names): each for each in _elsewhere(made.question)},
        {f"{name}: {ALGORITHMS[name].about}": timed_collective(replace(question, algorithm=name)) for name in others},
    )


class EasierSlice(NamedTuple):
    """A slice with one thing made easier: in words, as settings of its fields, and the slice; a faster chip has no
    setting of it.
    """

    what: str
    settings: Mapping[str, str]
    place: ChipSlice


def easier_slices(place: ChipSlice) -> Iterator[EasierSlice]:
    """Yield slices of which one thing is made easier."""
    links = place.interconnect
    link, emitters = links.link, links.collectives

    def changed(what: str, settings: Mapping[str, str], **sections: object) -> EasierSlice:
        told = {f"interconnect.{path}": text for path, text in settings.items()}
        return EasierSlice(what, told, place.model_copy(update={"interconnect": links.model_copy(update=sections)}))

    twice = 2 * link.bandwidth_bytes_per_s
    faster, text = link.model_copy(update={"bandwidth_bytes_per_s": twice}), BANDWIDTH.format(twice)
    yield changed(f"links of {text}", {"link.bandwidth": text}, link=faster)
    yield changed("hops that take no time", {"link.hop": "1 ps"}, link=link.model_copy(update={"hop_ps": 1}))
    at_once = emitters.model_copy(update={"launch_ps": 1})
    yield changed("no launch", {"collectives.launch": "1 ps"}, collectives=at_once)
    if emitters.streams != "apart":
        passes = max(2, emitters.passes)
        apart = emitters.model_copy(update={"streams": "apart", "passes": passes})
        settings = {"collectives.streams": "apart", "collectives.passes": str(passes)}
        yield changed("streams apart, two passes under way", settings, collectives=apart)
    chip = links.chip.having("hbm", bandwidth_bytes_per_s=2 * links.chip.hbm_bytes_per_s)
    yield changed("twice the bandwidth of HBM", {}, chip=chip)
    if links.dcn and place.slices > 1:
        twice = 2 * links.dcn.bandwidth_bytes_per_s
        network = links.dcn.model_copy(update={"bandwidth_bytes_per_s": twice})
        yield changed("twice the bandwidth between slices", {"dcn.bandwidth": BANDWIDTH.format(twice)}, dcn=network)


def easier_hosts(place: ChipSlice) -> Iterator[EasierSlice]:
    """Yield slices from whose chips more comes to their hosts; none where no way there is known."""
    links = place.interconnect
    if links.host:
        twice = 2 * links.host.bandwidth_bytes_per_s
        host, text = links.host.model_copy(update={"bandwidth_bytes_per_s": twice}), BANDWIDTH.format(twice)
        faster = place.model_copy(update={"interconnect": links.model_copy(update={"host": host})})
        yield EasierSlice("twice the bandwidth to the host", {"interconnect.host.bandwidth": text}, faster)


def _elsewhere(question: Question) -> Iterator[CollectiveTime]:
    """Yield the collective over every other choice of axes that has more than a chip."""
    every = replace(question, axes=()).names
    for many in range(1, len(every) + 1):
        for names in combinations(every, many):
            if {*names} != {*question.names}:
                yield timed_collective(replace(question, axes=names, algorithm=""))
