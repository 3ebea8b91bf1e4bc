"""Pydantic field types whose errors are InputErrors that say what to write instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import Field, GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from tpusim.base.errors import InputError, did_you_mean
from tpusim.base.units import Unit
from tpusim.input.scalars import name_text, show, whole_number

# Validation context of files: there a quantity needs its unit; in Python the attribute's name carries it.
FROM_YAML = {"from_yaml": True}


@dataclass(frozen=True)
class Quantity:
    """An int counting `unit.base`, which YAML writes with its unit; at most `most` ("16 GiB")."""

    unit: Unit
    most: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(self.unit.format)
        return core_schema.with_info_plain_validator_function(self._validated, serialization=written)

    def _validated(self, value: object, info: ValidationInfo) -> int:
        most = self.unit.parse(self.most)
        in_yaml = isinstance(value, str) or info.context is FROM_YAML
        amount = self.unit.parse(value) if in_yaml else whole_number(value, 1, most)
        if amount > most:
            raise InputError(f"{show(value)} is too large; write at most {self.most}")
        return amount


@dataclass(frozen=True)
class Count:
    """A whole number from `least` to `most`."""

    most: int
    least: int = 1

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(lambda value: whole_number(value, self.least, self.most))


@dataclass(frozen=True)
class Pair:
    """Two whole numbers from `least` to `most`, (height, width); in files one may stand for both.

    `why_two` ends the message for another number of them.
    """

    most: int
    least: int = 1
    why_two: str = ""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(self._validated)

    def _validated(self, value: object, info: ValidationInfo) -> tuple[int, ...]:
        pair = _as_written(value) if info.context else value
        if not isinstance(pair, tuple):
            raise InputError(f"{show(value)} is not a size; write a whole number, or two: [height, width]")
        if len(pair) != 2:
            raise InputError(f"{show(pair)} is not one number or two{self.why_two}; write one, or [height, width]")
        return tuple(whole_number(part, self.least, self.most) for part in pair)


def _as_written(value: object) -> object:
    """What a file wrote as a pair: a list, or a number that stands for both."""
    if isinstance(value, list):
        return tuple(value)
    return (value, value) if isinstance(value, int) else value


@dataclass(frozen=True)
class Name:
    """One line of text."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(name_text)


@dataclass(frozen=True)
class Choice:
    """One of `words`, or, when `most` is above 0, a whole number from 1 to `most`."""

    words: tuple[str, ...]
    most: int = 0

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validated)

    def _validated(self, value: object) -> str | int:
        if isinstance(value, str) and value in self.words:
            return value
        if self.most and isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= self.most:
            return value
        hint = did_you_mean(value, self.words) if isinstance(value, str) else ""
        allowed = " or ".join(self.words) + (f" or a whole number, 1 to {self.most}" if self.most else "")
        raise InputError(f"{show(value)} is not allowed{hint or ';'} write {allowed}")


def written(example: object, key: str | None = None) -> Any:
    """Field metadata: an `example` for messages and the YAML `key` where it is not the attribute's name."""
    return Field(validation_alias=key, serialization_alias=key, examples=[example])
