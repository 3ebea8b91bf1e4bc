"""A layer made ready to run by the lowering it is asked for; of what is left open, what simulation finds fastest.

Left open may be the lowering (`auto`), and the block (`mapping.search: simulate`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from tpusim.base.errors import CapacityError, Problem, UnsuitableError, failures_named
from tpusim.base.words import counted
from tpusim.flow.engines import Prepared
from tpusim.flow.lowerings import tried
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.drafts import Draft
from tpusim.machines.tpu.lowering.registry import drafts_of, least_of
from tpusim.network.ops.op import Op

Found = TypeVar("Found")
Doing = Callable[[str], None]
"""Told what is done to a layer."""

CLOSE = 0.03
"""What takes at most this much more than any way still untried must take is fast enough: no other is tried."""

PATIENCE, LONG_ENOUGH = 3, 500
"""After so many ways in a row that are no faster, and have so many steps together, no other is tried."""


def unsaid(doing: str) -> None:
    """Nobody is told."""


def prepared(layer: Op, batch: int, hardware: Hardware, lowering: str, doing: Doing = unsaid) -> Prepared:
    """The Program of a layer; of several candidates the one of the fewest cycles, of equals that which comes first.

    Raises:
        CapacityError: when no candidate fits the machine: what each of them says; names the layer.
        CheckFailed, DeadlockError: when a candidate fails otherwise as it is timed; names the layer.
    """

    def by(name: str) -> Prepared:
        doing("lowering" if name == lowering else f"trying {name}")
        drafts = drafts_of(layer, batch, hardware, name)
        return _of_drafts(drafts, lambda each: _in_scratch(Prepared(*each.lower(), hardware, name, each)))

    names = tried(lowering, layer, batch)
    if names == (lowering,):
        return by(lowering)
    cycles: list[int] = []

    def timed(name: str) -> Prepared:
        made = by(name)
        cycles.append(made.timing.cycles)
        return made

    def hopeless(name: str) -> bool:
        return bool(cycles) and least_of(layer, batch, hardware, name) >= min(cycles)

    with failures_named(layer):
        return _fastest(fitting(names, timed, hopeless))


def _in_scratch(ready: Prepared) -> Prepared:
    """With what a layer makes for itself, and what it reads again, in the scratch memory, if there is one and that
    takes fewer cycles. Of layers that overlap, only all together know what has room.
    """
    hardware = ready.hardware
    if hardware.scratch_memory is None or hardware.sequencer.between_layers != "drain":
        return ready
    from tpusim.machines.tpu.schedule.joined import Joint
    from tpusim.machines.tpu.schedule.scratch import in_scratch, prefetched

    (own,) = in_scratch([Joint("", ready.program, {})], hardware)
    found = replace(ready, program=prefetched(own.program, hardware))
    names = [each.name.partition(" ")[0] for each in found.program.tensors if each.scratch is not None]
    if not names or found.timing.cycles >= ready.timing.cycles:
        return ready
    return found.with_told({"scratch": f"it holds {', '.join(names)}"}, {})


def _fastest(found: Iterator[Prepared]) -> Prepared:
    """The one of the fewest cycles, of equals the first. One is made at a time, so that two are held at most."""
    return min(found, key=lambda each: each.timing.cycles)


def _of_drafts(drafts: Sequence[Draft], make: Callable[[Draft], Prepared]) -> Prepared:
    """The fastest of a lowering's drafts, which are tried as long as another may be clearly faster; or the only one."""
    if len(drafts) == 1:
        return make(drafts[0])
    tried: list[_Tried] = []

    def promising() -> Iterator[Prepared]:
        for draft in drafts:
            if tried and _enough(tried, draft.least):
                break
            made = make(draft)
            tried.append(_Tried(made.timing.cycles, len(made.program.steps)))
            yield made
            del made

    best = _fastest(promising())
    return _told(best, drafts, [each.cycles for each in tried])


class _Tried(NamedTuple):
    """What a draft takes, and how long it is."""

    cycles: int
    steps: int


def _enough(tried: Sequence[_Tried], least: float) -> bool:
    """Whether none that is left, of which each takes `least` cycles or more, is worth a try."""
    fastest = min(each.cycles for each in tried)
    since = tried[next(at for at, each in enumerate(tried) if each.cycles == fastest) + 1 :]
    patient = len(since) < PATIENCE or sum(each.steps for each in since) < LONG_ENOUGH
    return fastest <= least * (1 + CLOSE) or not patient


def _told(best: Prepared, drafts: Sequence[Draft], tried: Sequence[int]) -> Prepared:
    """With what is told of the search. The first draft is the choice of the estimate."""
    first, fastest, least, estimate = tried[0], min(tried), drafts[0].least, drafts[0].estimate()
    own = "it is this one" if first == fastest else f"this one takes {fastest:,} ({fastest / first - 1:+.1%})"
    words = (
        f"by simulation, {counted(len(tried), 'block')} timed: the estimate's choice, expected to take "
        f"{round(estimate):,} cycles, takes {first:,} ({first / estimate - 1:+.1%}); {own}; no other that was ranked "
        f"can take fewer than {round(least):,} ({least / fastest - 1:+.1%})"
    )
    numbers = {
        "timed": len(tried),
        "estimated_cycles": round(estimate),
        "first_cycles": first,
        "least_cycles": round(least),
    }
    return best.with_told({"search": words}, numbers)


def _all_may_do(_: str) -> bool:
    return False


def fitting(
    names: Sequence[str], make: Callable[[str], Found], hopeless: Callable[[str], bool] = _all_may_do
) -> Iterator[Found]:
    """What is made by each of some lowerings that fit the machine, but for those that are `hopeless` by then.

    Raises:
        CapacityError: when none does: what each of them says, as one may fit more easily than another.
    """
    refused: defaultdict[Problem, list[str]] = defaultdict(list)
    found = False
    for name in names:
        try:
            if hopeless(name):
                continue
            made = make(name)
        except UnsuitableError:
            # Of many, one that is made for other ops is no news.
            if len(names) == 1:
                raise
            continue
        except CapacityError as error:
            for problem in error.problems:
                refused[problem].append(name)
            continue
        found = True
        yield made
        del made
    if refused and not found:
        raise CapacityError(refused if len(names) == 1 else [_by(names, problem) for problem, names in refused.items()])


def _by(names: Sequence[str], problem: Problem) -> Problem:
    return replace(problem, message=f"by {', '.join(names)}: {problem.message}")
