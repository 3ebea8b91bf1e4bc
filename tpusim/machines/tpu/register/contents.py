"""What every word of every transfer holds: which elements of which tensors, word by word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Transfer
from tpusim.machines.tpu.program.tensor import Part, Tensor

Values = NDArray[np.float32]
Indices = NDArray[np.int32]
Addresses = NDArray[np.int64]

NOTHING = -1
"""An element that no tensor has: zero when it is filled, lost when it is spilled."""


@dataclass(frozen=True)
class HbmWords:
    """HBM, all tensors one after another, and the words that transfers move, for the lanes that may take part.

    Word `k` of transfer `step` has its address for all lanes at `addresses[step][k]`; lane `i` finds it at place
    `first[step] + i * step.words + k`, for `i` below `step.lanes`. `used[place]` says whether the lane takes part, and
    `elements[place, e]` where in `stored` element e of the word lies, or NOTHING.
    """

    stored: Values
    first: dict[int, int]
    addresses: dict[int, Addresses]
    used: NDArray[np.bool_]
    elements: Indices

    @classmethod
    def of(cls, program: Program, operands: Mapping[str, Values], word_elements: int) -> HbmWords:
        """HBM before the first cycle: operands as given, NaN in every other tensor."""
        transfers = {i: step for i, step in enumerate(program.steps) if isinstance(step, Transfer)}
        sizes = [step.lanes * step.words for step in transfers.values()]
        first = dict(zip(transfers, accumulate(sizes, initial=0), strict=False))
        used = np.zeros(sum(sizes), np.bool_)
        elements = np.full((sum(sizes), word_elements), NOTHING, np.int32)
        offsets = dict(zip(program.tensors, accumulate((t.size for t in program.tensors), initial=0), strict=False))
        addresses = {}
        for (index, step), size in zip(transfers.items(), sizes, strict=True):
            at = slice(first[index], first[index] + size)
            lanes = used[at].reshape(step.lanes, -1), elements[at].reshape(step.lanes, -1, word_elements)
            addresses[index] = _lay_out(step, offsets[step.tensor], *lanes)
        return cls(_stored(program, operands), first, addresses, used, elements)

    def tensor(self, program: Program, name: str) -> Values:
        """A tensor as it lies in HBM now."""
        at = 0
        for each in program.tensors:
            if each.name == name:
                return self.stored[at : at + each.size].reshape(each.shape)
            at += each.size
        raise KeyError(name)


def _stored(program: Program, operands: Mapping[str, Values]) -> Values:
    nan = np.float32(np.nan)
    parts = [operands[t.name].reshape(-1) if t.name in operands else np.full(t.size, nan) for t in program.tensors]
    return np.concatenate(parts, dtype=np.float32)


def _lay_out(step: Transfer, offset: int, used: NDArray[np.bool_], elements: Indices) -> Addresses:
    """Fill `used` [lane, word] and `elements` [lane, word, W] in; the address of each word."""
    addresses, at = [], 0
    for part in step.parts:
        index = _elements(part, step.tensor, offset)
        words = slice(at, at + part.words)
        for first in part.first_lanes:
            lanes = slice(first, first + part.lanes)
            used[lanes, words] = True
            elements[lanes, words, : part.per_word] = index
        addresses.append(np.arange(part.base, part.base + part.words))
        at += part.words
    return np.concatenate(addresses)


def _elements(part: Part, tensor: Tensor, offset: int) -> Indices:
    """[lane, word, element of the word]: where each element lies in HBM, or NOTHING outside the tensor."""
    at = [np.zeros((1, 1), np.int64) for _ in tensor.shape]
    at[part.lane.axis] = np.array(part.lane.coordinates)[:, None]
    counts = np.indices([len(each.coordinates) for each in part.items]).reshape(len(part.items), -1)
    for (axis, coordinates), count in zip(part.items, counts, strict=True):
        at[axis] = at[axis] + np.array(coordinates)[count]
    index = np.zeros((1, 1), np.int64)
    inside = np.ones((1, 1), np.bool_)
    for coordinate, size in zip(at, tensor.shape, strict=True):
        index, inside = index * size + coordinate, inside & (coordinate >= 0) & (coordinate < size)
    flat = np.full((part.lanes, part.words * part.per_word), NOTHING, np.int32)
    flat[:, : counts.shape[1]] = np.where(inside, index + offset, NOTHING)
    return flat.reshape(part.lanes, part.words, part.per_word)
