"""Making of every exhibit of words.yaml: missing points are simulated and kept, then exhibits are made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tpusim.base.errors import InputError, TpusimError, did_you_mean
from tpusim.study.paper import accuracy, cells, design, networks, strides
from tpusim.study.paper.claims import words
from tpusim.study.paper.exhibit import AskedPoints, Exhibit, Maker, PointFigures, Row, asked, shown
from tpusim.study.sweep.parcels import Executor
from tpusim.study.sweep.points import Point
from tpusim.study.sweep.run import Progress, missing, run_sweep
from tpusim.study.sweep.store import Store

MAKERS: dict[str, Maker] = {
    "table1": networks.lowered_sizes,
    "table2": design.configuration,
    "1": cells.lowered_layer,
    "2a": networks.explicit_on_gpu,
    "2b": networks.explicit_on_tpu,
    "3": strides.channel_last,
    "4a": strides.on_tensor_cores,
    "4b": strides.on_tpu,
    "5": cells.on_chip,
    "6": cells.orders_of_columns,
    "7": strides.in_hbm,
    "8": strides.channel_first,
    "10": cells.one_tile,
    "11": cells.two_tiles,
    "12": cells.order_of_subtiles,
    "13a": accuracy.products,
    "13b": accuracy.convolutions,
    "14a": design.number_of_tiles,
    "14b": accuracy.stacked_taps,
    "15a": accuracy.networks,
    "15b": accuracy.layers_of_networks,
    "16a": design.size_of_array,
    "16b": design.width_of_word,
    "17": networks.blocks_on_gpu,
    "18a": networks.strided_on_gpu,
    "18b": networks.reuse_on_gpu,
    "chip": design.whole_chip,
}
"""Functions that make exhibits, by the names of the command line."""

FILE = "paper.sqlite"
"""File of the simulated points."""


def chosen(figures: Sequence[str]) -> list[str]:
    """The chosen exhibits in the paper's order, or all of them.

    Raises:
        InputError: one is not known.
    """
    known = words()
    for each in figures:
        if each not in known:
            guess = did_you_mean(each, known) or ";"
            raise InputError(f"--figure {each}: no such exhibit{guess} there is {', '.join(known)}")
    return [each for each in known if each in figures or not figures]


@dataclass(frozen=True)
class PointPlan:
    """Points of some exhibits, by the names that each has for its own; several exhibits may share a point."""

    figures: tuple[str, ...]
    asked: tuple[AskedPoints, ...]

    @classmethod
    def of(cls, figures: Sequence[str]) -> PointPlan:
        """All points that these exhibits ask for."""
        return cls(tuple(figures), tuple(asked(MAKERS[each]) for each in figures))

    @property
    def points(self) -> list[Point]:
        """The points of all exhibits."""
        return [point for points in self.asked for point in points.values()]

    def left(self, store: Store) -> int:
        """Number of points that are missing."""
        return len(missing(self.points, store, fresh=False))

    def run(self, store: Store, executor: Executor, progress: Progress) -> None:
        """Simulate missing points.

        Raises:
            InputError: the store cannot be written.
            TpusimError: the executor can do no more.
        """
        run_sweep(self.points, store, executor, False, progress)

    def made(self, store: Store) -> list[Exhibit]:
        """The exhibits.

        Raises:
            TpusimError: a point of theirs could not be simulated; says which and why.
        """
        # Exhibits share points, so that each is simulated and read once.
        points = {point.key: point for point in self.points}
        keys = [*points]
        rows = dict(zip(keys, store.points(keys), strict=True))
        for key, row in rows.items():
            if row["error"]:
                raise TpusimError(f"{points[key].jobs.work.name}: {row['error']}")
        layers: dict[str, list[Row]] = {key: [] for key in keys}
        for layer in store.layers(keys, sum(len(point.jobs.work.layers) for point in points.values())):
            layers[keys[layer["place"]]].append(layer)
        found = {key: PointFigures(row, layers[key]) for key, row in rows.items()}
        return [
            Exhibit(words()[figure], shown(MAKERS[figure], {name: found[each.key] for name, each in own.items()}))
            for figure, own in zip(self.figures, self.asked, strict=True)
        ]
