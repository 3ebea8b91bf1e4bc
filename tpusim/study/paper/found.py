"""What the simulations that an exhibit asks for came to, read back from where they are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpusim.base.errors import TpusimError
from tpusim.machines.family import Machine
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.study.sweep.space import Point
from tpusim.study.sweep.store import Store

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Simulated:
    """Figures of a point, and of each of its layers, under the names of `tpusim.result.vocabulary.figures`."""

    figures: Row
    layers: Sequence[Row]

    @property
    def cycles(self) -> int:
        """The cycles of all layers together."""
        return int(self.figures["cycles"])


def point_of(name: str, layers: Sequence[Op], hardware: Machine, batch: int = 8, how: str = "channel_first") -> Point:
    """Layers on a machine by a lowering, timing alone."""
    return Point(Workload(name, batch, tuple(layers)), (), hardware, how)


def read_back(store: Store, points: Sequence[tuple[Point, str]]) -> dict[str, Simulated]:
    """What is kept of each point, by its key.

    Raises:
        TpusimError: one could not be simulated; says which and why.
    """
    distinct = {key: point for point, key in points}
    keys, works = [*distinct], [point.workload for point in distinct.values()]
    rows = list(store.points(keys))
    for row, work in zip(rows, works, strict=True):
        if row["error"]:
            raise TpusimError(f"{work.name}: {row['error']}")
    layers: list[list[Row]] = [[] for _ in keys]
    for layer in store.layers(keys, sum(len(work.layers) for work in works)):
        layers[layer["place"]].append(layer)
    return {key: Simulated(row, of) for key, row, of in zip(keys, rows, layers, strict=True)}
