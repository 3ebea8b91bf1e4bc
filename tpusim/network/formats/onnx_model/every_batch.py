"""A workload for every batch, of what a model becomes for a few: sizes that follow the batch, as files write them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import gcd
from pathlib import Path
from typing import Any

from tpusim.base.errors import InputError, Problem
from tpusim.input.document import Document
from tpusim.network.ops.op import BATCH

_UNSAID = {"images": BATCH, "count": 1}
"""What an entry means that has no such key."""


class _LineError(Exception):
    """A value that differs with the batch, and is no line of it; the message says which."""


def for_any_batch(read_at: Mapping[int, Document], path: Path, name: str) -> Document:
    """Return one workload of those `read_at` a few numbers of images, where all show the same lines; `name` is that of
    the model's batch, if it has one.

    Raises:
        InputError: something differs with the batch, and is no line of it.
    """
    first = next(iter(read_at.values()))
    try:
        lists = {images: each.data["layers"] for images, each in read_at.items()}
        if {len(each) for each in lists.values()} != {len(first.data["layers"])}:
            raise _LineError("how many layers there are")
        layers = [_entry(dict(zip(lists, entries, strict=True))) for entries in zip(*lists.values(), strict=True)]
        for key, value in first.data.items():
            if key != "layers" and any(each.data[key] != value for each in read_at.values()):
                raise _LineError(f"{key} of the network")
    except _LineError as reason:
        of_dim = f"; give it: --dim {shlex.quote(name)}=N" if name else ""
        says = f"{reason} is no line of the batch, so that no workload is for every batch{of_dim}"
        raise InputError(Problem(f"{says}; tpusim run takes the model itself, at any batch", str(path))) from None
    return replace(first, data={**first.data, "layers": layers}, images=None, multiple=gcd(*read_at))


def _entry(at: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Return an entry for every batch, from it at a few."""
    every = {images: {**entry, **_said(entry, at.values(), images)} for images, entry in at.items()}
    # The order is that of the entry with the most keys.
    keys = max(every.values(), key=len)
    label = f"{keys.get('op')} {keys.get('name')}"
    if any(each.keys() != keys.keys() for each in every.values()):
        raise _LineError(f"what is said of {label}")
    made = {key: _value({at: each[key] for at, each in every.items()}, f"{key} of {label}") for key in keys}
    return {key: value for key, value in made.items() if _UNSAID.get(key) != value}


def _said(entry: Mapping[str, Any], others: Any, images: int) -> dict[str, int]:
    """Return what an entry leaves out, and others say."""
    usual = {"images": images, "count": 1}
    return {key: usual[key] for key in usual if key not in entry and any(key in each for each in others)}


def _value(at: Mapping[int, Any], what: str) -> Any:
    """Return a value for every batch."""
    values = [*at.values()]
    if all(each == values[0] for each in values):
        return values[0]
    if all(isinstance(each, list) and len(each) == len(values[0]) for each in values):
        inner = zip(*values, strict=True)
        return [_value(dict(zip(at, each, strict=True)), what) for each in inner]
    if not all(type(each) is int for each in values):
        raise _LineError(what)
    return _line(at, what)


def _line(at: Mapping[int, int], what: str) -> str:
    """Return the line through numbers at a few batches, as files write it. Raises _NoLine."""
    (one, low), (two, high), *_ = at.items()
    slope = Fraction(high - low, two - one)
    more = low - slope * one
    if more.denominator != 1 or any(slope * images + more != value for images, value in at.items()):
        raise _LineError(what)
    parts: Sequence[str] = (
        BATCH,
        f"*{slope.numerator}" if slope.numerator != 1 else "",
        f"//{slope.denominator}" if slope.denominator != 1 else "",
        f"{int(more):+d}" if more else "",
    )
    return "".join(parts)
