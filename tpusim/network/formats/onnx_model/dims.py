"""The dimension of a model that is the batch, and the sizes that are still open."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from onnx import GraphProto, ValueInfoProto

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.input.source import Arrays
from tpusim.network.formats import printable

_BATCH = re.compile(r"bs?|\w*batch\w*", re.IGNORECASE), re.compile(r"n", re.IGNORECASE)
"""Names that tools use for the number of images, the plainer ones first."""
_LENGTH = re.compile(r"[lst]|.*(seq|len|time|frame|step|token|head|beam).*", re.IGNORECASE)
"""Names that tools use for sizes that are no number of images, though they may stand first."""
_NAME = re.compile(r"[A-Za-z_]")
"""A name of a dimension; some tools write "?" for an unknown size."""
_NUMBERED = re.compile(r"unk__\d+")
"""Names that a tool makes up for sizes of which it knows nothing: two of them may be one size."""


class OpenDim(NamedTuple):
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

    @property
    def made_up(self) -> bool:
        """Whether nobody has named the dimension."""
        return not self.named or self.like(_NUMBERED)


@dataclass(frozen=True)
class ModelBatch:
    """How many images go through a model at once, and the sizes that its inputs leave open.

    Attributes:
        names: the open dimensions that stand for the batch, and that nothing has settled.
        own: how many images a run of the model holds; None where `names` stand for them.
        by_place: whether nothing is called a batch, so that a dimension is taken for it by its place alone.
        fixed: whether the model leaves nothing open that could be its batch, so that `own` is its first dimension.
        dims: the sizes of all other dimensions that are open, by name.
        arrays: arrays given for inputs, by name.
        runs: how many runs the arrays are for; None without arrays of the model.
    """

    names: frozenset[str]
    own: int | None
    by_place: bool
    fixed: bool
    dims: Mapping[str, int]
    arrays: Arrays
    runs: int | None

    def sizes(self, images: int) -> dict[str, int]:
        """Return the sizes of all open dimensions, by name, for a run of `images`."""
        return {**self.dims, **dict.fromkeys(self.names, images)}


class ModelRun(NamedTuple):
    """The images of a workload: `images` in all, `own` at once in a run of the model."""

    images: int
    own: int

    @property
    def times(self) -> int:
        """Return how many runs of the model that is."""
        return self.images // self.own


def inputs(graph: GraphProto) -> list[ValueInfoProto]:
    """Return the model's inputs from outside: without weights, which old files name among the inputs."""
    weights = {each.name for each in graph.initializer} | {each.values.name for each in graph.sparse_initializer}
    return [each for each in graph.input if each.name not in weights]


def batch_of(given: Sequence[ValueInfoProto], dims: Mapping[str, int], arrays: Arrays, path: Path) -> ModelBatch:
    """Find the dimensions that count images; `dims` or `arrays` may settle them, as all others.

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
    counted, named = _counting(opened)
    sizes = {**_held(opened, dims, arrays), **dims}
    settled = next((sizes[each.name] for each in opened if each.name in counted & sizes.keys()), None)
    left = counted if settled is None else frozenset[str]()
    if missing := {each.name: each for each in reversed(opened) if each.name not in left | sizes.keys()}:
        raise InputError(Problem(_missing([*missing.values()][::-1], counted, arrays), str(path)))
    own = None if left else settled or _first(given)
    return ModelBatch(left, own, bool(counted) and not named, not counted, sizes, arrays, _runs(given, sizes, arrays))


def _counting(opened: Sequence[OpenDim]) -> tuple[frozenset[str], bool]:
    """Return the names of the open dimensions that are the batch, and whether they are called so.

    One name is: equal names mean equal sizes, and others may be other sizes. Where nothing is called a batch, the
    first dimension of the first input is the usual place; where that has no name, so are those of the other inputs.
    An N behind a first dimension that is open and has no name counts something else, such as the points of a cloud.
    """
    firsts = [each for each in opened if each.axis == 0 and each.rank > 1 and not each.like(_LENGTH)]
    unnamed = {each.value for each in firsts if each.made_up}
    for names in _BATCH:
        called = [each for each in opened if each.like(names) and not each.like(_LENGTH)]
        if names is _BATCH[-1]:
            called = [each for each in called if each.axis == 0 or each.value not in unnamed]
        if called:
            return frozenset([min(called, key=lambda each: each.axis > 0).name]), True
    if firsts and firsts[0].made_up:
        return frozenset(each.name for each in firsts if each.made_up), False
    return frozenset(each.name for each in firsts[:1]), False


def _held(opened: Sequence[OpenDim], dims: Mapping[str, int], arrays: Arrays) -> dict[str, int]:
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


def _runs(given: Sequence[ValueInfoProto], sizes: Mapping[str, int], arrays: Arrays) -> int | None:
    """Return how many runs of the model the arrays are for; None where they are no maps of it.

    An array of one axis, such as a length, counts only where none has more.
    """
    for value in sorted(given, key=lambda value: len(value.type.tensor_type.shape.dim) < 2):
        array, dims = arrays.get(value.name), value.type.tensor_type.shape.dim
        if array is not None and len(dims) == array.ndim > 0:
            own = next((sizes.get(each.name, 0) for each in _open(value) if each.axis == 0), dims[0].dim_value)
            return max(1, array.shape[0] // own) if own else 1
    return None


def set_sizes(value: ValueInfoProto, sizes: Mapping[str, int]) -> None:
    """Give the open dimensions of a value their sizes, by name."""
    for each in _open(value):
        if each.name in sizes:
            dim = value.type.tensor_type.shape.dim[each.axis]
            dim.Clear()
            dim.dim_value = sizes[each.name]


def _open(value: ValueInfoProto) -> Iterator[OpenDim]:
    dims, of = value.type.tensor_type.shape.dim, printable(value.name)
    for axis, dim in enumerate(dims):
        if not dim.HasField("dim_value") or dim.dim_value < 1:
            named = printable(dim.dim_param) if _NAME.search(dim.dim_param) else ""
            yield OpenDim(named or f"{of}.{axis}", of, axis, len(dims), bool(named))


def _first(given: Sequence[ValueInfoProto]) -> int:
    """Return the images of a model of fixed size: the first dimension of the first input with two or more.

    One that is open, and was asked for by its name, counts none.
    """
    shapes = [each.type.tensor_type.shape.dim for each in given]
    return max(1, next((int(shape[0].dim_value) for shape in shapes if len(shape) > 1), 1))


def _missing(left: Sequence[OpenDim], counted: Set[str], arrays: Arrays) -> str:
    where = ", ".join(f"{each.name} (dimension {each.axis} of {each.value})" for each in left)
    give = " ".join(f"--dim {shlex.quote(each.name)}=N" for each in left)
    by = "or run with --input FILE.npz, which has an array for each input, by its name"
    if arrays:
        wanted = ", ".join({each.value: f"{each.value} of {each.rank} dimensions" for each in left}.values())
        there = ", ".join(f"{printable(name)} of {array.ndim}" for name, array in arrays.items())
        by = f"or arrays in --input that say them: {wanted}, where it has {there or 'none'}"
    batch = f" ({' and '.join(sorted(counted))} is the batch)" if counted else ""
    return f"the inputs leave sizes open: {where}; give them to tpusim run or import: {give}; {by}{batch}"
