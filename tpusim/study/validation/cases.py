"""What a reference number is: layers to simulate, a figure to meet, and the word that says where it comes from."""

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
"""Where a number comes from, in the order of reports. Numbers of two words never meet in one figure."""


NETWORKS = "networks"
"""The kind of sets that hold the operations of a whole network."""


@dataclass(frozen=True)
class Case:
    """Layers that run one after another, and what the reference says: cycles, or a share of peak in percent.

    `estimated` and `scheduled` are what these words say of the same layers, where known. `their_block` are changes of
    the machine that impose the compiler's own block on the lowering; a case that has some is simulated with and without
    them. `changes` go with the case in any way. `quirk`: the estimator does not charge all taps
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
    """What belongs to a set, but is not compared: its name, and the cycles that the reference says."""

    name: str
    theirs: float


@dataclass(frozen=True)
class NumberSet:
    """Cases of one word about one kind of thing, and the machine they are held against.

    `changes` are overrides of its description. `fitted`: half of the cases served to choose fitted numbers. `lowering`
    makes passes of them. `left_out`: what is not compared.
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
        """The picture it is drawn into: one for each word and kind."""
        return f"{self.status}_{self.kind}"


# ---- the tables that come with tpusim

Row = dict[str, str]


def rows(name: str) -> Iterator[Row]:
    """The rows of truth/NAME.csv, each value as text by the name of its column."""
    text = (files("tpusim.study.validation") / "truth" / f"{name}.csv").read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines())


def numbers(row: Row, columns: str) -> Iterator[int]:
    """The whole numbers in some columns of a row, "batch H W"."""
    return (int(row[column]) for column in columns.split())


def sizes(bounds: str) -> tuple[int, ...]:
    """The numbers of "3x3x16x1"."""
    return tuple(int(size) for size in bounds.split("x"))
