"""Pydantic models as files write them: which keys they have, and in words what is wrong with what was given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Generic, TypeVar, dataclass_transform, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ArgsKwargs, ErrorDetails

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.input.document import Document
from tpusim.input.scalars import path_of, show, unknown_key

Model = TypeVar("Model")


_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
"""What pydantic calls a key that nobody knows."""


class FileSection(BaseModel):
    """A part of a model that is one itself: frozen, with no other keys than its own.

    Pydantic builds its validator with that of the model it is a part of, not by itself as well.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)


class Form(Generic[Model]):
    """How files write a model: its keys, and those of its sections, which are models themselves and may have sections.

    `sections` maps the path of each to its fields by their keys; `paths` ("clock", "array.rows") lead to the rest.
    `more` are paths of keys that stand for fields without being one; `files` those of fields that may name a file, and
    the folders where such files are shipped; `inside` (" for conv2d") says of what a key is unknown.
    """

    def __init__(
        self, model: type[Model], inside: str = "", more: Iterable[str] = (), files: Mapping[str, str] | None = None
    ) -> None:
        self._model: Any = model
        self._inside = inside
        self.files = files or {}
        self._keys = dict(_by_section(model, ""))
        self._listed = dict(_by_list(self._keys))
        self.sections = {path: keys for path, keys in self._keys.items() if path}
        for path in more:
            section, _, key = path.rpartition(".")
            self._keys[section] = {**self._keys[section], key: FieldInfo()}
        every = (path_of((section, key)) for section, keys in self._keys.items() for key in keys)
        self.paths = tuple(path for path in every if path not in self.sections)

    def build(self, data: object, context: Mapping[str, object]) -> Model:
        """The model that `data` describes.

        Raises:
            InputError: with every problem; `where` is a path inside `data`, or None for all of it.
        """
        try:
            model: Model = _adapter_of(self._model).validate_python(data, context=context, by_alias=True, by_name=False)
            return model
        except ValidationError as error:
            raise self.input_error(error) from None

    def read(self, document: Document, context: Mapping[str, object], known: Iterable[Problem] = ()) -> Model:
        """The model that a file describes.

        Raises:
            InputError: with every problem at its line, those already `known` among them.
        """
        problems = [*known]
        try:
            model = self.build(document.data, context)
        except InputError as error:
            problems += [document.problem(each.where or "", each.message) for each in error.problems]
        if found := document.in_order(problems):
            raise InputError(found)
        return model

    def input_error(self, error: ValidationError) -> InputError:
        """All that pydantic found, each with the path where it found it."""
        # A misspelt key first: that another one is missing follows from it.
        found = sorted(error.errors(include_url=False), key=lambda details: details["type"] not in _UNKNOWN)
        return InputError([problem for details in found for problem in self._problems(details)])

    def _problems(self, details: ErrorDetails) -> Iterator[Problem]:
        places = [*details["loc"]]
        if places and isinstance(places[0], int):  # An argument that was given by its position.
            places[0] = dict(enumerate(self._keys[""])).get(places[0], str(places[0]))
        cause = details.get("ctx", {}).get("error")
        if not isinstance(cause, InputError):
            cause = InputError(self._message(details, path_of(places[:-1]), str(*places[-1:])))
        for each in cause.problems:
            yield Problem(each.message, path_of([*places, each.where or ""]) or None)

    def _message(self, details: ErrorDetails, section: str, key: str) -> str:
        kind, given = details["type"], show(details["input"])
        if kind == "missing":
            return f"required key is missing; add {self._example(section, key)}"
        if kind in _UNKNOWN:
            allowed = self._fields(section)
            # A key of another section is the likeliest slip after a misspelling, so its full path is a candidate too.
            nested = "; write the key after the dot inside its section;" if key in self.paths else ""
            hint = nested or did_you_mean(key, allowed) or did_you_mean(key, self.paths)
            return unknown_key(key, allowed, hint, f" in {section}" if section else self._inside)
        if kind == "string_type":
            return f"{given} is not text; write text, in quotes"
        if kind == "model_type" and section in self._listed:
            return f"{given} is not a section; write one with the keys {', '.join(self._listed[section])}"
        inner = path_of((section, key)) in self.sections
        return f"{given} is not a section; write {self._example(section, key)}" if inner else details["msg"]

    def _example(self, section: str, key: str) -> str:
        if (path := path_of((section, key))) in self.sections:
            return f"{key}: with the keys {', '.join(self.sections[path])}"
        return " ".join([f"{key}:", *map(str, self._fields(section)[key].examples or [])])

    def _fields(self, section: str) -> dict[str, FieldInfo]:
        """Those of a section, or of what is `tiles[2]` in a list of sections."""
        return self._keys[section] if section in self._keys else self._listed[section.rpartition("[")[0]]


@dataclass_transform(frozen_default=True)
def validated(cls: type[Model]) -> type[Model]:
    """Make a class a frozen dataclass that raises InputError, with every problem, when built with wrong fields.

    Pydantic looks at the class when the first of its objects is built: a run needs few of the ops that there are.
    """
    made: Any = dataclass(frozen=True, slots=True)(cls)
    made.__pydantic_config__ = ConfigDict(extra="forbid")

    def __init__(self: object, *args: object, **kwargs: object) -> None:
        try:
            _adapter_of(made).validator.validate_python(ArgsKwargs(args, kwargs), self_instance=self)
        except ValidationError as error:
            raise Form(made).input_error(error) from None

    made.__init__ = __init__
    return made  # type: ignore[no-any-return]


@cache
def _adapter_of(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def _by_section(model: Any, path: str) -> Iterator[tuple[str, dict[str, FieldInfo]]]:
    """The fields of `model`, and of the sections inside it, by the path of each."""
    keys = _fields(model)
    yield path, keys
    for key, info in keys.items():
        if section := _section(info):
            yield from _by_section(section, path_of((path, key)))


def _section(info: FieldInfo) -> Any:
    """The model of a section, also of one that may be left out; None of a field that is read in a way of its own."""
    optional = isinstance(info.annotation, UnionType) and not info.metadata
    choices = get_args(info.annotation) if optional else (info.annotation,)
    return next(filter(_is_model, choices), None)


def _by_list(sections: Mapping[str, dict[str, FieldInfo]]) -> Iterator[tuple[str, dict[str, FieldInfo]]]:
    """The fields of each section of a list, by the list's path."""
    for path, keys in sections.items():
        for key, info in keys.items():
            for inner in get_args(info.annotation):
                if _is_model(inner):
                    yield path_of((path, key)), _fields(inner)


def _fields(model: Any) -> dict[str, FieldInfo]:
    """The fields of `model` by their keys."""
    if not is_dataclass(model):
        return {info.serialization_alias or name: info for name, info in model.model_fields.items()}
    hints = get_type_hints(model, include_extras=True)
    return {each.name: FieldInfo.from_annotation(hints[each.name]) for each in fields(model)}


def _is_model(kind: object) -> bool:
    """Whether a type is a section, with fields of its own."""
    return isinstance(kind, type) and (issubclass(kind, BaseModel) or hasattr(kind, "__pydantic_config__"))
