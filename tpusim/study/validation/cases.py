"""Reference numbers: layers to simulate, a figure to compare with, and a word for its origin."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from zlib import crc32

from tpusim.network.ops.op import Op

WORDS = {
    "estimated": "Google's compiler priced its schedule before it wrote the code, no chip ran",
    "scheduled": "cycles of the code that the compiler wrote, a static schedule, no chip ran",
    "measured": "somebody ran the chip",
    "simulated": "DRAMsim3 played the same requests on the same DRAM, no chip ran",
}
"""Origins of numbers, in the order of reports. Numbers of two words never meet in one figure."""


NETWORKS = "networks"
"""Kind of the sets that hold the operations of whole networks."""


@dataclass(frozen=True)
class Case:
    """Layers that run one after another, and the reference's figure: cycles, or a share of peak in percent.

    `estimated` and `scheduled` are figures of these words for the same layers, if known. `their_block` has changes of
    the machine that impose the compiler's own block; such a case is simulated with and without
    them. `changes` always apply to the case. `quirk`: the estimator does not charge all taps
    (`convolutions.uncharged`).
    """

    name: str
    layers: tuple[Op, ...]
    batch: int
    theirs: float
    estimated: float | None = None
    scheduled: float | None = None
    their_block: tuple[str, ...] = ()
    quirk: bool = False
    changes: tuple[str, ...] = ()

    @property
    def fitted(self) -> bool:
        """Whether the case is in the half of its set that fitted numbers may be chosen on."""
        return crc32(self.name.encode()) % 2 == 0


@dataclass(frozen=True)
class LeftOut:
    """An operation of a set that is not compared: its name, and the reference's cycles."""

    name: str
    theirs: float


@dataclass(frozen=True)
class NumberSet:
    """Cases of one word about one kind of thing, and the machine that they are compared with.

    `changes` override its description. `fitted`: half of the cases were used to choose fitted numbers. `lowering`
    is the lowering of the cases. `left_out` has operations that are not compared.
    """

    name: str
    status: str
    kind: str
    about: str
    hardware: str
    cases: tuple[Case, ...]
    changes: tuple[str, ...] = ()
    unit: str = "cycles"
    fitted: bool = False
    lowering: str = "channel_first"
    left_out: tuple[LeftOut, ...] = ()

    @property
    def picture(self) -> str:
        """Picture of the set: one for each word and kind."""
        return f"{self.status}_{self.kind}"


# ---- the tables that come with tpusim

Row = dict[str, str]


def rows(name: str) -> Iterator[Row]:
    """Rows of truth/NAME.csv, with each value as text by the name of its column."""
    text = (files("tpusim.study.validation") / "truth" / f"{name}.csv").read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines())


def numbers(row: Row, columns: str) -> Iterator[int]:
    """Whole numbers in some columns of a row, such as "batch H W"."""
    return (int(row[column]) for column in columns.split())


def sizes(bounds: str) -> tuple[int, ...]:
    """The numbers of "3x3x16x1"."""
    return tuple(int(size) for size in bounds.split("x"))
