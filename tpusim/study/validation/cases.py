"""Reference numbers: layers to simulate, a figure to compare with, and a word for its origin."""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Generic, ParamSpec, TypeVar
from zlib import crc32

from tpusim.base.errors import InputError, did_you_mean
from tpusim.base.files import is_named_pipe
from tpusim.base.words import with_settings
from tpusim.input.source import PIPE
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload

WORDS = {
    "estimated": "Google's compiler priced its schedule before it wrote the code, no chip ran",
    "scheduled": "cycles of the code that the compiler wrote, a static schedule, no chip ran",
    "measured": "somebody ran the chip",
    "simulated": "DRAMsim3 played the same requests on the same DRAM, no chip ran",
}
"""Origins of numbers, in the order of reports. Numbers of two words never meet in one figure."""


NETWORKS = "networks"
"""Kind of the sets that hold the operations of whole networks."""

PASSES = "passes"
"""Unit of the sets that count passes of the array for a word of outputs, instead of time."""


@dataclass(frozen=True)
class Case:
    """Layers that run one after another, and the reference's figure: cycles, or a share of peak in percent.

    `estimated` and `scheduled` are figures of these words for the same layers, if known. `their_block` has changes of
    the machine that impose the compiler's own block; such a case is simulated with and without
    them. `changes` always apply to the case. `quirk`: the estimator does not charge all taps
    (`convolutions.uncharged`). `dtype` is the type of the operands; None: the machine's own. With a `network` the
    layers are some of its own, and what is told is their share of a run of all of it.
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
    dtype: str | None = None
    network: Workload | None = None

    @property
    def fitted(self) -> bool:
        """Whether the case is in the half of its set that fitted numbers may be chosen on."""
        return crc32(self.name.encode()) % 2 == 0


@dataclass(frozen=True)
class Omission:
    """An operation of a set that is not compared: its name, the reference's figure if there is one, and the reason."""

    name: str
    theirs: float | None
    why: str = ""


class UnclearError(Exception):
    """A row that does not say what was run, or that nothing here is like."""


Asked = TypeVar("Asked")


@dataclass(frozen=True)
class MeasuredRow(Generic[Asked]):
    """A row of a table of what somebody ran: its name, the set that it belongs to, what was asked, and what it took."""

    name: str
    group: str
    asked: Asked
    took: float


@dataclass(frozen=True)
class NumberSet:
    """Cases of one word about one kind of thing, and the machine that they are compared with.

    `changes` override its description, and `asked` is what was set beside them. `fitted`: half of the cases were used
    to choose fitted numbers. `lowering` is the lowering of the cases. `left_out` has operations that are not compared.
    `generation` and `part` place the set in the table over all TPUs. `group`: the name that asks for this set together
    with others. `tiles`: the cases are one layer, each with a block of its own, which may not fit. `vector_work`:
    compared are the cycles in which the vector unit works by itself, as the reference has no transfers.
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
    left_out: tuple[Omission, ...] = ()
    generation: str = ""
    part: str = ""
    group: str = ""
    tiles: bool = False
    vector_work: bool = False
    asked: tuple[str, ...] = ()

    @property
    def machine(self) -> str:
        """The machine's name for people, with what was set beside the set's own changes."""
        settings = (text.partition("=") for text in self.asked)
        return with_settings(self.hardware, {path.strip(): value.strip() for path, _, value in settings})

    @property
    def measured(self) -> bool:
        """Whether somebody ran the chip."""
        return self.status == "measured"

    @property
    def picture(self) -> str:
        """Picture of the set: one for each word and kind, or for each word, generation and unit."""
        if self.generation and not self.tiles and self.unit != PASSES:
            return f"{self.status}_{self.generation}_{self.unit}"
        return f"{self.status}_{self.kind.replace(' ', '_')}"


# ---- the tables, which come with tpusim or from elsewhere

Row = dict[str, str]

_SHIPPED = files("tpusim.study.validation") / "truth"
_elsewhere: ContextVar[Path | None] = ContextVar("elsewhere", default=None)

_FIGURE = re.compile("cycles|hbm|passes|^(?:min|max|stddev|program|time)_us$|^samples$|^bytes$|^gbytes_s$")
"""Columns that a row may leave empty: what the compiler did not tell of a shape, how often timed figures vary, and
what was measured of a collective, as other rows of its table are steps of training."""

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def tables_from(folder: Path | None) -> Iterator[None]:
    """Put tables of a folder in place of the shipped tables of the same names; None: no folder.

    Raises:
        InputError: no such folder, no table in it that is known, or a table that lacks a column or a number.
    """
    if folder is not None:
        _checked(folder)
    token = _elsewhere.set(folder)
    try:
        yield
    finally:
        _elsewhere.reset(token)


def cached(function: Callable[P, T]) -> Callable[P, T]:
    """Cache the results of a function, for each folder of tables by itself."""
    known: dict[object, T] = {}

    @wraps(function)
    def found(*given: P.args, **named: P.kwargs) -> T:
        asked = _elsewhere.get(), given, *named.items()
        if asked not in known:
            known[asked] = function(*given, **named)
        return known[asked]

    return found


def rows(name: str) -> Iterator[Row]:
    """The rows of truth/NAME.csv, each value as text by the name of its column."""
    folder = _elsewhere.get()
    theirs = folder / f"{name}.csv" if folder else None
    yield from _read(theirs if theirs is not None and theirs.is_file() else _SHIPPED / f"{name}.csv")


def numbers(row: Row, columns: str) -> Iterator[int]:
    """Whole numbers in some columns of a row, such as "batch H W"."""
    return (int(row[column]) for column in columns.split())


def sizes(bounds: str) -> tuple[int, ...]:
    """The numbers of "3x3x16x1"."""
    return tuple(int(size) for size in bounds.split("x"))


def _read(table: Traversable) -> Iterator[Row]:
    yield from csv.DictReader(table.read_text(encoding="utf-8").splitlines())


def _checked(folder: Path) -> None:
    """Hold every table of a folder against the shipped one of its name: columns, and where numbers stand."""
    if not os.path.isdir(folder):
        raise InputError(f"--truth: {folder} is no folder; name one that holds tables such as xla_tpu_gen_gemm.csv")
    shipped = {each.name for each in _SHIPPED.iterdir() if each.name.endswith(".csv")}
    known = [path for path in sorted(folder.glob("*.csv")) if path.name in shipped]
    if not known:
        found = sorted(path.name for path in folder.glob("*.csv"))
        guess = (did_you_mean(found[0], shipped) if found else None) or f"; known are {', '.join(sorted(shipped))}"
        raise InputError(f"--truth: {folder} holds no table of a known name{guess}")
    for path in known:
        _held_against(_SHIPPED / path.name, path)


def _held_against(ours: Traversable, path: Path) -> None:
    """Raises InputError where a table lacks a column, or a number in a column of numbers."""
    if is_named_pipe(path):
        raise InputError(f"--truth: {path}: {PIPE}")
    try:
        wanted, given = [*_read(ours)], [*_read(path)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"--truth: {path} cannot be read: {error}") from None
    if not given:
        raise InputError(f"--truth: {path} has no rows; leave it out, and the shipped table stands")
    if lacking := [column for column in wanted[0] if column not in given[0]]:
        raise InputError(f"--truth: {path} lacks the columns {', '.join(lacking)} of the shipped {ours.name}")
    for column in wanted[0]:
        values = {row[column] for row in wanted}
        if not all(map(_is_number, values - {""})) or values == {""}:
            continue
        for line, row in enumerate(given, 2):
            value = row[column]
            unknown = value == "" and ("" in values or _FIGURE.search(column))
            if value is None or not (unknown or _is_number(value)):
                raise InputError(f"--truth: {path}:{line}: {column} is {value!r}; write a number")


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
