"""Pydantic models as files write them: keys, quantities with units, overrides, and messages about mistakes.

Every mistake becomes an InputError that says what to write instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from fractions import Fraction
from functools import cache, cached_property, partial
from inspect import Parameter, Signature, unwrap
from math import isfinite, nan
from types import NoneType, UnionType
from typing import (
    Any,
    Generic,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)  # fmt: skip

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)
from pydantic.fields import FieldInfo
from pydantic_core import ArgsKwargs, CoreSchema, ErrorDetails, core_schema

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.base.interruption import HeldInterrupt
from tpusim.base.units import QuantityKind
from tpusim.base.words import with_settings
from tpusim.input.document import Document, Place, parse_scalar
from tpusim.input.scalars import (
    integer,
    name_text,
    path_of,
    plain_number,
    rational_number,
    show,
    unknown_key,
    whole_number,
    worked_out,
)

Model = TypeVar("Model")

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
"""Pydantic's names for an unknown key."""

# Validation context of files, in which a quantity needs its unit; in Python the attribute's name carries it.
FROM_YAML = {"from_yaml": True}
NAMES = "names"
"""Key of a validation context with the names that sizes may be computed from."""

Overrides = Mapping[str, object] | Sequence[str]

Settings = dict[str, tuple[object, Place]]
"""Values by path, with the place of each."""


class FileSection(BaseModel):
    """A part of a model that is itself a model: frozen, without other keys than its own.

    Pydantic builds its validator together with the whole model's, not separately.
    """

    # Outside of what is copied or pickled, as a copy differs, and each process hashes words in its own way.
    __slots__ = ("_hash",)

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)

    def __hash__(self) -> int:
        """The hash of all fields, worked out once: machines are keys of many tables."""
        known: int | None = getattr(self, "_hash", None)
        if known is None:
            known = hash(tuple(getattr(self, name) for name in type(self).model_fields))
            object.__setattr__(self, "_hash", known)
        return known


class FileModel(FileSection):
    """A whole model with a name, which tells what was set of it beside its file (`--set`, sweeps, Python).

    That is no part of the model: models of equal fields are equal, however they came to them.
    """

    name: str
    _changes: dict[str, str] = PrivateAttr(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        """Whether all fields are equal."""
        if type(other) is not type(self):
            return NotImplemented
        if self.__dict__ == other.__dict__:
            return True
        # Besides fields, properties that were worked out once may lie there.
        return all(getattr(self, each) == getattr(other, each) for each in type(self).model_fields)

    __hash__ = FileSection.__hash__

    @property
    def changes(self) -> Mapping[str, str]:
        """Fields that were set beside the file, by path, as they were written."""
        return self._changes

    @property
    def label(self) -> str:
        """The name for people, with what was set: "tpu_v2 with array.size=64"."""
        return with_settings(self.name, self._changes)

    def telling(self, changes: Mapping[str, str]) -> Self:
        """Return a copy that tells of changes ahead of the model's own; a name is no change, as it is told anyway."""
        told = self.model_copy()
        told._changes = {path: text for path, text in {**changes, **self._changes}.items() if path != "name"}
        return told


class Form(Generic[Model]):
    """The way in which files write a model: its keys, and the keys of its sections, which are models themselves.

    `more` has paths of keys that stand for several fields; `files` has fields that may name a file, with the folders of
    shipped files; `inside` (" for conv2d") ends messages about unknown keys.
    """

    def __init__(
        self, model: type[Model], inside: str = "", more: Iterable[str] = (), files: Mapping[str, str] | None = None
    ) -> None:
        self._model: Any = model
        self._inside = inside
        self._more = tuple(more)
        self.files = files or {}

    # Worked out when they are asked for: to read a file without mistakes takes none of the keys.
    @cached_property
    def _own(self) -> dict[str, dict[str, FieldInfo]]:
        """The model's fields by key, by the path of their section."""
        return dict(_by_section(self._model, ""))

    @cached_property
    def _keys(self) -> dict[str, dict[str, FieldInfo]]:
        """Fields of the model, and keys that stand for several of them."""
        keys = {**self._own}
        for path in self._more:
            section, _, key = path.rpartition(".")
            keys[section] = {**keys[section], key: FieldInfo()}
        return keys

    @cached_property
    def sections(self) -> dict[str, dict[str, FieldInfo]]:
        """The fields of each section by key, by the path of the section."""
        return {path: keys for path, keys in self._own.items() if path and not path.endswith(_EACH)}

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """The paths of all fields that are no sections, such as "clock" and "array.rows"."""
        single = {path: keys for path, keys in self._keys.items() if not path.endswith(_EACH)}
        every = (path_of((section, key)) for section, keys in single.items() for key in keys)
        return tuple(path for path in every if path not in self.sections)

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
        """All errors of pydantic, each with its path."""
        # A misspelt key comes first: a missing one follows from it.
        found = sorted(error.errors(include_url=False), key=lambda details: details["type"] not in _UNKNOWN)
        problems: list[Problem] = []
        for details in found:
            places = [*details["loc"]]
            if places and isinstance(places[0], int):  # An argument that was given by its position.
                places[0] = dict(enumerate(self._keys[""])).get(places[0], str(places[0]))
            cause = details.get("ctx", {}).get("error")
            if not isinstance(cause, InputError):
                cause = InputError(self._message(details, path_of(places[:-1]), str(*places[-1:])))
            problems += [Problem(each.message, path_of([*places, each.where or ""]) or None) for each in cause.problems]
        return InputError(problems)

    def _message(self, details: ErrorDetails, section: str, key: str) -> str:
        kind, given = details["type"], show(details["input"])
        if kind == "missing":
            return f"required key is missing; add {self._example(section, key)}"
        if kind in _UNKNOWN:
            allowed = self._fields(section)
            # A key that another section has is rather misplaced than misspelt, so its full path comes first.
            nested = "; write the key after the dot inside its section;" if key in self.paths else ""
            elsewhere = [path for path in self.paths if path.endswith(f".{key}")]
            hint = nested or did_you_mean(key, elsewhere) or did_you_mean(key, allowed) or did_you_mean(key, self.paths)
            return unknown_key(key, allowed, hint, f" in {section}" if section else self._inside)
        if kind == "string_type":
            return f"{given} is not text; write text, in quotes"
        # An item of a list of sections has no key of its own to give an example of.
        if kind == "model_type" and (listed := self._keys.get(f"{section}{_EACH}")):
            return f"{given} is not a section; write one with the keys {', '.join(listed)}"
        inner = path_of((section, key)) in self.sections
        return f"{given} is not a section; write {self._example(section, key)}" if inner else details["msg"]

    def _example(self, section: str, key: str) -> str:
        if (path := path_of((section, key))) in self.sections:
            return f"{key}: with the keys {', '.join(self.sections[path])}"
        return " ".join([f"{key}:", *map(str, self._fields(section)[key].examples or [])])

    def _fields(self, section: str) -> dict[str, FieldInfo]:
        """Fields of a section, or of `tiles[2]` in a list of sections."""
        return self._keys[section] if section in self._keys else self._keys[f"{section.rpartition('[')[0]}{_EACH}"]


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def validated(cls: type[Model]) -> type[Model]:
    """Make a class a frozen dataclass that raises InputError, with every problem, if it is built with wrong fields.

    The class is analysed when its first object is built, since a run needs only a few of the ops.
    """
    # Slots, because a network has thousands of these objects.
    made: Any = dataclass(frozen=True, slots=True, init=False)(cls)
    made.__pydantic_config__ = ConfigDict(extra="forbid")

    def __init__(self: object, *args: object, **kwargs: object) -> None:
        try:
            _adapter_of(made).validator.validate_python(ArgsKwargs(args, kwargs), self_instance=self)
        except ValidationError as error:
            raise Form(made).input_error(error) from None

    made.__init__ = __init__
    made.__signature__ = _FieldsOf()
    return made  # type: ignore[no-any-return]


class _FieldsOf:
    """The signature of a validated class, as help and notebooks show it: its fields, without their validators."""

    def __get__(self, _: object, model: Any) -> Signature:
        """Make it when it is asked for, as a command asks for none."""
        kind = Parameter.POSITIONAL_OR_KEYWORD
        given = {each.name: Parameter.empty if each.default is MISSING else each.default for each in fields(model)}
        return Signature([Parameter(name, kind, default=default) for name, default in given.items()])


@cache
def _adapter_of(model: Any) -> TypeAdapter[Any]:
    # While Pydantic tries `isinstance` with a class, it takes Ctrl-C for a fault of the class.
    kept = HeldInterrupt()
    kept.hold()
    try:
        adapter = TypeAdapter(model)
        # A model would build its validator only when it is first used, when Ctrl-C is heard again.
        adapter.rebuild()
    finally:
        kept.let_go()
    return adapter


_EACH = "[]"
"""End of the path of the items of a list of sections."""


def _by_section(model: Any, path: str) -> Iterator[tuple[str, dict[str, FieldInfo]]]:
    """Fields of `model`, and of the sections inside it, by the path of each.

    A section may be optional, or in a list; a field with a reader of its own is no section.
    """
    keys = _fields(model)
    yield path, keys
    for key, info in keys.items():
        inner = next(filter(_is_model, get_args(info.annotation)), None)
        if _is_model(info.annotation) or (inner and isinstance(info.annotation, UnionType) and not info.metadata):
            yield from _by_section(inner or info.annotation, path_of((path, key)))
        elif inner:
            yield path_of((path, key)) + _EACH, _fields(inner)


def _fields(model: Any) -> dict[str, FieldInfo]:
    """The fields of `model` by their keys."""
    if not is_dataclass(model):
        return {info.serialization_alias or name: info for name, info in model.model_fields.items()}
    hints = get_type_hints(model, include_extras=True)
    return {each.name: FieldInfo.from_annotation(hints[each.name]) for each in fields(model)}


def _is_model(kind: object) -> bool:
    """Whether a type is a section, with fields of its own."""
    return isinstance(kind, type) and (issubclass(kind, BaseModel) or hasattr(kind, "__pydantic_config__"))


def read_overrides(overrides: Overrides, form: Form[Any]) -> tuple[Settings, list[Problem]]:
    """Read overrides: the last value that is given for each path, and a problem for each that cannot be set."""
    given: Settings = {}
    problems: list[Problem] = []
    if isinstance(overrides, Mapping):
        # A mapping becomes text, so that Python and the command line are read alike.
        overrides = [f"{path}={value}" for path, value in overrides.items()]
    texts = [overrides] if isinstance(overrides, str) else overrides
    if not isinstance(texts, Sequence) or not all(isinstance(each, str) for each in texts):
        says = "names no fields of a machine; give PATH=VALUE, several of them, or a mapping"
        raise InputError(f"{overrides!r:.80} {says}, e.g. array.rows=64")
    for text in texts:
        try:
            path, value = _read_override(text, form)
            given[path] = value, (f"--set {text}", 0)
        except InputError as error:
            problems.append(Problem(str(error), f"--set {text}"))
    return given, problems


def texts_of(given: Settings) -> dict[str, str]:
    """Overrides that were read, by path, as they were written."""
    return {path: where.partition("=")[2].strip() for path, (_, (where, _)) in given.items()}


def _read_override(text: str, form: Form[Any]) -> tuple[str, object]:
    path, equals, value = map(str.strip, text.partition("="))
    if not equals:
        raise InputError("no value; write PATH=VALUE, e.g. --set array.rows=64")
    # The checks run from the most specific advice to the general list of fields.
    if path in form.sections:
        fields = ", ".join(each for each in form.paths if each.startswith(f"{path}."))
        raise InputError(f"{path} is a section; set one of its fields: {fields}")
    if part := next((each for each in form.files if path.startswith(f"{each}.")), ""):
        field = path.removeprefix(f"{part}.")
        raise InputError(f"{part} is a file of its own; copy it, change {field} there, and write --set {part}=PATH")
    if (listed := path.partition("[")[0]) != path and listed in form.paths:
        raise InputError(
            f"{listed} is a list, and --set changes single values; copy the machine's file, and change {path} there"
        )
    if path not in form.paths:
        hint = did_you_mean(path, form.paths) or ";"
        section = max((each for each in form.sections if path.startswith(f"{each}.")), key=len, default="")
        near = [each for each in form.paths if section and each.startswith(f"{section}.")]
        # Some hundred names would hide the one that is meant.
        known = near or dict.fromkeys(f"{first}.*" if rest else first for first, _, rest in
                                      (each.partition(".") for each in form.paths))  # fmt: skip
        raise InputError(f"no field {show(path)}{hint} fields: {', '.join(known)}")
    return path, parse_scalar(value)


class Reader(NamedTuple):
    """A field that a function reads, from a value alone or with the ValidationInfo; its `allowed` values in words;
    `shown`, a function from the value to what files hold, if they hold another form.
    """

    read: Callable[..., object]
    allowed: str
    shown: Callable[..., object] | None = None

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        # PlainValidator would work out a schema of the field's type as well, which takes as long as all the rest.
        shown = core_schema.plain_serializer_function_ser_schema(self.shown) if self.shown else None
        if unwrap(self.read).__code__.co_argcount > 1:
            return core_schema.with_info_plain_validator_function(self.read, serialization=shown)
        return core_schema.no_info_plain_validator_function(self.read, serialization=shown)


def whole(most: int, least: int = 1) -> Reader:
    """A whole number from `least` to `most`; if the context has NAMES, also a text that works out to one."""
    return Reader(lambda value, info: size(value, least, most, names_of(info)), f"a whole number, {least} to {most}")


def size(value: object, least: int, most: int, names: Mapping[str, int]) -> int:
    """A whole number from `least` to `most`, or a text such as "batch*197" with `names`. Raises InputError."""
    number = worked_out(value, names) if names else value
    try:
        return whole_number(number, least, most)
    except InputError as error:
        if number is not value:
            raise InputError(f"{show(value)}: {error}") from None
        hint = did_you_mean(value, names) if isinstance(value, str) else ""
        raise InputError(f"{error}{hint}") from None


def pairs(given: object, says: str) -> tuple[tuple[Any, Any], ...]:
    """Return what a file gives as a mapping, or what is kept of one, name by name.

    Raises InputError for anything else: the value, and what `says` that it is not.
    """
    items = tuple(given.items()) if isinstance(given, Mapping) else given
    if not isinstance(items, tuple) or not all(isinstance(each, tuple) and len(each) == 2 for each in items):
        raise InputError(f"{show(given)} {says}")
    return items


def names_of(info: ValidationInfo) -> Mapping[str, int]:
    """Names that texts of the file may use."""
    names: Mapping[str, int] = (info.context or {}).get(NAMES, {})
    return names


def pair(most: int, least: int = 1, why_two: str = "") -> Reader:
    """Two whole numbers from `least` to `most`, (height, width); one may stand for both.

    `why_two` ends the message about any other number of values.
    """

    def read(value: object, info: ValidationInfo) -> tuple[int, ...]:
        names = names_of(info)
        given = worked_out(value, names) if names else value
        if isinstance(given, bool) or integer(given) is not None:
            given = (given, given)
        if not isinstance(given, list | tuple):
            raise InputError(f"{show(value)} is not a size; write a whole number, or two: [height, width]")
        if len(given) != 2:
            raise InputError(f"{show(given)} is not one number or two{why_two}; write one, or [height, width]")
        return tuple(size(part, least, most, names) for part in given)

    return Reader(read, f"a whole number, {least} to {most}, or two: [height, width]")


@dataclass(frozen=True)
class Quantity:
    """A whole number of base units, which files write as a quantity: 256 KiB. `most` ("16 GiB") is the largest.

    A tuple is a list of quantities in a file. None stays None if the field may be None.
    """

    unit: QuantityKind
    most: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        read, shown = (self._amounts, self._texts) if get_origin(source) is tuple else (self._amount, self.unit.format)
        written = core_schema.plain_serializer_function_ser_schema(shown)
        schema = core_schema.with_info_plain_validator_function(read, serialization=written)
        return core_schema.nullable_schema(schema) if NoneType in get_args(source) else schema

    def _amount(self, value: object, info: ValidationInfo) -> int:
        """Whole number of base units. Raises InputError."""
        # Written with its unit and read here, so that messages tell the limit as files write it.
        most = self.unit.parse(self.most)
        in_yaml = isinstance(value, str) or info.context is FROM_YAML
        amount = self.unit.parse(value) if in_yaml else whole_number(value, 1, most)
        if amount > most:
            raise InputError(f"{show(value)} is too large; write at most {self.most}")
        return amount

    def _amounts(self, value: object, info: ValidationInfo) -> tuple[int, ...]:
        if not isinstance(value, list | tuple) or not value:
            raise InputError(f"{show(value)} is no list; write e.g. [{self.unit.example}, {self.unit.example}]")
        return tuple(self._amount(each, info) for each in value)

    def _texts(self, held: Iterable[int]) -> list[str]:
        return [*map(self.unit.format, held)]


def rational(most: int, least: Fraction | int = 0) -> Reader:
    """A Fraction from `least` to `most`, exactly what YAML writes: a number, or text such as "1/3"."""
    return Reader(
        lambda value: rational_number(value, most, least), f"a number, {float(least):g} to {most}", plain_number
    )


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{show(value)} is neither true nor false; write one of them")
    return value


def real(value: object) -> float:
    """A finite number, also one that YAML takes for text: 1e-3. Raises InputError."""
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else nan
    except ValueError:
        number = nan
    if not isfinite(number):
        raise InputError(f"{show(value)} is not a number; write one such as 0.1")
    return number


Truth = partial(Reader, _truth, "true or false")
"""A truth value, true or false."""
Real = partial(Reader, real, "a number")
"""A finite number."""
Name = partial(Reader, name_text, "a line of text")
"""A line of text, of 1 to 200 characters."""


@dataclass(frozen=True)
class Choice:
    """A word of the field's Literal, or a whole number from 1 to `most`."""

    most: int = 0

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        literal = next(each for each in (source, *get_args(source)) if get_origin(each) is Literal)
        return core_schema.no_info_plain_validator_function(partial(self._read, get_args(literal)))

    def _read(self, words: tuple[str, ...], value: object) -> object:
        number = integer(value)
        if number is None and value in words:
            return value
        if number is not None and 1 <= number <= self.most:
            return number
        hint = did_you_mean(value, words) if isinstance(value, str) else ""
        allowed = " or ".join(words) + (f" or a whole number, 1 to {self.most}" if self.most else "")
        raise InputError(f"{show(value)} is not allowed{hint or ';'} write {allowed}")


def written(example: object, key: str | None = None) -> Any:
    """Metadata of a field: an `example`, told where the field is missing, and its `key` in files if not its name."""
    return Field(validation_alias=key, serialization_alias=key, examples=[example])
