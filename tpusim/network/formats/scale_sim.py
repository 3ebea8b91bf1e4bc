"""Topologies of SCALE-Sim: a layer a line, sizes by their position, of convolutions or of products.

The format, and its habits, are those of `topology_utils.py` in SCALE-Sim 2 and 3: the first line is a header and
skipped, lines end in a comma, maps hold their padding already, the positions of a kernel are rounded up, and "DP" in a
name means that each channel is convolved by itself. Whatever of it bears on the sizes is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tpusim.base.errors import InputError, Problem
from tpusim.base.words import counted
from tpusim.input.document import Document
from tpusim.input.scalars import INTEGER, whole_number
from tpusim.input.source import read_text
from tpusim.network.entries import Entry
from tpusim.network.formats import ModelOptions, Names, printable
from tpusim.network.ops.op import MOST_CHANNELS

_SHOWN = 3
_CONV = ("IFMAP Height", "IFMAP Width", "Filter Height", "Filter Width", "Channels", "Num Filter", "Strides")
_GEMM = ("M", "N", "K")
_HEADERS = " or ".join(f'"Layer name, {", ".join(columns)},"' for columns in (_CONV, _GEMM))
_NOTES = {
    "rounded": "{}: the kernel's last step leaves the map; SCALE-Sim counts it, so zeros follow the map here",
    "by_channel": "{}: DP in the name; each channel is convolved by itself, as a group",
    "plain": "{}: depthwise or pooling by the name, but written as a plain convolution; taken as written",
    "product": "{}: a product written as a convolution; taken as op: gemm",
    "dense": "{}: the sparsity is not read; every weight is multiplied",
    "unread": "{}: what stands behind the sizes is not read",
    "renamed": "{}: a name that could not stay as it was, as names must differ",
}
"""Notes by the kind of remark; braces hold the layers' names."""


class _Line(NamedTuple):
    number: int
    cells: tuple[str, ...]


_Noticed = dict[str, list[str]]
"""Layers with a remark, by the key of the note."""


class _Form(NamedTuple):
    """A form of a topology: its columns, the reader of a line, and the remarks on all lines."""

    what: str
    columns: tuple[str, ...]
    entry: Callable[[str, Sequence[int], Sequence[str], _Noticed], Entry]
    note: str


def read(path: Path, asked: ModelOptions) -> Document:
    """Read the layers of a topology, as a workload. Raises InputError with every line that is wrong."""
    label = str(path)
    if asked.dims:
        given = ", ".join(f"{name}={size}" for name, size in asked.dims.items())
        raise InputError(Problem(f"--dim {given}: a topology leaves no dimension open; leave --dim out", label))
    header, *lines = [*_lines(read_text(path))] or [_Line(1, ())]
    form = _form_of(header, label)
    noticed, names = _Noticed({key: [] for key in _NOTES}), Names()
    entries: list[tuple[int, Entry]] = []
    problems: list[Problem] = []
    for line in lines:
        try:
            sizes, unread = _sizes(line, form.columns, label), line.cells[len(form.columns) + 1 :]
            entries.append((line.number, form.entry(names.take(line.cells[0]), sizes, unread, noticed)))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    if not entries:
        raise InputError(Problem(f"no layers; write a line for each below the header {_HEADERS}", label))
    noticed["renamed"] = names.changed
    notes = [form.note]
    for key, layers in noticed.items():
        if layers:
            more = ", ..." if len(layers) > _SHOWN else ""
            notes.append(_NOTES[key].format(f"{counted(len(layers), 'layer')} ({', '.join(layers[:_SHOWN])}{more})"))
    data = {
        "name": printable(path.stem) or "topology",
        "source": f"{printable(path.name)}, a topology of SCALE-Sim, of {form.what}",
        "layers": [entry for _, entry in entries],
    }
    places = {f"layers[{index}]": number for index, (number, _) in enumerate(entries)}
    return Document(label, data, {"": 1, **places}, notes=tuple(notes))


def _lines(text: str) -> Iterator[_Line]:
    """Yield lines that are not empty, without the commas at their end."""
    for number, line in enumerate(text.splitlines(), 1):
        cells = [cell.strip() for cell in line.split(",")]
        while cells and not cells[-1]:
            cells.pop()
        if cells and not cells[0].startswith("#"):
            yield _Line(number, tuple(cells))


def _form_of(header: _Line, label: str) -> _Form:
    """Return the form whose columns the header names. Raises InputError where it names none."""
    words = [cell.casefold() for cell in header.cells[1:]]
    if len(words) >= len(_GEMM) and {*words[: len(_GEMM)]} == {"m", "n", "k"}:
        if words[: len(_GEMM)] != ["m", "n", "k"]:
            found = f"the columns are {', '.join(header.cells[1:4])}, which SCALE-Sim reads as M, N, K"
            raise _wrong(header, f"{found}; put them in that order", label)
        return _PRODUCTS
    if any("filter" in word or "channel" in word for word in words):
        return _CONVOLUTIONS
    sizes = len(words) > 2 and all(INTEGER.fullmatch(word) for word in words[:3])
    what = "sizes stand where SCALE-Sim skips a header" if sizes else "this is no header of a topology of SCALE-Sim"
    raise _wrong(header, f"{what}; begin the file with {_HEADERS}", label)


def _wrong(line: _Line, message: str, label: str) -> InputError:
    return InputError(Problem(message, f"{label}:{line.number}", line.number))


def _sizes(line: _Line, columns: Sequence[str], label: str) -> list[int]:
    if len(line.cells) <= len(columns):
        found = f"{counted(len(line.cells), 'value')} of {len(columns) + 1}"
        raise _wrong(line, f"{found}; write a name, {', '.join(columns)}", label)
    sizes: list[int] = []
    problems: list[Problem] = []
    for column, cell in zip(columns, line.cells[1:], strict=False):
        try:
            sizes.append(whole_number(int(cell) if INTEGER.fullmatch(cell) else cell, 1, MOST_CHANNELS))
        except InputError as error:
            problems.append(Problem(f"{column}: {error}", f"{label}:{line.number}", line.number))
    if problems:
        raise InputError(problems)
    return sizes


def _gemm(name: str, sizes: Sequence[int], more: Sequence[str], noticed: _Noticed) -> Entry:
    m, n, k = sizes
    _unread(name, more, noticed)
    return {"name": name, "op": "gemm", "m": m, "n": n, "k": k}


def _conv(name: str, sizes: Sequence[int], more: Sequence[str], noticed: _Noticed) -> Entry:
    """Read a convolution; one whose kernel is as wide as its map of one channel is a product."""
    height, width, rows, cols, channels, filters, stride = sizes
    across = int(more[0]) if more and INTEGER.fullmatch(more[0]) and int(more[0]) > 0 else None
    _unread(name, more[1:] if across else more, noticed)
    # Topologies of SCALE-Sim write products as convolutions of this form.
    if (channels, rows, cols) == (1, 1, width) and width > 1:
        noticed["product"].append(name)
        positions = -(-height // stride)
        return {"name": name, "op": "gemm", "m": f"batch*{positions}", "n": filters, "k": width}
    # SCALE-Sim itself tells depthwise layers by this part of their names.
    groups = channels if "DP" in name else 1
    if groups > 1:
        noticed["by_channel"].append(name)
    elif any(word in name.casefold() for word in ("dw", "depthwise", "pool")):
        noticed["plain"].append(name)
    strides = stride, across or stride
    missing = _missing(height, rows, strides[0]), _missing(width, cols, strides[1])
    if any(missing):
        noticed["rounded"].append(name)
    maps = {"in_channels": channels, "in_height": height, "in_width": width, "out_channels": groups * filters}
    steps = {"kernel": [rows, cols], "stride": [*strides], "padding": [0, 0, *missing], "groups": groups}
    return {"name": name, "op": "conv2d", **maps, **steps}


def _missing(size: int, kernel: int, stride: int) -> int:
    """Return how many elements the last step of a kernel lacks, where its positions are rounded up."""
    return (kernel - size) % stride if kernel <= size else 0


def _unread(name: str, more: Sequence[str], noticed: _Noticed) -> None:
    """Note the values behind the sizes: a ratio such as 2:4 is the sparsity."""
    ratios = [cell for cell in more if ":" in cell]
    if any(cell not in ("1:1", "") for cell in ratios):
        noticed["dense"].append(name)
    if any(cell and cell not in ratios for cell in more):
        noticed["unread"].append(name)


_EACH = "a topology is of one image, whose maps hold their padding already; each convolution is run for a batch"
_ROWS = "M is as written, whatever the batch"
_CONVOLUTIONS = _Form("convolutions", _CONV, _conv, _EACH)
_PRODUCTS = _Form("products", _GEMM, _gemm, _ROWS)
