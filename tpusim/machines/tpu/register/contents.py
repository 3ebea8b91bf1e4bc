"""What every word of every transfer holds: which elements of which tensors, word by word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.program.keep import Keep
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.tensor import Elements, Part
from tpusim.machines.tpu.program.transfers import BankFill, LaneTransfer, Prefetch, Spill, Transfer
from tpusim.machines.tpu.register.order import NOWHERE

Values = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]

NOTHING = -1
"""An element that the tensor does not have: zero when it is filled, lost when it is spilled."""


@dataclass(frozen=True)
class HbmWords:
    """The tensors in HBM and the scratch memory, and the words that lanes' transfers move, each only for the lanes that
    may take part.

    Word `k` of transfer `step` has its address for all lanes at `addresses[step][k]`, NOWHERE where each has its own;
    lane `i` finds it at place `first[step] + i * step.words + k` of `values` [place, W], for `i` below `step.lanes`,
    and `used[place]` says whether it takes part.
    """

    program: Program
    tensors: dict[str, Values]
    first: dict[int, int]
    addresses: dict[int, Indices]
    used: NDArray[np.bool_]
    values: Values
    spilled: list[int] = field(default_factory=list)
    """The spills that lane 0 has ended; the last words of other lanes may still be on their way."""
    fetched: dict[int, list[tuple[Indices, Values]]] = field(default_factory=dict)
    """By prefetch under way, the elements that it brings to the scratch memory, and where they lie in their tensor."""

    @classmethod
    def of(cls, program: Program, operands: Mapping[str, Values], word_elements: int) -> HbmWords:
        """Before the first cycle: operands in HBM as given, NaN in every other tensor."""
        transfers = {i: step for i, step in enumerate(program.steps) if isinstance(step, LaneTransfer)}
        sizes = [step.lanes * step.words for step in transfers.values()]
        first = dict(zip(transfers, accumulate(sizes, initial=0), strict=False))
        addresses = {index: _addresses(step) for index, step in transfers.items()}
        tensors = {
            each.name: np.array(operands.get(each.name, np.full(each.shape, np.nan)), program.number).reshape(
                each.shape
            )
            for each in program.tensors
        }
        used, values = np.zeros(sum(sizes), np.bool_), np.zeros((sum(sizes), word_elements), program.number)
        words = cls(program, tensors, first, addresses, used, values)
        for index, step in transfers.items():
            for part, at in _places(step):
                words._used(index)[at[0], at[1]] = part.words > 0
        return words

    def fetch(self, index: int, sources: Sequence[int] = ()) -> None:
        """Bring the words of a fill that begins: its elements as they are now, those of all spills up to the last among
        its `sources` in every lane.
        """
        step, place = self._transfer(index), self._words(index)
        self._settle(max((each for each in sources if isinstance(self.program.steps[each], Spill)), default=-1))
        for part, at in _places(step):
            place[at[0], at[1], : part.per_word] = self._brought(step, part)

    def prefetch(self, index: int, step: Prefetch) -> None:
        """Take the elements of a prefetch that begins as they are in HBM now."""
        content = self.tensor(step.tensor.name).reshape(-1)
        places = (_elements(part, step.tensor.shape) for part in step.parts)
        self.fetched[index] = [(inside, content[inside]) for at in places for inside in (at[at != NOTHING],)]

    def prefetched(self, index: int) -> None:
        """The elements of a prefetch are in the scratch memory."""
        step = self.program.steps[index]
        assert isinstance(step, Prefetch)
        for places, values in self.fetched.pop(index):
            self.tensors[step.to.name].reshape(-1)[places] = values

    def fetch_for_banks(self, step: BankFill) -> tuple[Indices, Values]:
        """(address, word [W]) of every word of a fill that begins, as it is in HBM now."""
        words = np.zeros((step.lane_words, self.values.shape[1]), self.values.dtype)
        ends = [*accumulate((part.words * part.lanes for part in step.parts), initial=0)]
        for part, first, stop in zip(step.parts, ends, ends[1:], strict=False):
            words[first:stop, : part.per_word] = self._brought(step, part).reshape(stop - first, -1)
        return np.concatenate([part.addresses.ravel() for part in step.parts]), words

    def _brought(self, step: Transfer, part: Elements) -> Values:
        """The elements [lane, word, element of the word] of a part; zero where the tensor has none."""
        brought: Values = np.append(self.tensor(step.tensor.name), self.values.dtype.type(0))[
            _elements(part, step.tensor.shape)
        ]
        return brought

    def tensor(self, name: str) -> Values:
        """A tensor as it lies in HBM now."""
        made = self.program.makers.get(name, (name,))
        for index in self.spilled:
            if self._transfer(index).tensor.name in made:
                self._store(index)
        return self.tensors[name]

    def _settle(self, until: int) -> None:
        """What spills up to step `until` have brought needs not be looked for again."""
        while self.spilled and self.spilled[0] <= until:
            self._store(self.spilled.pop(0))

    def _store(self, index: int) -> None:
        """Put the words of a spill into its tensor; not those that readers are given instead of what it keeps."""
        if self.program.instead(self._transfer(index).tensor.name):
            return
        step, place = self._transfer(index), self._words(index)
        names = [step.tensor.name, *self.program.copies(step.tensor.name)]
        for part, at in _places(step):
            elements = _elements(part, step.tensor.shape)
            inside = elements != NOTHING
            values = step.tensor.in_hbm(place[at[0], at[1], : part.per_word][inside])
            for name in names:
                self.tensors[name].reshape(-1)[elements[inside]] = values

    def keep(self, step: Keep, lane: int, memory: Values) -> None:
        """Note what lane `lane` keeps in `memory` [lane, word, W]; what is given instead takes its place there."""
        for part in step.parts:
            if not 0 <= lane - part.first_lanes[0] < part.lanes:
                continue
            mine = part._replace(lane=tuple(each.of(lane - part.first_lanes[0]) for each in part.lane))
            elements = _elements(mine, step.tensor.shape)[0]
            words = memory[lane, part.base : part.base + part.words, : part.per_word]
            for name in (step.tensor.name, *self.program.copies(step.tensor.name)):
                self.tensors[name].reshape(-1)[elements] = words
            for name in self.program.instead(step.tensor.name):
                words[...] = self.tensors[name].reshape(-1)[elements]

    def _transfer(self, index: int) -> LaneTransfer:
        step = self.program.steps[index]
        assert isinstance(step, LaneTransfer)
        return step

    def _words(self, index: int) -> Values:
        """A view [lane, word, W] of a transfer's words."""
        step, first = self._transfer(index), self.first[index]
        return self.values[first : first + step.lanes * step.words].reshape(step.lanes, step.words, -1)

    def _used(self, index: int) -> NDArray[np.bool_]:
        step, first = self._transfer(index), self.first[index]
        return self.used[first : first + step.lanes * step.words].reshape(step.lanes, step.words)


def _places(step: LaneTransfer) -> list[tuple[Part, tuple[slice, slice]]]:
    """Every part in each of its copies, with the lanes and the words of the transfer that it takes."""
    words = accumulate((part.words for part in step.parts), initial=0)
    return [
        (part, (slice(first, first + part.lanes), slice(at, at + part.words)))
        for part, at in zip(step.parts, words, strict=False)
        for first in part.first_lanes
    ]


def _addresses(step: LaneTransfer) -> Indices:
    return np.concatenate(
        [
            np.arange(part.base, part.base + part.words) if part.feed is None else np.full(part.words, NOWHERE)
            for part in step.parts
        ]
    )


def _elements(part: Elements, shape: tuple[int, ...]) -> Indices:
    """[lane, word, element of the word]: where each element lies in its tensor, or NOTHING outside it."""
    at = [np.zeros((1, 1), np.int64) for _ in shape]
    for axis, lanes in part.lane:
        at[axis] = at[axis] + np.array(lanes)[:, None]
    counts = np.indices([len(each.coordinates) for each in part.items]).reshape(len(part.items), -1)
    for (axis, coordinates), count in zip(part.items, counts, strict=True):
        at[axis] = at[axis] + np.array(coordinates)[count]
    index, inside = np.zeros((1, 1), np.int64), np.ones((1, 1), np.bool_)
    for coordinate, size in zip(at, shape, strict=True):
        index, inside = index * size + coordinate, inside & (coordinate >= 0) & (coordinate < size)
    flat = np.full((part.lanes, part.words * part.per_word), NOTHING)
    flat[:, : counts.shape[1]] = np.where(inside, index, NOTHING)
    return flat.reshape(part.lanes, part.words, part.per_word)
