"""Files of which layers say what they read: who reads whom, and the sizes that follow from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.base.words import counted
from tpusim.input.scalars import path_of, show
from tpusim.network.edges import INPUT, Source
from tpusim.network.free import FREE, Free, Made, size_of
from tpusim.network.ops import Op
from tpusim.network.ops.op import OFMAP, Shape

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

    def __init__(self, inputs: Sequence[str], batch: int, names: Iterable[object]) -> None:
        """`names` are those of all entries, in order."""
        self._batch = batch
        self._made = {name: Made(Source((name,))) for name in inputs}
        self._last = inputs[0]
        self._names = {name for name in names if isinstance(name, str)}

    def read_by(self, entry: Mapping[str, Any]) -> list[Made]:
        """What the next entry reads: that before it, unless it says otherwise. Raises InputError."""
        given = entry.get(INPUTS, [self._last])
        given = [given] if isinstance(given, str) else given
        if not isinstance(given, list) or not given or not all(isinstance(each, str) for each in given):
            says = f"{show(given)} names no layers; write those that are read, such as [conv1], or {INPUT}"
            raise InputError(Problem(says, INPUTS))
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

    def check(self, layer: Op, read: Sequence[Made], given: Mapping[str, Any]) -> None:
        """That a layer is of the sizes of what it reads. Raises InputError."""
        tensors = layer.reads(self._batch)
        if len(read) > len(tensors):
            says = f"reads {counted(len(read), 'map')}, where {layer.op} has {len(tensors)}: {', '.join(tensors)}"
            raise InputError(Problem(f"{says}; join maps by a concat before it, or name fewer", INPUTS))
        problems = [
            each
            for number, (made, wanted) in enumerate(zip(read, tensors.values(), strict=False))
            if (each := self._unfit(layer, made, wanted, given, number))
        ]
        if problems:
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
        if isinstance(name, str):
            self._put(name, Made(Source((name,))))

    def _put(self, name: str, made: Made) -> None:
        self._made[name] = made
        self._last = name

    def _unknown(self, name: str, own: object) -> str:
        if name == own:
            return f"reads itself; a network has no cycles: name a layer before it, or {INPUT}"
        if name in self._names:
            return f"reads {show(name)}, which comes after it; layers stand behind those that they read, without cycles"
        if whole := next((entry for entry, made in self._made.items() if name in made.source.names), ""):
            return f"reads {show(name)} alone, one layer of several; read all of them, as {whole}"
        hint = did_you_mean(name, self._made) or ";"
        return f"there is no layer {show(name)} to read{hint} name layers before this one, or {INPUT}"

    def _unfit(self, layer: Op, made: Made, wanted: Shape, given: Mapping[str, Any], number: int) -> Problem | None:
        if self.fits(made, wanted):
            return None
        who = " and ".join(made.source.names)
        if made.shape is None:
            says = f"reads {prod(wanted):,} elements of {who}, which make {made.elements:,}"
            return Problem(f"{says}; change the sizes, or put a view between", INPUTS)
        differ = [axis for axis in range(4) if made.shape[axis] != wanted[axis]]
        fields = [field for field, axis in layer.sized_by.items() if axis in differ and field in given]
        what = f"{size_of(made.shape, self._batch)} ({' x '.join(_AXES[:3])}) from {who}"
        says = f"reads {what}, where its own sizes make that {size_of(wanted, self._batch)}"
        leave = f"leave {', '.join(fields)} out, or change what it reads" if fields else "change what it reads"
        row = wanted[1] * wanted[2] == 1 < made.shape[1] * made.shape[2]
        flat = "; a flatten before it makes one row of a map" if row else ""
        return Problem(f"{says}; {leave}{flat}", fields[0] if fields and not number else INPUTS)
