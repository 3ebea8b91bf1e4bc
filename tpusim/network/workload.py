"""The work for a machine: layers to run, what each of them reads, and sizes that a file names."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from math import prod
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeAlias

from pydantic import BeforeValidator, InstanceOf, ValidationInfo

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.input.document import Document
from tpusim.input.form import Choice, Name, Reader, Real, names_of, pairs, size, validated, whole
from tpusim.input.scalars import name_text, path_of, show, whole_number
from tpusim.network.mesh import HOST, MESH, of_a_chip, read_mesh
from tpusim.network.ops import OPS
from tpusim.network.ops.array_op import ArrayOp, Gemm, StoredTensor
from tpusim.network.ops.elementwise import Pointwise
from tpusim.network.ops.op import BATCH, Op

# ---- sizes that a workload file names, such as the length of a sequence: its layers use them, its user may set them

Sizes: TypeAlias = tuple[tuple[str, int], ...]
"""Sizes by name, in the order of the file."""

MOST_SIZE = 2**24
"""Most that a size may be: beyond, it is a slip."""
_KEY = "sizes"


def read_sizes(given: object, info: ValidationInfo) -> Sizes:
    """Read sizes as files have them, {side: 224, patches: side//16*14}, each worked out from earlier ones, or as they
    are kept.

    Raises InputError with every problem.
    """
    items = pairs(given, "names no sizes; write each with its usual value, such as {seq: 128}")
    found = [*_worked_out(items, {name: batch for name, batch in names_of(info).items() if name == BATCH})]
    if problems := [each for _, each in found if isinstance(each, Problem)]:
        raise InputError(problems)
    return tuple((name, each) for name, each in found if isinstance(each, int))


def _worked_out(items: Iterable[tuple[object, object]], known: dict[str, int]) -> Iterator[tuple[str, int | Problem]]:
    """Yield each name with its size, or with what is wrong with it."""
    for name, given in items:
        if not isinstance(name, str) or not name.isidentifier():
            message = f"{show(name)} cannot be used in a sum; name a size by a word, such as seq"
            yield str(name), Problem(message, str(name))
        elif name == BATCH:
            yield name, Problem("batch is what a run says; name the size otherwise", name)
        else:
            try:
                known[name] = size(given, 1, MOST_SIZE, known)
                yield name, known[name]
            except InputError as error:
                # A stand-in, so that sizes worked out from a faulty one are not reported as well.
                known[name] = 1
                yield name, Problem(str(error), name)


def names_in(document: Document, batch: int) -> dict[str, int]:
    """Return the names for layers of `document`, for `batch` images; 1 where a size is wrong, which is reported with
    the file.
    """
    given = document.data.get(_KEY)
    found = _worked_out(given.items(), {BATCH: batch}) if isinstance(given, Mapping) else ()
    whole = {BATCH: batch, **{name: each if isinstance(each, int) else 1 for name, each in found if name != BATCH}}
    return of_a_chip(whole, document)


def are_sound(document: Document) -> bool:
    """Return whether nothing is wrong with the sizes of `document`."""
    given = document.data.get(_KEY, {})
    return isinstance(given, Mapping) and all(
        isinstance(each, int) for _, each in _worked_out(given.items(), {BATCH: 1})
    )


def sizes_named(document: Document) -> list[str]:
    """Return the names of its sizes."""
    known = document.data.get(_KEY)
    return [str(name) for name in known] if isinstance(known, Mapping) else []


def with_sizes(document: Document, wanted: Mapping[str, int]) -> Document:
    """Return `document` with other values of the sizes that it names. Raises InputError for a size that it does not
    name.
    """
    names = sizes_named(document)
    there = f"its sizes: {', '.join(names)}" if names else "it names none; leave --dim out"
    problems: list[Problem] = []
    for name, number in wanted.items():
        option = f"--dim {name}={number}"
        if name in names:
            # Messages about the new value name the option, behind all lines of the file.
            document = document.override(f"{_KEY}.{name}", number, (option, sys.maxsize))
            continue
        message = f"the workload has no size {show(name)}{did_you_mean(name, names) or ';'} {there}"
        problems.append(Problem(message, f"{option}: {document.label}"))
    if problems:
        raise InputError(problems)
    return document


# ---- edges: for each layer of a network, the layers whose outputs it reads

INPUT = "input"
"""The layers' name for the input of their network, unless it says otherwise."""


class Source(NamedTuple):
    """The layers or inputs behind one tensor that a layer reads.

    Attributes:
        names: layers, or inputs of the network; the outputs of several lie side by side along the channels.
        direct: whether the layer reads the whole output of its source, unchanged; otherwise it reads a part, or an op
            that takes no time lies between, such as a transposition.
        placed: whether, if it is not direct, each element is still made of the elements at its place in the outputs.
        cache: elements that stay in HBM from step to step, of which earlier steps have made some; 0: it is no cache.
    """

    names: tuple[str, ...]
    direct: bool = True
    placed: bool = False
    cache: int = 0


Edges: TypeAlias = tuple[tuple[str, tuple[Source, ...]], ...]
"""By layer what it reads, in the order of its tensors (`Op.reads`); empty entries stand for weights."""


def side_by_side(sources: Iterable[Source], direct: bool = True) -> Source:
    """Return several sources as one."""
    every = [*sources]
    names = tuple(dict.fromkeys(name for each in every for name in each.names))
    whole = sum(len(each.names) for each in every) == len(names)
    return Source(
        names, direct and whole and all(each.direct for each in every), cache=sum(each.cache for each in every)
    )


def read_edges(given: object) -> Edges:
    """Read edges by the names of layers, as people write them in Python ({"conv2": ["conv1"]}), or as they are kept."""
    if not isinstance(given, Mapping):
        return given  # type: ignore[return-value]
    return tuple(
        (name, tuple(Source((each,)) if isinstance(each, str) else Source(*each) for each in sources))
        for name, sources in given.items()
    )


def problems_of(edges: Edges, layers: Sequence[str]) -> list[Problem]:
    """Return the problems of edges: layers that read a later layer. Edges of layers that are left out are not
    checked.
    """
    found: list[Problem] = []
    place = {name: index for index, name in enumerate(layers)}
    for name, sources in edges:
        for read in (each for source in sources for each in source.names):
            if place.get(read, -1) >= place.get(name, len(layers)):
                found.append(Problem(f"layer {show(name)} reads {show(read)}, which is not before it", "edges"))
    return found


def without(edges: Edges, left_out: Iterable[str], placed: Collection[str] = ()) -> Edges:
    """Return the edges of the other layers, which read what layers `left_out` have read.

    Of the layers left out, `placed` are those that leave each element at its place.
    """
    gone, instead = {*left_out}, dict[str, Source]()

    def seen(source: Source) -> Source:
        if not gone & {*source.names}:
            return source
        every = [instead.get(name, Source((name,))) for name in source.names]
        # Only a single source keeps places: channels side by side move all but the first's.
        stays = len(every) == 1 and (source.direct or source.placed) and (every[0].direct or every[0].placed)
        return side_by_side(every, direct=False)._replace(placed=stays)

    kept: list[tuple[str, tuple[Source, ...]]] = []
    for name, sources in edges:
        now = tuple(map(seen, sources))
        if name in gone:
            stays = name in placed and all(each.direct or each.placed for each in now)
            instead[name] = side_by_side(now, direct=False)._replace(placed=stays)
        else:
            kept.append((name, now))
    return tuple(kept)


# ---- training

FORWARD, BACKWARD, ACCUMULATE, UPDATE = "forward", "backward", "accumulate", "update"
"""Phases of a training step: the network's layers and the loss; gradients, and what is computed again for them; their
sums over microbatches; new weights.
"""
SO_FAR = ".so_far"
"""End of the name of such a sum so far, to which the gradient of the next microbatch is added."""
ALL, NONE = "all", "none"


def _patterns(given: object) -> str | tuple[str, ...]:
    if given in (ALL, NONE):
        return str(given)
    if isinstance(given, list | tuple) and given and all(isinstance(each, str) for each in given):
        return tuple(given)
    raise InputError(f"{show(given)} keeps nothing that is known; write {ALL}, {NONE}, or a list of names of layers")


def _names(given: object) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
        raise InputError(f"{show(given)} is no list of names; write e.g. ['conv*']")
    return tuple(given)


@validated
class Training:
    """The ways in which a training step goes beyond its network.

    Attributes:
        batch_norm: layers behind which training has a batch normalisation, which inference has folded into their
            weights; by names and patterns such as `conv*`.
        keep: outputs of layers that stay in HBM for the way back: `all`, `none` or a list of names and patterns; others
            are computed again when they are needed.
        offload: the kept ones that wait for it in the memory of the host: `all`, `none` or a list, too.
        optimizer: how weights are updated: `sgd` with momentum, or `adam`.
        rate: step size of an update.
        momentum: share of the last update that goes into the next, of `sgd`; of `adam`, of the mean of gradients.
        second: share of the mean of squares that goes into the next, of `adam`.
        epsilon: number that is added to roots, of `adam`, and to variances of batch normalisations.

    Examples:
        >>> import tpusim
        >>> asked = tpusim.Training(batch_norm=("conv*",), keep=("pool*",), optimizer="adam")
        >>> asked.rate, asked.momentum
        (0.1, 0.9)
    """

    batch_norm: Annotated[tuple[str, ...], Reader(_names, "a list of names and patterns")] = ()
    keep: Annotated[str | tuple[str, ...], Reader(_patterns, "all, none, or a list of names and patterns")] = ALL
    offload: Annotated[str | tuple[str, ...], Reader(_patterns, "all, none, or a list of names and patterns")] = NONE
    optimizer: Annotated[Literal["sgd", "adam"], Choice()] = "sgd"
    rate: Annotated[float, Real()] = 0.1
    momentum: Annotated[float, Real()] = 0.9
    second: Annotated[float, Real()] = 0.999
    epsilon: Annotated[float, Real()] = 1e-5

    def __post_init__(self) -> None:
        problems = [
            Problem(f"{number:g} is not above zero and at most 1e6; write one such as {such:g}", name)
            for name, number, such in (("rate", self.rate, 0.1), ("epsilon", self.epsilon, 1e-5))
            if not 0 < number <= 1e6
        ]
        problems += [
            Problem(f"{share:g} is no share from 0 to below 1; write one such as {such:g}", name)
            for name, share, such in (("momentum", self.momentum, 0.9), ("second", self.second, 0.999))
            if not 0 <= share < 1
        ]
        if problems:
            raise InputError(problems)

    def misnamed(self, layers: Sequence[Op]) -> Iterator[tuple[tuple[str, int], str]]:
        """Yield each name or pattern that fits none of the layers, by its field and its place in the list, with what is
        wrong.
        """
        maps = [layer.name for layer in layers if layer.unit == "array" and layer.spatial]
        for key, patterns, known, what in (
            ("batch_norm", self.batch_norm, maps, "layer of the array that makes maps"),
            ("keep", self.keep, [layer.name for layer in layers], "layer"),
            ("offload", self.offload, [layer.name for layer in layers], "layer"),
        ):
            for at, pattern in enumerate(patterns if isinstance(patterns, tuple) else ()):
                if not any(fnmatchcase(name, pattern) for name in known):
                    hint = did_you_mean(pattern, known) or ";"
                    yield (key, at), f"no {what} is named {show(pattern)}{hint} name one of its layers"


# ---- the workload

MOST_IMAGES = 2**16

_CALL = '[Gemm("fc", m=8, n=1000, k=512)]'
MOST_OPS = 10**9


@dataclass(frozen=True)
class OwnLowering:
    """The lowering that a layer of that name has of its own, whatever a run asks for; `where` is its place in the
    file.
    """

    layer: str
    lowering: str
    where: str | None = field(default=None, compare=False)


class LayerBlock(NamedTuple):
    """Layers that a file says come several times in a row: for each copy the names of its layers.

    Not all of that need be layers of a workload, some of which may have been left out, or become part of others.
    """

    copies: tuple[tuple[str, ...], ...]


OFFLOAD, RELOAD = "offload", "reload"
"""Ops over that way: a value goes to the host's memory, and comes back."""


class CollectiveLayer(NamedTuple):
    """An op of several chips between the layers of one chip's share: what a chip exchanges with others of its mesh.

    Layers that read its outcome name it among their sources, as they name a layer.

    Attributes:
        name: by which readers name it; no layer has it.
        op: all_reduce, all_gather, reduce_scatter, all_to_all or permute, as `tpusim collective` has them; or offload
            and reload, over `host`.
        elements: elements of a chip before the op; of an all_gather, those it has after it.
        over: axes of the mesh along which chips take part.
        reads: layers, or other collectives, that make its operand; none: what lies in HBM, such as a part of weights.
        read_by: layers, or other collectives, that read its outcome; none: what a chip ends with.
        weights: whether it brings weights of its readers, of which a chip keeps a part.
        axis: the axis of its operand along which parts are joined, or which is parted; of what goes from one stage of a
            pipeline to another the number of the first.
        to: of an all_to_all the axis along which parts are joined; of what goes to another stage its number.
        of: the weights that it brings, as those name them who update a chip's part; empty where nobody says.
    """

    name: str
    op: str
    elements: int
    over: tuple[str, ...]
    reads: tuple[str, ...]
    read_by: tuple[str, ...]
    weights: bool = False
    axis: int = 0
    to: int = 0
    of: str = ""

    def chips(self, mesh: Mapping[str, int]) -> int:
        """Chips that take part, by the sizes of the axes of a mesh."""
        return prod(mesh.get(axis, 1) for axis in self.over)

    def outcome(self, mesh: Mapping[str, int]) -> int:
        """Elements of a chip after the op."""
        return -(-self.elements // self.chips(mesh)) if self.op == "reduce_scatter" else self.elements


def _unsound(
    mesh: Iterable[tuple[str, int]], collectives: Sequence[CollectiveLayer], layers: Collection[str]
) -> Iterator[Problem]:
    """Yield what is wrong with a mesh, and with what its chips exchange, beside layers of these names."""
    try:
        read_mesh(tuple(mesh))
    except InputError as error:
        yield from (replace(each, where=f"{MESH}.{each.where}") for each in error.problems)
    axes = [axis for axis, _ in mesh]
    yield from (Problem("an axis is named twice; name each once", f"{MESH}.{axis}") for axis in {*axes}
                if axes.count(axis) > 1)  # fmt: skip
    taken = {*layers}
    for each in collectives:
        where = f"collective {each.name}"
        if each.name in taken:
            yield Problem("another collective or a layer has that name; choose another", where)
        taken.add(each.name)
        if each.elements < 1:
            yield Problem(f"{each.elements:,} elements are none; write 1 or more", where)
        if missing := [axis for axis in each.over if axis not in (*axes, HOST)]:
            yield Problem(f"there is no axis {missing[0]!r}; the mesh has {', '.join(axes) or 'none'}", where)


def reads_of(
    edges: Iterable[tuple[str, Iterable[Source]]], collectives: Iterable[CollectiveLayer]
) -> Iterator[tuple[str, str]]:
    """Yield each layer, and then each collective, with each value that it reads."""
    yield from ((name, made) for name, sources in edges for source in sources for made in source.names)
    yield from ((each.name, made) for each in collectives for made in each.reads)


def read_among(
    collectives: Sequence[CollectiveLayer], layers: Iterable[str], edges: Iterable[tuple[str, tuple[Source, ...]]]
) -> tuple[CollectiveLayer, ...]:
    """Return collectives with what makes their operands, inputs left out, and who reads their outcomes."""
    makers = {*layers, *(each.name for each in collectives)}
    readers: dict[str, list[str]] = {each.name: [] for each in collectives}
    edges = tuple(edges)
    for reader, made in reads_of(edges, collectives):
        if made in readers:
            readers[made].append(reader)
    # Of weights, which only come from parts of them, readers name the collective behind their first tensor.
    first = {made for _, made in reads_of(((name, sources[:1]) for name, sources in edges), collectives)}
    found = []
    for collective in collectives:
        name, operands = collective.name, tuple(each for each in collective.reads if each in makers)
        weights = collective.weights or (not operands and bool(readers[name]) and name not in first)
        read_by = tuple(dict.fromkeys(readers[name]))
        found.append(collective._replace(reads=operands, read_by=read_by, weights=weights))
    return tuple(found)


def in_order(
    there: Iterable[tuple[int, CollectiveLayer]], more: Iterable[tuple[int, CollectiveLayer]]
) -> Iterator[CollectiveLayer]:
    """Yield collectives in the order in which they may begin, `more` of them among those that are there in order; each
    comes with the place of the layer behind which it may.
    """
    due, latest = deque(sorted(more, key=lambda each: each[0])), -1
    for place, each in there:
        latest = max(latest, place)
        while due and (due[0][0] < latest or {*each.reads} & {other.name for _, other in due}):
            yield due.popleft()[1]
        yield each
    yield from (each for _, each in due)


class BlocksAhead:
    """What comes to a chip ahead of the block that reads it: gathered weights, or values that come back from the host.

    They take memory until they are read, so a block's wait for the readers of an earlier block.
    """

    def __init__(self, ahead: int) -> None:
        """Start with nothing; `ahead` blocks may be there before the block that runs is done."""
        self._ahead = ahead
        self._block: object = None
        self._lasts: list[int] = []
        """By block so far the place of its last reader."""

    def behind(self, block: object, readers: Sequence[int]) -> int:
        """Return the place of the last reader behind which the next may come, of a block and read at these places; -1:
        there is none. None is a block of its own.
        """
        if not self._lasts or block is None or block != self._block:
            self._lasts.append(-1)
            self._block = block
        self._lasts[-1] = max(self._lasts[-1], *readers)
        return max(self._lasts[: -1 - self._ahead], default=-1)


Counts: TypeAlias = tuple[tuple[str, int], ...]
"""The number of times each op of another tool occurs, by its name."""


def _sequence(layers: object) -> object:
    if not isinstance(layers, list | tuple):
        raise InputError(f"{show(layers)} is not a sequence of layers; give a list or a tuple, also of one layer")
    if not layers:
        raise InputError(f"no layers; give at least one, e.g. {_CALL}")
    return layers


def _tuple_of(given: Iterable[Any]) -> tuple[Any, ...]:
    """Return what is given as a tuple. Pydantic takes long to find out what `tuple` itself takes."""
    return tuple(given)


def taken_names(called: Iterable[tuple[int, object]], inputs: Sequence[str] = ()) -> Iterator[Problem]:
    """Yield each name that an earlier layer has, with its path in the workload; layers come with the place of their
    entry.
    """
    first: dict[str, int] = {}
    for index, name in called:
        if name in inputs:
            yield Problem(f"the name {show(name)} is that of the network's input", path_of(("layers", index, "name")))
        elif isinstance(name, str) and name in first:
            taken = f"the name {show(name)} is taken by layers[{first[name]}]; names must differ"
            yield Problem(taken, path_of(("layers", index, "name")))
        elif isinstance(name, str):
            first[name] = index


def _own(lowerings: object) -> object:
    """Read lowerings by the names of layers, as people write them in Python, or as they are kept."""
    return tuple(OwnLowering(*each) for each in lowerings.items()) if isinstance(lowerings, Mapping) else lowerings


def counts_of(given: object) -> Counts:
    """Read ops with their counts, as files write them, {Relu: 49}, or as they are kept."""
    problems: list[Problem] = []
    counts: list[tuple[str, int]] = []
    for op, count in pairs(given, "is no list of ops; write how often each comes, such as {Relu: 49}"):
        try:
            counts.append((name_text(op), whole_number(count, 1, MOST_OPS)))
        except InputError as error:
            problems.append(Problem(str(error), str(op)))
    if problems:
        raise InputError(problems)
    return tuple(counts)


@validated
class Workload:
    """Layers to run one after another on a batch of images.

    Attributes:
        name: name of the network in results.
        batch: images at a time.
        layers: layers in network order, whose names differ.
        source: where the sizes come from, for readers.
        lowerings: lowerings that layers have of their own; in Python also a mapping: {"conv1": "channel_first"}.
        not_timed: ops of the network that are not layers and take no time here, such as ("Relu", 49).
        not_known: ops of the network that tpusim does not know; convolutions and products may be among them.
        sizes: sizes that its file names and its layers were worked out from, such as ("seq", 128).
        edges: what layers read, where that is known; in Python also a mapping: {"conv2": ["conv1"]}.
        riders: names of the layers that became part of another, by the layer that carries them.
        biases: layers to whose results a number for each output channel is added, by whoever computes values, unless it
            rides on them.
        training: what a training step of it adds, where its file says so.
        phases: of the layers of a training step: forward, backward, accumulate or update.
        blocks: blocks of layers that come several times in a row, where its file says so; in a network that is made
            otherwise, of ONNX, JAX or in Python, whoever makes it may say so, and nobody looks for what is alike.
        grows: the one of `sizes` that each token of a generation adds one to; empty where its file names none.
        chips: chips that share the network; the workload is the part of one of them.
        mesh: by name the axes along which they share it, each with its number of chips; none where nobody says.
        collectives: what these chips exchange, in the order in which it may begin.
        stages: of the layers of a pipeline the number of the chip, or of the chips, that run each.
        microbatches: parts of a batch that go through a pipeline one after another; `batch` is that of one.
        entire: the workload with the layers that its file leaves out unless they are asked for; they run on machines
            that fuse, as compiled networks have them. None where none are, or where somebody has asked.

    Examples:
        >>> from tpusim import Gemm, Workload
        >>> network = Workload("mlp", 8, [Gemm("fc1", m=8, n=64, k=32), Gemm("fc2", m=8, n=10, k=64)])
        >>> [layer.text for layer in network.layers]
        ['8x32>64', '8x64>10']
    """

    name: Annotated[str, Name()]
    batch: Annotated[int, whole(MOST_IMAGES)]
    layers: Annotated[tuple[InstanceOf[Op], ...], BeforeValidator(_sequence)]
    source: str = ""
    lowerings: Annotated[tuple[InstanceOf[OwnLowering], ...], BeforeValidator(_own)] = ()
    not_timed: Annotated[Counts, Reader(counts_of, "a mapping of names to counts")] = ()
    not_known: Annotated[Counts, Reader(counts_of, "a mapping of names to counts")] = ()
    sizes: Annotated[Sizes, Reader(read_sizes, "a mapping of names to whole numbers")] = ()
    edges: Annotated[Edges, Reader(read_edges, "a mapping of names to lists of names")] = ()
    riders: tuple[tuple[str, tuple[str, ...]], ...] = ()
    biases: Annotated[tuple[str, ...], Reader(_tuple_of, "a list of names")] = ()
    training: Training | None = None
    phases: tuple[tuple[str, str], ...] = ()
    grows: str = ""
    chips: int = 1
    mesh: tuple[tuple[str, int], ...] = ()
    collectives: tuple[CollectiveLayer, ...] = ()
    stages: tuple[tuple[str, int], ...] = ()
    microbatches: int = 1
    blocks: Annotated[tuple[LayerBlock, ...], Reader(_tuple_of, "a list of blocks")] = ()
    entire: Annotated[Workload | None, Reader(lambda work: work, "a workload")] = field(default=None, repr=False)

    def __post_init__(self) -> None:
        names = {each.name for each in self.layers}
        problems = [*taken_names((index, each.name) for index, each in enumerate(self.layers))]
        problems += [_no_layer(each.layer, names, "lowerings") for each in self.lowerings if each.layer not in names]
        problems += [_no_layer(each, names, "biases") for each in self.biases if each not in names]
        problems += problems_of(self.edges, [each.name for each in self.layers])
        problems += _unsound(self.mesh, self.collectives, names)
        if problems:
            raise InputError(problems)

    def sources(self) -> dict[str, tuple[Source, ...]]:
        """Return the sources of each layer by name, in the order of its tensors; empty where its file does not say.

        Not all of that need be among `layers`, of which some may have been left out.
        """
        return dict(self.edges)

    def inputs(self) -> dict[str, tuple[str, ...]]:
        """Return the names that each layer reads, by its name: layers, and inputs of the network."""
        return {name: side_by_side(sources).names for name, sources in self.edges}

    def neighbours(self, layer: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return what a layer reads, and the layers that read it; empty where edges are not known."""
        inputs = self.inputs()
        return inputs.get(layer, ()), tuple(name for name, read in inputs.items() if layer in read)

    def carried_by(self, layer: str) -> tuple[str, ...]:
        """Return the layers that became part of one."""
        return dict(self.riders).get(layer, ())

    @property
    def copies(self) -> dict[str, tuple[int, int]]:
        """By layer of a block the number of the block, and that of the copy."""
        return {name: (number, at) for number, block in enumerate(self.blocks)
                for at, names in enumerate(block.copies) for name in names}  # fmt: skip

    def block_of(self, layer: str, copies: Mapping[str, tuple[int, int]]) -> tuple[int, int] | None:
        """Return the copy of a block, of `copies`, that a layer is of, or that a training step has added it for."""
        while layer not in copies:
            layer, more, _ = layer.rpartition(".")
            if not more:
                return None
        return copies[layer]

    @property
    def never_timed(self) -> Counts:
        """The part of `not_timed` that is not a layer, whatever is asked for."""
        return tuple(each for each in self.not_timed if each[0] not in OPS)

    def with_layers(self, keep: Callable[[Op], bool]) -> Self:
        """Return the workload with some of its layers; edges stay as they are, also those of layers that are left
        out.
        """
        return self.made_of(layer for layer in self.layers if keep(layer))

    def made_of(self, layers: Iterable[Op], **more: Any) -> Self:
        """Return the workload made of these layers, with `more` fields that change; lowerings and biases of layers that
        are gone go with them.
        """
        kept = tuple(layers)
        names = {layer.name for layer in kept}
        own = tuple(each for each in self.lowerings if each.layer in names)
        biases = tuple(each for each in self.biases if each in names)
        return replace(self, **{"layers": kept, "lowerings": own, "biases": biases, "entire": None, **more})

    @property
    def narrow(self) -> dict[str, str]:
        """How HBM has second factors that are narrower there than in the computation, by the names of their layers."""
        stored = ((each.name, each.core.filter_stored) for each in self.layers if isinstance(each.core, ArrayOp))
        return {name: kind for name, kind in stored if kind != "computed"}

    def with_stored(self, weights: StoredTensor, caches: StoredTensor) -> Self:
        """Return the workload with second factors of products stored so: those that no layer makes, and caches.

        Others stay as they are, and so does what is narrow already.
        """
        if weights == caches == "computed":
            return self
        known = self.sources()

        def narrowed(layer: Op) -> Op:
            if not isinstance(layer, Gemm) or layer.stored != "computed":
                return layer
            made = known.get(layer.name, ())[1:]
            if not made or not made[0].names:
                return replace(layer, stored=weights)
            return replace(layer, stored=caches) if made[0].cache else layer

        return replace(self, layers=tuple(map(narrowed, self.layers)))

    def with_ops(self, ops: str) -> Self:
        """Return the workload; with `ops` "array", without layers of other units, which then count among `not_timed`.

        Raises InputError where nothing is left.
        """
        left = Counter(layer.op for layer in self.layers if layer.unit != "array")
        if ops == "all" or not left:
            return self
        if left.total() == len(self.layers):
            raise InputError(f"{self.name} has no layer of the array; give ops all")
        counts = Counter(dict(self.not_timed)) + left
        left_out = [layer for layer in self.layers if layer.unit != "array"]
        placed = {layer.name for layer in left_out if isinstance(layer, Pointwise)}
        # Collectives come last, when it is known what all layers left out have read.
        operands = tuple((each.name, (Source(each.reads),)) for each in self.collectives)
        every = without((*self.edges, *operands), [layer.name for layer in left_out], placed)
        reads, exchanged = dict(every), {name for name, _ in operands}
        edges = tuple(each for each in every if each[0] not in exchanged)
        timed = self.with_layers(lambda layer: layer.unit == "array")
        exchanges = [each._replace(reads=side_by_side(reads[each.name]).names) for each in self.collectives]
        collectives = read_among(exchanges, [layer.name for layer in timed.layers], edges)
        return replace(timed, edges=edges, collectives=collectives, not_timed=tuple(counts.items()))

    def with_asked(self, ops: str | None, of_file: str) -> Self:
        """Return the workload with the `ops` that somebody asks for, else with those of its file, which leave layers
        out only on machines that do not fuse.
        """
        if ops:
            return self.with_ops(ops)
        some = self.with_ops(of_file)
        return some if some is self else replace(some, entire=self)


def _no_layer(name: str, names: Iterable[str], where: str) -> Problem:
    hint = did_you_mean(name, names) or "; name one of its layers"
    return Problem(f"there is no layer {show(name)}{hint}", where)
