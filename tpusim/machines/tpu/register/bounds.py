"""The lanes and columns that a Program names must exist; the compiled loops do not ask again."""

from __future__ import annotations

from collections.abc import Iterator

from tpusim.base.errors import CheckFailed
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload, Step, Stream, Transfer


def check_lanes(program: Program, hardware: Hardware) -> None:
    """Look at every step.

    Raises:
        CheckFailed: when one names a lane, a row or a column that the machine does not have.
    """
    limits = {"row": hardware.array.rows, "column": hardware.array.cols, "lane": hardware.lanes}
    for index, step in enumerate(program.steps):
        for what, first, stop in _named(step):
            if first < 0 or stop > limits[what]:
                raise CheckFailed(
                    f"step {index} ({step.label}) names {what}s [{first}, {stop}); the machine has {limits[what]}"
                )


def _named(step: Step) -> Iterator[tuple[str, int, int]]:
    """What a step names: rows, columns or lanes, the first and the one after the last."""
    match step:
        case Stream():
            yield "column", 0, step.cols
            for group in step.reads.groups:
                yield "row", group.first_lane, group.first_lane + group.lanes
        case Preload():
            yield "column", 0, step.cols
            yield "row", 0, step.rows
        case Transfer():
            for part in step.parts:
                for first in part.first_lanes:
                    yield "lane", first, first + part.lanes
