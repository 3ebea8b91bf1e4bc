"""The layers of a result as a flat table, for pandas: one column a field."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tpusim.base.imports import need
from tpusim.result.records import LayerResult, Result
from tpusim.result.vocabulary.fields import by_path
from tpusim.result.vocabulary.figures import FIGURES, value_of
from tpusim.result.vocabulary.lowerings import COLUMN

if TYPE_CHECKING:
    from pandas import DataFrame


_OWN = ("stall_cycles", "dram")
"""Whose figures go by names of their own."""
_INSIDE = re.compile(r"^(vector_memory|energy_use)\.")


def frame_of(result: Result) -> DataFrame:
    """A row a layer, with the columns of a sweep's layers.csv first; the other fields by their paths.

    Raises:
        InputError: pandas is not installed.
    """
    need("Result.to_frame()", "pandas", "pandas")
    from pandas import DataFrame

    asked = {"workload": result.workload, "batch": result.batch}
    return DataFrame([{**asked, "position": place, **row_of(layer)} for place, layer in enumerate(result.layers)])


def row_of(layer: LayerResult) -> dict[str, Any]:
    """Every field of a layer by its column: figures by their keys, what lies deeper as "blocking.rows"."""
    figures = {key: value_of(layer, key) for key in FIGURES}
    held = {key: value for key, value in asdict(layer).items() if key not in _OWN}
    wrong = str(layer.first_mismatch) if layer.first_mismatch else None
    rest = by_path({**held, "first_mismatch": wrong})
    others = {path: value for path, value in rest if _INSIDE.sub("", path) not in figures}
    words = {"name": others.pop("name"), "op": others.pop("op"), COLUMN: others.pop("lowering")}
    return {**words, **figures, **others}
