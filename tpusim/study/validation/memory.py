"""The DRAM held against DRAMsim3: the same lists of requests, played by the one-pass model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tpusim.memory.dram.device import Device, load_device
from tpusim.memory.dram.one_pass import OnePassDram
from tpusim.study.validation.cases import NumberSet, Row, cached, rows
from tpusim.study.validation.comparison import ComparedCase, Comparison
from tpusim.study.worker_processes import InputProgress, on_all_processors

BANDWIDTH, FINISH = "GB/s", "ns"

GROUPS = {"1_stride": "strides", "2_run": "runs of consecutive bytes", "3_mixed": "reads and writes in turn",
          "4_cold": "a fresh DRAM, at several times to the next refresh", "5_tensor": "blocks of feature maps",
          "6_mapping": "mappings and closed pages", "7_ccdl4": "a slower bank group",
          "8_outstanding": "few requests under way"}  # fmt: skip
"""Groups of the newer table, with their contents."""

_UNLIMITED = 10**6


@dataclass(frozen=True, eq=False)
class RequestStream:
    """A row of the tables: a list of requests, a device, and DRAMsim3's results.

    `bandwidth` is in GB/s of bytes moved until the last completion, `finish` in ns; None if the table does not say.
    """

    name: str
    group: str
    device: str
    changes: tuple[str, ...]
    row: Row
    bandwidth: float
    finish: float | None


class PlayedStream(NamedTuple):
    """Our DRAM's results for a stream, as in RequestStream; `peak` is the bandwidth of its data buses."""

    bandwidth: float
    finish: float
    peak: float


@cached
def streams() -> tuple[RequestStream, ...]:
    """Every row of both tables."""
    found: list[RequestStream] = []
    for row in rows("dramsim3_hbm2_more"):
        device, _, slower = row["device"].partition("_ccdl")
        name = f"{row['case']} {row['device']} {row['mapping']} {row['pattern']} {row['params'].replace(';', ' ')}"
        more = [f"timing.tCCD_L={slower}"] if slower else []
        more += ["page=closed"] if row["page_policy"] == "CLOSE_PAGE" else []
        found.append(_stream(row, name, row["group"][2:], device, float(row["last_completion_ns"]), more))
    for at, row in enumerate(rows("dramsim3_hbm2")):
        name = f"{at} {row['device']} {row['pattern']} {row['stride_bytes']} reads {row['read_fraction']}"
        found.append(_stream(row, name, "older", row["device"].rpartition("_")[0], None))
    return tuple(found)


def _stream(
    row: Row, name: str, group: str, device: str, finish: float | None, more: Sequence[str] = ()
) -> RequestStream:
    few = int(row["max_outstanding"]) < _UNLIMITED
    asked = [f"requests.outstanding={row['max_outstanding']}"] if few else []
    changes = (f"mapping={row['address_mapping']}", f"requests.lookahead={row['lookahead']}", *asked, *more)
    return RequestStream(name, group, f"hbm2_{device}", changes, row, float(row["bandwidth_GBps"]), finish)


@cached
def memory_sets() -> dict[str, NumberSet]:
    """The sets by their names: bandwidths of each group and of the older table, and finish times of all groups."""
    made = [_set(f"dram_{group[2:]}", "bandwidths", about, BANDWIDTH) for group, about in GROUPS.items()]
    made.append(_set("dram_older", "bandwidths", "strides, mixes, rates, requests under way", BANDWIDTH))
    made += [_set(f"dram_{group[2:]}_finish", "finish times", about, FINISH) for group, about in GROUPS.items()]
    return {each.name: each for each in made}


def compare_memory(sets: Sequence[NumberSet], changes: Sequence[str], progress: InputProgress) -> list[Comparison]:
    """Play the streams of the sets, each once, on all processors; `changes` override every device.

    Raises:
        InputError: a change that makes no device.
    """
    work = [(stream, tuple(changes)) for stream in wanted_streams(sets)]
    for each in work:
        _device(*each)
    played = on_all_processors(play, work, lambda each: each[0].name, progress)
    found = {stream: outcome for (stream, _), outcome in played.items()}
    sets = [replace(each, asked=tuple(changes)) for each in sets]
    return [Comparison(each, tuple(_compared(each, stream, found[stream]) for stream in of_set(each))) for each in sets]


def wanted_streams(sets: Sequence[NumberSet]) -> list[RequestStream]:
    """Streams that some sets need, each once."""
    return list(dict.fromkeys(stream for each in sets for stream in of_set(each)))


def of_set(numbers: NumberSet) -> list[RequestStream]:
    """The streams of a set."""
    group = numbers.name.removeprefix("dram_").removesuffix("_finish")
    return [stream for stream in streams() if stream.group == group]


def play(work: tuple[RequestStream, tuple[str, ...]]) -> PlayedStream:
    """Play a stream on its device, with further overrides."""
    device, row = _device(*work), work[0].row
    if work[0].group == "older":
        count, rate = int(row["requests_64B"]), float(row["offered_rate"])
        share, stride = float(row["read_fraction"]), int(row["stride_bytes"])
        addresses, write = shared_out(row["pattern"], stride, share, count, device.capacity_bytes // 2)
        each = device.cycles("tBURST") / device.channels
        times = np.floor(np.arange(count) * each / rate).astype(np.int64) if rate else None
        served = OnePassDram(device).serve(addresses, write, times=times)
        # A write counts as finished when it is acknowledged, in the cycle after it is accepted.
        last, start = np.where(write, served.accepted + 1, served.done).max(), 0
    else:
        row_bytes = device.organisation.columns * device.organisation.burst_bytes * device.channels
        given = {**parameters(row["params"]), "row": str(row_bytes)}
        addresses, write = requests(row["pattern"], given, int(row["bursts"]), row["rw"])
        start, due = 0, None
        if row["group"] == "4_cold":
            # The device was fresh, and its refresh clock ran, before time 0.
            start, due = round(float(row["start_since_refresh_due_ns"]) * device.clock_hz / 1e9), 0
        memory = OnePassDram(device, due)
        last, counts = memory.serve(addresses, write, start).done.max(), memory.counts()
        count = int((counts.reads + counts.writes).sum())
    finish = device.ns(int(last) - start)
    return PlayedStream(count * BURST / finish, finish, device.peak_bytes_per_s / 1e9)


def _device(stream: RequestStream, changes: Sequence[str]) -> Device:
    return load_device(stream.device, [*stream.changes, *changes])


def _set(name: str, kind: str, about: str, unit: str) -> NumberSet:
    return NumberSet(name, "simulated", kind, about, "hbm2", (), unit=unit, lowering="")


def _compared(numbers: NumberSet, stream: RequestStream, played: PlayedStream) -> ComparedCase:
    """A stream compared; the roofline moves every byte at the peak of the data buses."""
    if numbers.unit == BANDWIDTH:
        return ComparedCase(stream.name, played.bandwidth, stream.bandwidth, played.peak, False)
    finish = stream.finish or 0.0
    return ComparedCase(stream.name, played.finish, finish, stream.bandwidth * finish / played.peak, False)


# ---- requests: byte addresses of bursts, from a pattern and its parameters

Addresses = NDArray[np.int64]
Parameters = Mapping[str, str]

BURST = 64
_RANGE = 2**33
"""Range of random addresses, in bytes. The reference's seeds are unknown, so these rows are compared statistically."""

_ELEMENT = 4
"""Bytes of the elements at which unaligned runs begin."""

_BASES = ((0, 0), (2**28, 3), (2**29, 7))
"""Places of ifmap, weights and ofmap, in bytes and banks. They were found by trial: the reference does not give them.
"""


def requests(pattern: str, parameters: Parameters, bursts: int, rw: str) -> tuple[Addresses, NDArray[np.bool_]]:
    """Byte addresses of bursts, int64[bursts], in the order of the requests, and which of them write.

    Besides the pattern's parameters, `row` has the bytes of one row in every channel.
    """
    made = _PATTERNS[pattern](parameters, bursts)
    addresses, write = made if isinstance(made, tuple) else (made, np.full(len(made), rw == "w"))
    return addresses[:bursts], write[:bursts]


def shared_out(pattern: str, stride: int, share: float, count: int, apart: int) -> tuple[Addresses, NDArray[np.bool_]]:
    """`count` requests: each reads with probability `share`, and otherwise writes `apart` bytes further on.

    Reads and writes each advance by a `stride`, or at random.
    """
    random = _random(f"{pattern} {stride} {share} {count}")
    write = random.random(count) >= share
    place = np.where(write, np.cumsum(write), np.cumsum(~write)) - 1
    if pattern == "rand":
        return random.integers(0, _RANGE // BURST, count) * BURST, write
    return place * stride // BURST * BURST + np.where(write, apart, 0), write


def parameters(text: str) -> dict[str, str]:
    """The values of "stride=448;elements=8128" by their names."""
    return dict(part.split("=") for part in text.split(";"))


def _strided(given: Parameters, bursts: int) -> Addresses:
    return np.arange(int(given["elements"]), dtype=np.int64) * int(given["stride"]) // BURST * BURST


def _runs(given: Parameters, bursts: int) -> Addresses:
    """Runs of consecutive bytes that begin at random, or a jump apart; unaligned runs begin within a burst."""
    count, size, aligned = int(given["runs"]), int(given["run"]), given["aligned"] == "1"
    if given["starts"] == "random":
        random = _random(repr(sorted(given.items())))
        starts = random.integers(0, _RANGE // BURST, count) * BURST
        starts += 0 if aligned else random.integers(1, BURST // _ELEMENT, count) * _ELEMENT
    else:
        starts = np.arange(count, dtype=np.int64) * int(given["jump"]) + (0 if aligned else BURST // 2)
    first, last = starts // BURST, (starts + size - 1) // BURST
    lengths = last - first + 1
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.asarray((np.repeat(first, lengths) + within) * BURST, np.int64)


def _in_turn(given: Parameters, bursts: int) -> tuple[Addresses, NDArray[np.bool_]]:
    """Batches of several sequential streams in turn; the last stream writes."""
    batch = int(given["batch"]) // BURST
    if "ratio" in given:
        shares, bases = (
            [int(part) for part in given["ratio"].split(":")],
            [base + banks * int(given["row"]) for base, banks in _BASES],
        )
    else:
        shares, bases = [1, 1], [0, int(given["write_base"])]
    turn = np.repeat(np.arange(len(shares)), [batch * share for share in shares])
    rounds = -(-bursts // turn.size)
    stream = np.tile(turn, rounds)
    place = np.empty(stream.size, np.int64)
    for index in range(len(shares)):
        place[stream == index] = np.arange((stream == index).sum())
    return place * BURST + np.array(bases)[stream], stream == len(shares) - 1


def _feature_map(given: Parameters, bursts: int) -> Addresses:
    """Rows of a feature map, every `stride`-th pixel: its bursts by address, or pixel by pixel.

    Pixel by pixel: bursts of as many pixels of a row as a burst may hold, for each channel; then those beside them.
    """
    height, width, channels = (int(size) for size in given["shape"].split("x"))
    images, element, stride = (int(given[name]) for name in ("batch", "element", "stride"))
    every = -(-height // stride)
    rows = every if given["rows"] == "all" else int(given["rows"])
    # Rows from the middle of the map stand for all.
    first = every // rows // 2 * rows * stride
    sizes = {"H": height, "W": width, "C": channels, "N": images}
    order = given["layout"] if "N" in given["layout"] else "N" + given["layout"]
    steps, size = {}, element
    for axis in reversed(order):
        steps[axis], size = size, size * sizes[axis]
    high, wide = first + np.arange(rows) * stride, np.arange(0, width, stride)
    wanted: dict[str, Addresses] = {"H": high, "W": wide, "C": np.arange(channels), "N": np.arange(images)}
    if given["order"] == "address":
        return np.unique(_grid(order, wanted, steps) // BURST) * BURST
    found, words = [], wanted["W"] // (BURST // element)
    for image, row, word in product(wanted["N"], wanted["H"], np.unique(words)):
        of_word = {**wanted, "N": image[None], "H": row[None], "W": wanted["W"][words == word]}
        # Neighbouring elements share a burst, which is asked for once.
        touched = _grid(order, of_word, steps) // BURST
        found.append(touched[np.concatenate([[True], touched[1:] != touched[:-1]])])
    return np.concatenate(found) * BURST


def _grid(order: str, wanted: Mapping[str, Addresses], steps: Mapping[str, int]) -> Addresses:
    """The bytes at which elements begin, the last axis fastest."""
    return reduce(np.add.outer, (wanted[axis] * steps[axis] for axis in order)).ravel()


def _random(key: str) -> np.random.Generator:
    return np.random.default_rng(crc32(key.encode()))


_PATTERNS: dict[str, Callable[[Parameters, int], Addresses | tuple[Addresses, NDArray[np.bool_]]]] = {
    "seq": _strided, "stride": _strided, "run": _runs, "ifmap": _feature_map,
    "cold": lambda given, _: np.arange(int(given["bursts"]), dtype=np.int64) * BURST,
    "read+write": _in_turn, "ifmap+weights+ofmap": _in_turn,
}  # fmt: skip
