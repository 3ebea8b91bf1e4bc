"""The entries of a workload file together: blocks of them that come several times, and the layers of all."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from tpusim.base.errors import InputError, Problem
from tpusim.input.document import Document, EntryBlock
from tpusim.input.form import size
from tpusim.input.scalars import name_text, path_of, show
from tpusim.network.entries import (
    EXAMPLE,
    INPUTS,
    LOWERING,
    MOST_LAYERS,
    EntryOutput,
    Read,
    Wiring,
    inputs_of,
    is_graph,
    name_of,
    read_layers,
)
from tpusim.network.ops.op import Op
from tpusim.network.workload import (
    INPUT,
    CollectiveLayer,
    Edges,
    LayerBlock,
    OwnLowering,
    Source,
    are_sound,
    read_among,
)

BLOCK = "block"
_BLOCK_KEYS = BLOCK, "count", "layers"


def repeated(document: Document) -> Document:
    """Return the document with the layers of each block as often as it comes: those of the second are NAME_2.

    In a block, `input` is what the block reads: what the entry ahead of it makes, or the block before. How often a
    block comes may be worked out from sizes of the file.

    Raises InputError where a block is faulty.
    """
    entries = document.data.get("layers")
    if not isinstance(entries, list) or not any(isinstance(each, Mapping) and BLOCK in each for each in entries):
        return document
    made: list[object] = []
    origins: list[str] = []
    blocks: list[EntryBlock] = []
    ahead = next(iter(input_names(document)), INPUT)
    for index, entry in enumerate(entries):
        path = path_of(("layers", index))
        if not isinstance(entry, Mapping) or BLOCK not in entry:
            made.append(entry)
            origins.append(path)
            ahead = str(name_of(entry))
            continue
        inner, count = _block(document, entry, path)
        blocks.append(EntryBlock(len(made), len(inner), count))
        # Names of the block are those of its own copy; others are names of entries ahead of it.
        names = {str(name_of(each)) for each in inner}
        for number in range(1, count + 1):
            called = {name: f"{name}_{number}" for name in names} | {INPUT: ahead}
            made += [_renamed(each, called) for each in inner]
            origins += [path_of((path, "layers", at)) for at in range(len(inner))]
            ahead = called[str(name_of(inner[-1]))]

    @cache
    def below(origin: str) -> dict[str, int]:
        under = {path[len(origin) :]: line for path, line in document.lines.items() if path.startswith(origin)}
        return {rest: line for rest, line in under.items() if not rest or rest[0] in ".["}

    # A fault in any copy is placed at the line of the block that it repeats.
    lines = dict(document.lines)
    for at, origin in enumerate(origins):
        place = path_of(("layers", at))
        lines |= {place + rest: line for rest, line in below(origin).items()}
    return replace(document, data={**document.data, "layers": made}, lines=lines, blocks=tuple(blocks))


def _block(document: Document, entry: Mapping[str, Any], path: str) -> tuple[list[Mapping[str, Any]], int]:
    """Return the entries of a block, and how often it comes. Raises InputError."""
    problems: list[Problem] = []
    for key in entry:
        if key not in _BLOCK_KEYS:
            says = f"unknown key {show(key)} of a block; allowed: {', '.join(_BLOCK_KEYS)}"
            problems.append(document.problem(path_of((path, str(key))), says))
    count, inner = 1, entry.get("layers")
    try:
        name_text(entry[BLOCK])
    except InputError as error:
        problems.append(document.problem(path_of((path, BLOCK)), f"a block has a name; {error}"))
    given, names = entry.get("count", 1), _settled(document)
    try:
        count = size(given, 1, MOST_LAYERS, names)
    except InputError:
        worked = f", or one worked out from {', '.join(names)}" if names else ""
        says = f"{show(given)} is no number of blocks; write a whole number, 1 to {MOST_LAYERS}{worked}"
        problems.append(document.problem(path_of((path, "count")), says))
    if isinstance(inner, list) and any(isinstance(each, Mapping) and BLOCK in each for each in inner):
        says = "a block stands in no other block; write its layers, or a count of more"
        problems.append(document.problem(path_of((path, "layers")), says))
    elif not isinstance(inner, list) or not inner or not all(isinstance(name_of(each), str) for each in inner):
        says = f"a block has layers, each with a name; write layers: [{EXAMPLE}]"
        problems.append(document.problem(path_of((path, "layers")), says))
    elif INPUT in map(name_of, inner):
        says = f"{INPUT} is what a block reads, and no name of a layer in it; choose another"
        problems.append(document.problem(path_of((path, "layers")), says))
    if problems:
        raise InputError(problems)
    return inner, count  # type: ignore[return-value]


def _settled(document: Document) -> dict[str, int]:
    """Return the sizes that stay for all tokens of a generation: numbers of the file or the run, but what grows."""
    sizes, grows = document.data.get("sizes"), document.data.get("grows")
    given = sizes if isinstance(sizes, Mapping) else {}
    return {name: each for name, each in given.items() if type(each) is int and name != grows}


def _renamed(entry: Mapping[str, Any], called: Mapping[str, str]) -> dict[str, Any]:
    """Return an entry of a block with its own name, and the names that it reads, in one of the block's copies."""
    given = entry.get(INPUTS)
    read = {} if given is None else {INPUTS: _called(given, called)}
    return {**entry, "name": called[entry["name"]], **read}


def _called(given: object, called: Mapping[str, str]) -> object:
    if isinstance(given, str):
        return called.get(given, given)
    # What is no name is told when the entry is read.
    names = given if isinstance(given, list) else []
    return [called.get(each, each) if isinstance(each, str) else each for each in names] if names else given


def input_names(document: Document) -> tuple[str, ...]:
    """Return the names of the network's inputs; none where they are wrong, which is reported with the file."""
    try:
        return inputs_of(document.data.get(INPUTS))
    except InputError:
        return ()


def wiring_of(document: Document, batch: int) -> Wiring:
    """Return which entry of a file reads which, before its entries are read."""
    entries = document.data.get("layers", [])
    names = map(name_of, entries) if isinstance(entries, list | tuple) else ()
    inputs = input_names(document)
    return Wiring(inputs or (INPUT,), batch, names, bool(inputs) and are_sound(document), is_graph(entries))


# ---- entries read

_WORD = re.compile(r"[^\W\d]\w*")


class _KnownEntry(NamedTuple):
    """An entry as it was read: its name, all else that the reading depends on, what was read, and what the entry and
    the inputs hand on.
    """

    name: str
    sizes: list[int | None]
    reads: list[EntryOutput]
    read: Read
    handed: Mapping[str, EntryOutput]

    def like(self, name: str, reads: Sequence[EntryOutput]) -> _KnownEntry | None:
        """Return the entry as another of that name is, which reads these; None where more than names differs."""
        called = {self.name: name}
        for own, other in zip(self.reads, reads, strict=True):
            names = own.source.names, other.source.names
            if own[1:] != other[1:] or own.source[1:] != other.source[1:] or len(names[0]) != len(names[1]):
                return None
            if any(called.setdefault(*pair) != pair[1] for pair in zip(*names, strict=True)):
                return None
        # Names of an entry's layers begin with its own.
        called |= {layer.name: name + layer.name[len(self.name) :] for layer in self.read.layers}

        @cache
        def now(source: Source) -> Source:
            return source._replace(names=tuple(called[each] for each in source.names))

        @cache
        def all_now(sources: tuple[Source, ...]) -> tuple[Source, ...]:
            return tuple(map(now, sources))

        layers = tuple(layer.called(called[layer.name]) for layer in self.read.layers)
        read = self.read._replace(layers=layers, sources=tuple(map(all_now, self.read.sources)))
        if (own_one := self.read.collective) is not None:
            reads_now = tuple(called[each] for each in own_one.reads)
            read = read._replace(collective=own_one._replace(name=name, reads=reads_now))
        made = self.handed[self.name]
        return _KnownEntry(name, self.sizes, [*reads], read, {name: made._replace(source=now(made.source))})


class Parts(NamedTuple):
    """What the entries of a file make of a workload: the fields of `Workload` by these names."""

    layers: tuple[Op, ...]
    lowerings: tuple[OwnLowering, ...]
    edges: Edges
    biases: tuple[str, ...]
    blocks: tuple[LayerBlock, ...]
    collectives: tuple[CollectiveLayer, ...]


class EntryReader:
    """The entries of a file, for whatever sizes it names.

    An entry is read anew only where a size that it names has changed, or what it reads; and of a block's copies, which
    differ in names alone, one is read, and the others are called otherwise.
    """

    def __init__(self, document: Document) -> None:
        self._document = document
        self._entries: Sequence[Any] = document.data.get("layers", ())
        copies = (
            (at, at - block.entries)
            for block in document.blocks
            for at in range(block.first + block.entries, block.first + block.entries * block.times)
        )
        self._ahead = dict(copies)
        """By entry of a copy the same one of the copy ahead."""
        self._words: dict[int, Sequence[str]] = {}
        self._known: dict[int, _KnownEntry] = {}

    def read(self, names: Mapping[str, int], wiring: Wiring) -> tuple[Read, ...]:
        """Return the layers of all entries, whose sizes may be worked out from `names`; the `wiring` knows none yet.

        Raises InputError with every problem, placed by the number of its entry: [3].kernel; where only copies of a
        block have any, with the first.
        """
        found, problems, again = list[Read](), list[Problem](), list[Problem]()
        for index, entry in enumerate(self._entries):
            try:
                found.append(self._read(index, names, wiring))
            except InputError as error:
                wiring.lose(name := name_of(entry))
                label = f"layer {show(name)}: " if isinstance(name, str) else ""
                (again if index in self._ahead else problems).extend(
                    Problem(f"{label}{each.message}", path_of((index, each.where or ""))) for each in error.problems
                )
        if problems or again:
            raise InputError(problems or again[:1])
        return tuple(found)

    def _read(self, index: int, names: Mapping[str, int], wiring: Wiring) -> Read:
        """Return the layers of an entry, which the `wiring` knows afterwards. Raises InputError."""
        entry, ahead = self._entries[index], self._ahead.get(index, -1)
        if index not in self._words:
            self._words[index] = self._words.get(ahead) or [*{*_WORD.findall(repr(entry))}]
        sizes = [names.get(word) for word in self._words[index]]
        try:
            reads = wiring.read_by(entry)
        except (InputError, TypeError):
            # What is wrong comes after what is wrong with the entry itself.
            return read_layers(entry, names, wiring)
        known, other = self._known.get(index), self._known.get(ahead)
        if known is None or (known.sizes, known.reads) != (sizes, reads):
            known = other.like(entry["name"], reads) if other and other.sizes == sizes else None
            if known is None:
                read = read_layers(entry, names, wiring)
                known = _KnownEntry(entry["name"], sizes, reads, read, wiring.known(entry["name"]))
            if wiring.sure:
                self._known[index] = known
        wiring.know(known.name, known.handed)
        return known.read

    def parts(self, read: Sequence[Read]) -> Parts:
        """Return what entries make together, which were read one by one."""
        layers: list[Op] = []
        own: list[OwnLowering] = []
        edges: list[tuple[str, tuple[Source, ...]]] = []
        biases: list[str] = []
        for index, (ops, lowering, sources, biased, _) in enumerate(read):
            layers += ops
            biases += [each.name for each in ops] if biased else []
            edges += [(each.name, read) for each, read in zip(ops, sources, strict=True) if read] if sources else []
            if lowering:
                where = self._document.place(path_of(("layers", index, LOWERING)))[0]
                own += [OwnLowering(each.name, lowering, where) for each in ops]
        names = [tuple(each.name for each in one.layers) for one in read]
        blocks = tuple(
            LayerBlock(tuple(tuple(name for each in names[copy : copy + size] for name in each) for copy in
                             range(first, first + size * count, size)))
            for first, size, count in self._document.blocks
        )  # fmt: skip
        exchanges = read_among(
            [each.collective for each in read if each.collective], [layer.name for layer in layers], edges
        )
        return Parts(tuple(layers), tuple(own), tuple(edges), tuple(biases), blocks, exchanges)
