"""The draft of a layer that is taken: of several, the one that simulation finds fastest.

The search offers drafts in the order of their estimates; here they are timed, until more of them are no use.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

from tpusim.base.memory import at_rest
from tpusim.base.words import counted
from tpusim.machines.tpu import event
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.drafts import Draft
from tpusim.machines.tpu.lowering.registry import drafts_of
from tpusim.machines.tpu.runs.prepared import PreparedLayer
from tpusim.machines.tpu.search.search import CLOSE, TRUSTED
from tpusim.network.ops.op import Op

SHORT = 300
"""Most steps of a Program whose blocks are chosen by simulation, which then takes milliseconds.

An estimate leaves out, for example, the first fill and the last spill, which are a large part of few steps.
"""

MOST_DOUBTED = 50_000
"""Most steps of a longer Program that simulation chooses because an estimate has misled: two must fit in memory."""

PATIENCE, LONG_ENOUGH, MOST = 4, 500, 8
"""Limits of the search: it stops after `MOST` tilings in a row that are no faster, or after `PATIENCE` of them that
have `LONG_ENOUGH` steps together.
"""

MOST_KNOWN = 10_000
"""Choices that a process remembers."""


class _Winner(NamedTuple):
    """What the search for a layer's draft has found.

    Attributes:
        place: of the fastest draft.
        timed: number of drafts that were timed, the slower ones not to their ends.
        first, fastest: cycles of the first draft, and of the fastest.
        searched: whether the drafts were those that a simulation chooses from.
        least: cycles that no draft can beat, if these have spared the search; 0 if not.
    """

    place: int
    timed: int
    first: int
    fastest: int
    searched: bool = False
    least: float = 0.0


_known: dict[Hashable, _Winner] = {}
"""Choices by shape, batch, machine and lowering: who asks again does not wait for the losers to be timed again."""


@at_rest()
def prepared(layer: Op, batch: int, hardware: Hardware, lowering: str) -> PreparedLayer:
    """The Program of a layer by a lowering; of several drafts the first with the fewest cycles.

    If the Program is short, or if the estimate is off, drafts are those that a simulation chooses from.

    Raises:
        CapacityError: when nothing fits the machine; names the layer.
        CheckFailed, DeadlockError: when a draft fails in another way as it is timed.
    """
    searching = hardware.having("mapping", search="simulate")
    asked = layer.shape_key, batch, hardware, lowering
    if known := _known.get(asked):
        drafts = drafts_of(layer, batch, searching if known.searched else hardware, lowering)
        best = _ready(drafts[known.place], hardware, lowering)
        return _told(best, drafts, known)
    drafts = drafts_of(layer, batch, hardware, lowering)
    best, found = _fastest(drafts, hardware, lowering)
    if hardware.mapping.search == "auto" and _doubted(layer, drafts[0], best, found):
        if found.fastest <= (least := drafts[0].of_any()) * (1 + CLOSE):
            found = found._replace(least=least)
        elif len(others := drafts_of(layer, batch, searching, lowering)) > len(drafts):
            # The first of them mostly is the estimate's choice, which has been timed.
            plan = others[0].units.follows
            timed = found.place == 0 and plan is not None and plan == drafts[0].units.follows
            drafts = others
            best, found = _fastest(drafts, hardware, lowering, best if timed else None)
            found = found._replace(searched=True)
    if len(_known) >= MOST_KNOWN:
        _known.clear()
    _known[asked] = found
    return _told(best, drafts, found)


def _doubted(layer: Op, draft: Draft, best: PreparedLayer, found: _Winner) -> bool:
    """Whether another block than the estimate's choice may well be the fastest: the Program is short, or the estimate
    is off.
    """
    # Estimates leave out the latency of the first word and the skew of the last.
    beyond = found.fastest - best.hardware.latency_cycles - best.hardware.lanes
    misled = abs(beyond - (estimate := draft.estimate())) > TRUSTED * estimate
    if misled and len(best.program.rows) <= MOST_DOUBTED:
        return True
    # Estimates of the vector unit's work include the first fill and the last spill; but not what a DRAM makes of them.
    rough = layer.core.unit == "array" or best.hardware.hbm.dram is not None
    return rough and draft.planned.passes + draft.planned.transfers <= SHORT


def _fastest(
    drafts: Sequence[Draft], hardware: Hardware, lowering: str, first: PreparedLayer | None = None
) -> tuple[PreparedLayer, _Winner]:
    """The fastest draft, and what the search has found; the layer by the `first` of them may be there already."""
    best = replace(first, draft=drafts[0], known=first.timing) if first else _ready(drafts[0], hardware, lowering)
    found = _Winner(0, 1, best.timing.cycles, best.timing.cycles)
    no_faster: list[int] = []
    for place, draft in enumerate(drafts[1:], 1):
        # Lowering and timing a draft is costly: it ends after several in a row that were no faster.
        if len(no_faster) >= PATIENCE and (sum(no_faster) >= LONG_ENOUGH or len(no_faster) >= MOST):
            break
        # The lower bound of a draft tells without lowering it that it cannot win by enough.
        if found.fastest <= draft.least * (1 + CLOSE):
            continue
        ready = _ready(draft, hardware, lowering)
        found = found._replace(timed=found.timed + 1)
        timing = ready.known or event.run_within(ready.program, ready.running, found.fastest)
        if timing and timing.cycles < found.fastest:
            best, no_faster = replace(ready, known=timing), []
            found = found._replace(place=place, fastest=timing.cycles)
        else:
            no_faster.append(len(ready.program.rows))
        # A Program may take gigabytes: the loser is gone before the next draft is lowered.
        del ready
    return best, found


def _ready(draft: Draft, hardware: Hardware, lowering: str) -> PreparedLayer:
    """The layer by one draft."""
    return _in_scratch(PreparedLayer(*draft.lower(), hardware, lowering, draft))


def _in_scratch(ready: PreparedLayer) -> PreparedLayer:
    """The layer with its intermediates, and operands that it reads again, in the scratch memory, if that takes fewer
    cycles.

    Layers that overlap are left alone: only the chain knows what there is room for.
    """
    hardware = ready.hardware
    if hardware.scratch_memory is None or hardware.sequencer.between_layers != "drain":
        return ready
    from tpusim.machines.tpu.schedule.joined import Joint
    from tpusim.machines.tpu.schedule.residence import in_scratch, prefetched

    (own,) = in_scratch([Joint("", ready.program, {})], hardware)
    found = ready.with_program(prefetched(own.program, hardware))
    names = [each.name.partition(" ")[0] for each in found.program.tensors if each.place.base is not None]
    if not names:
        return ready
    if found.timing.cycles >= ready.timing.cycles:
        return replace(ready, known=ready.timing)
    return found.with_told({"scratch": f"it holds {', '.join(names)}"}, {})


def _told(best: PreparedLayer, drafts: Sequence[Draft], found: _Winner) -> PreparedLayer:
    """The layer with sentences about the search; the first draft is the estimate's choice."""
    if len(drafts) == 1 and not found.least:
        return best
    first, fastest, estimate = found.first, found.fastest, drafts[0].estimate()
    least = found.least or min((each.least for each in drafts if each.least), default=0.0)
    by, which = ("a bound", "") if found.least else ("simulation", " that was ranked")
    own = "it is this one" if first == fastest else f"this one takes {fastest:,} ({fastest / first - 1:+.1%})"
    words = (
        f"by {by}, {counted(found.timed, 'block')} timed: the estimate's choice, expected to take "
        f"{round(estimate):,} cycles, takes {first:,} ({first / estimate - 1:+.1%}); {own}"
    )
    if least:
        words += f"; no other{which} can take fewer than {round(least):,} ({least / fastest - 1:+.1%})"
    numbers = {
        "timed": found.timed,
        "estimated_cycles": round(estimate),
        "first_cycles": first,
        "least_cycles": round(least),
    }
    return best.with_told({"search": words}, numbers)
