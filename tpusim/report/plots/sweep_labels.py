"""What the axes and columns of a sweep are called in a picture, and where their values stand."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tpusim.base.units import magnitude
from tpusim.report.plots.figure import plain
from tpusim.result.vocabulary.fields import axis_title

_QUANTITY = re.compile(r"([0-9.eE_]+)\s*([A-Za-z/]+)")
_LOG_RATIO = 8

Value = int | float | str


def axis_label(axis: str) -> str:
    """An axis in words, unit included where its values carry none: "array size (PEs a side)"."""
    return plain(axis_title(axis))


@dataclass(frozen=True)
class Scale:
    """Where each value of an axis stands, what is written there, and what along the axis."""

    places: Mapping[Value, float]
    texts: Mapping[Value, str]
    label: str
    kind: str
    """Matplotlib's "log" or "linear"; places of words are 0, 1, 2, ..."""

    def ticks(self, most: int = 12) -> tuple[list[float], list[str]]:
        """Places and texts of some `most` that have room."""
        shown: list[Value] = []
        order = sorted(self.places, key=self.places.__getitem__)
        across = [math.log(place) if self.kind == "log" else place for place in map(self.places.__getitem__, order)]
        least = (across[-1] - across[0]) / most if len(order) > 1 else 0.0
        last = -math.inf
        for value, place in zip(order, across, strict=True):
            if place - last >= least * 0.999:
                shown.append(value)
                last = place
        return [self.places[value] for value in shown], [plain(self.texts[value]) for value in shown]


def scale_of(axis: str, values: Iterable[Value]) -> Scale:
    """Numbers and quantities stand where they belong, over a wide range on a logarithmic scale; words in a row."""
    distinct = list(dict.fromkeys(values))
    texts = {value: str(value) for value in distinct}
    numbers = [magnitude(str(value)) for value in distinct]
    if len(distinct) < 2 or any(number is None for number in numbers):
        return Scale({value: float(i) for i, value in enumerate(distinct)}, texts, axis_label(axis), "linear")
    places = {value: number for value, number in zip(distinct, numbers, strict=True) if number is not None}
    least, most = min(places.values()), max(places.values())
    units = {_unit(value) for value in distinct}
    label = axis_label(axis)
    if len(units) == 1 and (unit := units.pop()):
        texts = {value: str(value).removesuffix(unit).strip() for value in distinct}
        label = f"{label} ({unit})"
    return Scale(places, texts, label, "log" if 0 < least * _LOG_RATIO <= most else "linear")


def rows_of(axis: str, values: Iterable[Value]) -> Scale:
    """Every value one step after the other, as in a heat map; numbers in rising order."""
    scale = scale_of(axis, values)
    order = sorted(scale.places, key=scale.places.__getitem__)
    return Scale({value: float(i) for i, value in enumerate(order)}, scale.texts, scale.label, "linear")


def zipped(axes: Sequence[str], rows: Sequence[Mapping[str, Value]]) -> tuple[Scale, list[Value]]:
    """Axes that move together: one step a combination, its values below one another."""
    texts = ["\n".join(str(row[axis]) for axis in axes) for row in rows]
    distinct = list(dict.fromkeys(texts))
    label = "\n".join(axis_label(axis) for axis in axes)
    places: dict[Value, float] = {text: float(i) for i, text in enumerate(distinct)}
    return Scale(places, {text: text for text in distinct}, label, "linear"), [*texts]


def _unit(value: Value) -> str:
    found = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    return found[2] if found else ""
