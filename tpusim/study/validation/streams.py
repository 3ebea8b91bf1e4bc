"""The requests of the DRAM's reference numbers: byte addresses of bursts, from a pattern and its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Addresses = NDArray[np.int64]
Parameters = Mapping[str, str]

BURST = 64
_RANGE = 2**33
"""Bytes over which random addresses are drawn. The reference's own seeds are not known; these rows are statistical."""

_ELEMENT = 4
"""Bytes of the elements at which unaligned runs begin."""

_BASES = ((0, 0), (2**28, 3), (2**29, 7))
"""Where ifmap, weights and ofmap lie: bytes, and banks from there. Found by trying: the reference does not say it."""


def requests(pattern: str, parameters: Parameters, bursts: int, rw: str) -> tuple[Addresses, NDArray[np.bool_]]:
    """Byte addresses of bursts, int64[bursts], in the order of the requests, and which of them write.

    Beside what its pattern takes, the parameter `row` is the bytes of one row in every channel.
    """
    made = _PATTERNS[pattern](parameters, bursts)
    addresses, write = made if isinstance(made, tuple) else (made, np.full(len(made), rw == "w"))
    return addresses[:bursts], write[:bursts]


def shared_out(pattern: str, stride: int, share: float, count: int, apart: int) -> tuple[Addresses, NDArray[np.bool_]]:
    """As `requests`: each of `count` reads with probability `share`, and otherwise writes, `apart` bytes from there.

    Both go their own way by a `stride`, or at random.
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


def _cold(given: Parameters, bursts: int) -> Addresses:
    return np.arange(int(given["bursts"]), dtype=np.int64) * BURST


def _runs(given: Parameters, bursts: int) -> Addresses:
    """Runs of consecutive bytes that begin at random, or a jump apart; unaligned ones within a burst."""
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
    """Batches of several sequential streams in turn, of which the last one writes."""
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
    """Rows of a feature map, every `stride`-th pixel: its bursts by address, or pixel by pixel."""
    height, width, channels = (int(size) for size in given["shape"].split("x"))
    images, element, stride = int(given["batch"]), int(given["element"]), int(given["stride"])
    every = -(-height // stride)
    rows = every if given["rows"] == "all" else int(given["rows"])
    first = every // rows // 2 * rows * stride
    sizes = {"H": height, "W": width, "C": channels, "N": images}
    order = given["layout"] if "N" in given["layout"] else "N" + given["layout"]
    steps, size = {}, element
    for axis in reversed(order):
        steps[axis], size = size, size * sizes[axis]
    wanted = {"H": first + np.arange(rows) * stride, "W": np.arange(0, width, stride), "C": np.arange(channels),
              "N": np.arange(images)}  # fmt: skip
    if given["order"] == "address":
        return np.unique(_grid(order, wanted, steps) // BURST) * BURST
    return _by_pixels(order, wanted, steps, BURST // element)


def _by_pixels(order: str, wanted: dict[str, Addresses], steps: Mapping[str, int], burst: int) -> Addresses:
    """The bursts of as many pixels of a row as a burst may hold, for each channel; then of those beside them."""
    found, words = [], wanted["W"] // burst
    for image, row, word in product(wanted["N"], wanted["H"], np.unique(words)):
        of_word = {**wanted, "N": image[None], "H": row[None], "W": wanted["W"][words == word]}
        bursts = _grid(order, of_word, steps) // BURST
        found.append(bursts[np.concatenate([[True], bursts[1:] != bursts[:-1]])])
    return np.concatenate(found) * BURST


def _grid(order: str, wanted: Mapping[str, Addresses], steps: Mapping[str, int]) -> Addresses:
    """The bytes at which elements begin, the last axis fastest."""
    found = np.zeros(1, np.int64)
    for axis in order:
        found = (found[:, None] + wanted[axis] * steps[axis]).ravel()
    return found


def _random(key: str) -> np.random.Generator:
    return np.random.default_rng(crc32(key.encode()))


_PATTERNS: dict[str, Callable[[Parameters, int], Addresses | tuple[Addresses, NDArray[np.bool_]]]] = {
    "seq": _strided, "stride": _strided, "run": _runs, "cold": _cold, "ifmap": _feature_map,
    "read+write": _in_turn, "ifmap+weights+ofmap": _in_turn,
}  # fmt: skip
