"""The axes of a sweep: what is varied, and the values it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tpusim.base.errors import InputError, did_you_mean
from tpusim.flow.lowerings import check_known, known, of_any_layer
from tpusim.input.document import Document
from tpusim.input.scalars import show, whole_number
from tpusim.machines.family import KEY, Family
from tpusim.machines.tpu.family import FAMILY as TPU
from tpusim.network.entries import LOWERING
from tpusim.network.wiring import FREE
from tpusim.network.workload import sizes_named

Value = int | float | str | tuple[int, ...]
Shown = int | float | str
BATCH = "batch"
LAYERS = "layers."
SIZES = "sizes."
EVERY = "all"
"""Of an axis of lowerings: all of them but those of some layers alone, which `auto` tries."""

_MOST_LISTED = 100_000
_FIELDS = (
    "in_channels", "in_height", "in_width", "in_length", "out_channels", "kernel", "stride", "padding", "dilation",
    "output_padding", "groups", "offset_groups", "offsets", "channels", "height", "width",
    "images", "kind", "other", "m", "n", "k", "count", LOWERING,
)  # fmt: skip


@dataclass(frozen=True)
class Axis:
    """`name` as it was written; `paths` are the fields that all take the same one of `values`."""

    name: str
    paths: tuple[str, ...]
    values: Sequence[Value]

    @property
    def shown(self) -> Sequence[Shown]:
        """The values as tables show them."""
        return self.values if isinstance(self.values, range) else tuple(map(shown, self.values))

    @property
    def ordered(self) -> bool:
        """Whether neighbouring values are alike: numbers and quantities, as opposed to words."""
        return all(not isinstance(value, str) or value[:1].isdigit() for value in self.values[:_MOST_LISTED])

    @property
    def numeric(self) -> bool:
        """Whether all values are numbers, so that points can be compared by them."""
        return isinstance(self.values, range) or all(isinstance(value, int | float) for value in self.values)

    @classmethod
    def parse(cls, name: str, values: object, family: Family = TPU) -> Axis:
        """Return the axis of `array.rows`, `layers.conv1.kernel`, `sizes.seq`, `batch`, or several, commas between.

        Raises:
            InputError: no such field, or no values.
        """
        paths = tuple(path.strip() for path in name.split(","))
        for path in paths:
            _check_path(path, family)
        if len(set(paths)) < len(paths):
            raise InputError(f"names {next(path for path in paths if paths.count(path) > 1)} twice; name it once")
        if all(path.rpartition(".")[2] == LOWERING for path in paths):
            return cls(name, paths, _lowerings(values, family))
        return cls(name, paths, _expanded(values))


def of_machine(path: str) -> bool:
    """Whether it is a field of the machine."""
    return path not in (BATCH, LOWERING) and not path.startswith((LAYERS, SIZES))


def shown(value: Value) -> Shown:
    """Return a value as a table shows it: a pair as [3, 1]."""
    return show(list(value)) if isinstance(value, tuple) else value


def layers_of(document: Document, path: str) -> tuple[int, ...]:
    """Return which layers of a sound file `layers.NAME.FIELD` means: the one of that name, or all that match the glob.

    Raises:
        InputError: none; says what the layers are called.
    """
    pattern, _, _ = path.removeprefix(LAYERS).rpartition(".")
    entries = enumerate(document.data["layers"])
    places = {index: entry["name"] for index, entry in entries if entry["op"] not in FREE}
    found = [index for index, name in places.items() if name == pattern]
    found = found or [index for index, name in places.items() if fnmatchcase(name, pattern)]
    if not found:
        names = [*places.values()]
        listed = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        hint = did_you_mean(pattern, names) or ";"
        raise InputError(f"{document.data['name']} has no layer {show(pattern)}{hint} it has {listed}")
    return tuple(found)


def check_size(document: Document, path: str) -> None:
    """Raise InputError when a file names no size that `sizes.NAME` could mean."""
    name, named = path.removeprefix(SIZES), sizes_named(document)
    if name not in named:
        there = f"it has {', '.join(named)}" if named else "it names none"
        raise InputError(f"{document.data['name']} has no size {show(name)}{did_you_mean(name, named) or ';'} {there}")


def _check_path(path: str, family: Family) -> None:
    fields = (*(each for each in family.paths() if each not in ("name", KEY)), BATCH, LOWERING)
    if path in ("workload", "workloads"):
        raise InputError("workloads are no axis; list them: workloads: [vgg16, resnet50]")
    if path.startswith(LAYERS):
        _, _, field = path.rpartition(".")
        if path.count(".") < 2 or field not in _FIELDS:
            hint = did_you_mean(field, _FIELDS) or ";"
            listed = ", ".join(_FIELDS)
            raise InputError(f"{show(path)} is no field of a layer{hint} write layers.NAME.FIELD, fields: {listed}")
    elif path not in fields and not path.startswith(SIZES):
        hint = did_you_mean(path, fields) or ";"
        raise InputError(f"no field {show(path)}{hint} fields: {', '.join(fields)}, layers.NAME.FIELD, sizes.NAME")


def _lowerings(values: object, family: Family) -> Sequence[Value]:
    """Return, for the word `all`, every lowering that any layer can be asked for; or the names in a list."""
    if values == EVERY:
        return of_any_layer(family)
    if not isinstance(values, list) or not values:
        raise InputError(f"{show(values)} is no axis; write {EVERY}, or a list of {', '.join(known(family))}")
    for value in values:
        check_known(value, family)
    return tuple(dict.fromkeys(values))


def _expanded(values: object) -> Sequence[Value]:
    """Return the values of [a, b, ...], {range: [first, last, step]} or {powers_of_two: [first, last]}."""
    if isinstance(values, list) and values:
        return tuple(dict.fromkeys(_value(each, values) for each in values))
    if isinstance(values, Mapping) and len(values) == 1:
        ((kind, limits),) = values.items()
        if kind in ("range", "powers_of_two") and isinstance(limits, list):
            return _range(limits) if kind == "range" else _powers(limits)
    what = "an empty list" if values == [] else show(values)
    raise InputError(
        f"{what} is no axis; write a list, {{range: [first, last, step]}} or {{powers_of_two: [first, last]}}"
    )


def _value(value: object, values: object) -> Value:
    if isinstance(value, list) and len(value) in (2, 4) and all(type(each) is int for each in value):
        return tuple(value)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(f"{show(values)} is not a list of numbers, quantities and pairs; {show(value)} is none")
    return value


def _range(limits: list[object]) -> Sequence[Value]:
    numbers = [whole_number(limit, 0, 2**40) for limit in limits]
    if len(numbers) not in (2, 3) or numbers[1] < numbers[0] or 0 in numbers[2:]:
        raise InputError(f"range: {show(limits)}; write [first, last] or [first, last, step], the last included")
    first, last, step = (*numbers, 1)[:3]
    # Not written out: a range may be longer than memory holds, and is then refused with its length.
    return range(first, last + 1, step)


def _powers(limits: list[object]) -> Sequence[Value]:
    numbers = [whole_number(limit, 1, 2**40) for limit in limits]
    if len(numbers) != 2 or numbers[1] < numbers[0] or any(number & (number - 1) for number in numbers):
        raise InputError(f"powers_of_two: {show(limits)}; write [first, last], both powers of two")
    first, last = numbers
    return tuple(first << shift for shift in range((last // first).bit_length()))
