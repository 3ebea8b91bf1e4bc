"""The columns of what only one machine family tells of its layers."""

from __future__ import annotations

from collections.abc import Sequence

from tpusim.report.tables.layout import Column
from tpusim.report.text import quantity, scale, shown
from tpusim.result.records import LayerResult
from tpusim.result.vocabulary.figures import PLAIN
from tpusim.result.vocabulary.own import own_figure, own_keys

_RANK = 3
"""They go together where there is no room."""


def own_columns(layers: Sequence[LayerResult]) -> list[Column[LayerResult]]:
    """One for each name that some of the layers have; words as they are, numbers in one unit."""
    return [_column(key, layers) for key in own_keys(layers)]


def own_text(key: str, value: float | str) -> str:
    """One of them, with its unit."""
    units = own_figure(key).units
    return value if isinstance(value, str) else f"{value:,}" if units == PLAIN else quantity(value, units)


def _column(key: str, layers: Sequence[LayerResult]) -> Column[LayerResult]:
    figure = own_figure(key)
    numbers = [value for layer in layers if isinstance(value := layer.own.get(key), int | float)]
    unit, size = scale(numbers, figure.units)

    def cell(layer: LayerResult) -> str:
        value = layer.own.get(key)
        return value if isinstance(value, str) else shown(figure, value, size)

    head = figure.head.replace(" ", "\n")
    return Column(f"{head}\n{unit}" if unit else head, cell, _RANK, legend=figure.legend)
