"""The dimension of a model that is the batch, and the sizes that are still open."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from onnx import GraphProto, ValueInfoProto

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.input.source import Arrays
from tpusim.network.formats import printable

_BATCH = re.compile(r"n|bs?|.*batch.*", re.IGNORECASE)
"""Names that tools use for the number of images."""
_LENGTH = re.compile(r".*(seq|len|time|frame|step|token).*", re.IGNORECASE)
"""Names that tools use for the length of a sequence, which may be a first dimension, too."""
_NAME = re.compile(r"[A-Za-z_]")
"""A name of a dimension; some tools write "?" for an unknown size."""


class Open(NamedTuple):
    """A dimension without a size, of an input; `name` is the name for `--dim`, whether or not the model has named it.

    One that the model does not name is called by the value and its axis.
    """

    name: str
    value: str
    axis: int
    rank: int
    named: bool

    def like(self, names: re.Pattern[str]) -> bool:
        """Return whether the model uses one of these names for the dimension."""
        return self.named and names.fullmatch(self.name) is not None


@dataclass(frozen=True)
class ModelBatch:
    """The names that stand for the batch; where there are none, the model is for `fixed` images.

    Attributes:
        dims: the sizes of all other dimensions that are open, by name.
        arrays: arrays given for inputs, by name.
        images: how many images the arrays hold; None where that is unknown.
    """

    names: frozenset[str]
    fixed: int
    dims: Mapping[str, int]
    arrays: Arrays
    images: int | None

    @property
    def is_open(self) -> bool:
        return bool(self.names)

    @property
    def probed(self) -> tuple[int, ...]:
        """Return the numbers of images for which shapes are inferred, to know them for any number."""
        return (1, 2) if self.is_open else (self.fixed,)

    def sizes(self, images: int) -> dict[str, int]:
        """Return the sizes of all open dimensions, by name, for a batch of `images`."""
        return {**self.dims, **dict.fromkeys(self.names, images)}


def inputs(graph: GraphProto) -> list[ValueInfoProto]:
    """Return the model's inputs from outside: without weights, which old files name among the inputs."""
    weights = {each.name for each in graph.initializer} | {each.values.name for each in graph.sparse_initializer}
    return [each for each in graph.input if each.name not in weights]


def batch_of(given: Sequence[ValueInfoProto], dims: Mapping[str, int], arrays: Arrays, path: Path) -> ModelBatch:
    """Find the dimensions that count images; there are none where `arrays` settle them, as all others.

    Raises:
        InputError: a dimension is open that is neither the batch nor in `dims` or `arrays`, `dims` names none that is,
            or these contradict one another.
    """
    opened = [each for value in given for each in _open(value)]
    names = {each.name for each in opened}
    if unknown := [name for name in dims if name not in names]:
        known = f"open are {', '.join(sorted(names))}" if names else "the model leaves none open"
        hints = {name: did_you_mean(name, names) or ";" for name in unknown}
        says = (f"--dim {name}: no dimension of that name is open{hint} {known}" for name, hint in hints.items())
        raise InputError([Problem(each, str(path)) for each in says])
    left = [each for each in opened if each.name not in dims]
    named = frozenset(each.name for each in left if each.like(_BATCH))
    # A name for the batch settles it; without one, the first dimension is the usual place.
    counted = named or frozenset(each.name for each in left if each.axis == 0 and each.rank > 1)
    sizes = {**_held(opened, dims, arrays), **dims}
    if missing := {each.name: each for each in reversed(left) if each.name not in counted | sizes.keys()}:
        raise InputError(Problem(_missing([*missing.values()][::-1], arrays), str(path)))
    # A first dimension that is called a length tells no number of images.
    images = (each.name for each in left if each.name in counted and not each.like(_LENGTH))
    own = next((sizes[name] for name in images if name in sizes), None)
    fixed = own or _first(given, dims)
    return ModelBatch(counted - sizes.keys(), fixed, sizes, arrays, _images(given, sizes, arrays, fixed))


def _held(opened: Sequence[Open], dims: Mapping[str, int], arrays: Arrays) -> dict[str, int]:
    """Return sizes of open dimensions by name, as the arrays have them.

    Raises InputError where that is more than one, or there are no images.
    """
    known: dict[str, tuple[int, str]] = {name: (size, f"--dim {name}={size}") for name, size in dims.items()}
    problems: list[Problem] = []
    for each in opened:
        array = arrays.get(each.value)
        if array is None or array.ndim != each.rank:
            continue
        size, where = array.shape[each.axis], f"dimension {each.axis} of the array {each.value!r}"
        if not size and not each.axis:
            problems.append(Problem(f"{where} is 0, so it holds nothing; give at least one image"))
        # Equal names mean equal sizes, in all inputs.
        before, said = known.setdefault(each.name, (size, where))
        if size != before:
            advice = "leave --dim out, or change the array" if each.name in dims else "the model wants them equal"
            problems.append(Problem(f"{where} is {size}, where {said} makes {each.name} {before}; {advice}"))
    if problems:
        raise InputError(problems)
    return {name: size for name, (size, _) in known.items()}


def _images(given: Sequence[ValueInfoProto], sizes: Mapping[str, int], arrays: Arrays, fixed: int) -> int | None:
    """Return how many images the arrays hold: those of the model, or a multiple; None where they are no maps of it.

    An array of one axis, such as a length, counts only where none has more.
    """
    for value in sorted(given, key=lambda value: len(value.type.tensor_type.shape.dim) < 2):
        array, dims = arrays.get(value.name), value.type.tensor_type.shape.dim
        if array is not None and len(dims) == array.ndim > 0:
            own = next((sizes.get(each.name, 0) for each in _open(value) if each.axis == 0), dims[0].dim_value)
            return fixed * max(1, array.shape[0] // own) if own else fixed
    return None


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
    """Return the images of a model of fixed size: the first dimension of the first input with two or more.

    One that somebody gives a size counts none, unless it is called a batch.
    """
    shapes = [each.type.tensor_type.shape.dim for each in given]
    first = next((shape[0] for shape in shapes if len(shape) > 1), None)
    if first is None or (first.dim_param and not _BATCH.fullmatch(first.dim_param)):
        return 1
    return max(1, dims.get(first.dim_param, int(first.dim_value)))


def _missing(left: Sequence[Open], arrays: Arrays) -> str:
    where = ", ".join(f"{each.name} (dimension {each.axis} of {each.value})" for each in left)
    give = " ".join(f"--dim {shlex.quote(each.name)}=N" for each in left)
    by = "or run with --input FILE.npz, which has an array for each input, by its name"
    if arrays:
        wanted = ", ".join({each.value: f"{each.value} of {each.rank} dimensions" for each in left}.values())
        there = ", ".join(f"{printable(name)} of {array.ndim}" for name, array in arrays.items())
        by = f"or arrays in --input that say them: {wanted}, where it has {there or 'none'}"
    return f"the inputs leave sizes open: {where}; give them to tpusim run or import: {give}; {by}"
