"""YAML text to plain data that remembers the line of everything in it.

PyYAML's node graph is read directly, not through its constructors, because it has the lines, and is
the only place where a duplicate key, an alias that contains itself, or `1e3` (text, to YAML 1.1) still shows.
"""

from __future__ import annotations

import re
import sys
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import yaml

from tpusim.base.errors import InputError, Problem
from tpusim.input.scalars import FLOAT, INTEGER, show

MAX_VALUES = 200_000
MAX_DEPTH = 50
_TOO_DEEP = f"nested over {MAX_DEPTH} levels deep; flatten it"
# A key of a sweep's axes may name several fields.
_LONGEST_KEY = 200

# The C scanner is about ten times faster; PyYAML's wheels have it, a build from source may not.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_TRUE = frozenset({"true", "yes", "on"})

Place: TypeAlias = tuple[str, int]
"""A place in words and as a line: ("file.yaml:12: array.rows", 12)."""


class EntryBlock(NamedTuple):
    """Entries of a file's list of layers that come several times in a row: `times` copies of `entries`."""

    first: int
    entries: int
    times: int


@dataclass(frozen=True)
class Document:
    """A YAML mapping as plain dicts, lists and scalars, with the place of every path in it.

    `lines` maps "layers[2].kernel" to a line counted from 1; `moved` maps a path whose value came from elsewhere
    to that place; `problems` were found while reading; `notes` are sentences about how a file
    of another tool was read; `images` is the number of images that it is for, if it is for one alone, and `multiple`
    that of which any batch is a multiple; `blocks` are entries of its list that come several times.
    """

    label: str
    data: Mapping[str, Any]
    lines: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    moved: Mapping[str, Place] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    images: int | None = None
    multiple: int = 1
    blocks: tuple[EntryBlock, ...] = ()

    @property
    def least_batch(self) -> int:
        """Return the fewest images that a run of it may have."""
        return self.images or self.multiple

    def place(self, path: str) -> Place:
        """Place of `path`, or, if the file has no such path, of the nearest one around it."""
        if path in self.moved:
            return self.moved[path]
        near = path
        while near and near not in self.lines:
            near = near[: max(near.rfind("."), near.rfind("["), 0)]
        return _place(self.label, self.lines.get(near, 1), path)

    def value(self, path: str) -> object:
        """Value at `path` ("hbm.device"); None if there is none."""
        found: object = self.data
        for key in path.split("."):
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    def problem(self, path: str, message: str) -> Problem:
        """A Problem placed at `path`."""
        return Problem(message, *self.place(path))

    def override(self, path: str, value: object, place: Place) -> Document:
        """A copy in which `path` ("clock", "array.rows") holds `value`; its problems are then placed at `place`."""
        data = _changed(self.data, path.split("."), value)
        return replace(self, data=data, moved={**self.moved, path: place})

    def in_order(self, problems: Iterable[Problem]) -> tuple[Problem, ...]:
        """`problems` and those found while reading, by line; overrides last.

        Where reading failed, problems that validation finds in the rest are left out.
        """
        unread = {problem.where for problem in self.problems}
        found = dict.fromkeys((*self.problems, *(each for each in problems if each.where not in unread)))
        return tuple(sorted(found, key=lambda problem: problem.line or sys.maxsize))


def _changed(data: object, keys: Sequence[str], value: object) -> dict[str, Any]:
    """The mapping with a value under a path of keys, with new sections if necessary."""
    key, *inside = keys
    known = data if isinstance(data, Mapping) else {}
    return {**known, key: _changed(known.get(key), inside, value) if inside else value}


@lru_cache(maxsize=64)
def parse_document(text: str, label: str) -> Document:
    """Read YAML `text`; `label` names it in messages. Raises InputError if it is no YAML mapping."""
    try:
        # Composing recurses in C, and a very deep file would crash the interpreter; parsing events does not recurse.
        depth = 0
        for event in yaml.parse(text, Loader=_Loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise InputError(Problem(_TOO_DEEP, *_place(label, _line_of(event))))
        node: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        line, message = _syntax_message(error, text)
        raise InputError(Problem(message, *_place(label, line))) from None
    if not isinstance(node, yaml.MappingNode):
        kind = "list" if isinstance(node, yaml.SequenceNode) else "single value"
        found = f"the top level is a {kind}, not a mapping" if node else "the file is empty"
        message = f"{found}; write keys, such as name: my_name"
        raise InputError(Problem(message, *_place(label, _line_of(node) if node else 1)))
    reader = _Reader(label, _line_of(node))
    return Document(label, reader.mapping(node, "", ()), reader.lines, tuple(reader.problems))


def parse_scalar(text: str) -> object:
    """Read a YAML scalar as `--set PATH=VALUE` gives it: "64" is 64, "700 MHz" is text. Raises InputError."""
    try:
        (value,) = parse_document(f"value: {text}", "value").data.values()
    except ValueError:
        value = []
    if isinstance(value, dict | list):
        raise InputError(f"{show(text)} is not a single value; write one number or one text")
    return value


class _Reader:
    """A walk over a node graph that gathers lines and problems."""

    def __init__(self, label: str, line: int) -> None:
        self.lines = {"": line}
        self.problems: list[Problem] = []
        self._label = label
        self._values = 0

    def mapping(self, node: yaml.MappingNode, path: str, above: tuple[int, ...]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        inherited: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                inherited |= self._merged(value_node, path, above)
            elif not isinstance(key_node, yaml.ScalarNode):
                self._add_problem(key_node, path, "a key must be plain text; a list or mapping cannot be one")
            else:
                text = str(key_node.value)
                key = text if text.isprintable() and 0 < len(text) <= _LONGEST_KEY else show(text)
                at = f"{path}.{key}" if path else key
                if key in result:
                    self._add_problem(key_node, at, f"key given twice, first on line {self.lines[at]}; remove one")
                else:
                    self.lines[at] = _line_of(key_node)
                    result[key] = self._value(value_node, at, above)
        return {**inherited, **result}

    def _value(self, node: yaml.Node, path: str, above: tuple[int, ...]) -> Any:
        self._values += 1
        endless, deep = id(node) in above, len(above) > MAX_DEPTH
        if endless or deep or self._values > MAX_VALUES:
            message = "an alias stands inside what it refers to; write the value out"
            if not endless:
                path = path.partition("[")[0]
                many = f"over {MAX_VALUES} values with aliases written out; use fewer"
                message = many if self._values > MAX_VALUES else _TOO_DEEP
            raise InputError(Problem(message, *_place(self._label, self.lines.get(path, 1), path)))
        if not node.tag.startswith(_TAG) or node.tag.startswith(f"{_TAG}python"):
            tag = node.tag.replace(_TAG, "!!")[:60]
            self._add_problem(node, path, f"the tag {tag} is not allowed; remove it")
            return None
        above = (*above, id(node))
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path, above)
        if isinstance(node, yaml.SequenceNode):
            places = {f"{path}[{index}]": child for index, child in enumerate(node.value)}
            self.lines.update((at, _line_of(child)) for at, child in places.items())
            return [self._value(child, at, above) for at, child in places.items()]
        kind, text = node.tag.removeprefix(_TAG), str(node.value)
        if kind in ("null", "bool"):
            return text.lower() in _TRUE if kind == "bool" else None
        # YAML 1.1 also knows octal (010), hexadecimal and base-60 (1:30) numbers; they stay text, and validation
        # refuses them.
        if kind == "int" and INTEGER.fullmatch(text):
            return int(text.replace("_", ""))
        return float(text.replace("_", "")) if kind == "float" and FLOAT.fullmatch(text) else text

    def _merged(self, node: yaml.Node, path: str, above: tuple[int, ...]) -> dict[str, Any]:
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if not all(isinstance(part, yaml.MappingNode) for part in parts):
            self._add_problem(node, path, "<< merges mappings only; give it an alias of a mapping")
            return {}
        return dict(ChainMap(*(self._value(part, path, above) for part in parts)))

    def _add_problem(self, node: yaml.Node, path: str, message: str) -> None:
        self.problems.append(Problem(message, *_place(self._label, _line_of(node), path)))


def _syntax_message(error: yaml.YAMLError, text: str) -> tuple[int, str]:
    """The line of a syntax error, and a message."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        bad = next((i for i, char in enumerate(text) if not (char.isprintable() or char in "\n\r\t")), 0)
        message = f"the character {text[bad : bad + 1]!r} is not allowed in YAML; remove it"
        return text.count("\n", 0, bad) + 1, message
    line, said = error.problem_mark.line + 1, error.problem or "cannot be read"
    here = "".join(text.splitlines()[line - 1 : line])
    # PyYAML names the token it could not read, hardly ever the tab that is the cause.
    if re.match(r".*\t" if "token" in said else r"\s*\t", here):
        return line, "a tab cannot indent YAML; use spaces"
    # libyaml has a limit of its own, which its scanner may reach before the events that are counted here.
    if "nesting depth" in said:
        return line, _TOO_DEEP
    if "another document" in said:
        return line, "a second document starts here; keep one document to a file"
    begun = error.context_mark
    opened = f" ({error.context}, begun on line {begun.line + 1})" if begun and begun.line + 1 != line else ""
    return line, f"not valid YAML: {said}{opened}; check the indentation, colons, quotes and brackets here"


def _place(label: str, line: int, path: str = "") -> Place:
    return f"{label}:{line}: {path}" if path else f"{label}:{line}", line


def _line_of(place: yaml.Node | yaml.Event) -> int:
    mark: Any = place.start_mark
    return int(mark.line) + 1
