"""Topologies of SCALE-Sim: a layer a line, of convolutions or of products, whose header names the columns.

The format, and its habits, are those of `topology_utils.py` in SCALE-Sim 2 and 3: lines end in a comma, maps hold
their padding already, the positions of a kernel are rounded up, and "DP" in a name means that each channel is convolved
by itself. SCALE-Sim skips the header and takes values by their place; here the header is read, so that columns may
stand in any order, and none is taken for another. mNPUsim adds a column with the type of each layer. Whatever bears on
the sizes is read, told, or refused by its name.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.base.words import counted, few
from tpusim.input.document import Document
from tpusim.input.scalars import INTEGER, show, whole_number
from tpusim.input.source import read_text
from tpusim.network.entries import Entry
from tpusim.network.formats import ModelOptions, Names, printable
from tpusim.network.ops.op import MOST_CHANNELS
from tpusim.network.workload import MOST_IMAGES

# ---- columns, and how they are spelt

_NAME = "Layer name"
_MAP = ("IFMAP Height", "IFMAP Width", "Filter Height", "Filter Width", "Channels", "Num Filter")
_STRIDE, _STRIDES = "Strides", ("Stride Height", "Stride Width")
_CONV = (*_MAP, _STRIDE)
_GEMM = ("M", "N", "K")
_BATCH, _TYPE, _SPARSITY, _PADDING, _DILATION, _GROUPS = "Batch", "Type", "Sparsity", "Padding", "Dilation", "Groups"
_PLACES = ("IFMAP Base Addr", "Filter Base Addr", "Ofmap Base Addr", "IFMAP Offset", "Filter Offset", "OFMAP Offset")
"""Places of tensors in memory, of which the sizes are independent."""

_SPELT = {
    _NAME: ("layer", "layers", "layernames", "layerid", "name", "names"),
    "IFMAP Height": ("ifmaph", "inputheight", "inputh", "ifmaprows"),
    "IFMAP Width": ("ifmapw", "inputwidth", "inputw", "ifmapcols"),
    "Filter Height": ("filterh", "filtheight", "filth", "kernelheight", "kernelh"),
    "Filter Width": ("filterw", "filtwidth", "filtw", "kernelwidth", "kernelw"),
    "Channels": ("channel", "numchannel", "numchannels", "numch", "inputchannels", "inchannels"),
    "Num Filter": ("numfilters", "numfilt", "filters", "numberoffilters", "outputchannels", "outchannels"),
    _STRIDE: ("stride",),
    "Stride Height": ("strideh",),
    "Stride Width": ("stridew",),
    **{each: () for each in _GEMM},
    _BATCH: ("batchsize", "batches"),
    _TYPE: ("layertype",),
    _SPARSITY: ("sparsityratio",),
    _PADDING: ("pad", "paddings"),
    _DILATION: ("dilations",),
    _GROUPS: ("group", "numgroups"),
    **{each: (f"{each}ess",) for each in _PLACES[:3]},
    **{each: () for each in _PLACES[3:]},
}  # fmt: skip
"""Other spellings of each column; small and capital letters, blanks, hyphens and notes in parentheses do not count."""

_SHOWN = 3
_HEADERS = " or ".join(f'"{_NAME}, {", ".join(columns)},"' for columns in (_CONV, _GEMM))

_TYPES = {
    "conv": False, "im2colconv": False, "conv2d": False, "convolution": False,
    "gemm": True, "dirgemm": True, "gemv": True, "dirgemv": True,
}  # fmt: skip
"""Types of layers, and whether a layer of that type is a product."""
_POOL, _OTHER = "pool", "other"
"""Types of layers of the vector unit: poolings, and whatever takes the operations an element that Strides says."""
_TYPES_KNOWN = "Conv, Im2col_conv, Gemm, Dir_Gemm, Gemv, Pool and Other"

_NOTES = {
    "rounded": "{}: the kernel's last step leaves the map; SCALE-Sim counts it, so zeros follow the map here",
    "by_channel": "{}: DP in the name; each channel is convolved by itself, as a group",
    "plain": "{}: depthwise or pooling by the name, but written as a plain convolution; taken as written",
    "product": "{}: a product written as a convolution; taken as op: gemm",
    "typed": "{}: a product by its type, whose M and K are the sizes of the IFMAP; taken as op: gemm",
    "pooled": "{}: a pooling, of which the file does not say the kind; taken for the largest element",
    "other": "{}: of type Other, whose op the file does not tell; takes no time",
    "dense": "{}: the sparsity is not read; every weight is multiplied",
    "unread": "{}: what stands behind the columns is not read",
    "renamed": "{}: a name that could not stay as it was, as names must differ",
}
"""Notes by the kind of remark; braces hold the layers' names."""

_EACH = "a topology is of one image, whose maps hold their padding already; each convolution is run for a batch"
_OWN = "{} says {}, for which the layers are run; maps hold their padding already"
_ROWS = "M is as written, whatever the batch"
_REORDERED = "columns are read by their names; SCALE-Sim would read {} by their place"


_Line: TypeAlias = tuple[int, Sequence[str]]
"""The number of a line, and its cells."""


@dataclass(frozen=True)
class _Header:
    """A header: the place of each column that it names.

    Attributes:
        label: name of the file.
        places: place of each column, by its usual name.
        words: names as the file spells them, by place.
        empty: columns of other names, which no line has a value of.
    """

    label: str
    places: Mapping[str, int]
    words: Sequence[str]
    empty: Sequence[str]

    @property
    def products(self) -> bool:
        """Whether lines are products, of M, N and K."""
        return "M" in self.places

    @property
    def sizes(self) -> Sequence[str]:
        """Columns with the sizes that every line has."""
        if self.products:
            return _GEMM
        return _CONV if _STRIDE in self.places else (*_MAP, *_STRIDES)

    def spelt(self, column: str) -> str:
        """Return a column's name as the file spells it."""
        return self.words[self.places[column]]


@dataclass(frozen=True)
class _Row:
    """A line with a value for each column; problems name both."""

    header: _Header
    line: int
    cells: Sequence[str]
    name: str = ""

    def text(self, column: str) -> str:
        """Return the value of a column; an empty text where there is none."""
        place = self.header.places.get(column, len(self.cells))
        return self.cells[place] if place < len(self.cells) else ""

    def number(self, column: str, least: int = 1, most: int = MOST_CHANNELS) -> int:
        """Return the whole number in a column. Raises InputError."""
        text = self.text(column)
        try:
            return whole_number(int(text) if INTEGER.fullmatch(text) else text, least, most)
        except InputError as error:
            raise self.wrong(f"{self.header.spelt(column)}: {error}") from None

    def usual(self, column: str, usual: int) -> int:
        """Return the whole number in a column that a topology need not have. Raises InputError."""
        return self.number(column, min(usual, 1)) if self.text(column) else usual

    def only(self, *columns: str, of: str, do: str) -> None:
        """Refuse other numbers than the usual ones in some columns. Raises InputError."""
        for column in columns:
            usual = int(column != _PADDING)
            if (given := self.usual(column, usual)) != usual:
                raise self.wrong(f"{self.header.spelt(column)} {given}: not known of a {of}; {do}")

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the line. Raises InputError with all that are wrong."""
        columns = self.header.sizes
        if len(self.cells) <= max(self.header.places[each] for each in columns):
            found = f"{counted(len(self.cells), 'value')} of {len(self.header.words)}"
            raise self.wrong(f"{found}; write a name, {', '.join(columns)}")
        sizes: dict[str, int] = {}
        problems: list[Problem] = []
        for each in columns:
            try:
                sizes[each] = self.number(each)
            except InputError as error:
                problems += error.problems
        if problems:
            raise InputError(problems)
        return sizes

    @property
    def behind(self) -> tuple[str, ...]:
        """Values behind the last column."""
        return tuple(cell for cell in self.cells[len(self.header.words) :] if cell)

    def wrong(self, message: str) -> InputError:
        """Return the error that the line has."""
        return InputError(Problem(message, f"{self.header.label}:{self.line}", self.line))


@dataclass
class _Read:
    """What the lines of a topology become, and what is to be told of them."""

    entries: list[tuple[int, Entry]] = field(default_factory=list)
    images: dict[int, int] = field(default_factory=dict)
    """Images that convolutions are of, and the line that first says so."""
    unknown: Counter[str] = field(default_factory=Counter)
    not_timed: Counter[str] = field(default_factory=Counter)
    first: dict[str, _Row] = field(default_factory=dict)
    noticed: dict[str, list[str]] = field(default_factory=lambda: {key: [] for key in _NOTES})


def read(path: Path, asked: ModelOptions) -> Document:
    """Read the layers of a topology, as a workload. Raises InputError with every line that is wrong."""
    label = str(path)
    if asked.dims:
        given = ", ".join(f"{name}={size}" for name, size in asked.dims.items())
        raise InputError(Problem(f"--dim {given}: a topology leaves no dimension open; leave --dim out", label))
    first, *lines = [*_lines(read_text(path))] or [(1, ())]
    header = _header_of(first, lines, label)
    found, names = _Read(), Names()
    problems: list[Problem] = []
    for number, cells in lines:
        try:
            _add(found, _Row(header, number, cells), names)
        except InputError as error:
            problems += error.problems
    for kind, row in found.first.items():
        if not asked.skip_unknown:
            problems += _unknown(kind, found.unknown[kind], row).problems
    if problems:
        raise InputError(problems)
    if not found.entries:
        raise InputError(Problem(f"no layers; write a line for each below the header {_HEADERS}", label))
    found.noticed["renamed"] = names.changed
    products = sum(entry["op"] == "gemm" and isinstance(entry["m"], int) for _, entry in found.entries)
    pools = sum(entry["op"] == "pool2d" for _, entry in found.entries)
    counts = {"convolutions": len(found.entries) - products - pools, "products": products, "poolings": pools}
    forms = [what for what, many in counts.items() if many]
    data = {
        "name": printable(path.stem) or "topology",
        "source": f"{printable(path.name)}, a topology of SCALE-Sim, of {' and '.join(forms)}",
        "not_timed": dict(found.not_timed),
        "not_known": dict(found.unknown),
        "layers": [entry for _, entry in found.entries],
    }
    places = {f"layers[{index}]": number for index, (number, _) in enumerate(found.entries)}
    images = next(iter(found.images), None)
    notes = _notes(header, found, forms, images)
    return Document(label, data, {"": 1, **places}, notes=tuple(notes), images=images)


def _notes(header: _Header, found: _Read, forms: Sequence[str], images: int | None) -> Iterator[str]:
    """Yield a line on what was read, and then what bears on the sizes."""
    apart = [each for each in header.places if each in _PLACES]
    read = {place for column, place in header.places.items() if column not in _PLACES}
    used = ", ".join(word for place, word in enumerate(header.words) if place in read)
    left = ", ".join([*map(header.spelt, apart), *header.empty])
    many = counted(len(found.entries), "layer")
    yield f"{many} read, {' and '.join(forms)}, from the columns {used}{f'; not read: {left}' if left else ''}"
    if "convolutions" in forms:
        yield _EACH if images is None else _OWN.format(header.spelt(_BATCH), counted(images, "image"))
    if "products" in forms:
        yield _ROWS
    if [each for each in header.places if each in header.sizes] != [*header.sizes]:
        yield _REORDERED.format(", ".join(header.sizes))
    for key, layers in found.noticed.items():
        if layers:
            yield _NOTES[key].format(f"{counted(len(layers), 'layer')} ({few(layers, _SHOWN)})")


def _lines(text: str) -> Iterator[_Line]:
    """Yield lines that are not empty, without the commas at their end; cells may stand in quotes, as spreadsheets write
    them.
    """
    for number, line in enumerate(text.splitlines(), 1):
        cells = [cell.strip() for cell in _cells(line)]
        while cells and not cells[-1]:
            cells.pop()
        if cells and not cells[0].startswith("#"):
            yield number, cells


def _cells(line: str) -> Sequence[str]:
    """Return the cells of a line, without the quotes of those that stand in quotes."""
    if '"' not in line:
        return line.split(",")
    return next(csv.reader([line], skipinitialspace=True))


# ---- the header


def _plain(word: str) -> str:
    """Return a name without what does not count in it."""
    return re.sub(r"\(.*?\)|[\W_]", "", word.casefold())


_BY_SPELLING = {_plain(each): column for column, others in _SPELT.items() for each in (column, *others)}


def _header_of(first: _Line, lines: Sequence[_Line], label: str) -> _Header:
    """Return which column stands where. Raises InputError with every column that is unknown, missing or there twice."""
    _, words = first
    places: dict[str, int] = {}
    problems: list[str] = []
    empty: list[str] = []
    strange: list[tuple[int, str]] = []
    for place, word in enumerate(words):
        column = _BY_SPELLING.get(_plain(word))
        if column is None:
            strange.append((place, word))
        elif column in places:
            problems.append(f"two columns are {column}: {words[places[column]]} and {word}; leave one of them out")
        else:
            places[column] = place
    if not {*places} & {*_CONV, *_STRIDES, *_GEMM}:
        sizes = len(words) > _SHOWN and all(INTEGER.fullmatch(word) for word in words[1:4])
        what = "sizes stand where SCALE-Sim skips a header" if sizes else "this is no header of a topology of SCALE-Sim"
        raise _wrong(first, [f"{what}; begin the file with {_HEADERS}"], label)
    # Whatever the first column is called, SCALE-Sim takes it for the name.
    if _NAME not in places and strange and strange[0][0] == 0:
        places[_NAME] = strange.pop(0)[0]
    for place, word in strange:
        if any(place < len(cells) and cells[place] for _, cells in lines):
            problems.append(_strange(place, word))
        else:
            empty.append(word or f"column {place + 1}")
    header = _Header(label, places, words, empty)
    problems += _unfit(header)
    if problems:
        raise _wrong(first, problems, label)
    return header


def _strange(place: int, word: str) -> str:
    """Describe a column of a name that says nothing here."""
    known = [each for each in _SPELT if each not in _PLACES[3:]]
    if not word:
        return f"column {place + 1} has values and no name; name it in the header: {', '.join(known)}"
    hint = did_you_mean(word, known) or ";"
    return f"unknown column {show(word)}{hint} known: {', '.join(known)}; rename it, or leave it out"


def _unfit(header: _Header) -> Iterator[str]:
    """Yield what is wrong with columns beside one another."""
    there = {*header.places}
    convolutions = there & {*_CONV, *_STRIDES}
    if there & {*_GEMM} and convolutions:
        sizes = ", ".join(header.spelt(each) for each in header.places if each in convolutions)
        yield f"sizes of products, M, N and K, beside those of convolutions ({sizes}); give each form a file of its own"
        return
    if _STRIDE in there and there & {*_STRIDES}:
        both = ", ".join(header.spelt(each) for each in header.places if each in (_STRIDE, *_STRIDES))
        yield f"strides are there twice: {both}; name {_STRIDE}, or {' and '.join(_STRIDES)}"
    one_way = there & {*_STRIDES} and _STRIDE not in there
    wanted = _GEMM if there & {*_GEMM} else (*_MAP, *(_STRIDES if one_way else (_STRIDE,)))
    missing = [each for each in (_NAME, *wanted) if each not in there]
    if missing:
        yield f"there is no column {', '.join(missing)}; a header is {_HEADERS}"


def _wrong(line: _Line, messages: Iterable[str], label: str) -> InputError:
    return InputError(Problem(each, f"{label}:{line[0]}", line[0]) for each in messages)


# ---- a line


def _add(found: _Read, row: _Row, names: Names) -> None:
    """Read a line. Raises InputError."""
    header, wanted = row.header, row.text(_NAME)
    product = header.products
    pool = False
    if _TYPE in header.places:
        kind = row.text(_TYPE)
        if _plain(kind) == _OTHER:
            found.not_timed[kind] += 1
            found.noticed["other"].append(printable(wanted))
            return
        pool = _plain(kind) == _POOL
        typed = False if pool else _TYPES.get(_plain(kind))
        if typed is None:
            found.unknown[kind or "no type"] += 1
            found.first.setdefault(kind or "no type", row)
            return
        if header.products and not typed:
            raise row.wrong(f"{header.spelt(_TYPE)} {kind}: a convolution has no M, N and K; give it a file of its own")
        product = typed
    sizes = row.sizes()
    row = replace(row, name=names.take(wanted))
    _behind(row, found)
    if pool:
        entry = _pooling(row, sizes, found)
    else:
        entry = _product(row, sizes, found) if product else _convolution(row, sizes, found)
    if _BATCH in header.places and not product:
        images = row.number(_BATCH, 1, MOST_IMAGES)
        found.images.setdefault(images, row.line)
        if len(found.images) > 1:
            other, where = next(iter(found.images.items()))
            del found.images[images]  # So that each line that differs is told.
            says = f"{header.spelt(_BATCH)}: {images} here and {other} in line {where}"
            raise row.wrong(f"{says}; a run has one batch, so give each a file of its own")
    found.entries.append((row.line, entry))


def _behind(row: _Row, found: _Read) -> None:
    """Note the sparsity, and what stands behind the last column. Raises InputError for a number that may be a size."""
    ratios = [cell for cell in row.behind if ":" in cell]
    if sparsity := row.text(_SPARSITY):
        if not re.fullmatch(r"\d+:\d+|1", sparsity):
            raise row.wrong(f"{row.header.spelt(_SPARSITY)}: {show(sparsity)} is no ratio; write N:M, such as 2:4")
        ratios.append(sparsity)
    if any(len({*ratio.split(":")}) > 1 for ratio in ratios):
        found.noticed["dense"].append(row.name)
    more = [cell for cell in row.behind if ":" not in cell]
    # SCALE-Sim 2 took a number behind the strides for the stride across: the same number changes nothing.
    last = row.header.places.get(_STRIDE) == len(row.header.words) - 1
    numbers = [cell for cell in more if INTEGER.fullmatch(cell) and not (last and cell == row.text(_STRIDE))]
    if numbers:
        says = f"{numbers[0]} stands behind the last column, {row.header.words[-1]}"
        raise row.wrong(f"{says}; name its column in the header, such as Stride Width or {_BATCH}, or leave it out")
    if any(not INTEGER.fullmatch(cell) for cell in more):
        found.noticed["unread"].append(row.name)


def _unknown(kind: str, many: int, row: _Row) -> InputError:
    first = f"{counted(many, 'layer')}, the first of them {printable(row.text(_NAME))}"
    says = f"{row.header.spelt(_TYPE)} {kind} ({first}): not known here, only {_TYPES_KNOWN} are"
    return row.wrong(f"{says}; tpusim run or import leaves such layers out with --skip-unknown, and says so")


def _product(row: _Row, sizes: Mapping[str, int], found: _Read) -> Entry:
    """Read a product: one of M, N and K, or a line whose type says so. Raises InputError."""
    row.only(_BATCH, _PADDING, _DILATION, _GROUPS, of="product",
             do="write all its rows as M, one line for each product, and leave the column out")  # fmt: skip
    if row.header.products:
        return {"name": row.name, "op": "gemm", **{each.lower(): sizes[each] for each in _GEMM}}
    m, k, rows, cols, channels, filters = (sizes[each] for each in _MAP)
    ones = channels == 1 and all(sizes[each] == 1 for each in row.header.sizes[len(_MAP) :])
    found.noticed["typed"].append(row.name)
    if ones and rows == k and filters == 1:
        return {"name": row.name, "op": "gemm", "m": m, "n": cols, "k": k}
    # As SCALE-Sim itself writes a product.
    if ones and (rows, cols) == (1, k):
        return {"name": row.name, "op": "gemm", "m": m, "n": filters, "k": k}
    says = f"{row.text(_TYPE)}: a product has as many filter rows as its map has columns, and 1 in all columns behind"
    raise row.wrong(f"{says} Filter Width; here are {', '.join(f'{each} {size}' for each, size in sizes.items())}")


def _pooling(row: _Row, sizes: Mapping[str, int], found: _Read) -> Entry:
    """Read a pooling, whose filter is its window; it has no filters. Raises InputError."""
    height, width, *_, channels, filters = (sizes[each] for each in _MAP)
    row.only(_PADDING, _DILATION, _GROUPS, of="pooling", do="leave the column out")
    if filters not in (1, channels):
        says = f"{row.header.spelt('Num Filter')} {filters}: a pooling makes as many channels as it reads, {channels}"
        raise row.wrong(f"{says}; write that, or 1")
    found.noticed["pooled"].append(row.name)
    maps = {"kind": "max", "channels": channels, "in_height": height, "in_width": width}
    return {"name": row.name, "op": "pool2d", **maps, **_steps(row, sizes, found)}


def _convolution(row: _Row, sizes: Mapping[str, int], found: _Read) -> Entry:
    """Read a convolution; one whose kernel is as wide as its map of one channel is a product. Raises InputError."""
    height, width, rows, cols, channels, filters = (sizes[each] for each in _MAP)
    groups, dilation = row.usual(_GROUPS, 1), row.usual(_DILATION, 1)
    if padding := row.usual(_PADDING, 0):
        says = f"{row.header.spelt(_PADDING)} {padding}: the maps of a topology hold their padding already"
        raise row.wrong(f"{says}; add it to both sides of IFMAP Height and IFMAP Width, and leave the column out")
    # Topologies of SCALE-Sim write products as convolutions of this form.
    if (channels, rows, cols, groups, dilation) == (1, 1, width, 1, 1) and width > 1:
        found.noticed["product"].append(row.name)
        positions = -(-height // sizes[row.header.sizes[len(_MAP)]])
        return {"name": row.name, "op": "gemm", "m": f"batch*{positions}", "n": filters, "k": width}
    # SCALE-Sim itself tells depthwise layers by this part of their names; their filters are those of a channel.
    if "DP" in row.name:
        if groups > 1:
            says = f"{row.header.spelt(_GROUPS)} {groups}: DP in the name means that each channel is a group"
            raise row.wrong(f"{says}; rename the layer, or write 1")
        groups, filters = channels, channels * filters
        if groups > 1:
            found.noticed["by_channel"].append(row.name)
    elif groups == 1 and any(word in row.name.casefold() for word in ("dw", "depthwise", "pool")):
        found.noticed["plain"].append(row.name)
    maps = {"in_channels": channels, "in_height": height, "in_width": width, "out_channels": filters}
    more = {"groups": groups, **({"dilation": [dilation, dilation]} if dilation > 1 else {})}
    return {"name": row.name, "op": "conv2d", **maps, **_steps(row, sizes, found, dilation), **more}


def _steps(row: _Row, sizes: Mapping[str, int], found: _Read, dilation: int = 1) -> Entry:
    """Return the steps of a kernel, with zeros behind the map where its positions are rounded up, which is noted."""
    down, across = (tuple(sizes[each] for each in row.header.sizes[len(_MAP) :]) * 2)[:2]
    missing = []
    for size, taps, stride in zip(_MAP[:2], _MAP[2:4], (down, across), strict=True):
        span = dilation * (sizes[taps] - 1) + 1
        missing.append((span - sizes[size]) % stride if span <= sizes[size] else 0)
    if any(missing):
        found.noticed["rounded"].append(row.name)
    return {"kernel": [sizes[each] for each in _MAP[2:4]], "stride": [down, across], "padding": [0, 0, *missing]}
