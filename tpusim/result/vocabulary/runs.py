"""A run as a whole, in words."""

from __future__ import annotations

from tpusim.result.records import Result


def incomplete(result: Result) -> str:
    """How much of a run there is, where it was interrupted; empty when all of it is."""
    done = len(result.layers)
    return f"incomplete, {done} of {done + result.layers_left} layers" if result.layers_left else ""


def with_extent(text: str, result: Result) -> str:
    """`text` about a run, and after it how much of it there is where that is not all."""
    return f"{text} ({words})" if (words := incomplete(result)) else text
