"""A trace played on a device by either model, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tpusim.base.errors import CheckFailed
from tpusim.memory.dram.clocked import Clocked
from tpusim.memory.dram.device import Device
from tpusim.memory.dram.one_pass import Counts, OnePass, Served
from tpusim.memory.dram.places import places
from tpusim.memory.dram.trace import Trace

ENGINES = ("one_pass", "clocked", "both")

_NEWS = 10_000
"""Cycles of the clocked model between two words on how far it is."""

Watch = Callable[[str], None]
"""Is told what is under way."""


@dataclass(frozen=True)
class Figures:
    """What came of a channel, or of all. Times are of the first and the last completion, None where nothing was asked.

    The bandwidth is that of the bytes moved, from time 0 to the last completion of all.
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
    """What a device made of a trace: together, and channel by channel."""

    device: Device
    engine: str
    total: Figures
    channels: tuple[Figures, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers: the figures of all, the device, and the figures of each channel."""
        own = {"device": self.device.name, "engine": self.engine, "peak_bytes_per_s": self.device.peak_bytes_per_s}
        return {**own, **asdict(self.total), "channels": [asdict(each) for each in self.channels]}


def replay(trace: Trace, device: Device, engine: str, watch: Watch = lambda doing: None) -> Replay:
    """Play a trace on a fresh device.

    Raises:
        CheckFailed: with `engine` "both", where the two models differ.
    """
    served, counts = _clocked(trace, device, watch) if engine == "clocked" else _one_pass(trace, device, watch)
    if engine == "both":
        _same(served, counts, *_clocked(trace, device, watch))
    return _figures(trace, device, engine, served, counts)


def _one_pass(trace: Trace, device: Device, watch: Watch) -> tuple[Served, Counts]:
    watch(f"{len(trace.addresses):,} bursts in one pass")
    memory = OnePass(device)
    served = memory.serve(trace.addresses, trace.write, times=trace.times)
    return served, memory.counts(int(served.done.max()))


def _clocked(trace: Trace, device: Device, watch: Watch) -> tuple[Served, Counts]:
    memory = Clocked(device)
    offered = memory.offer(trace.addresses, trace.write, times=trace.times)
    while not offered.finished or memory.now < offered.done.max():
        if memory.now % _NEWS == 0:
            watch(f"{len(trace.addresses):,} bursts clocked, cycle {memory.now:,}")
        memory.clock()
    return Served(offered.accepted, offered.done), memory.counts()


def _same(one: Served, one_counts: Counts, other: Served, other_counts: Counts) -> None:
    differing = np.flatnonzero((one.accepted != other.accepted) | (one.done != other.done))
    if differing.size:
        at = int(differing[0])
        said = f"done in cycle {one.done[at]} by the one-pass model, in {other.done[at]} by the clocked one"
        raise CheckFailed(f"{differing.size} bursts differ; the first, burst {at} of the trace, is {said}")
    for name, ours, theirs in zip(Counts._fields, one_counts, other_counts, strict=True):
        if not np.array_equal(ours, theirs):
            raise CheckFailed(
                f"{name} differ: {ours.tolist()} by the one-pass model, {theirs.tolist()} by the clocked one"
            )


def _figures(trace: Trace, device: Device, engine: str, served: Served, counts: Counts) -> Replay:
    channel = places(device.addresses(), trace.addresses).channel
    asked = _requested(trace, device)
    seconds = device.ns(int(served.done.max())) / 1e9

    def of(chosen: Any, moved: int, asked_for: int, hits: int, activates: int, refreshes: int) -> Figures:
        done = served.done[chosen]
        first, last = (device.ns(int(done.min())), device.ns(int(done.max()))) if done.size else (None, None)
        return Figures(first, last, asked_for, moved, moved / seconds, hits, activates, refreshes)

    moved = (counts.reads + counts.writes) * device.organisation.burst_bytes
    columns = moved, np.bincount(channel, asked, device.channels), counts.row_hits, counts.activates, counts.refreshes
    channels = tuple(of(channel == c, *(int(each[c]) for each in columns)) for c in range(device.channels))
    return Replay(device, engine, of(slice(None), *(int(each.sum()) for each in columns)), channels)


def _requested(trace: Trace, device: Device) -> Any:
    """The bytes of each burst that the trace asks for, int64[bursts]: a row's ends may take part of theirs."""
    burst = device.organisation.burst_bytes
    bytes_ = np.full(trace.addresses.size, burst, np.int64)
    ends = np.cumsum(trace.bursts_of)
    first, last = ends - trace.bursts_of, ends - 1
    ahead = trace.places - trace.addresses[first]
    bytes_[first] -= ahead
    bytes_[last] -= trace.bursts_of * burst - ahead - trace.requested
    return bytes_
