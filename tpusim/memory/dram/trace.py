"""Traces of requests as CSV: time,address,bytes,rw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import InputError, Problem
from tpusim.input.scalars import show
from tpusim.input.source import given_text
from tpusim.memory.dram.rules import Numbers

HEADER = "time,address,bytes,rw"
_MOST_BYTES = 2**30
_MOST_ADDRESS = 2**62
_MOST_CYCLES = 2**36
"""A minute of HBM: every channel is refreshed on its way there."""
_MOST_FILE_BYTES = 2**30
_MOST_BURSTS = 2**26


@dataclass(frozen=True)
class Trace:
    """Bursts in the order of the trace, a row of which may be several: addresses, earliest memory cycles, writes.

    Of each row, int64[rows]: how many bursts it is, the address at which it begins, the bytes it asks for.
    """

    addresses: Numbers
    times: Numbers
    write: NDArray[np.bool_]
    bursts_of: Numbers
    places: Numbers
    requested: Numbers


def read_trace(path: Path, burst: int) -> Trace:
    """Read a trace for a memory whose bursts have so many bytes; "-" is standard input.

    Raises InputError with file and line.
    """
    text, name = given_text(path, _MOST_FILE_BYTES)
    lines = text.splitlines()
    if not lines or lines[0].replace(" ", "") != HEADER:
        given = show(lines[0]) if lines else "nothing"
        raise InputError(Problem(f"the first line is {given}; write {HEADER}", f"{name}:1", 1))
    cells = [line.split(",") for line in lines[1:]]
    while cells and cells[-1] == [""]:
        cells.pop()
    if not cells:
        raise InputError(Problem("no requests; write a line for each, such as 0,0x1000,64,r", f"{name}:2", 2))
    return _bursts(name, burst, *_columns(name, cells))


def _columns(file: str, cells: Sequence[Sequence[str]]) -> tuple[Numbers, Numbers, Numbers, NDArray[np.bool_]]:
    """Times (-1: none), addresses, bytes and whether each writes."""
    for at, row in enumerate(cells):
        if len(row) != 4:
            raise _wrong(file, at, f"{len(row)} values; write four, {HEADER}")
    times, addresses, sizes, kinds = zip(*cells, strict=True)
    timed = np.array([bool(text.strip()) for text in times])
    earliest = _whole(file, "time", [text if text.strip() else "0" for text in times], 0, _MOST_CYCLES)
    size = _whole(file, "bytes", sizes, 1, _MOST_BYTES)
    place = _whole(file, "address", addresses, 0, _MOST_ADDRESS)
    kind = np.char.strip(np.array(kinds))
    if (bad := np.flatnonzero((kind != "r") & (kind != "w"))).size:
        raise _wrong(file, bad[0], f"rw is {show(kinds[bad[0]])}; write r or w")
    return np.where(timed, earliest, -1), place, size, kind == "w"


def _whole(file: str, name: str, texts: Sequence[str], least: int, most: int) -> Numbers:
    """Whole numbers, decimal or 0x..., in a range."""
    allowed = f"write a whole number, {least} to {most}"
    try:
        numbers = np.array(texts).astype(np.int64)
    except (ValueError, OverflowError):
        numbers = np.empty(len(texts), np.int64)
        for at, text in enumerate(texts):
            try:
                numbers[at] = int(text, 16 if text.strip()[:2].lower() == "0x" else 10)
            except (ValueError, OverflowError):
                raise _wrong(file, at, f"{name} is {show(text)}; {allowed}") from None
    if (bad := np.flatnonzero((numbers < least) | (numbers > most))).size:
        raise _wrong(file, bad[0], f"{name} is {show(texts[bad[0]])}; {allowed}")
    return numbers


def _bursts(file: str, burst: int, times: Numbers, places: Numbers, sizes: Numbers, write: NDArray[np.bool_]) -> Trace:
    """Every row as the bursts it touches; a row without a time comes as soon as it can, but after those before it."""
    earliest = np.maximum.accumulate(np.maximum(times, 0))
    if (bad := np.flatnonzero((times >= 0) & (times < earliest))).size:
        said = f"time {times[bad[0]]} is before {earliest[bad[0]]}, that of a line above"
        raise _wrong(file, bad[0], f"{said}; sort the lines by time")
    first = places // burst
    counts = (places + sizes - 1) // burst - first + 1
    if (total := int(counts.sum())) > _MOST_BURSTS:
        raise InputError(Problem(f"{total:,} bursts are more than {_MOST_BURSTS:,}; split the trace", file))
    within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    addresses = (np.repeat(first, counts) + within) * burst
    return Trace(addresses, np.repeat(earliest, counts), np.repeat(write, counts), counts, places, sizes)


def _wrong(file: str, row: int, message: str) -> InputError:
    return InputError(Problem(message, f"{file}:{int(row) + 2}", int(row) + 2))
