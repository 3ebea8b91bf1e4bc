"""Axes of a sweep with their values, and conditions on machines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from operator import attrgetter
from types import CodeType
from typing import Any

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.base.units import UNITS
from tpusim.flow.lowerings import USUAL_FAMILY, check_known, known, of_any_layer
from tpusim.input.document import Document
from tpusim.input.form import Choice, Quantity
from tpusim.input.scalars import show, whole_number
from tpusim.machines.family import KEY, USUAL, Family, Machine, family_named, family_of, load_hardware
from tpusim.network.entries import FREE, LOWERING
from tpusim.network.workload import sizes_named

Value = int | float | str | tuple[int, ...]
CommandAnswer = int | float | str
BATCH = "batch"
HARDWARE = "hardware"
LAYERS = "layers."
SIZES = "sizes."
EVERY = "all"
"""The values of an axis of lowerings: all lowerings that take every layer; `auto` tries the others."""

_MOST_LISTED = 100_000
_FIELDS = (
    "in_channels", "in_height", "in_width", "in_length", "out_channels", "kernel", "stride", "padding", "dilation",
    "output_padding", "groups", "offset_groups", "offsets", "channels", "height", "width",
    "images", "kind", "other", "m", "n", "k", "count", LOWERING,
)  # fmt: skip


@dataclass(frozen=True)
class Axis:
    """An axis: `name` as written, and `paths`, fields that all take the same one of `values`.

    The axis `hardware` also has `machines`, by the names that are its values.
    """

    name: str
    paths: tuple[str, ...]
    values: Sequence[Value]
    machines: Mapping[Value, Machine] = field(default_factory=dict)

    @property
    def shown(self) -> Sequence[CommandAnswer]:
        """Values as tables show them."""
        return self.values if isinstance(self.values, range) else tuple(map(shown, self.values))

    @property
    def ordered(self) -> bool:
        """Whether neighbouring values are alike: numbers and quantities, unlike words."""
        return all(not isinstance(value, str) or value[:1].isdigit() for value in self.values[:_MOST_LISTED])

    @property
    def numeric(self) -> bool:
        """Whether all values are numbers, so that points can be compared by them."""
        return isinstance(self.values, range) or all(isinstance(value, int | float) for value in self.values)

    @classmethod
    def parse(cls, name: str, values: object, family: Family = USUAL_FAMILY) -> Axis:
        """Return the axis of `array.rows`, `layers.c.kernel`, `sizes.seq`, `batch`, of several with commas, or that
        of `hardware`, whose values are machines of one family.

        Raises:
            InputError: no such field, or no values.
        """
        paths = tuple(path.strip() for path in name.split(","))
        if paths == (HARDWARE,):
            machines = _machines(values)
            return cls(name, paths, tuple(machines), machines)
        fields = (*(each for each in family.paths() if each not in ("name", KEY)), BATCH, LOWERING)
        for path in paths:
            _, _, last = path.rpartition(".")
            if path in ("workload", "workloads"):
                raise InputError("workloads are no axis; list them: workloads: [vgg16, resnet50]")
            if path == HARDWARE:
                raise InputError("machines take no value of another field; make hardware an axis of its own")
            if path.startswith(LAYERS) and (path.count(".") < 2 or last not in _FIELDS):
                hint = did_you_mean(last, _FIELDS) or ";"
                says = f"write layers.NAME.FIELD, fields: {', '.join(_FIELDS)}"
                raise InputError(f"{show(path)} is no field of a layer{hint} {says}")
            if path not in fields and not path.startswith((LAYERS, SIZES)):
                named = *fields, HARDWARE
                hint = did_you_mean(path, named) or ";"
                listed = ", ".join(named)
                raise InputError(f"no field {show(path)}{hint} fields: {listed}, layers.NAME.FIELD, sizes.NAME")
        if len(set(paths)) < len(paths):
            raise InputError(f"names {next(path for path in paths if paths.count(path) > 1)} twice; name it once")
        # Lowerings are names, and "all" stands for every one of them, so they are read apart.
        if all(path.rpartition(".")[2] == LOWERING for path in paths):
            if values == EVERY:
                return cls(name, paths, of_any_layer(family))
            if not isinstance(values, list) or not values:
                allowed = ", ".join(known(family))
                raise InputError(f"{show(values)} is no axis; write {EVERY}, or a list of {allowed}")
            for value in values:
                check_known(value, family)
            return cls(name, paths, tuple(dict.fromkeys(values)))
        return cls(name, paths, _expanded(values))


def of_machine(path: str) -> bool:
    """Whether a path is a field of the machine."""
    return path not in (BATCH, LOWERING, HARDWARE) and not path.startswith((LAYERS, SIZES))


def shown(value: Value) -> CommandAnswer:
    """Return a value as a table shows it: a pair as [3, 1]."""
    return show(list(value)) if isinstance(value, tuple) else value


def layers_of(document: Document, path: str) -> tuple[int, ...]:
    """Return the indices of the layers of a sound file that `layers.NAME.FIELD` means: one by name, or all by a glob.

    Raises:
        InputError: no layer matches; lists the layers.
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
    """Raise InputError if a file has no size that `sizes.NAME` could mean."""
    name, named = path.removeprefix(SIZES), sizes_named(document)
    if name not in named:
        there = f"it has {', '.join(named)}" if named else "it names none"
        raise InputError(f"{document.data['name']} has no size {show(name)}{did_you_mean(name, named) or ';'} {there}")


def _machines(values: object) -> dict[Value, Machine]:
    """Return the machines of a list of shipped names and paths, by the names that they have."""
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise InputError(f"{show(values)} is no axis; list shipped names or paths of machines: [tpu_v2, tpu_v6e]")
    found: dict[Value, Machine] = {}
    problems: list[Problem] = []
    for value in dict.fromkeys(values):
        try:
            machine = load_hardware(value)
        except InputError as error:
            problems += error.problems
            continue
        if machine.name in found:
            raise InputError(f"another machine is called {show(machine.name)}, too; give each file a name of its own")
        found[machine.name] = machine
    if problems:
        raise InputError(problems)
    families = {family_of(machine).name: name for name, machine in found.items()}
    if len(families) > 1:
        listed = ", ".join(f"{name} is a {family}" for family, name in families.items())
        raise InputError(f"machines of one axis are of one family; {listed}: write a sweep for each family")
    return found


def _expanded(values: object) -> Sequence[Value]:
    """Return the values of [a, b, ...], {range: [first, last, step]} or {powers_of_two: [first, last]}."""
    if isinstance(values, list) and values:
        return tuple(dict.fromkeys(_value(each, values) for each in values))
    kind, limits = next(iter(values.items())) if isinstance(values, Mapping) and len(values) == 1 else ("", None)
    if kind == "range" and isinstance(limits, list):
        numbers = [whole_number(limit, 0, 2**40) for limit in limits]
        if len(numbers) not in (2, 3) or numbers[1] < numbers[0] or 0 in numbers[2:]:
            raise InputError(f"range: {show(limits)}; write [first, last] or [first, last, step], the last included")
        first, last, step = (*numbers, 1)[:3]
        # A range is not expanded: it may be longer than memory holds, and is then refused by its length.
        return range(first, last + 1, step)
    if kind == "powers_of_two" and isinstance(limits, list):
        numbers = [whole_number(limit, 1, 2**40) for limit in limits]
        if len(numbers) != 2 or numbers[1] < numbers[0] or any(number & (number - 1) for number in numbers):
            raise InputError(f"powers_of_two: {show(limits)}; write [first, last], both powers of two")
        first, last = numbers
        return tuple(first << shift for shift in range((last // first).bit_length()))
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


# ---- conditions on a machine, as `where` states them: "vector_memory.capacity * lanes == 32 MiB"

_UNITS = {suffix: unit for unit in UNITS for suffix in unit.scales}
_QUANTITY = re.compile(rf"(?<![\w.])(\d+(?:\.\d+)?)\s*({'|'.join(sorted(_UNITS, key=len, reverse=True))})(?![\w/])")
_PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_ALLOWED = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.BinOp, ast.Add, ast.Sub, ast.Mult,
    ast.Div, ast.FloorDiv, ast.Mod, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Name,
    ast.Load, ast.Constant,
)  # fmt: skip
_WORDS = ("and", "or", "not")
_CHOSEN = (LOWERING, "workload", HARDWARE)
"""Fields besides the machine's that a sweep varies."""
_EXTRA = ("lanes", "pes", "batch")
_LONGEST, _DEEPEST = 1000, 300
_TEXTS = str, str | None


@dataclass(frozen=True)
class Constraint:
    """A condition, `text` as written, on machines of a family; sizes, rates, frequencies and times count in base
    units.
    """

    text: str
    family: str = USUAL

    def holds(self, hardware: Machine, batch: int) -> bool:
        """Return whether a machine and a batch satisfy it. Raise InputError for sums of texts, and for division by
        zero.
        """
        code, names = _compiled(self.text, self.family)
        values = {name: batch if name == "batch" else value_of(hardware) for name, value_of in names.items()}
        try:
            return bool(eval(code, {"__builtins__": {}}, values))
        except (TypeError, ZeroDivisionError, OverflowError) as error:
            raise InputError(f"where: {self.text!r} cannot be worked out ({error})") from None

    @classmethod
    def parse(cls, text: object, family: str = USUAL) -> Constraint:
        """Raise InputError that says which name or construct is wrong."""
        if not isinstance(text, str) or not text.strip():
            raise InputError("a condition is text such as vector_memory.capacity * lanes == 32 MiB")
        if len(text) > _LONGEST:
            raise InputError(f"a condition has at most {_LONGEST} characters; this has {len(text)}")
        known = _known(family)
        # Units such as MiB would look like names, so quantities are taken out first.
        for path in _PATH.findall(_QUANTITY.sub("0", text)):
            if path not in known and path not in _WORDS:
                numbers = f"a condition compares numbers: {', '.join(known)}"
                if path in family_named(family).paths():
                    raise InputError(f"{path!r} is no single number; {numbers}")
                if path in _CHOSEN:
                    wanted = "leave out of its list what is not wanted"
                    raise InputError(f"{path!r} is no number; {wanted}, as {numbers}")
                raise InputError(f"no field {path!r}{did_you_mean(path, known) or ';'} {numbers}")
        try:
            tree = ast.parse(_python(text), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise InputError(f"{text!r} is not a condition; write e.g. array.rows == array.cols") from None
        # A deep tree would overflow the stack of the functions that walk it.
        if (depth := _depth(tree)) > _DEEPEST:
            raise InputError(f"a condition nests at most {_DEEPEST} deep; this does {depth}; write it with fewer signs")
        constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        # The condition is evaluated by Python, so that only harmless syntax may pass.
        allowed = all(isinstance(node, _ALLOWED) for node in ast.walk(tree))
        if not allowed or not all(type(each) in (int, float) for each in constants) or not _is_condition(tree.body):
            raise InputError(f"{text!r} is not a condition; write comparisons of sums and products, e.g. lanes <= 256")
        if wrong := _clash(text, family):
            raise InputError(f"{text!r} makes no sense: {wrong}")
        return cls(text, family)


def _depth(tree: ast.AST) -> int:
    """Return the depth of a syntax tree."""
    depth, level = 0, [tree]
    while level:
        depth, level = depth + 1, [child for node in level for child in ast.iter_child_nodes(node)]
    return depth


def _is_condition(node: ast.AST) -> bool:
    if isinstance(node, ast.BoolOp):
        return all(map(_is_condition, node.values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _is_condition(node.operand)
    return isinstance(node, ast.Compare)


@cache
def _known(family: str) -> dict[str, tuple[str, str]]:
    """Return the names that a condition may use, in the order of a machine's description: attribute and unit
    of each.
    """
    model = family_named(family).model()
    more = {name: (name, "") for name in _EXTRA if name == "batch" or hasattr(model, name)}
    return {path: (attribute, base) for path, attribute, base in _numbers(model, "", "")} | more


def _numbers(model: Any, path: str, attribute: str) -> Iterator[tuple[str, str, str]]:
    """Yield path, attribute and unit of numbers in a model and its sections, which lie at `path`."""
    for name, info in model.model_fields.items():
        at, of = f"{path}{info.serialization_alias or name}", f"{attribute}{name}"
        if hasattr(info.annotation, "model_fields"):
            yield from _numbers(info.annotation, f"{at}.", f"{of}.")
        elif info.annotation not in _TEXTS and not any(isinstance(k, Choice) and not k.most for k in info.metadata):
            yield at, of, next((kind.unit.base for kind in info.metadata if isinstance(kind, Quantity)), "")


@cache
def _compiled(text: str, family: str) -> tuple[CodeType, Mapping[str, attrgetter[Any]]]:
    """Return the compiled condition, and getters of the values of its names for a machine."""
    code = compile(_python(text), "where", "eval")
    attributes = {_names(path): attribute for path, (attribute, _) in _known(family).items()}
    return code, {name: attrgetter(attributes[name]) for name in code.co_names}


def _python(text: str) -> str:
    """Return the text with quantities as whole numbers, and with underscores for the dots of paths."""
    return _names(_QUANTITY.sub(lambda match: str(_UNITS[match[2]].parse(match[0])), text))


def _names(text: str) -> str:
    return _PATH.sub(lambda match: match[0].replace(".", "__"), text)


def _clash(text: str, family: str) -> str:
    """Return why two sides can never be compared, such as bytes and bytes/s; empty if they can."""
    tree = ast.parse(_names(_QUANTITY.sub(lambda match: f"unit_{match[2].replace('/', '_per_')}", text)), mode="eval")
    bases = {f"unit_{suffix.replace('/', '_per_')}": unit.base for suffix, unit in _UNITS.items()}
    bases |= {_names(path): base for path, (_, base) in _known(family).items()}
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [base for side in (node.left, *node.comparators) if (base := _base(side, bases))]
            if len(set(sides)) > 1:
                return f"it compares {sides[0]} with {next(base for base in sides if base != sides[0])}"
    return ""


def _base(node: ast.AST, bases: Mapping[str, str]) -> str:
    """Return the unit of an expression, if it surely has one; plain numbers and products of units have none."""
    if isinstance(node, ast.Name):
        return bases.get(node.id, "")
    if isinstance(node, ast.UnaryOp):
        return _base(node.operand, bases)
    if not isinstance(node, ast.BinOp):
        return ""
    left, right = _base(node.left, bases), _base(node.right, bases)
    if isinstance(node.op, ast.Add | ast.Sub):
        return left or right
    if isinstance(node.op, ast.Mult):
        return "" if left and right else left or right
    return "" if right else left
