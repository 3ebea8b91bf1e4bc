"""The DRAM held against DRAMsim3: the same lists of requests, played by the one-pass model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from os import cpu_count
from typing import NamedTuple

import numpy as np

from tpusim.memory.dram.device import Device, load_device
from tpusim.memory.dram.one_pass import OnePass
from tpusim.study.processes import Processes
from tpusim.study.validation.cases import NumberSet, Row, rows
from tpusim.study.validation.comparison import ComparedCase, Comparison
from tpusim.study.validation.streams import BURST, parameters, requests, shared_out

BANDWIDTH, FINISH = "GB/s", "ns"

GROUPS = {"1_stride": "strides", "2_run": "runs of consecutive bytes", "3_mixed": "reads and writes in turn",
          "4_cold": "a fresh DRAM, at several times to the next refresh", "5_tensor": "blocks of feature maps",
          "6_mapping": "mappings and closed pages", "7_ccdl4": "a slower bank group",
          "8_outstanding": "few requests under way"}  # fmt: skip
"""The groups of the newer table, and what is in them."""

_UNLIMITED = 10**6


@dataclass(frozen=True)
class RequestStream:
    """A row of the tables: what is played on which device, and what DRAMsim3 says of it.

    `bandwidth` in GB/s of bytes moved until the last completion, `finish` in ns; None where the table does not say.
    """

    name: str
    group: str
    device: str
    changes: tuple[str, ...]
    row: tuple[tuple[str, str], ...]
    bandwidth: float
    finish: float | None


class Played(NamedTuple):
    """What our DRAM says of a stream, as RequestStream has it; `peak` is the bandwidth of its data buses."""

    bandwidth: float
    finish: float
    peak: float


@cache
def streams() -> tuple[RequestStream, ...]:
    """Every row of both tables."""
    return (
        *map(_newer, rows("dramsim3_hbm2_more")),
        *(_older(at, row) for at, row in enumerate(rows("dramsim3_hbm2"))),
    )


@cache
def memory_sets() -> dict[str, NumberSet]:
    """The sets by their names: bandwidths of each group and of the older table, and finish times of all groups."""
    made = [_set(f"dram_{group[2:]}", "bandwidths", about, BANDWIDTH) for group, about in GROUPS.items()]
    made.append(_set("dram_older", "bandwidths", "strides, mixes, rates, requests under way", BANDWIDTH))
    made += [_set(f"dram_{group[2:]}_finish", "finish times", about, FINISH) for group, about in GROUPS.items()]
    return {each.name: each for each in made}


def compare_memory(
    sets: Sequence[NumberSet], changes: Sequence[str], progress: Callable[[int, str], None]
) -> list[Comparison]:
    """Play what the sets need, each stream once, on all processors; `changes` are overrides of every device.

    Raises:
        InputError: a change that makes no device.
    """
    wanted = _wanted(sets)
    for stream in wanted:
        load_device(stream.device, [*stream.changes, *changes])
    found: dict[RequestStream, Played] = {}
    with Processes(play, cpu_count() or 1) as processes:
        work = [(stream, tuple(changes)) for stream in wanted]
        for done, ((stream, _), outcome) in enumerate(processes.outcomes(work), 1):
            found[stream] = outcome
            progress(done, stream.name)
    return [Comparison(each, tuple(_compared(each, stream, found[stream]) for stream in of_set(each))) for each in sets]


def played(sets: Sequence[NumberSet]) -> int:
    """How many streams are played for some sets."""
    return len(_wanted(sets))


def _wanted(sets: Sequence[NumberSet]) -> list[RequestStream]:
    return list(dict.fromkeys(stream for each in sets for stream in of_set(each)))


def of_set(numbers: NumberSet) -> Iterator[RequestStream]:
    """The streams of a set."""
    group = numbers.name.removeprefix("dram_").removesuffix("_finish")
    return (stream for stream in streams() if stream.group == group)


def play(work: tuple[RequestStream, tuple[str, ...]]) -> Played:
    """Play a stream on its device, further overrides applied."""
    stream, changes = work
    device = load_device(stream.device, [*stream.changes, *changes])
    row = dict(stream.row)
    return _play_older(device, row) if stream.group == "older" else _play_newer(device, row)


def _play_newer(device: Device, row: Row) -> Played:
    given = {**parameters(row["params"]), "row": str(_row_bytes(device))}
    addresses, write = requests(row["pattern"], given, int(row["bursts"]), row["rw"])
    start, due = 0, None
    if row["group"] == "4_cold":
        # The device has been fresh, and its refresh clock has run, since before time 0.
        start, due = round(float(row["start_since_refresh_due_ns"]) * device.clock_hz / 1e9), 0
    memory = OnePass(device, due)
    finish = device.ns(int(memory.serve(addresses, write, start).done.max()) - start)
    counts = memory.counts()
    return Played(int((counts.reads + counts.writes).sum()) * BURST / finish, finish, device.peak_bytes_per_s / 1e9)


def _play_older(device: Device, row: Row) -> Played:
    """A write ends there when it is acknowledged, in the cycle after it is accepted."""
    count, rate = int(row["requests_64B"]), float(row["offered_rate"])
    share, stride = float(row["read_fraction"]), int(row["stride_bytes"])
    addresses, write = shared_out(row["pattern"], stride, share, count, device.capacity_bytes // 2)
    each = device.cycles("tBURST") / device.channels
    times = np.floor(np.arange(count) * each / rate).astype(np.int64) if rate else None
    served = OnePass(device).serve(addresses, write, times=times)
    finish = device.ns(int(np.where(write, served.accepted + 1, served.done).max()))
    return Played(count * BURST / finish, finish, device.peak_bytes_per_s / 1e9)


def _row_bytes(device: Device) -> int:
    return device.organisation.columns * device.organisation.burst_bytes * device.channels


def _newer(row: Row) -> RequestStream:
    device, _, slower = row["device"].partition("_ccdl")
    changes = _changes(row, f"timing.tCCD_L={slower}" if slower else "",
                       "page=closed" if row["page_policy"] == "CLOSE_PAGE" else "")  # fmt: skip
    name = f"{row['case']} {row['device']} {row['mapping']} {row['pattern']} {row['params'].replace(';', ' ')}"
    return RequestStream(name, row["group"][2:], f"hbm2_{device}", changes, tuple(row.items()),
                  float(row["bandwidth_GBps"]), float(row["last_completion_ns"]))  # fmt: skip


def _older(at: int, row: Row) -> RequestStream:
    name = f"{at} {row['device']} {row['pattern']} {row['stride_bytes']} reads {row['read_fraction']}"
    device = row["device"].rpartition("_")[0]
    return RequestStream(
        name, "older", f"hbm2_{device}", _changes(row), tuple(row.items()), float(row["bandwidth_GBps"]), None
    )


def _changes(row: Row, *more: str) -> tuple[str, ...]:
    few = int(row["max_outstanding"]) < _UNLIMITED
    given = (f"mapping={row['address_mapping']}", f"requests.lookahead={row['lookahead']}",
             f"requests.outstanding={row['max_outstanding']}" if few else "", *more)  # fmt: skip
    return tuple(change for change in given if change)


def _set(name: str, kind: str, about: str, unit: str) -> NumberSet:
    return NumberSet(name, "simulated", kind, about, "hbm2", (), unit=unit, lowering="")


def _compared(numbers: NumberSet, stream: RequestStream, played: Played) -> ComparedCase:
    """The roofline beside it: every byte at the peak of the data buses."""
    if numbers.unit == BANDWIDTH:
        return ComparedCase(stream.name, played.bandwidth, stream.bandwidth, played.peak, False)
    finish = stream.finish or 0.0
    return ComparedCase(stream.name, played.finish, finish, stream.bandwidth * finish / played.peak, False)
