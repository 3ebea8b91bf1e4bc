"""Oracles of collectives: what every chip of a group holds in the end, straight from the definition, in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Operand = NDArray[Any]
_COMBINED: Mapping[str, Callable[..., Operand]] = {"sum": np.sum, "max": np.max, "min": np.min}


def expected(op: str, operands: Sequence[Operand], combine: str = "sum") -> list[Operand]:
    """Return the result of each chip, by rank, from the operand of each: vectors of equal length. An op that reduces
    combines elements by their `sum`, `max` or `min`.

    An all-gather takes of each operand the part that belongs to its rank, as the others are what it brings; rank r has
    elements floor(r length / ranks) up to floor((r + 1) length / ranks). A permute brings the operand of the rank
    before.
    """
    ranks, length = len(operands), len(operands[0])
    first = [rank * length // ranks for rank in range(ranks + 1)]
    own = [slice(first[rank], first[rank + 1]) for rank in range(ranks)]
    everything = np.stack(operands)
    if op == "all_reduce":
        return [_COMBINED[combine](everything, axis=0)] * ranks
    if op == "reduce_scatter":
        return [_COMBINED[combine](everything[:, part], axis=0) for part in own]
    if op == "all_gather":
        return [np.concatenate([operand[part] for operand, part in zip(operands, own, strict=True)])] * ranks
    if op == "all_to_all":
        return [everything[:, part].ravel() for part in own]
    if op == "permute":
        return [operands[rank - 1] for rank in range(ranks)]
    raise ValueError(f"no collective {op!r}")
