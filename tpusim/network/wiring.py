"""Files of which layers say what they read: who reads whom, entries that take no time, sizes that follow from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Annotated, Any, ClassVar, NamedTuple

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.base.words import counted
from tpusim.input.form import Name, validated
from tpusim.input.scalars import path_of, show
from tpusim.network.ops.op import OFMAP, Channels, Images, Op, Shape, Size
from tpusim.network.workload import INPUT, Source, side_by_side


class Made(NamedTuple):
    """What an entry hands on.

    Attributes:
        source: of whose outputs it is.
        shape: [channel, row, col, image]; None where that is not known.
        elements: how many those are; None, too.
        lost: whether something is wrong with it or with what it is of, so that its shape is not known.
    """

    source: Source
    shape: Shape | None = None
    elements: int | None = None
    lost: bool = False


class Free(ABC):
    """An entry of a network's graph that takes no time: it says how what layers make is read."""

    __slots__ = ()

    op: ClassVar[str]
    """Its name in files."""
    name: str

    @abstractmethod
    def made(self, read: Sequence[Made], batch: int) -> Made:
        """What it hands on of what it reads. Raises InputError where there is no such thing."""


@validated
class Concat(Free):
    """Maps of one size, side by side along the channels: who reads them reads them where they lie."""

    op: ClassVar[str] = "concat"

    name: Annotated[str, Name()]

    def made(self, read: Sequence[Made], batch: int) -> Made:
        source = side_by_side(each.source for each in read)
        shapes = [each.shape for each in read if each.shape is not None]
        if {shape[1:] for shape in shapes} - {shapes[0][1:] if shapes else None}:
            sizes = ", ".join(size_of(shape, batch) for shape in shapes)
            raise InputError(f"joins maps of {sizes} (channels x rows x columns), which differ in more than channels")
        if len(shapes) < len(read):
            return Made(source, lost=any(each.lost for each in read))
        return Made(source, (sum(shape[0] for shape in shapes), *shapes[0][1:]))


@validated
class Flatten(Free):
    """A map as one row of channels, as a product reads it: for each channel its rows, for each of them its columns."""

    op: ClassVar[str] = "flatten"

    name: Annotated[str, Name()]

    def made(self, read: Sequence[Made], batch: int) -> Made:
        if len(read) != 1:
            raise InputError(f"reads {len(read)} maps; name one, or join them by a concat before")
        (one,) = read
        if one.shape is None:
            return one._replace(source=one.source._replace(direct=False))
        channels, rows, cols, images = one.shape
        direct = one.source.direct and rows * cols == 1
        return Made(one.source._replace(direct=direct), (channels * rows * cols, 1, 1, images))


@validated
class View(Free):
    """A map of a size that it says, of what it reads by ways that take no time here: turned, cut, or not simulated."""

    op: ClassVar[str] = "view"

    name: Annotated[str, Name()]
    channels: Channels
    height: Size = 1
    width: Size = 1
    images: Images = 0

    def made(self, read: Sequence[Made], batch: int) -> Made:
        shape = self.channels, self.height, self.width, self.images or batch
        return Made(side_by_side((each.source for each in read), direct=False), shape)


FREE: dict[str, type[Free]] = {kind.op: kind for kind in (Concat, Flatten, View)}
"""By their names in files."""


def size_of(shape: Shape, batch: int) -> str:
    """ "64x56x56": channels x rows x columns, and n images where these are not the batch."""
    channels, rows, cols, images = shape
    return f"{channels}x{rows}x{cols}" + (f" n{images}" if images != batch else "")


INPUTS = "inputs"
"""The key of a layer that names what it reads, and that of a file that names the inputs of its network."""
_AXES = ("channels", "rows", "columns", "images")


def is_graph(entries: object) -> bool:
    """Whether any of a file's entries says what it reads."""
    if not isinstance(entries, list | tuple):
        return False
    return any(isinstance(each, Mapping) and (INPUTS in each or str(each.get("op")) in FREE) for each in entries)


def inputs_of(given: object) -> tuple[str, ...]:
    """The names of a network's inputs, as its file has them. Raises InputError."""
    if given is None:
        return (INPUT,)
    if not isinstance(given, list) or not given or not all(isinstance(each, str) and each for each in given):
        raise InputError(f"{show(given)} names no inputs; write a list of names, such as [image, mask]")
    return tuple(given)


class Wiring:
    """Who reads whom among the entries of a file, which are met one after another."""

    def __init__(self, inputs: Sequence[str], batch: int, names: Iterable[object], sure: bool = True) -> None:
        """`names` are those of all entries, in order. Unless `sure`, names of inputs or sizes of the file are wrong,
        which is told there: nothing is told of what follows from them.
        """
        self._batch, self._sure = batch, sure
        self._made = {name: Made(Source((name,))) for name in inputs}
        self._inputs: dict[str, str] = dict.fromkeys(inputs, "")
        """With the layer that says of what size an input is: the first that reads it."""
        self._last = self._made[inputs[0]]
        self._names = {name for name in names if isinstance(name, str)}

    def read_by(self, entry: Mapping[str, Any]) -> list[Made]:
        """What the next entry reads: that before it, unless it says otherwise. Raises InputError."""
        if INPUTS not in entry:
            return [self._last]
        given = [entry[INPUTS]] if isinstance(entry[INPUTS], str) else entry[INPUTS]
        if not isinstance(given, list) or not given or not all(isinstance(each, str) for each in given):
            says = f"{show(given)} names no layers; write those that are read, such as [conv1], or {INPUT}"
            raise InputError(Problem(says, INPUTS))
        if not self._sure:
            return [self._made.get(name, Made(Source((name,)), lost=True)) for name in given]
        wrong = [(index, name) for index, name in enumerate(given) if name not in self._made]
        if wrong:
            own = entry.get("name")
            raise InputError([Problem(self._unknown(name, own), path_of((INPUTS, index))) for index, name in wrong])
        return [self._made[name] for name in given]

    def sizes(self, kind: type[Op], read: Sequence[Made], given: Mapping[str, Any]) -> dict[str, int]:
        """Sizes of a layer that follow from what it reads; images where they are not the batch."""
        shape = read[0].shape
        if shape is None:
            return {}
        follow = {field: shape[axis] for field, axis in kind.sized_by.items() if field not in given}
        return {field: size for field, size in follow.items() if field != "images" or size != self._batch}

    def causes(
        self, problems: Iterable[Problem], kind: type[Op], read: Sequence[Made], given: Mapping[str, Any], alone: bool
    ) -> list[Problem]:
        """What is wrong with a layer that could not be made, but for what follows from what is wrong before it.

        Sizes that are missing follow from that; where they are missing for another reason, that is told.
        """
        absent = {field for field in kind.sized_by if field not in given}
        if alone and read[0].lost:
            return [each for each in problems if each.where not in absent]
        why = self._no_size(read[0], alone)
        return [replace(each, message=f"{each.message} ({why})") if each.where in absent else each for each in problems]

    def check(self, layer: Op, read: Sequence[Made], given: Mapping[str, Any]) -> None:
        """Check that a layer is of the sizes of what it reads. The first that reads an input of the network says its
        size. Raises InputError.
        """
        tensors = layer.reads(self._batch)
        if len(read) > len(tensors):
            says = f"reads {counted(len(read), 'map')}, where {layer.op} has {len(tensors)}: {', '.join(tensors)}"
            raise InputError(Problem(f"{says}; join maps by a concat before it, or name fewer", INPUTS))
        problems: list[Problem] = []
        for number, (made, wanted) in enumerate(zip(read, tensors.values(), strict=False)):
            # An input of the network has the size that a layer before has said.
            name, one = made.source.names[0], len(made.source.names) == 1
            now = self._made[name] if one and name in self._inputs and made.source.direct else made
            if self.fits(now, wanted):
                if now is self._made.get(name) and now.shape is None and name in self._inputs:
                    self._made[name] = now._replace(shape=wanted)
                    self._inputs[name] = layer.name
            else:
                problems.append(self._unfit(layer, now, wanted, given, number))
        if problems and self._sure:
            raise InputError(problems)

    def fits(self, made: Made, wanted: Shape) -> bool:
        """Whether a tensor may be what an entry hands on, as far as that is known."""
        if made.shape is not None:
            return made.shape == wanted
        return made.elements is None or made.elements == prod(wanted)

    def made(self, name: str) -> Made | None:
        """What an entry hands on, if there is one of that name so far."""
        return self._made.get(name)

    def add_free(self, entry: Free, read: Sequence[Made]) -> None:
        """Take note of an entry that takes no time. Raises InputError."""
        self._put(entry.name, entry.made(read, self._batch))

    def add(self, name: str, layers: Sequence[Op], alone: bool = True) -> None:
        """Take note of the layers of an entry, `alone` one that is not said to come several times."""
        names, shapes = tuple(layer.name for layer in layers), [layer.shapes(self._batch)[OFMAP] for layer in layers]
        if alone:
            self._put(name, Made(Source(names), shapes[0]))
        else:
            self._put(name, Made(Source(names, direct=False), None, sum(map(prod, shapes))))

    def lose(self, name: object) -> None:
        """Take note of an entry with which something is wrong: that is no fault of those that read it."""
        self._last = Made(Source((str(name),)), lost=True)
        if isinstance(name, str):
            self._made[name] = self._last

    def _put(self, name: str, made: Made) -> None:
        self._made[name] = self._last = made

    def _no_size(self, made: Made, alone: bool) -> str:
        if not alone:
            return "of layers that come several times each reads a part, of which nobody tells the size"
        if made.source.names[0] in self._inputs:
            return f"the first layer that reads {made.source.names[0]} says its size"
        return f"it reads {counted(len(made.source.names), 'layer')} side by side, which have no one size"

    def _unknown(self, name: str, own: object) -> str:
        if name == own:
            return f"reads itself; a network has no cycles: name a layer before it, or {INPUT}"
        if name in self._names:
            return f"reads {show(name)}, which comes after it; layers stand behind those that they read, without cycles"
        if whole := next((entry for entry, made in self._made.items() if name in made.source.names), ""):
            return f"reads {show(name)} alone, one layer of several; read all of them, as {whole}"
        hint = did_you_mean(name, self._made) or ";"
        return f"there is no layer {show(name)} to read{hint} name layers before this one, or {INPUT}"

    def _unfit(self, layer: Op, made: Made, wanted: Shape, given: Mapping[str, Any], number: int) -> Problem:
        """What is wrong with a layer of another size than what it reads."""
        who = " and ".join(made.source.names)
        if made.shape is None:
            says = f"reads {prod(wanted):,} elements of {who}, which make {made.elements:,}"
            return Problem(f"{says}; change the sizes, or put a view between", INPUTS)
        if not number and not {1, 2} & {*layer.sized_by.values()} and made.shape[1] * made.shape[2] > 1:
            return self._unflattened(layer, made.shape, wanted, who, given)
        differ = [axis for axis in range(4) if made.shape[axis] != wanted[axis]]
        fields = [field for field, axis in layer.sized_by.items() if axis in differ and field in given]
        first = self._inputs.get(who)
        what = f"{size_of(made.shape, self._batch)} ({' x '.join(_AXES[:3])}) from {who}"
        says = f"reads {what}{f', as {first} does' if first else ''}"
        own = f"where its own sizes make that {size_of(wanted, self._batch)}"
        leave = f"leave {', '.join(fields)} out, or change what it reads" if fields else "change what it reads"
        return Problem(f"{says}, {own}; {leave}", fields[0] if fields and not number else INPUTS)

    def _unflattened(self, layer: Op, shape: Shape, wanted: Shape, who: str, given: Mapping[str, Any]) -> Problem:
        """What is wrong with a layer of rows that reads a map."""
        flat = {0: prod(shape[:3]), 3: shape[3]}
        fields = [field for field, axis in layer.sized_by.items() if field in given and wanted[axis] != flat[axis]]
        map_of = f"a map of {size_of(shape, self._batch)} ({' x '.join(_AXES[:3])}) from {who}"
        also = f", and leave {', '.join(fields)} out" if fields else ""
        before = f"put {{name: flat, op: flatten}} before it, which makes rows of {flat[0]:,}{also}"
        return Problem(f"reads {map_of}, where {layer.op} takes rows; {before}", INPUTS)
