"""The columns of a sweep's points that can be compared, and which way is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tpusim.base.errors import InputError, did_you_mean
from tpusim.input.scalars import show
from tpusim.machines.family import USUAL, Machine
from tpusim.machines.tpu.cost import total_mm2
from tpusim.machines.tpu.description import Hardware
from tpusim.result.vocabulary.figures import COLUMNS, COSTS, LESS, MORE, OF_ANY_MACHINE

MINIMIZE, MAXIMIZE = "minimize", "maximize"
_WORDS = {LESS: MINIMIZE, MORE: MAXIMIZE}


@dataclass(frozen=True)
class Goal:
    """A column and which way is better."""

    column: str
    minimize: bool

    def cost(self, value: float) -> float:
        """Return `value` turned so that less is better."""
        return value if self.minimize else -value

    def __str__(self) -> str:
        return f"{'least' if self.minimize else 'most'} {self.column}"


def costs(hardware: Machine) -> dict[str, float | None]:
    """Return COSTS of a machine: PEs, lanes, bytes of all vector memories, bytes a second of HBM, mm2.

    Lanes and areas are known of TPUs alone.
    """
    lanes, area = (hardware.lanes, total_mm2(hardware)) if isinstance(hardware, Hardware) else (None, None)
    known = hardware.pes, lanes, hardware.sram_bytes, hardware.hbm_bytes_per_s, area
    return dict(zip(COSTS, known, strict=True))


def columns_of(family: str) -> list[str]:
    """Return the columns that machines of a family have figures for, by which points may be judged."""
    return [each for each in COLUMNS if family == USUAL or each in OF_ANY_MACHINE]


def goals_of(given: object, columns: Sequence[str], least: int, most: int) -> tuple[Goal, ...]:
    """Return the goals in `[time_us, pes]`, or in a mapping of columns to minimize or maximize; `columns` may be named.

    Raises:
        InputError: too few or too many, an unknown column, or one without a direction of its own.
    """
    example = "write e.g. [time_us, pes], or {time_us: minimize, tflops: maximize}"
    pairs = dict.fromkeys(given) if isinstance(given, list) and all(isinstance(c, str) for c in given) else given
    if not isinstance(pairs, Mapping):
        raise InputError(f"{show(given)} is no list of columns; {example}")
    if not least <= len(pairs) <= most:
        raise InputError(f"{len(pairs)} different columns; give {least} to {most}, {example}")
    return tuple(_goal(column, direction, columns) for column, direction in pairs.items())


def _goal(column: str, direction: object, known: Sequence[str]) -> Goal:
    if column not in known:
        hint = did_you_mean(column, known) or ";"
        raise InputError(f"no column {show(column)}{hint} columns: {', '.join(known)}")
    if direction is None:
        direction = _WORDS.get(COLUMNS[column].better) if column in COLUMNS else None
        if direction is None:
            raise InputError(f"{column} is not better one way for everybody; write {{{column}: minimize}} or maximize")
    if direction not in (MINIMIZE, MAXIMIZE):
        raise InputError(f"{column}: {show(direction)} is not allowed; write {MINIMIZE} or {MAXIMIZE}")
    return Goal(column, direction == MINIMIZE)
