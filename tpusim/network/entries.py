"""The entries of a workload file: each is a layer, or a `count` of them, or takes no time; which entry reads which; the
sizes that follow from it; and the names of operations in other tools.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, replace
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.base.imports import Registry
from tpusim.base.words import counted
from tpusim.input.form import NAMES, Choice, Form, Name, Reader, Truth, validated, whole, written
from tpusim.input.scalars import path_of, show
from tpusim.network.mesh import SHARD, parted, read_shard
from tpusim.network.ops import OPS
from tpusim.network.ops.op import OFMAP, Channels, Images, Op, Shape, Size
from tpusim.network.workload import INPUT, CollectiveLayer, Source, side_by_side

if TYPE_CHECKING:
    from tpusim.network.composites import Composite, CompositeLayer

# ---- which entry reads which


class EntryOutput(NamedTuple):
    """The output of an entry, as other entries read it.

    Attributes:
        source: the layers or inputs whose outputs it is made of.
        shape: [channel, row, col, image]; None where it is unknown.
        elements: number of elements; None where it is unknown.
        lost: whether the entry, or one that it reads, is faulty, so that the shape is unknown.
    """

    source: Source
    shape: Shape | None = None
    elements: int | None = None
    lost: bool = False

    def fits(self, wanted: Shape) -> bool:
        """Return whether the output may be a tensor of that shape, as far as is known."""
        return self.shape == wanted if self.shape is not None else self.elements in (None, prod(wanted))


CollectiveOp: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute"]
MOST_ELEMENTS = 2**44
"""Most elements of an exchange: beyond, it is a slip."""


def _axes(given: object) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or not given or not all(isinstance(each, str) and each for each in given):
        raise InputError(f"{show(given)} names no axes of the mesh; write a list of names, such as [tensor]")
    return tuple(given)


class FreeEntry(ABC):
    """An entry of a network's graph that takes no time: it says how the outputs of layers are read."""

    __slots__ = ()

    op: ClassVar[str]
    """The name in files."""
    name: str

    @abstractmethod
    def made(self, read: Sequence[EntryOutput], batch: int) -> EntryOutput:
        """Return the output for these inputs. Raises InputError where there is none."""


@validated
class Concat(FreeEntry):
    """Maps of one size, side by side along the channels: a layer that reads them reads each where it lies.

    Attributes:
        name: name by which other entries read it.
    """

    op: ClassVar[str] = "concat"

    name: Annotated[str, Name(), written("concat1")]

    def made(self, read: Sequence[EntryOutput], batch: int) -> EntryOutput:
        source = side_by_side(each.source for each in read)
        shapes = [each.shape for each in read if each.shape is not None]
        if {shape[1:] for shape in shapes} - {shapes[0][1:] if shapes else None}:
            sizes = ", ".join(size_of(shape, batch) for shape in shapes)
            raise InputError(f"joins maps of {sizes} (channels x rows x columns), which differ in more than channels")
        if len(shapes) < len(read):
            return EntryOutput(source, lost=any(each.lost for each in read))
        return EntryOutput(source, (sum(shape[0] for shape in shapes), *shapes[0][1:]))


@validated
class Flatten(FreeEntry):
    """A map as one row of channels, as a product reads it: channel by channel its rows, and in each row its columns.

    Attributes:
        name: name by which other entries read it.
    """

    op: ClassVar[str] = "flatten"

    name: Annotated[str, Name(), written("flatten1")]

    def made(self, read: Sequence[EntryOutput], batch: int) -> EntryOutput:
        if len(read) != 1:
            raise InputError(f"reads {len(read)} maps; name one, or join them by a concat before")
        (one,) = read
        if one.shape is None:
            return one._replace(source=one.source._replace(direct=False))
        channels, rows, cols, images = one.shape
        direct = one.source.direct and rows * cols == 1
        return EntryOutput(one.source._replace(direct=direct), (channels * rows * cols, 1, 1, images))


@validated
class View(FreeEntry):
    """A map of the stated size, made of the input in a way that takes no time: turned, cut, or not simulated.

    Attributes:
        name: name by which other entries read it.
        channels: channels of the map.
        height: rows of the map.
        width: columns of the map.
        images: number of maps; 0: as many as images of the batch.
    """

    op: ClassVar[str] = "view"

    name: Annotated[str, Name(), written("view1")]
    channels: Annotated[Channels, written(64)]
    height: Annotated[Size, written(56)] = 1
    width: Annotated[Size, written(56)] = 1
    images: Annotated[Images, written("batch*197")] = 0

    def made(self, read: Sequence[EntryOutput], batch: int) -> EntryOutput:
        shape = self.channels, self.height, self.width, self.images or batch
        return EntryOutput(side_by_side((each.source for each in read), direct=False), shape)


@validated
class Cache(FreeEntry):
    """Numbers of the tokens so far, such as keys or values, which stay in HBM from step to step; the input's are the
    last of them.

    What makes the input writes it to its place, so that nothing is copied.

    Attributes:
        name: name by which other entries read it.
        channels: numbers of a token: key heads times the size of a head.
        tokens: tokens of each sequence, those of the input included.
        images: sequences; 0: as many as images of the batch.
    """

    op: ClassVar[str] = "cache"

    name: Annotated[str, Name(), written("keys")]
    channels: Annotated[Channels, written(1024)]
    tokens: Annotated[Channels, written("context")]
    images: Annotated[Images, written("batch")] = 0

    def made(self, read: Sequence[EntryOutput], batch: int) -> EntryOutput:
        source, elements = (
            side_by_side(each.source for each in read),
            self.channels * self.tokens * (self.images or batch),
        )
        # Shapes may differ, since heads are split before keys turn, but all that comes in has to fit.
        given = [prod(each.shape) if each.shape else each.elements for each in read]
        if None not in given and (new := sum(each or 0 for each in given)) > elements:
            raise InputError(f"holds {elements:,} elements, and {new:,} come in; give it more tokens")
        return EntryOutput(
            source._replace(direct=False, cache=elements), None, elements, any(each.lost for each in read)
        )


@validated
class CollectiveEntry(FreeEntry):
    """An exchange between the chips that share the network: it takes no time of a layer, and runs beside them.

    Attributes:
        name: name by which other entries read its outcome.
        does: what chips do: all_reduce, all_gather, reduce_scatter, all_to_all, or permute.
        over: axes of the mesh along which chips take part.
        elements: elements of a chip before it; of an all_gather, those it has after it.
    """

    op: ClassVar[str] = "collective"

    name: Annotated[str, Name(), written("sum1")]
    does: Annotated[CollectiveOp, Choice(), written("all_reduce")]
    over: Annotated[tuple[str, ...], Reader(_axes, "a list of axes of the mesh"), written("[tensor]")]
    elements: Annotated[int, whole(MOST_ELEMENTS), written(4096)]

    def made(self, read: Sequence[EntryOutput], batch: int) -> EntryOutput:
        # Whoever reads the outcome says how it lies.
        return EntryOutput(Source((self.name,)), lost=any(each.lost for each in read))


FREE: dict[str, type[FreeEntry]] = {kind.op: kind for kind in (Concat, Flatten, View, Cache, CollectiveEntry)}
"""The entries that take no time of the chip's units, by their names in files."""
COMPOSITES: Registry[type[Composite]] = Registry(
    "tpusim.network", {"attention": "composites.Attention", "experts": "composites.Experts"}
)
"""The entries that stand for several unlike layers, by their names in files."""


def size_of(shape: Shape, batch: int) -> str:
    """Write channels x rows x columns, as "64x56x56", and n images where these are not the batch."""
    channels, rows, cols, images = shape
    return f"{channels}x{rows}x{cols}" + (f" n{images}" if images != batch else "")


Entry: TypeAlias = dict[str, Any]
"""An entry as its file has it: a layer, or one that takes no time."""
INPUTS = "inputs"
"""The key of a layer that names what it reads, and the key of a file that names the inputs of its network."""


def is_graph(entries: object) -> bool:
    """Return whether any of a file's entries says what it reads."""
    if not isinstance(entries, list | tuple):
        return False
    return any(isinstance(each, Mapping) and (INPUTS in each or str(each.get("op")) in FREE) for each in entries)


def inputs_of(given: object) -> tuple[str, ...]:
    """Return the names of a network's inputs, as its file has them. Raises InputError."""
    if given is None:
        return (INPUT,)
    if not isinstance(given, list) or not given or not all(isinstance(each, str) and each for each in given):
        raise InputError(f"{show(given)} names no inputs; write a list of names, such as [image, mask]")
    return tuple(given)


class Wiring:
    """The entries of a file and what each reads; entries are added one after another.

    Where a file does not say (`stated`), an entry that leaves sizes out has those of what the one before it makes, and
    nothing else is known.
    """

    def __init__(
        self, inputs: Sequence[str], batch: int, names: Iterable[object], sure: bool = True, stated: bool = True
    ) -> None:
        """Start with no entries; `names` are the names of all entries, in order.

        Unless `sure`, names of inputs or sizes of the file are wrong; that is reported with the file, and faults that
        follow from it are not.
        """
        self.stated, self.batch, self.sure = stated, batch, sure
        self.made = {name: EntryOutput(Source((name,))) for name in inputs}
        """Outputs by the name of their entry, of the entries added so far."""
        self._inputs: dict[str, str] = dict.fromkeys(inputs, "")
        """By input of the network its size and the layer that settles it: the first that reads the input."""
        self._last = self.made[inputs[0]]
        self._names = {name for name in names if isinstance(name, str)}

    def read_by(self, entry: Mapping[str, Any]) -> list[EntryOutput]:
        """Return what the next entry reads: the entry before it, unless it says otherwise. Raises InputError."""
        if INPUTS not in entry:
            return [self._last]
        given = [entry[INPUTS]] if isinstance(entry[INPUTS], str) else entry[INPUTS]
        if not isinstance(given, list) or not given or not all(isinstance(each, str) for each in given):
            says = f"{show(given)} names no layers; write those that are read, such as [conv1], or {INPUT}"
            raise InputError(Problem(says, INPUTS))
        # With faulty sizes or inputs, an unknown name is probably their consequence.
        if not self.sure:
            return [self.made.get(name, EntryOutput(Source((name,)), lost=True)) for name in given]
        wrong = [(index, name) for index, name in enumerate(given) if name not in self.made]
        if wrong:
            own = entry.get("name")
            raise InputError([Problem(self._unknown(name, own), path_of((INPUTS, index))) for index, name in wrong])
        return [self.made[name] for name in given]

    def sizes(self, kind: type[Op], read: Sequence[EntryOutput], given: Mapping[str, Any]) -> dict[str, int]:
        """Return the sizes of a layer that follow from its inputs; images where they are not the batch."""
        shape = read[0].shape
        # In a plain list of layers, a layer with all its sizes takes nothing from the layer before, not even images.
        needed = (each.name for each in fields(kind) if each.default is MISSING and each.name in kind.sized_by)
        if shape is None or not (self.stated or {*needed} - given.keys()):
            return {}
        follow = {field: shape[axis] for field, axis in kind.sized_by.items() if field not in given}
        return {field: size for field, size in follow.items() if field != "images" or size != self.batch}

    def causes(
        self,
        problems: Iterable[Problem],
        kind: type[Op],
        read: Sequence[EntryOutput],
        given: Mapping[str, Any],
        alone: bool,
    ) -> list[Problem]:
        """Return the faults of a layer that could not be made, without those that follow from earlier faults.

        Sizes that are missing follow from that; where they are missing for another reason, that is told.
        """
        absent = {field for field in kind.sized_by if field not in given}
        if alone and read[0].lost:
            return [each for each in problems if each.where not in absent]
        name, several = read[0].source.names[0], counted(len(read[0].source.names), "layer")
        why = f"it reads {several} side by side, which have no one size"
        if not alone:
            why = "of layers that come several times each reads a part, of which nobody tells the size"
        elif name in self._inputs:
            why = f"the first layer that reads {name} says its size"
        return [replace(each, message=f"{each.message} ({why})") if each.where in absent else each for each in problems]

    def check(self, layer: Op, read: Sequence[EntryOutput], given: Mapping[str, Any]) -> None:
        """Check that a layer has the sizes of its inputs; the first reader of an input of the network settles the
        input's size.

        Raises InputError.
        """
        tensors = layer.reads(self.batch)
        if len(read) > len(tensors):
            says = f"reads {counted(len(read), 'map')}, where {layer.op} has {len(tensors)}: {', '.join(tensors)}"
            raise InputError(Problem(f"{says}; join maps by a concat before it, or name fewer", INPUTS))
        problems: list[Problem] = []
        for number, (made, wanted) in enumerate(zip(read, tensors.values(), strict=False)):
            # The size of a network's input is settled by the first layer that reads it, and binds the later ones.
            name, one = made.source.names[0], len(made.source.names) == 1
            now = self.made[name] if one and name in self._inputs and made.source.direct else made
            if now.fits(wanted):
                if now is self.made.get(name) and now.shape is None and name in self._inputs:
                    self.made[name] = now._replace(shape=wanted)
                    self._inputs[name] = layer.name
            else:
                problems.append(self._unfit(layer, now, wanted, given, number))
        if problems and self.sure:
            raise InputError(problems)

    def add_free(self, entry: FreeEntry, read: Sequence[EntryOutput]) -> None:
        """Add an entry that takes no time. Raises InputError."""
        self._put(entry.name, entry.made(read, self.batch))

    def add(self, name: str, layers: Sequence[Op], alone: bool = True) -> None:
        """Add the layers of an entry; `alone`: one layer, without a `count`."""
        names, shapes = tuple(layer.name for layer in layers), [layer.shapes(self.batch)[OFMAP] for layer in layers]
        if alone:
            self._put(name, EntryOutput(Source(names), shapes[0]))
        else:
            self._put(name, EntryOutput(Source(names, direct=False), None, sum(map(prod, shapes))))

    def check_composite(self, entry: Composite, read: Sequence[EntryOutput]) -> None:
        """Check that an entry of several layers reads as many elements as it takes. Raises InputError."""
        for name, made, wanted in zip(entry.reads, read, entry.operands(self.batch), strict=True):
            there = prod(made.shape) if made.shape is not None else made.elements
            if there not in (None, wanted) and self.sure:
                who = " and ".join(made.source.names)
                says = f"reads {there:,} elements of {who} as {name}, where its own sizes make that {wanted:,}"
                raise InputError(Problem(f"{says}; change the sizes, or what it reads", INPUTS))

    def add_composite(self, entry: Composite, parts: Iterable[CompositeLayer]) -> None:
        """Add an entry of several unlike layers."""
        ends = tuple(part.layer.name for part in parts if part.ends)
        self._put(entry.name, EntryOutput(Source(ends, direct=False), entry.outcome(self.batch)))

    def lose(self, name: object) -> None:
        """Add a faulty entry, so that entries that read it are not reported as well."""
        self._last = EntryOutput(Source((str(name),)), lost=True)
        if isinstance(name, str):
            self.made[name] = self._last

    def anew(self) -> Wiring:
        """Return the wiring of the same entries, none of which is added yet."""
        return Wiring(tuple(self._inputs), self.batch, self._names, self.sure, self.stated)

    def known(self, name: str) -> dict[str, EntryOutput]:
        """Return what an entry has made, if anything, and the inputs of the network as they are settled by then."""
        return {each: self.made[each] for each in (*self._inputs, name) if each in self.made}

    def know(self, name: str, made: Mapping[str, EntryOutput]) -> None:
        """Take an entry as `known` returned it, in place of reading it again."""
        self.made.update(made)
        self._last = self.made[name]

    def _put(self, name: str, made: EntryOutput) -> None:
        self.made[name] = self._last = made

    def _unknown(self, name: str, own: object) -> str:
        if name == own:
            return f"reads itself; a network has no cycles: name a layer before it, or {INPUT}"
        if name in self._names:
            return f"reads {show(name)}, which comes after it; layers stand behind those that they read, without cycles"
        if whole := next((entry for entry, made in self.made.items() if name in made.source.names), ""):
            return f"reads {show(name)} alone, one layer of several; read all of them, as {whole}"
        hint = did_you_mean(name, self.made) or ";"
        return f"there is no layer {show(name)} to read{hint} name layers before this one, or {INPUT}"

    def _unfit(self, layer: Op, made: EntryOutput, wanted: Shape, given: Mapping[str, Any], number: int) -> Problem:
        """Describe a layer whose size differs from that of its input."""
        who = " and ".join(made.source.names)
        if made.shape is None:
            says = f"reads {prod(wanted):,} elements of {who}, which make {made.elements:,}"
            return Problem(f"{says}; change the sizes, or put a view between", INPUTS)
        what = f"{size_of(made.shape, self.batch)} (channels x rows x columns) from {who}"
        if not number and not {1, 2} & {*layer.sized_by.values()} and made.shape[1] * made.shape[2] > 1:
            flat = {0: prod(made.shape[:3]), 3: made.shape[3]}
            wrong = [field for field, axis in layer.sized_by.items() if field in given and wanted[axis] != flat[axis]]
            also = f", and leave {', '.join(wrong)} out" if wrong else ""
            before = f"put {{name: flat, op: flatten}} before it, which makes rows of {flat[0]:,}{also}"
            return Problem(f"reads a map of {what}, where {layer.op} takes rows; {before}", INPUTS)
        differ = [axis for axis in range(4) if made.shape[axis] != wanted[axis]]
        fields = [field for field, axis in layer.sized_by.items() if axis in differ and field in given]
        # Where an input's size came from another layer, that layer is named: it may be the wrong one.
        first = self._inputs.get(who)
        says = f"reads {what}{f', as {first} does' if first else ''}"
        own = f"where its own sizes make that {size_of(wanted, self.batch)}"
        leave = f"leave {', '.join(fields)} out, or change what it reads" if fields else "change what it reads"
        return Problem(f"{says}, {own}; {leave}", fields[0] if fields and not number else INPUTS)


# ---- layers

MOST_LAYERS = 100_000
EXAMPLE = "{name: fc, op: gemm, m: batch, n: 1000, k: 512}"
LOWERING = "lowering"
"""The key of a layer that names its lowering; each machine knows its own lowerings."""
BIASES = "biases"
"""The key of a layer that says whether a number for each output channel is added to its results."""


class Read(NamedTuple):
    """The layers of one entry of a file; none where it takes no time.

    Attributes:
        lowering: the lowering that the entry names.
        sources: for each of the layers what it reads, where the file says so of any layer.
        biases: whether each of the layers has biases.
        collective: what the entry is instead of layers, with all the names that it reads, and none that read it.
    """

    layers: tuple[Op, ...]
    lowering: str | None = None
    sources: tuple[tuple[Source, ...], ...] = ()
    biases: bool = False
    collective: CollectiveLayer | None = None


def read_layers(entry: object, names: Mapping[str, int], wiring: Wiring | None = None) -> Read:
    """Read the layers of an entry and its lowering; sizes may be worked out from `names`.

    With the `wiring` of a graph, sizes that the entry leaves out follow from the layers that it reads, and sizes that
    it gives are checked against them. The wiring knows the entry afterwards.

    Raises InputError whose problems' `where` is the key inside the layer, or None for the layer itself.
    """
    if not isinstance(entry, Mapping):
        raise InputError(f"{show(entry)} is not a layer; write e.g. {EXAMPLE}")
    if "op" not in entry:
        raise InputError(Problem(f"required key is missing; add op: with one of {', '.join(OPS)}", "op"))
    op = entry["op"]
    known = *OPS, *COMPOSITES, *FREE
    if not isinstance(op, str) or op not in known:
        instead = "" if str(op).casefold() in {*OPS, *COMPOSITES} else instead_of(str(op))
        hint = f"{instead};" if instead else did_you_mean(str(op), known) or ";"
        raise InputError(Problem(f"unknown op {show(op)}{hint} ops: {', '.join(known)}", "op"))
    read = wiring.read_by(entry) if wiring else []
    sizes = {key: value for key, value in entry.items() if key not in ("op", *_AROUND)}
    if wiring and op in FREE:
        # Entries that take no time have no count, lowering or biases: reading the form reports such keys.
        around = {key: entry[key] for key in _AROUND if key in entry and key not in (INPUTS, SHARD)}
        free = _form_of(op).build({**sizes, **around}, {NAMES: names})
        if SHARD in entry:
            free, _ = _parted(free, _around(entry, names, [SHARD]), names)
        wiring.add_free(free, read)
        if isinstance(free, CollectiveEntry):
            names_read = side_by_side(each.source for each in read).names
            return Read((), collective=CollectiveLayer(free.name, free.does, free.elements, free.over, names_read, ()))
        return Read(())
    if op in COMPOSITES:
        return _read_composite(entry, op, names, wiring, read)
    return _read_layer(entry, op, sizes, names, wiring, read)


def _read_layer(
    entry: Mapping[str, Any], op: str, sizes: dict[str, Any], names: Mapping[str, int], wiring: Wiring | None,
    read: Sequence[EntryOutput],
) -> Read:  # fmt: skip
    """Read an entry that is a layer, or several."""
    wrong: list[Problem] = []
    around, layer, follow = _EntryKeys(), None, dict[str, int]()
    try:
        around = _around(entry, names, _AROUND)
    except InputError as error:
        wrong += error.problems
    # An entry with a count is never alone, even with a count of one: the batch may set it.
    alone = "count" not in entry
    try:
        follow = wiring.sizes(OPS[op], read, sizes) if wiring and alone else {}
        layer = _form_of(op).build({**sizes, **follow}, {NAMES: names})
    except InputError as error:
        found = wiring.causes(error.problems, OPS[op], read, sizes, alone) if wiring else error.problems
        wrong = [*found, *wrong]
    if around.biases and OPS[op].unit != "array":
        says = f"{op} has no biases; leave it out, or write an add whose other operand is one for each channel"
        wrong.append(Problem(says, BIASES))
    if wrong:
        raise InputError(wrong)
    if layer is None:
        # The sizes are sound, so the fault is in the inputs, and it is reported for the layer that reads them.
        if wiring:
            wiring.lose(entry.get("name"))
        return Read(())
    share, count = _parted(layer, around, names)
    if wiring and alone and (wiring.stated or follow):
        _check_share(wiring, share, layer, read, sizes)
    layer = share
    layers = (layer,) if count == 1 else tuple(map(layer.called, numbered(layer.name, count)))
    if wiring:
        wiring.add(layer.name, layers, alone)
    # Each of several layers reads a part of the inputs.
    told = read if wiring and wiring.stated else ()
    sources = tuple(each.source if alone else each.source._replace(direct=False) for each in told)
    return Read(layers, around.lowering, (sources,) * len(layers), around.biases)


def _check_share(wiring: Wiring, share: Op, layer: Op, read: Sequence[EntryOutput], sizes: Mapping[str, Any]) -> None:
    """Check that a chip's part of a layer has the sizes of what it reads, or takes its part of that. Raises
    InputError.
    """
    if share is not layer:
        with suppress(InputError):
            return wiring.check(share, read, sizes)
    return wiring.check(layer, read, sizes)


def _parted(layer: Any, around: _EntryKeys, names: Mapping[str, int]) -> tuple[Any, int]:
    """Return the part of a layer that a chip has, and how often it comes. Raises InputError for a size that it has not,
    or that is uneven.
    """
    known = {each.name: getattr(layer, each.name) for each in fields(layer)} | {"count": around.count}
    sizes, problems = dict[str, int](), list[Problem]()
    for name, axes in around.shard:
        if type(known.get(name)) is not int:
            there = [each for each, value in known.items() if type(value) is int]
            hint = did_you_mean(name, there) or ";"
            problems.append(Problem(f"{layer.op} has no size {show(name)} to part{hint} {', '.join(there)}", SHARD))
        else:
            sizes[name] = parted(known[name], name, axes, names, problems)
    if problems:
        raise InputError(problems)
    count = sizes.pop("count", around.count)
    return (replace(layer, **sizes) if sizes else layer), count


def _read_composite(
    entry: Mapping[str, Any], op: str, names: Mapping[str, int], wiring: Wiring | None, read: Sequence[EntryOutput]
) -> Read:
    """Read an entry that stands for several layers of different kinds."""
    own = {key: value for key, value in entry.items() if key not in ("op", SHARD, INPUTS)}
    made: Composite = _form_of(op).build(own, {NAMES: names})
    if SHARD in entry:
        made = _shared(made, _around(entry, names, [SHARD]), names)
    if wiring is None or INPUTS not in entry or len(read) != len(made.reads):
        says = f"{op} reads {len(made.reads)} inputs: {', '.join(made.reads)}"
        raise InputError(Problem(f"{says}; name the entries that make them: inputs: [{', '.join(made.reads)}]", INPUTS))
    wiring.check_composite(made, read)
    # Counts of elements are enough: heads are split and joined on the way, so shapes differ.
    parts = [*made.parts([each.source for each in read], wiring.batch)]
    wiring.add_composite(made, parts)
    return Read(tuple(part.layer for part in parts), None, tuple(part.sources for part in parts))


def _shared(made: Any, around: _EntryKeys, names: Mapping[str, int]) -> Composite:
    """Return the entry for one of several chips, which share what it names. Raises InputError."""
    for name, axes in around.shard:
        if name != made.shared:
            there = f"write {made.shared}" if made.shared else "part sizes of the file, such as heads"
            raise InputError(Problem(f"{made.op} has nothing called {show(name)} that chips share; {there}", SHARD))
        problems: list[Problem] = []
        parted(getattr(made, name), name, axes, names, problems)
        if problems:
            raise InputError(problems)
        made = replace(made, chips=prod(names.get(axis, 1) for axis in axes))
    shared: Composite = made
    return shared


@validated
class _EntryKeys:
    """The keys of an entry beside those of its operation.

    Attributes:
        count: layers that the entry stands for, all alike; they are named NAME_1, NAME_2 and so on.
        lowering: lowering of the layer, instead of the one that the run asks for.
        biases: whether a number for each output channel is added to the results, of convolutions and products.
        shard: sizes of the layer that axes of a mesh part, such as {n: tensor}.
    """

    count: Annotated[int, whole(MOST_LAYERS)] = 1
    lowering: Annotated[str | None, Name(), written("explicit")] = None
    biases: Annotated[bool, Truth()] = False
    shard: Annotated[Any, Reader(read_shard, "a mapping of sizes to axes"), written("{count: tensor}")] = ()


_AROUND = ("count", LOWERING, BIASES, SHARD, INPUTS)
_AROUND_FORM = Form(_EntryKeys)


@cache
def _form_of(op: str) -> Form[Any]:
    """Return how files write an entry of an operation."""
    if op in FREE or op in COMPOSITES:
        return Form(FREE[op] if op in FREE else COMPOSITES[op], f" for {op}", ["op", INPUTS])
    return Form(OPS[op], f" for {op}", ["op", *_AROUND])


def _around(entry: Mapping[str, object], names: Mapping[str, int], keys: Iterable[str]) -> _EntryKeys:
    said = {key: entry[key] for key in keys if key in entry and key != INPUTS}
    return _AROUND_FORM.build(said, {NAMES: names})


def numbered(name: str, count: int) -> Iterator[str]:
    """Yield the names of the layers of an entry with a `count`."""
    return (f"{name}_{number}" for number in range(1, count + 1))


def name_of(entry: object) -> object:
    """Return the name of an entry, if it has one."""
    return entry.get("name") if isinstance(entry, Mapping) else None


def count_of(entry: object, names: Mapping[str, int]) -> int:
    """Return the count of an entry, or 1 where it is faulty: the fault is reported with the entry."""
    try:
        return _around(entry, names, ["count"]).count if isinstance(entry, Mapping) and "count" in entry else 1
    except InputError:
        return 1


# ---- the names of operations in other tools, and here

_GEMM = "write {name: fc, op: gemm, m: batch, n: 1000, k: 512}: m rows of input, n outputs, k inputs"
_CONV = "write op: conv2d, with in_channels, in_height, in_width, out_channels and kernel"
_SIZES = "in_channels: 32, in_height: 56, in_width: 56, out_channels: 32, kernel: 3, padding: 1, groups: 32"
_ELSEWHERE = (
    (r"conv\w*transpose\w*[13]d", "write the product it is: op: gemm, m: input positions of all images, "
     "k: in_channels, n: out_channels x kernel elements"),
    (r"deform|^dcn", "write op: deform_conv2d, with in_channels, in_height, in_width, out_channels, kernel and, with "
     "masks, modulated: true"),
    (r"conv\w*transpose|transposed?\w*conv|deconv", "write op: conv_transpose2d, with in_channels, in_height, "
     "in_width, out_channels and kernel"),
    (r"conv\w*3d", "write the product it is: op: gemm, m: output positions of all images, k: in_channels x kernel "
     "elements, n: out_channels"),
    (r"depthwise|dwconv|dconv", f"write a group a channel: {{name: dw, op: conv2d, {_SIZES}}}"),
    (r"conv\w*1d", "write op: conv1d, with in_channels, in_length, out_channels and kernel"),
    (r"pointwise", f"{_CONV}: 1"),
    (r"conv", _CONV),
    (r"attention|sdpa", "write op: attention, with inputs: [queries, keys, values], heads, head and queries"),
    (r"expert|^moe|mixture", "write op: experts, with inputs: [rows, weights], rows, channels, inner, experts and top"),
    (r"lstm|gru|rnn", "write its gates as a product: op: gemm, m: batch, n: gates x hidden, k: inputs + hidden"),
    (r"matmul|linear|dense|einsum|innerproduct|fullyconnected|addmm|bmm|matrix|^(fc|mm|dot|mlp|projection)$", _GEMM),
    (r"pool\w*(grad|backward)|selectandscatter", "write op: pool2d_gradient, with kind: max or average, channels, "
     "in_height, in_width and kernel"),
    (r"pool", "write op: pool2d, with kind: max or average, channels, in_height, in_width and kernel"),
    (r"relu6|hardtanh|clamp", "write op: clip, with channels, height, width, min and max"),
    (r"leaky", "write op: leaky_relu, with channels, height, width and slope"),
    (r"hardsigmoid", "write op: hard_sigmoid, with channels, height and width"),
    (r"hard\w*swish|hswish", "write op: hard_swish, with channels, height and width"),
    (r"^relu$", "write op: relu, with channels, height and width"),
    (r"batchnorm|^bn", "write op: scale_shift, with channels, height and width, or leave it out behind a convolution"),
    (r"geglu|gelu\w*(mul|glu|gate)", "write op: geglu, with channels, height and width; it reads the gate, then "
     "what it gates"),
    (r"swiglu|silu\w*(mul|glu|gate)", "write op: swiglu, with channels, height and width; it reads the gate, then "
     "what it gates"),
    (r"soft\w*cap", "write op: soft_cap, with channels, height, width and cap"),
    (r"rotary|^rope", "write op: rotary, with channels (of a head), width (tokens), images, base and start"),
    (r"gelu", "write op: gelu, with channels, height and width; approximate: tanh for that form"),
    (r"silu|swish", "write op: silu, with channels, height and width"),
    (r"crossentropy|nllloss", "write op: cross_entropy, with channels (of a row) and images (the rows)"),
    (r"logsigmoid|logsoftmax", "leave this layer out; it takes no time in this version"),
    (r"top_?k|moe\w*(gat|rout)", "write op: top_k, with channels (of a row), images (the rows), k and renormalize"),
    (r"(causal|mask)\w*softmax|softmax\w*(causal|mask)", "write op: softmax, with channels (keys), images (the rows) "
     "and queries"),
    (r"softmax\w*(grad|backward)", "write op: softmax_gradient, with channels (of a row) and images (the rows)"),
    (r"softmax", "write op: softmax, with channels (of a row) and images (the rows)"),
    (r"layernorm\w*(grad|backward)", "write op: layer_norm_gradient, with channels (of a row) and images (the rows)"),
    (r"rms\w*norm|norm\w*rms", "write op: rms_norm, with channels (of a row), images (the rows) and epsilon"),
    (r"layernorm", "write op: layer_norm, with channels (of a row) and images (the rows)"),
    (r"sigmoid", "write op: sigmoid, with channels, height and width"),
    (r"tanh$", "write op: tanh, with channels, height and width"),
    (r"sqrt$", "write op: sqrt, with channels, height and width"),
    (r"^pow(er)?$|square", "write op: power, with channels, height, width and exponent: 2 or 3"),
    (r"^div(ide)?$", "write op: div, with channels, height and width"),
    (r"residual|eltwise|elementwise|^(plus|sum)$", "write op: add, with channels, height and width"),
    (r"lrn|localresponse", "write op: lrn, with channels, height, width, size, alpha, beta and bias"),
    (r"pixelshuffle|depthtospace|spacetodepth", "leave this layer out; it takes no time in this version"),
    (r"shuffle", "write op: channel_shuffle, with channels, height, width and groups"),
    (r"embed", "write op: embedding, with channels, images (rows of the table) and rows (those that are taken)"),
    (r"permute|transpose", "write op: transpose, with channels, height, width and order, such as [width, height, "
     "channels, images]"),
    (r"upsampl|interpolate|resize", "write op: upsample, with channels, height, width and scale: the nearest is taken"),
    (r"^split$|^narrow$|^chunk$", "write op: slice for each part, with channels, height, width, axis, start and stop"),
    (r"^\w*pad(ding)?(2d)?$", "write op: pad, with channels, height, width and padding"),
    (r"relu|^s?elu|tanh|norm|^bn|dropout|concat|flatten|reshape|"
     r"activation|identity|squeeze|quantize|im2col|"
     r"^(mean|max|min|cat|gather)$",
     "leave this layer out; it takes no time in this version"),
)  # fmt: skip
"""Part of a name, small letters and digits only, and advice; the first part that fits counts."""


def instead_of(op: str) -> str:
    """Return advice on another tool's operation, after "; ", or an empty string where it is unknown."""
    word = re.sub(r"[^a-z0-9]", "", re.split(r"[.:]", op.casefold())[-1])
    return next((f"; {instead}" for part, instead in _ELSEWHERE if re.search(part, word)), "")
