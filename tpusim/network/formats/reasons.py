"""Reasons why nodes of a network take no time."""

from __future__ import annotations

from collections.abc import Mapping

IN_PLACE = "its result is read where its operand lies"
ROUNDED = "it rounds, and no unit here rounds"
NO_LAYER = "no layer here computes it"
SORTED = "elements are sorted, and no unit here sorts"
TRUTH = "it makes truth values, and layers make numbers"
BY_VALUES = "which elements it takes follows from values"
TO_PLACES = "where elements go follows from values"
PLACES = "it makes places of elements, and no unit here counts them"
IN_TURN = "each result follows on the one before"


def untimed(ops: Mapping[str, Mapping[str, int]], but: str = "") -> str:
    """Name ops that take no time, with how often each reason holds; those of one reason may be left out."""
    every = ((op, *each) for op, counts in ops.items() for each in counts.items())
    return ", ".join(f"{op} {count:,} ({why})" for op, why, count in every if why != but)
