"""Traces of requests as CSV (time,address,bytes,rw), played on a device by either model, and their figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import CheckFailed, InputError, Problem
from tpusim.input.scalars import show
from tpusim.input.source import given_text
from tpusim.memory.dram.clocked import ClockedDram
from tpusim.memory.dram.device import Device
from tpusim.memory.dram.one_pass import OnePassDram
from tpusim.memory.dram.rules import Counts, Numbers, ServedRequests, places

ENGINES = ("one_pass", "clocked", "both")

_NEWS = 10_000
"""Cycles of the clocked model between two reports of progress."""

Watch = Callable[[str], None]
"""Called with a text about what is under way."""

_HEADER = "time,address,bytes,rw"
_MOST_BYTES = 2**30
_MOST_ADDRESS = 2**62
_MOST_CYCLES = 2**36
"""Latest time of a request: a minute of HBM, in which every channel must be refreshed all the way."""
_MOST_FILE_BYTES = 2**30
_MOST_BURSTS = 2**26


@dataclass(frozen=True)
class Trace:
    """Bursts in the order of the trace, int64[bursts]: addresses, earliest memory cycles, and whether they write.

    A row of the trace may have several bursts. For each row, int64[rows], `bursts_of` has their number, `places` the
    address at which the row begins, and `requested` the bytes that it asks for.
    """

    addresses: Numbers
    times: Numbers
    write: NDArray[np.bool_]
    bursts_of: Numbers
    places: Numbers
    requested: Numbers


@dataclass(frozen=True)
class Figures:
    """Figures of a channel, or of all channels. Times are of the first and the last completion, None without requests.

    The bandwidth counts the bytes moved from time 0 to the last completion in any channel.
    """

    first_ns: float | None
    last_ns: float | None
    bytes_requested: int
    bytes_moved: int
    bandwidth_bytes_per_s: float
    row_hits: int
    activates: int
    refreshes: int


@dataclass(frozen=True)
class Replay:
    """Result of a trace on a device: figures of all channels together, and of each channel."""

    device: Device
    engine: str
    total: Figures
    channels: tuple[Figures, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers: the total figures, the device, and the figures of each channel."""
        device = self.device
        own = {"device": device.name, "changes": dict(device.changes), "engine": self.engine}
        figures = {"peak_bytes_per_s": device.peak_bytes_per_s, **asdict(self.total)}
        return {**own, **figures, "channels": [asdict(each) for each in self.channels]}


def replay(trace: Trace, device: Device, engine: str, watch: Watch = lambda doing: None) -> Replay:
    """Play a trace on a fresh device by the model that `engine`, one of ENGINES, names; `watch` is called with the
    progress.

    Raises:
        CheckFailed: with `engine` "both", if the two models differ.
    """
    if engine == "clocked":
        served, counts = _clocked(trace, device, watch)
    else:
        watch(f"{len(trace.addresses):,} bursts in one pass")
        # A fresh memory, as a trace begins with all rows closed.
        memory = OnePassDram(device)
        served = memory.serve(trace.addresses, trace.write, times=trace.times)
        counts = memory.counts(int(served.done.max()))
    if engine == "both":
        other, others = _clocked(trace, device, watch)
        differing = np.flatnonzero((served.accepted != other.accepted) | (served.done != other.done))
        if differing.size:
            at = int(differing[0])
            said = f"done in cycle {served.done[at]} by the one-pass model, in {other.done[at]} by the clocked one"
            raise CheckFailed(f"{differing.size} bursts differ; the first, burst {at} of the trace, is {said}")
        for name, ours, theirs in zip(Counts._fields, counts, others, strict=True):
            if not np.array_equal(ours, theirs):
                said = f"{ours.tolist()} by the one-pass model, {theirs.tolist()} by the clocked one"
                raise CheckFailed(f"{name} differ: {said}")
    return _figures(trace, device, engine, served, counts)


def _clocked(trace: Trace, device: Device, watch: Watch) -> tuple[ServedRequests, Counts]:
    memory = ClockedDram(device)
    offered = memory.offer(trace.addresses, trace.write, times=trace.times)
    while not offered.finished or memory.now < offered.done.max():
        if memory.now % _NEWS == 0:
            watch(f"{len(trace.addresses):,} bursts clocked, cycle {memory.now:,}")
        memory.clock()
    return ServedRequests(offered.accepted, offered.done), memory.counts()


def _figures(trace: Trace, device: Device, engine: str, served: ServedRequests, counts: Counts) -> Replay:
    channel = places(device.addresses(), trace.addresses).channel
    # Bytes of each burst that the trace asks for: the first and last burst of a row may be wanted in part only.
    burst, ends = device.organisation.burst_bytes, np.cumsum(trace.bursts_of)
    asked = np.full(trace.addresses.size, burst, np.int64)
    first = ends - trace.bursts_of
    ahead = trace.places - trace.addresses[first]
    asked[first] -= ahead
    asked[ends - 1] -= trace.bursts_of * burst - ahead - trace.requested
    seconds = device.ns(int(served.done.max())) / 1e9

    def of(chosen: Any, moved: int, asked_for: int, hits: int, activates: int, refreshes: int) -> Figures:
        done = served.done[chosen]
        first, last = (device.ns(int(done.min())), device.ns(int(done.max()))) if done.size else (None, None)
        return Figures(first, last, asked_for, moved, moved / seconds, hits, activates, refreshes)

    moved = (counts.reads + counts.writes) * burst
    columns = moved, np.bincount(channel, asked, device.channels), counts.row_hits, counts.activates, counts.refreshes
    channels = tuple(of(channel == c, *(int(each[c]) for each in columns)) for c in range(device.channels))
    return Replay(device, engine, of(slice(None), *(int(each.sum()) for each in columns)), channels)


def read_trace(path: Path, burst: int) -> Trace:
    """Read a trace for a memory with bursts of `burst` bytes; "-" is standard input.

    Raises InputError with file and line.
    """
    text, name = given_text(path, _MOST_FILE_BYTES)
    lines = text.splitlines()
    if not lines or lines[0].replace(" ", "") != _HEADER:
        given = show(lines[0]) if lines else "nothing"
        raise InputError(Problem(f"the first line is {given}; write {_HEADER}", f"{name}:1", 1))
    cells = [line.split(",") for line in lines[1:]]
    # Empty lines at the end of a file are no requests.
    while cells and cells[-1] == [""]:
        cells.pop()
    if not cells:
        raise InputError(Problem("no requests; write a line for each, such as 0,0x1000,64,r", f"{name}:2", 2))
    return _bursts(name, burst, *_columns(name, cells))


def _columns(file: str, cells: Sequence[Sequence[str]]) -> tuple[Numbers, Numbers, Numbers, NDArray[np.bool_]]:
    """Times (-1 for none), addresses, bytes, and whether each row writes."""
    for at, row in enumerate(cells):
        if len(row) != 4:
            raise _wrong(file, at, f"{len(row)} values; write four, {_HEADER}")
    times, addresses, sizes, kinds = zip(*cells, strict=True)
    # A request without a time comes as soon as there is room for it.
    timed = np.array([bool(text.strip()) for text in times])
    earliest = _whole(file, "time", [text if text.strip() else "0" for text in times], 0, _MOST_CYCLES)
    size = _whole(file, "bytes", sizes, 1, _MOST_BYTES)
    place = _whole(file, "address", addresses, 0, _MOST_ADDRESS)
    kind = np.char.strip(np.array(kinds))
    if (bad := np.flatnonzero((kind != "r") & (kind != "w"))).size:
        raise _wrong(file, bad[0], f"rw is {show(kinds[bad[0]])}; write r or w")
    return np.where(timed, earliest, -1), place, size, kind == "w"


def _whole(file: str, name: str, texts: Sequence[str], least: int, most: int) -> Numbers:
    """Whole numbers, decimal or 0x..., within a range."""
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
    """Every row as the bursts that it touches; a row without a time comes as soon as possible behind those
    before it.
    """
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
