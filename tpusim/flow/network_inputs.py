"""What a network is given: checked arrays, or random ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tpusim.base.errors import InputError, Problem
from tpusim.base.words import counted
from tpusim.network.graph import GivenInput, Graph
from tpusim.numerics.element_types import Values, all_finite

_MOST_TOLD = 8
STAY_WITHIN = "give inputs, and a model, whose values stay within float32"
"""What to do where they do not."""


def checked(graph: Graph, inputs: Mapping[str, Values], batch: int) -> dict[str, Values]:
    """The inputs, all there and as the graph has them for `batch` images. Raises InputError with all that is wrong."""
    problems: list[str] = []
    wanted = {name: wanted_of(each, batch // graph.images) for name, each in graph.inputs.items()}
    for name, each in wanted.items():
        given = inputs.get(name)
        if given is None:
            there = f"; it has {', '.join(inputs)}" if inputs else ""
            problems.append(f"no array {name!r}, which the model takes as {_text(each.dtype, each.shape)}{there}")
        elif given.shape != each.shape or not np.can_cast(given.dtype, each.dtype, "same_kind"):
            has = _text(given.dtype, given.shape)
            problems.append(f"{name!r} is {has}; the model takes {_text(each.dtype, each.shape)}")
    problems += [f"the model takes no {name!r}; it takes {', '.join(wanted)}" for name in inputs if name not in wanted]
    if problems:
        raise InputError([Problem(each) for each in problems[:_MOST_TOLD]])
    with np.errstate(over="ignore"):
        taken = {name: inputs[name].astype(each.dtype, copy=False) for name, each in wanted.items()}
    if beyond := [Problem(f"{each}; {STAY_WITHIN}") for each in not_finite(taken)]:
        raise InputError(beyond[:_MOST_TOLD])
    return taken


def wanted_of(given: GivenInput, parts: int) -> GivenInput:
    """An input for several times as many images."""
    if parts == 1 or not given.shape:
        return given
    first, *rest = given.shape
    return GivenInput(given.dtype, (first * parts, *rest))


def drawn(graph: Graph, batch: int, seed: int) -> dict[str, Values]:
    """Random inputs: reals of mean 0 and deviation 1, of whole numbers zeros and ones."""
    random = np.random.default_rng(seed)
    made: dict[str, Values] = {}
    for name, each in graph.inputs.items():
        wanted = wanted_of(each, batch // graph.images)
        real = np.issubdtype(wanted.dtype, np.floating)
        numbers = random.standard_normal(wanted.shape) if real else random.integers(0, 2, wanted.shape)
        made[name] = np.asarray(numbers).astype(wanted.dtype)
    return made


def not_finite(arrays: Mapping[str, Values]) -> Iterator[str]:
    """Arrays that hold what no sum can be equal or near to, in words."""
    for name, each in arrays.items():
        if not all_finite(each):
            count = each.size - int(np.count_nonzero(np.isfinite(each)))
            yield f"{count:,} of the {counted(each.size, 'number')} of {name!r} are infinite or nan"


def listed(arrays: Mapping[str, Values]) -> str:
    """Arrays in words: "data_0 float32[1, 3, 224, 224]"."""
    return ", ".join(f"{name} {_text(each.dtype, each.shape)}" for name, each in arrays.items())


def _text(dtype: object, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"
