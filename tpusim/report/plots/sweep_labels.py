"""What the axes and columns of a sweep are called in a picture, and where their values stand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tpusim.base.units import magnitude
from tpusim.report.plots.figure import plain
from tpusim.result.vocabulary.fields import axis_title

_OF_NUMBERS = "0123456789.eE_+- "
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
        order = sorted(self.places, key=self.places.__getitem__)
        across = {value: math.log(place) if self.kind == "log" else place for value, place in self.places.items()}
        least = (across[order[-1]] - across[order[0]]) / most * 0.999
        shown = order[:1]
        for value in order[1:]:
            if across[value] - across[shown[-1]] >= least:
                shown.append(value)
        return [self.places[value] for value in shown], [plain(self.texts[value]) for value in shown]


def scale_of(axis: str, values: Iterable[Value]) -> Scale:
    """Numbers and quantities stand where they belong, over a wide range on a logarithmic scale; words in a row."""
    label, texts = axis_label(axis), {value: str(value) for value in values}
    places = {value: place for value, text in texts.items() if (place := magnitude(text)) is not None}
    if len(texts) < 2 or len(places) < len(texts):
        return _in_a_row(texts, label)
    units = {text.strip().lstrip(_OF_NUMBERS) for text in texts.values()}
    if len(units) == 1 and (unit := units.pop()):
        texts = {value: text.removesuffix(unit).strip() for value, text in texts.items()}
        label = f"{label} ({unit})"
    wide = 0 < min(places.values()) * _LOG_RATIO <= max(places.values())
    return Scale(places, texts, label, "log" if wide else "linear")


def rows_of(axis: str, values: Iterable[Value]) -> Scale:
    """Every value one step after the other, as in a heat map; numbers in rising order."""
    scale = scale_of(axis, values)
    return _in_a_row(
        {value: scale.texts[value] for value in sorted(scale.places, key=scale.places.__getitem__)}, scale.label
    )


def zipped(axes: Sequence[str], rows: Sequence[Mapping[str, Value]]) -> tuple[Scale, list[Value]]:
    """Axes that move together: one step a combination, its values below one another."""
    texts = ["\n".join(str(row[axis]) for axis in axes) for row in rows]
    return _in_a_row(dict(zip(texts, texts, strict=True)), "\n".join(map(axis_label, axes))), [*texts]


def _in_a_row(texts: Mapping[Value, str], label: str) -> Scale:
    return Scale({value: float(place) for place, value in enumerate(texts)}, texts, label, "linear")
