"""A time of a data sheet, as device files write it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from tpusim.base.units import TIME
from tpusim.input.scalars import whole_number

MOST_CYCLES = 10**6
"""The most that a time may be, written in cycles."""

_PS_PER_S = 10**12


@dataclass(frozen=True)
class Duration:
    """A time of the data sheet: picoseconds, or cycles of the memory's clock."""

    amount: int
    in_cycles: bool

    def cycles(self, clock_hz: int) -> int:
        """Whole cycles; a time is rounded up."""
        return self.amount if self.in_cycles else -(-self.amount * clock_hz // _PS_PER_S)


class _Timed:
    """A Duration, which YAML writes as a whole number of cycles, or as a time with its unit."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        plain = core_schema.plain_serializer_function_ser_schema(_plain)
        return core_schema.no_info_plain_validator_function(_duration, serialization=plain)


def _duration(value: object) -> Duration:
    if isinstance(value, Duration):
        return value
    if isinstance(value, str):
        return Duration(TIME.parse(value), in_cycles=False)
    return Duration(whole_number(value, 0, MOST_CYCLES), in_cycles=True)


def _plain(value: Duration | None) -> int | str | None:
    if value is None:
        return None
    return value.amount if value.in_cycles else TIME.format(value.amount)


Time = Annotated[Duration, _Timed()]
"""A field of a device that is a time."""
