"""Which dimension of a model is the batch, and which sizes are still open."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import GraphProto, ValueInfoProto

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.network.formats.names import printable

_BATCH = re.compile(r"n|bs?|.*batch.*", re.IGNORECASE)
"""What tools call the number of images."""
_NAME = re.compile(r"[A-Za-z_]")
"""Some write "?" of what they do not know."""


@dataclass(frozen=True)
class Open:
    """A dimension without a size, of an input; `name` is what `--dim` calls it."""

    name: str
    value: str
    axis: int
    rank: int
    named: bool
    """Whether the model names it; else it is called by the value and its axis."""

    @property
    def like_a_batch(self) -> bool:
        return self.named and _BATCH.fullmatch(self.name) is not None


@dataclass(frozen=True)
class Batch:
    """Which names stand for the batch; where there are none, the model is for `fixed` images."""

    names: frozenset[str]
    fixed: int

    @property
    def is_open(self) -> bool:
        return bool(self.names)

    @property
    def probed(self) -> tuple[int, ...]:
        """For how many images the shapes are to be found, to know them for any number."""
        return (1, 2) if self.is_open else (self.fixed,)


def inputs(graph: GraphProto) -> list[ValueInfoProto]:
    """What the model is given from outside: without weights, which old files name among its inputs."""
    weights = {each.name for each in graph.initializer} | {each.values.name for each in graph.sparse_initializer}
    return [each for each in graph.input if each.name not in weights]


def batch_of(given: Sequence[ValueInfoProto], dims: Mapping[str, int], path: Path) -> Batch:
    """Which dimensions count images.

    Raises:
        InputError: a dimension is open that is neither the batch nor in `dims`, or `dims` names none that is.
    """
    opened = [each for value in given for each in _open(value)]
    names = {each.name for each in opened}
    if unknown := [name for name in dims if name not in names]:
        raise InputError([Problem(_no_such(name, names), str(path)) for name in unknown])
    left = [each for each in opened if each.name not in dims]
    named = frozenset(each.name for each in left if each.like_a_batch)
    counted = named or frozenset(each.name for each in left if each.axis == 0 and each.rank > 1)
    if missing := {each.name: each for each in reversed(left) if each.name not in counted}:
        raise InputError(Problem(_missing([*missing.values()][::-1]), str(path)))
    return Batch(counted, _first(given, dims))


def set_sizes(value: ValueInfoProto, sizes: Mapping[str, int]) -> None:
    """Give the open dimensions of a value their sizes, by name."""
    for each in _open(value):
        if each.name in sizes:
            dim = value.type.tensor_type.shape.dim[each.axis]
            dim.Clear()
            dim.dim_value = sizes[each.name]


def _open(value: ValueInfoProto) -> Iterator[Open]:
    dims, of = value.type.tensor_type.shape.dim, printable(value.name)
    for axis, dim in enumerate(dims):
        if not dim.HasField("dim_value") or dim.dim_value < 1:
            named = printable(dim.dim_param) if _NAME.search(dim.dim_param) else ""
            yield Open(named or f"{of}.{axis}", of, axis, len(dims), bool(named))


def _first(given: Sequence[ValueInfoProto], dims: Mapping[str, int]) -> int:
    """Images of a model of a fixed size: the first dimension of the first input that has two and more.

    One that somebody gives a size counts none, unless it is called a batch.
    """
    shapes = [each.type.tensor_type.shape.dim for each in given]
    first = next((shape[0] for shape in shapes if len(shape) > 1), None)
    if first is None or (first.dim_param and not _BATCH.fullmatch(first.dim_param)):
        return 1
    return max(1, dims.get(first.dim_param, int(first.dim_value)))


def _no_such(name: str, names: set[str]) -> str:
    known = f"open are {', '.join(sorted(names))}" if names else "the model leaves none open"
    return f"--dim {name}: no dimension of that name is open{did_you_mean(name, names) or ';'} {known}"


def _missing(left: Sequence[Open]) -> str:
    where = ", ".join(f"{each.name} (dimension {each.axis} of {each.value})" for each in left)
    give = " ".join(f"--dim {each.name}=N" for each in left)
    return f"the inputs leave sizes open: {where}; give them to tpusim run or import: {give}"
