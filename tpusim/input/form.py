"""Pydantic models as files write them: which keys they have, and in words what is wrong with what was given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, dataclass_transform

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.input.document import Document
from tpusim.input.scalars import show, unknown_key

Model = TypeVar("Model")


class Form(Generic[Model]):
    """How files write a model: its keys, and those of its sections, which are models themselves.

    `sections` maps the key of each to its fields by their keys. `more` maps one ("" for the whole) to keys that stand
    for fields without being one; `inside` (" for conv2d") says of what a key is unknown.
    """

    def __init__(self, model: type[Model], inside: str = "", more: Mapping[str, Sequence[str]] | None = None) -> None:
        self._adapter = TypeAdapter(model)
        self._inside = inside
        own = _fields(model)
        inner = {key: info.annotation for key, info in own.items() if hasattr(info.annotation, "__pydantic_fields__")}
        self.sections = {key: _fields(section) for key, section in inner.items()}
        self._fields = {"": own, **self.sections}
        self._keys = {path: (*fields, *(more or {}).get(path, ())) for path, fields in self._fields.items()}

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path to a value: "clock", "array.rows", ..."""
        top = [key for key in self._keys[""] if key not in self.sections]
        return (*top, *(f"{path}.{key}" for path, keys in self._keys.items() if path for key in keys))

    def build(self, data: object, context: Mapping[str, object]) -> Model:
        """The model that `data` describes.

        Raises:
            InputError: with every problem; `where` is a path inside `data`, or None for all of it.
        """
        try:
            return self._adapter.validate_python(data, context=context, by_alias=True, by_name=False)
        except ValidationError as error:
            raise InputError(self.problems(error)) from None

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

    def problems(self, error: ValidationError) -> list[Problem]:
        """What pydantic found, each with the path where it found it."""
        return [problem for details in error.errors(include_url=False) for problem in self._problems(details)]

    def _problems(self, details: ErrorDetails) -> Iterator[Problem]:
        path = ".".join(map(self._key, details["loc"]))
        cause = details.get("ctx", {}).get("error")
        if isinstance(cause, InputError):
            yield from (Problem(each.message, _joined_path(path, each.where)) for each in cause.problems)
        else:
            yield Problem(self._message(details, path), path or None)

    def _key(self, place: int | str) -> str:
        """The name of an argument, which may have been given by its position."""
        return dict(enumerate(self._fields[""])).get(place, str(place)) if isinstance(place, int) else place

    def _message(self, details: ErrorDetails, path: str) -> str:
        if details["type"] == "missing":
            return f"required key is missing; add {self._example(path)}"
        if details["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            return self._unknown(path)
        if path in self.sections:
            return f"{show(details['input'])} is not a section; write {self._example(path)}"
        return details["msg"]

    def _unknown(self, path: str) -> str:
        section, _, key = path.rpartition(".")
        allowed = self._keys[section]
        # A key of another section is the likeliest slip after a misspelling, so its full path is a candidate too.
        hint = did_you_mean(key, allowed) or did_you_mean(key, self.paths)
        return unknown_key(key, allowed, hint, f" in {section}" if section else self._inside)

    def _example(self, path: str) -> str:
        if path in self.sections:
            return f"{path}: with the keys {', '.join(self.sections[path])}"
        section, _, key = path.rpartition(".")
        return " ".join([f"{key}:", *map(str, self._fields[section][key].examples or [])])


@dataclass_transform(frozen_default=True)
def validated(cls: type[Model]) -> type[Model]:
    """Make a class a frozen dataclass that raises InputError, with every problem, when built with wrong fields."""
    made: Any = dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))(cls)
    made.__init__ = _raising_input_errors(made.__init__, Form(made))
    return made  # type: ignore[no-any-return]


def _raising_input_errors(build: Callable[..., None], form: Form[Any]) -> Callable[..., None]:
    def __init__(self: object, *args: object, **kwargs: object) -> None:
        try:
            build(self, *args, **kwargs)
        except ValidationError as error:
            raise InputError(form.problems(error)) from None

    return __init__


def _fields(model: Any) -> dict[str, FieldInfo]:
    """The fields of `model` by their keys."""
    return {info.serialization_alias or name: info for name, info in model.__pydantic_fields__.items()}


def _joined_path(path: str, inner: str | None) -> str | None:
    if not inner:
        return path or None
    return f"{path}{'' if inner.startswith('[') or not path else '.'}{inner}"
