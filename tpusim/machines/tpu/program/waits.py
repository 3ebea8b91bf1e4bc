"""What the steps of a layer wait for of the layers before: words that are still in use, and spills of what it reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.ahead import Early, Layer
from tpusim.machines.tpu.program.moves import box_of
from tpusim.machines.tpu.program.program import Handed, Program
from tpusim.machines.tpu.program.steps import Preload, Step, Stream, Vector
from tpusim.machines.tpu.program.transfers import Fill, Keep, Spill
from tpusim.memory.layout import Region

KINDS: tuple[type[Step], ...] = (Fill, Preload, Stream, Vector, Keep, Spill)
"""Steps of a kind are over in their order: who waits for one has waited for those ahead of it."""
_NONE = -1


class Waits:
    """Steps of layers, joined one layer after another; they are numbered in that order until all are there."""

    def __init__(self, hardware: Hardware, handed: Mapping[str, Handed]) -> None:
        self._hardware, self._handed = hardware, handed
        self._steps: list[Step] = []
        self._layers: list[int] = []
        self._order: list[int] = []
        self._before: Layer | None = None
        self._users = {kind: np.full(hardware.capacity_words, _NONE) for kind in KINDS}
        self._waited: defaultdict[tuple[type[Step], type[Step]], int] = defaultdict(lambda: _NONE)
        self._spills: defaultdict[str, list[tuple[int, Region]]] = defaultdict(list)

    @property
    def steps_before(self) -> int:
        """The number of the next layer's first step."""
        return len(self._steps)

    def join(self, program: Program) -> None:
        """The steps of the next layer, which wait for one another by their numbers."""
        steps, first = program.steps, self.steps_before
        begins = next(at for at, step in enumerate(steps) if not isinstance(step, Fill))
        waiting = [self._waiting(step, anew=at < begins) for at, step in enumerate(steps)]
        loads = [at for at, step in enumerate(steps) if isinstance(step, Preload)]
        if self._hardware.sequencer.between_blocks == "drain" and self._before and loads:
            waiting[loads[0]].add(self._before.last_pass)
        early = self._go_ahead(steps[:begins], waiting)
        self._steps += [
            replace(step, after=(*step.after, *sorted(more - {*step.after}))) if more else step
            for step, more in zip(steps, waiting, strict=True)
        ]
        self._use(first)
        self._layers += [max(self._layers, default=-1) + 1] * len(steps)
        numbers = [number for number in range(first, self.steps_before) if number not in early]
        self._before = Layer(numbers, [self._steps[each] for each in numbers], program, self._hardware)

    def in_order(self) -> tuple[tuple[Step, ...], tuple[int, ...]]:
        """All steps, numbered anew, and the layer of each."""
        order = [*self._order, *(self._before.with_ahead({})[0] if self._before else [])]
        place = {number: at for at, number in enumerate(order)}
        steps = (self._steps[number].renumbered(place) for number in order)
        return tuple(steps), tuple(self._layers[number] for number in order)

    def _go_ahead(self, fills: Sequence[Step], waiting: Sequence[set[int]]) -> set[int]:
        """Be done with the layer before; which of the fills that the next begins with go among its steps.

        They wait for no step of their own layer, and bring other words than those ahead of them.
        """
        if self._before is None:
            return set()
        free: dict[int, Early] = {}
        for at, step in enumerate(fills):
            others = [other for each in fills[:at] for other in each.words_written]
            if not step.after and not any(_meet((one,), (other,)) for other in others for one in step.words_written):
                assert isinstance(step, Fill)
                free[self.steps_before + at] = Early(step, waiting[at])
        order, early = self._before.with_ahead(free)
        self._order += order
        return early

    # ---- what a step waits for

    def _waiting(self, step: Step, anew: bool) -> set[int]:
        """Steps of layers before. One that may go ahead of others of its layer does not count on what these waited for,
        and looks at all `anew`.
        """
        found = {*self._makers(step)}
        for kind, number in (*self._in_use(step), *self._keepers(step)):
            if anew or number > self._waited[type(step), kind]:
                found.add(number)
            self._waited[type(step), kind] = max(number, self._waited[type(step), kind])
        return found

    def _in_use(self, step: Step) -> Iterator[tuple[type[Step], int]]:
        """The last step of each kind that used words which this one writes."""
        yield from self._last_users(step.words_written, self._users)

    def _keepers(self, step: Step) -> Iterator[tuple[type[Step], int]]:
        """The last Keep of words that this one reads."""
        if not isinstance(step, Keep):
            yield from self._last_users(step.words_read, (Keep,))

    def _last_users(self, words: Iterable[range], kinds: Iterable[type[Step]]) -> Iterator[tuple[type[Step], int]]:
        where = [slice(each.start, each.stop) for each in words if each]
        for kind in kinds:
            number = max((int(self._users[kind][each].max(initial=_NONE)) for each in where), default=_NONE)
            if number != _NONE:
                yield kind, number

    def _makers(self, step: Step) -> Iterator[int]:
        """The spills of layers before that made what it reads."""
        handed = self._handed.get(step.tensor.name) if isinstance(step, Fill) else None
        if not handed or not isinstance(step, Fill):
            return
        spills, mine = [each for name in handed.sources for each in self._spills[name]], box_of(step)
        apart = [handed.placed and not _meet(mine, made) for _, made in spills]
        # What is all padding waits for all of them, as whoever reads a tensor that is made waits for its spills.
        yield from (number for (number, _), other in zip(spills, apart, strict=True) if not other or all(apart))

    def _use(self, first: int) -> None:
        """Note what the steps from `first` on use, for the layers behind."""
        for number, step in enumerate(self._steps[first:], first):
            for words in step.words_used:
                self._users[type(step)][words.start : words.stop] = number
            if isinstance(step, Spill):
                self._spills[step.tensor.name].append((number, box_of(step)))


def _meet(one: Region, other: Region) -> bool:
    """Whether two rectangles have anything in common."""
    return all(a.start < b.stop and b.start < a.stop for a, b in zip(one, other, strict=True))
