"""What is asked of the machine: layers by their sizes, read from YAML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.input.document import Document
from tpusim.input.scalars import name_text, show, unknown_key, whole_number
from tpusim.input.source import open_document, shipped

Pair: TypeAlias = tuple[int, int]

_FOLDER = "workloads"
MOST_IMAGES = 2**16
_MOST_SIDE = 2**16
_MOST_CHANNELS = 2**20
_MOST_GEMM = 2**24
_DEFAULT_BATCH = 8


@dataclass(frozen=True, slots=True)
class Conv2d:
    """A 2-D convolution of images of in_channels x in_height x in_width elements; pairs are (height, width).

    Raises InputError, whose problems say which field, when no such convolution exists.
    """

    op: ClassVar[str] = "conv2d"

    name: str
    in_channels: int
    in_height: int
    in_width: int
    out_channels: int
    kernel: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    def __post_init__(self) -> None:
        _reject(list(_conv2d_problems(self)))

    @property
    def out_height(self) -> int:
        """Rows of the ofmap."""
        return self._out(self.in_height, 0)

    @property
    def out_width(self) -> int:
        """Columns of the ofmap."""
        return self._out(self.in_width, 1)

    def outputs(self, batch: int) -> int:
        """Elements of the ofmaps of `batch` images."""
        return batch * self.out_channels * self.out_height * self.out_width

    def macs(self, batch: int) -> int:
        """Multiply-accumulates for `batch` images, those with padding zeros included."""
        return self.outputs(batch) * (self.in_channels // self.groups) * prod(self.kernel)

    def operands(self, batch: int) -> int:
        """Elements of the ifmaps of `batch` images and of the filter."""
        ifmaps = batch * self.in_channels * self.in_height * self.in_width
        return ifmaps + self.out_channels * (self.in_channels // self.groups) * prod(self.kernel)

    def _out(self, size: int, axis: int) -> int:
        reach = self.dilation[axis] * (self.kernel[axis] - 1) + 1
        return (size + 2 * self.padding[axis] - reach) // self.stride[axis] + 1


@dataclass(frozen=True, slots=True)
class Gemm:
    """A matrix product (m, k) x (k, n). Its m already counts the whole batch."""

    op: ClassVar[str] = "gemm"

    name: str
    m: int
    n: int
    k: int

    def __post_init__(self) -> None:
        _reject([*_name_problems(self.name), *_size_problems(self, _GEMM_SIZES)])

    def outputs(self, batch: int) -> int:
        """Elements of the product; `batch` changes nothing, m counts it."""
        return self.m * self.n

    def macs(self, batch: int) -> int:
        """Multiply-accumulates; `batch` changes nothing, m counts it."""
        return self.m * self.n * self.k

    def operands(self, batch: int) -> int:
        """Elements of both factors; `batch` changes nothing, m counts it."""
        return self.m * self.k + self.k * self.n


Layer: TypeAlias = Conv2d | Gemm


@dataclass(frozen=True, slots=True)
class Workload:
    """Layers to run one after another on `batch` images; `source` says where the sizes come from."""

    name: str
    batch: int
    layers: tuple[Layer, ...]
    source: str = ""

    def __post_init__(self) -> None:
        problems = [*_name_problems(self.name), *_check("batch", self.batch, 1, MOST_IMAGES)]
        if not self.layers:
            problems.append(Problem(_NO_LAYERS, "layers"))
        names = [layer.name for layer in self.layers]
        problems += [Problem(message, "layers") for _, message in _repeated(names)]
        _reject(problems)


def load_workload(name_or_path: str | Path, batch: int = _DEFAULT_BATCH) -> Workload:
    """The workload of a shipped name, a YAML path, or "-" (standard input), for `batch` images.

    Raises InputError with every problem of the file.
    """
    if wrong_batch := list(_check("batch", batch, 1, MOST_IMAGES)):
        raise InputError(wrong_batch)
    return workload_of(open_workload(name_or_path), batch)


def open_workload(name_or_path: str | Path) -> Document:
    """The file behind a workload, as it stands there. Raises InputError when it is no YAML mapping."""
    return open_document(name_or_path, _FOLDER)


def shipped_workloads() -> tuple[str, ...]:
    """Names that `load_workload` knows without a path, sorted."""
    return tuple(shipped(_FOLDER))


_EXAMPLE = "{name: fc, op: gemm, m: batch, n: 1000, k: 512}"
_NO_LAYERS = f"no layers; write at least one, e.g. - {_EXAMPLE}"
_OPS: dict[str, type[Layer]] = {"conv2d": Conv2d, "gemm": Gemm}
# Field to its largest value; beyond these a size is a slip, not a network.
_SIZES = {
    "in_channels": _MOST_CHANNELS,
    "in_height": _MOST_SIDE,
    "in_width": _MOST_SIDE,
    "out_channels": _MOST_CHANNELS,
    "groups": _MOST_CHANNELS,
}
_GEMM_SIZES = {"m": _MOST_GEMM, "n": _MOST_GEMM, "k": _MOST_GEMM}
# Field to its least value.
_PAIRS = {"kernel": 1, "stride": 1, "padding": 0, "dilation": 1}
_OPTIONAL = frozenset({"stride", "padding", "dilation", "groups"})
_KEYS = {
    "conv2d": ("name", "op", *list(_SIZES)[:4], *_PAIRS, "groups"),
    "gemm": ("name", "op", *_GEMM_SIZES),
}
_TOP = ("name", "layers", "source")


def workload_of(document: Document, batch: int) -> Workload:
    """What `document` describes, for `batch` images. Raises InputError with every problem of it."""
    data = document.data
    problems = list(_top_problems(document))
    given = data.get("layers")
    entries = given if isinstance(given, list) else []
    layers: list[Layer] = []
    for index, entry in enumerate(entries):
        try:
            layers.append(read_layer(entry, batch))
        except InputError as error:
            problems += _placed(document, f"layers[{index}]", entry, error)
    names = [entry.get("name") if isinstance(entry, Mapping) else None for entry in entries]
    problems += [document.problem(f"layers[{index}].name", message) for index, message in _repeated(names)]
    if found := document.in_order(problems):
        raise InputError(found)
    return Workload(data["name"], batch, tuple(layers), data.get("source") or "")


def _top_problems(document: Document) -> Iterator[Problem]:
    data = document.data
    for key in data:
        if key not in _TOP:
            yield document.problem(key, unknown_key(key, _TOP, did_you_mean(key, _TOP)))
    for key in ("name", "layers"):
        if key not in data:
            yield document.problem(key, f"required key is missing; add {key}:")
    if "name" in data:
        yield from (document.problem("name", problem.message) for problem in _name_problems(data["name"]))
    if not isinstance(data.get("source", ""), str):
        message = f"{show(data['source'])} is not text; write where the sizes come from"
        yield document.problem("source", message)
    if data.get("layers", True) in (None, []):
        yield document.problem("layers", _NO_LAYERS)
    elif not isinstance(data.get("layers", []), list):
        yield document.problem("layers", f"{show(data['layers'])} is not a list; start each layer with '- '")


def read_layer(entry: object, batch: int) -> Layer:
    """One layer of a file.

    Raises InputError whose problems' `where` is the key inside the layer, or None for the layer itself.
    """
    if not isinstance(entry, Mapping):
        raise InputError(f"{show(entry)} is not a layer; write e.g. {_EXAMPLE}")
    op = entry.get("op")
    if not isinstance(op, str) or op not in _OPS:
        raise InputError(Problem(_wrong_op(entry), "op"))
    if problems := list(_key_problems(entry, _KEYS[op])):
        raise InputError([*problems, *_other_problems(entry, op, batch)])
    return _OPS[op](**_arguments(entry, op, batch))


def _other_problems(entry: Mapping[str, Any], op: str, batch: int) -> Iterator[Problem]:
    """What is wrong with the keys that are there, when some are missing or unknown."""
    arguments = _arguments(entry, op, batch)
    if "name" in arguments:
        yield from _name_problems(arguments["name"])
    for key, value in arguments.items():
        if key in _PAIRS:
            yield from _pair_problems(key, value)
        elif key != "name":
            yield from _check(key, value, 1, {**_SIZES, **_GEMM_SIZES}[key])


def _arguments(entry: Mapping[str, Any], op: str, batch: int) -> dict[str, Any]:
    arguments = {key: entry[key] for key in _KEYS[op] if key in entry and key != "op"}
    arguments |= {key: _as_pair(value) for key, value in arguments.items() if key in _PAIRS}
    if arguments.get("m") == "batch":
        arguments["m"] = batch
    return arguments


def _as_pair(value: object) -> object:
    if isinstance(value, list):
        return tuple(value)
    return (value, value) if isinstance(value, int) else value


def _wrong_op(entry: Mapping[str, Any]) -> str:
    ops = ", ".join(_OPS)
    if "op" not in entry:
        return f"required key is missing; add op: with one of {ops}"
    hint = did_you_mean(str(entry["op"]), _OPS) or ";"
    return f"unknown op {show(entry['op'])}{hint} ops: {ops}"


def _key_problems(entry: Mapping[str, Any], keys: tuple[str, ...]) -> Iterator[Problem]:
    for key in entry:
        if key not in keys:
            yield Problem(unknown_key(key, keys, did_you_mean(key, keys), f" for {entry['op']}"), key)
    for key in keys:
        if key not in entry and key not in _OPTIONAL:
            yield Problem(f"required key is missing; add {key}:", key)


def _placed(document: Document, path: str, entry: object, error: InputError) -> Iterator[Problem]:
    name = entry.get("name") if isinstance(entry, Mapping) else None
    label = f"layer {show(name)}: " if isinstance(name, str) else ""
    for problem in error.problems:
        at = f"{path}.{problem.where}" if problem.where else path
        yield document.problem(at, f"{label}{problem.message}")


def _repeated(names: list[Any]) -> Iterator[tuple[int, str]]:
    """Index and message of each name that an earlier layer has."""
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        if isinstance(name, str) and first.setdefault(name, index) != index:
            yield index, f"the name {show(name)} is taken by layers[{first[name]}]; names must differ"


def _conv2d_problems(conv: Conv2d) -> Iterator[Problem]:
    found = [*_name_problems(conv.name), *_size_problems(conv, _SIZES)]
    found += [problem for key in _PAIRS for problem in _pair_problems(key, getattr(conv, key))]
    # Only sizes that are sizes can be compared with one another.
    yield from found or [*_group_problems(conv), *_fit_problems(conv)]


def _group_problems(conv: Conv2d) -> Iterator[Problem]:
    for key in ("in_channels", "out_channels"):
        if getattr(conv, key) % conv.groups:
            sizes = f"groups {conv.groups} does not divide {key} {getattr(conv, key)}"
            yield Problem(f"{sizes}; choose a divisor of both channel counts", "groups")


def _fit_problems(conv: Conv2d) -> Iterator[Problem]:
    for axis, side in enumerate(("height", "width")):
        reach = conv.dilation[axis] * (conv.kernel[axis] - 1) + 1
        size = getattr(conv, f"in_{side}") + 2 * conv.padding[axis]
        if reach > size:
            sizes = f"the kernel spans {reach} in {side} with its dilation, but the padded input only {size}"
            yield Problem(f"{sizes}; use a smaller kernel or dilation, or more padding", "kernel")


def _size_problems(layer: Layer, most: Mapping[str, int]) -> Iterator[Problem]:
    for key, limit in most.items():
        yield from _check(key, getattr(layer, key), 1, limit)


def _pair_problems(key: str, value: object) -> Iterator[Problem]:
    if not isinstance(value, tuple):
        yield Problem(f"{show(value)} is not a size; write a whole number, or two: [height, width]", key)
    elif len(value) != 2:
        only = "; padding is the same on opposite sides" if key == "padding" else ""
        yield Problem(f"{show(value)} is not one number or two{only}; write one, or [height, width]", key)
    else:
        # An int that stood for both is wrong once, not twice.
        for part in dict.fromkeys(value) if all(isinstance(part, int) for part in value) else value:
            yield from _check(key, part, _PAIRS[key], _MOST_SIDE)


def _check(key: str, value: object, least: int, most: int) -> Iterator[Problem]:
    try:
        whole_number(value, least, most)
    except InputError as error:
        hint = did_you_mean(value, ["batch"]) if key == "m" and isinstance(value, str) else ""
        yield Problem(f"{error}{hint}", key)


def _name_problems(name: object) -> Iterator[Problem]:
    try:
        name_text(name)
    except InputError as error:
        yield Problem(str(error), "name")


def _reject(problems: list[Problem]) -> None:
    if problems:
        raise InputError(problems)
