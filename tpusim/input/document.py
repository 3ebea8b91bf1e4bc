"""YAML text into plain data that remembers the line of everything in it.

PyYAML's node graph is read directly rather than through its constructors: that is where the lines are, and
the only place where a duplicate key, an alias that contains itself, or `1e3` (text, to YAML 1.1) still shows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import yaml

from tpusim.base.errors import InputError, Problem
from tpusim.input.scalars import FLOAT, INTEGER, show

MAX_VALUES = 200_000
MAX_DEPTH = 50
# An axis of a sweep that names several fields is one key.
_LONGEST_KEY = 200

# The C scanner is some ten times as fast; wheels of PyYAML have it, a build from source may not.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_TRUE = frozenset({"true", "yes", "on"})


@dataclass(frozen=True)
class Document:
    """A YAML mapping as plain dicts, lists and scalars, with the place of every path in it.

    `lines` maps "layers[2].kernel" to a line counted from 1; `overridden` maps a path to what replaced it
    ("--set array.rows=64"); `problems` are those already found while reading.
    """

    label: str
    data: Mapping[str, Any]
    lines: Mapping[str, int]
    problems: tuple[Problem, ...] = ()
    overridden: Mapping[str, str] = field(default_factory=dict)

    def problem(self, path: str, message: str) -> Problem:
        """A Problem placed at `path`, or, when the file has no such path, at the nearest one around it."""
        if path in self.overridden:
            return Problem(message, self.overridden[path])
        line = self._line(path)
        return Problem(message, _place(self.label, line, path), line)

    def override(self, path: str, value: object, where: str) -> Document:
        """A copy in which `path` ("array.rows") holds `value`; its problems are then placed at `where`."""
        data = _with_value(self.data, path.split("."), value)
        return replace(self, data=data, overridden={**self.overridden, path: where})

    def with_data(self, data: Mapping[str, Any]) -> Document:
        """A copy that holds `data` and keeps every place."""
        return replace(self, data=data)

    def in_order(self, problems: Iterable[Problem]) -> tuple[Problem, ...]:
        """`problems` and those found while reading, by line; overrides last.

        Where reading already failed, what validation says of the remains is left out.
        """
        unread = {problem.where for problem in self.problems}
        found = dict.fromkeys((*self.problems, *(each for each in problems if each.where not in unread)))
        return tuple(sorted(found, key=lambda problem: problem.line or sys.maxsize))

    def _line(self, path: str) -> int:
        while path and path not in self.lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.lines.get(path, 1)


def parse_document(text: str, label: str) -> Document:
    """Read YAML `text`; `label` names it in messages. Raises InputError when nothing can be made of it."""
    node = _compose(text, label)
    if not isinstance(node, yaml.MappingNode):
        _fail(label, f"{_top_level(node)}; write keys, such as name: my_name", _line_of(node) if node else 1)
    reader = _Reader(label)
    data = reader.mapping(node, "", ())
    return Document(label, data, {"": _line_of(node), **reader.lines}, tuple(reader.problems))


def parse_scalar(text: str) -> object:
    """One YAML scalar as `--set PATH=VALUE` gives it: "64" is 64, "700 MHz" is text. Raises InputError."""
    try:
        node = _compose(text, "value")
    except InputError:
        raise InputError(_not_single_message(text)) from None
    if node is not None and not isinstance(node, yaml.ScalarNode):
        raise InputError(_not_single_message(text))
    return None if node is None else _scalar(node.tag, str(node.value))


def _not_single_message(text: str) -> str:
    return f"{show(text)} is not a single value; write one number or one text"


class _Reader:
    """One walk over a node graph, gathering lines and problems on the way."""

    def __init__(self, label: str) -> None:
        self.lines: dict[str, int] = {}
        self.problems: list[Problem] = []
        self._label = label
        self._values = 0

    def mapping(self, node: yaml.MappingNode, path: str, above: tuple[int, ...]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        inherited: dict[str, Any] = {}
        first: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                inherited |= self._merged(value_node, path, above)
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self._add_problem(key_node, path, "a key must be plain text; a list or mapping cannot be one")
                continue
            key = _key(str(key_node.value))
            at = f"{path}.{key}" if path else key
            if key in first:
                self._add_problem(key_node, at, f"key given twice, first on line {first[key]}; remove one")
                continue
            first[key] = self.lines[at] = _line_of(key_node)
            result[key] = self._value(value_node, at, above)
        return {**inherited, **result}

    def _sequence(self, node: yaml.SequenceNode, path: str, above: tuple[int, ...]) -> list[Any]:
        items: list[Any] = []
        for index, child in enumerate(node.value):
            at = f"{path}[{index}]"
            self.lines[at] = _line_of(child)
            items.append(self._value(child, at, above))
        return items

    def _value(self, node: yaml.Node, path: str, above: tuple[int, ...]) -> Any:
        self._refuse_endless(node, path, above)
        if not node.tag.startswith(_TAG) or node.tag.startswith(f"{_TAG}python"):
            tag = node.tag.replace(_TAG, "!!")[:60]
            self._add_problem(node, path, f"the tag {tag} is not allowed; remove it")
            return None
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path, (*above, id(node)))
        if isinstance(node, yaml.SequenceNode):
            return self._sequence(node, path, (*above, id(node)))
        return _scalar(node.tag, str(node.value))

    def _refuse_endless(self, node: yaml.Node, path: str, above: tuple[int, ...]) -> None:
        self._values += 1
        if id(node) in above:
            message = f"{path}: an alias stands inside what it refers to; write the value out"
            _fail(self._label, message, self.lines.get(path, _line_of(node)))
        if self._values > MAX_VALUES:
            key = path.partition("[")[0]
            message = f"{key}: over {MAX_VALUES} values with aliases written out; use fewer"
            _fail(self._label, message, self.lines.get(key, 1))

    def _merged(self, node: yaml.Node, path: str, above: tuple[int, ...]) -> dict[str, Any]:
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if not all(isinstance(part, yaml.MappingNode) for part in parts):
            self._add_problem(node, path, "<< merges mappings only; give it an alias of a mapping")
            return {}
        merged: dict[str, Any] = {}
        for part in parts:
            merged = {**self._value(part, path, above), **merged}
        return merged

    def _add_problem(self, node: yaml.Node, path: str, message: str) -> None:
        line = _line_of(node)
        self.problems.append(Problem(message, _place(self._label, line, path), line))


def _key(text: str) -> str:
    return text if text.isprintable() and 0 < len(text) <= _LONGEST_KEY else show(text)


def _place(label: str, line: int, path: str) -> str:
    return f"{label}:{line}: {path}" if path else f"{label}:{line}"


def _scalar(tag: str, text: str) -> object:
    kind = tag.removeprefix(_TAG)
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() in _TRUE
    # YAML 1.1 also has octal (010), hexadecimal and base-60 (1:30) numbers; as text, validation refuses each.
    if kind == "int" and INTEGER.fullmatch(text):
        return int(text.replace("_", ""))
    if kind == "float" and FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    return text


def _compose(text: str, label: str) -> yaml.Node | None:
    try:
        _refuse_depth(text, label)
        node: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        line, message = _syntax_message(error, text)
        raise InputError(Problem(message, f"{label}:{line}", line)) from None
    return node


def _refuse_depth(text: str, label: str) -> None:
    """Composing recurses in C and a deep enough file would crash the interpreter; parsing events does not."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            _fail(label, f"nested over {MAX_DEPTH} levels deep; flatten it", _line_of(event))


def _syntax_message(error: yaml.YAMLError, text: str) -> tuple[int, str]:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return _bad_character(text)
    line, said = error.problem_mark.line + 1, error.problem or "cannot be read"
    here = text.splitlines()[line - 1 : line]
    if here and "\t" in (here[0] if "token" in said else _indent(here[0])):
        return line, "a tab cannot indent YAML; use spaces"
    if "another document" in said:
        return line, "a second document starts here; keep one document to a file"
    begun = error.context_mark
    opened = f" ({error.context}, begun on line {begun.line + 1})" if begun and begun.line + 1 != line else ""
    return line, f"not valid YAML: {said}{opened}; check the indentation, colons, quotes and brackets here"


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _bad_character(text: str) -> tuple[int, str]:
    bad = next((i for i, char in enumerate(text) if not (char.isprintable() or char in "\n\r\t")), 0)
    message = f"the character {text[bad : bad + 1]!r} is not allowed in YAML; remove it"
    return text.count("\n", 0, bad) + 1, message


def _line_of(place: yaml.Node | yaml.Event) -> int:
    mark: Any = place.start_mark
    return int(mark.line) + 1


def _fail(label: str, message: str, line: int) -> NoReturn:
    raise InputError(Problem(message, f"{label}:{line}", line))


def _top_level(node: yaml.Node | None) -> str:
    if node is None:
        return "the file is empty"
    kind = "list" if isinstance(node, yaml.SequenceNode) else "single value"
    return f"the top level is a {kind}, not a mapping"


def _with_value(data: Mapping[str, Any], keys: list[str], value: object) -> dict[str, Any]:
    head, *rest = keys
    if not rest:
        return {**data, head: value}
    inner = data.get(head)
    return {**data, head: _with_value(inner if isinstance(inner, Mapping) else {}, rest, value)}
