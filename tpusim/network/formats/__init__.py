"""Networks in files of other tools: a format is a module whose `read` makes a Document of a file, and a line below.

What a format reads becomes the same plain data that a workload's YAML has: nobody above knows where it came from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.base.imports import need
from tpusim.input.document import Document
from tpusim.input.scalars import show

if TYPE_CHECKING:
    from tpusim.network.formats.jax_function import JaxWorkload
    from tpusim.network.graph import Graph

# ---- what a user says of a model beside its file

OPS = ("all", "array")
"""The ops that may become layers."""


def check_ops(ops: object) -> str:
    """Return a word of OPS unchanged. Raises InputError for any other."""
    if ops not in OPS:
        hint = did_you_mean(str(ops), OPS) or ";"
        says = "all, or array: convolutions and matrix products alone, others are named and take no time"
        raise InputError(f"unknown ops {ops!r}{hint} there is {says}")
    return str(ops)


class RunBatch(NamedTuple):
    """The images of a run: as many as were asked for; or the `usual` number, before which goes what a file, or arrays
    beside it, are for.
    """

    images: int
    usual: bool = False


@dataclass(frozen=True)
class ModelOptions:
    """Sizes of dimensions that a model leaves open, and whether unknown ops are left out of it.

    `batch` is that of the run that a model is read for; None: it is read for every batch, where its sizes allow that.
    `ops` says which ops become layers: all that can, or those of the array alone; None: as the file says, else all.
    `arrays` are inputs of the network, by name: their sizes settle open dimensions, and whole numbers in them settle
    which branches are taken. `shapes` are those of the arguments of a function of JAX, as text. `training` asks for a
    training step, in other ways than its file's where it says so. `phase` is one that the file names.
    `weights` and `caches` say how HBM has them, in place of what the file says. `mesh` has the axes along which chips
    share the network, in place of what the file says, of which one may be "*" until the slice is known
    (`network.workload.on_chips`), and `microbatches` the parts of a batch that go through its stages.
    """

    dims: Mapping[str, int] = field(default_factory=dict)
    skip_unknown: bool = False
    ops: str | None = None
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    shapes: str | None = None
    training: Mapping[str, Any] | None = None
    phase: str | None = None
    weights: str | None = None
    caches: str | None = None
    mesh: Mapping[str, int] = field(default_factory=dict)
    microbatches: int | None = None
    batch: RunBatch | None = None

    def __post_init__(self) -> None:
        for name in ("phase", "weights", "caches", "ops", "shapes"):
            if not isinstance(given := getattr(self, name), str | None):
                raise InputError(Problem(f"{show(given)} is no text; write it as --{name} has it", name))
        if self.microbatches is not None and (type(self.microbatches) is not int or self.microbatches < 1):
            says = f"{show(self.microbatches)} parts no batch; write a whole number from 1 on, such as 8"
            raise InputError(Problem(says, "microbatches"))
        if not isinstance(self.mesh, Mapping):
            raise InputError(Problem(f"{show(self.mesh)} is no mesh; write a mapping, such as tensor: 8", "mesh"))
        if not isinstance(self.dims, Mapping):
            raise InputError(Problem(f"{show(self.dims)} names no sizes; write a mapping, such as seq: 64", "dims"))
        if self.ops is not None:
            check_ops(self.ops)


NOTHING = ModelOptions()


# ---- the formats

FORMATS = {".csv": "scale_sim", ".json": "decoder_config", ".onnx": "onnx_model"}
"""Modules by the suffix of the files they read; imported on demand, as some need a library."""
WITH_SIZES = frozenset({".json"})
"""Formats whose documents have blocks, and sizes and phases by name, as the file of a workload has."""
NEEDS = {".onnx": ("an ONNX model", "onnx", "onnx")}
"""By suffix the library that a format needs: for whom, its name, and its module."""
WITH_WEIGHTS = frozenset({".onnx"})
"""Formats that hold weights, so that values can go from layer to layer; their module has a `read_graph`."""
_FUNCTION = re.compile(r".+\.py:[^\W\d]\w*")
"""FILE.py:NAME, a function of JAX; its module has a `read_graph`, too."""


def is_foreign(name: str | Path) -> bool:
    """Return whether a file is of another tool, by its name, or a function of JAX."""
    return Path(name).suffix.lower() in FORMATS or is_function(name)


def names_sizes(name: str | Path) -> bool:
    """Return whether what a file becomes has sizes and phases of its own, by its name."""
    return Path(name).suffix.lower() in WITH_SIZES


def is_function(name: str | Path) -> bool:
    """Return whether a name is that of a function in a file of Python."""
    return _FUNCTION.fullmatch(str(name)) is not None


def read(path: Path, asked: ModelOptions) -> Document:
    """Read a file as a workload. Raises InputError with all that is wrong with it."""
    document: Document = _module(path).read(path, asked)
    return document


def read_graph(path: Path, asked: ModelOptions, images: int) -> Graph:
    """Read the network in a file with its weights, for `images` images. Raises InputError, also where it has no
    weights.
    """
    if path.suffix.lower() not in WITH_WEIGHTS and not is_function(path):
        says = f"holds no weights, so no values go from layer to layer; give a model: {', '.join(WITH_WEIGHTS)}"
        raise InputError(Problem(f"{says}, or leave --input and --save-outputs out", str(path)))
    graph: Graph = _module(path).read_graph(path, asked, images)
    return graph


def _module(path: Path) -> Any:
    if is_function(path):
        return _of_jax()
    suffix = path.suffix.lower()
    if needed := NEEDS.get(suffix):
        need(*needed)
    return import_module(f"{__name__}.{FORMATS[suffix]}")


def from_jax(
    function: Callable[..., Any], *arguments: Any, skip_unknown: bool = False, ops: str | None = None
) -> JaxWorkload:
    """Make a workload of what a function of JAX computes for some arguments: `simulate` takes it.

    The function is traced, as `jax.jit` does it, and not run. The batch is the number of images that its convolutions
    and poolings have; products have their sizes. Of a function with `jax.shard_map`, or of explicit sharding types, the
    workload is the share of one chip of its mesh, with what chips exchange; arguments have the sizes of the whole.

    Args:
        function: any function of arrays, also `jax.grad` of one.
        arguments: its arguments: arrays, or nests of these; `jax.ShapeDtypeStruct` stands for an array of that shape.
        skip_unknown: leave out primitives that tpusim does not know; otherwise they are refused.
        ops: "array" leaves out all ops but those of the array.

    Raises:
        InputError: JAX is not installed, cannot trace the function, or it has primitives that are not known here, or of
            which nobody knows how chips share them.

    Examples:
        >>> import jax, tpusim
        >>> images, weights = jax.ShapeDtypeStruct((8, 64), "float32"), jax.ShapeDtypeStruct((64, 32), "float32")
        >>> network = tpusim.from_jax(lambda images, weights: jax.nn.relu(images @ weights), images, weights)
        >>> [(layer.op, layer.text) for layer in network.layers][0]
        ('gemm', '8x64>32')
    """
    found: JaxWorkload = _of_jax().from_jax(function, *arguments, skip_unknown=skip_unknown, ops=ops)
    return found


def _of_jax() -> Any:
    need("a function of JAX", "jax", "jax")
    return import_module(f"{__name__}.jax_function")


# ---- names of layers, from files where they may be missing, odd, or the same

_LONGEST = 180
"""Most characters of a name, to which a number may be added."""


def printable(text: str) -> str:
    """Return `text` in one line that a message, a comment or a name can hold."""
    shown = text if text.isprintable() else "".join(sign if sign.isprintable() else "?" for sign in text)
    return shown[:_LONGEST]


class Names:
    """Hands out names that differ, also from the numbered names that a layer's `count` makes."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._counted: set[str] = set()
        self.changed: list[str] = []
        """How many names could not be kept as they were."""

    def take(self, wanted: str, counted: bool = False) -> str:
        """Return `wanted`, with a number where the name is taken; `counted`: for layers wanted_1, wanted_2, ..."""
        base = printable(wanted).strip() or "layer"
        # All numbers behind an underscore are those of the layers of an entry with a count.
        joint = "." if base in self._counted else "_"
        name = next(
            each for each in chain([base], (f"{base}{joint}{i}" for i in count(2))) if self._free(each, counted)
        )
        if name != wanted:
            self.changed.append(name)
        (self._counted if counted else self._taken).add(name)
        return name

    def _free(self, name: str, counted: bool) -> bool:
        head, _, tail = name.rpartition("_")
        if name in self._taken | self._counted or (tail.isdigit() and head in self._counted):
            return False
        return not (counted and any(_numbered(each, name) for each in self._taken))


def _numbered(name: str, base: str) -> bool:
    head, _, tail = name.rpartition("_")
    return head == base and tail.isdigit()
