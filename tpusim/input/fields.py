"""Pydantic field types whose errors are InputErrors that say what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import isfinite, nan
from typing import Any, Literal, get_args, get_origin

from pydantic import Field, GetCoreSchemaHandler, PlainValidator, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from tpusim.base.errors import InputError, did_you_mean
from tpusim.base.units import Unit
from tpusim.input.arithmetic import worked_out
from tpusim.input.scalars import integer, name_text, plain_number, rational_number, show, whole_number

# Validation context of files: there a quantity needs its unit; in Python the attribute's name carries it.
FROM_YAML = {"from_yaml": True}
NAMES = "names"
"""The key of a validation context that holds what sizes may be worked out from."""


def whole(most: int, least: int = 1) -> PlainValidator:
    """A whole number from `least` to `most`; where the context has NAMES, also text that works out to one."""
    return PlainValidator(lambda value, info: size(value, least, most, names_of(info)))


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


def names_of(info: ValidationInfo) -> Mapping[str, int]:
    """What texts of the file may name."""
    names: Mapping[str, int] = (info.context or {}).get(NAMES, {})
    return names


def pair(most: int, least: int = 1, why_two: str = "") -> PlainValidator:
    """Two whole numbers from `least` to `most`, (height, width); one may stand for both.

    `why_two` ends the message for another number of them.
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

    return PlainValidator(read)


@dataclass(frozen=True)
class Quantity:
    """An int counting `unit.base`, which YAML writes with its unit; at most `most` ("16 GiB")."""

    unit: Unit
    most: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(self.unit.format)
        return core_schema.with_info_plain_validator_function(self.amount, serialization=written)

    def amount(self, value: object, info: ValidationInfo) -> int:
        """Whole number of base units. Raises InputError."""
        most = self.unit.parse(self.most)
        in_yaml = isinstance(value, str) or info.context is FROM_YAML
        amount = self.unit.parse(value) if in_yaml else whole_number(value, 1, most)
        if amount > most:
            raise InputError(f"{show(value)} is too large; write at most {self.most}")
        return amount


@dataclass(frozen=True)
class Quantities:
    """A tuple of ints counting `unit.base`, which YAML writes as a list, each with its unit; at most `most` each."""

    unit: Unit
    most: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(lambda held: [*map(self.unit.format, held)])
        return core_schema.with_info_plain_validator_function(self._read, serialization=written)

    def _read(self, value: object, info: ValidationInfo) -> tuple[int, ...]:
        if not isinstance(value, list | tuple) or not value:
            raise InputError(f"{show(value)} is no list; write e.g. [{self.unit.example}, {self.unit.example}]")
        return tuple(Quantity(self.unit, self.most).amount(each, info) for each in value)


@dataclass(frozen=True)
class Rational:
    """A Fraction from `least` to `most`, which YAML writes as a number, or as text such as "1/3"; taken
    as it is written.
    """

    most: int
    least: Fraction | int = 0

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        plain = core_schema.plain_serializer_function_ser_schema(plain_number)
        return core_schema.no_info_plain_validator_function(
            lambda value: rational_number(value, self.most, self.least), serialization=plain
        )


class Name:
    """One line of text."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(name_text)


class Truth:
    """true or false."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._read)

    def _read(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise InputError(f"{show(value)} is neither true nor false; write one of them")
        return value


class Real:
    """A finite number, which YAML may also take for text: 1e-3."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._read)

    def _read(self, value: object) -> float:
        try:
            number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else nan
        except ValueError:
            number = nan
        if not isfinite(number):
            raise InputError(f"{show(value)} is not a number; write one such as 0.1")
        return number


@dataclass(frozen=True)
class Choice:
    """One of the words of the field's Literal, or a whole number from 1 to `most`."""

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
    """Field metadata: an `example` for the message that it is missing, and the YAML `key` where the name is another."""
    return Field(validation_alias=key, serialization_alias=key, examples=[example])
