"""No transfers take less than the bound says; and where one channel sets the pace, hardly more."""

from __future__ import annotations

import numpy as np
import pytest

from tests.memory.dram.test_agreement import CASES, random_device, random_transfer
from tpusim.memory.dram.device import load_device
from tpusim.memory.dram.least import crowding, least_left
from tpusim.memory.dram.one_pass import OnePassDram


def check(seed: int) -> None:
    random = np.random.default_rng(seed)
    device = random_device(random)
    memory = OnePassDram(device, int(random.integers(0, 50)) if random.random() < 0.5 else None)
    start, accepted, done, given = int(random.integers(0, 500)), [], [], []
    for _ in range(int(random.integers(1, 9))):
        transfer = random_transfer(random, device, start) | {"write": bool(random.random() < 0.5)}
        if random.random() < 0.7:
            transfer["addresses"] = np.sort(transfer["addresses"])
        served = memory.serve(**transfer)
        given.append((np.asarray(transfer["addresses"]), transfer["write"]))
        accepted.append(int(served.accepted.max()))
        done.append(int(served.done.max()))
        start = accepted[-1] + int(random.choice([0, 0, 1, 40]))
    for end in range(1, len(given) + 1):
        least = least_left(device, given[:end])
        actual = np.array([done[end - 1] - each for each in accepted[: end - 1]])
        assert (least[:-1] <= actual).all(), f"seed {seed}: {least} {actual}, {device}"
        assert least[-1] == 0, "behind the last transfer there is nothing that must end"


@pytest.mark.parametrize("first", range(0, CASES, 500))
def test_no_transfers_take_less(first: int) -> None:
    for seed in range(first, min(first + 500, CASES)):
        check(seed)


@pytest.mark.parametrize(
    ("together", "apart", "bursts", "writes", "share"),
    [(1, 1, 2000, 0, 0.85), (32, 512, 2000, 0, 0.98), (64, 2048, 2000, 0, 0.98), (32, 512, 32, 1, 0.85)],
    ids=["all channels", "one channel", "channel after channel", "reads and writes by turns"],
)  # fmt: skip
def test_where_channels_set_the_pace_they_take_hardly_more(
    together: int, apart: int, bursts: int, writes: int, share: float
) -> None:
    device, numbers, start = load_device("hbm2_16ch"), np.arange(bursts, dtype=np.int64), 0
    memory, given, accepted, done = OnePassDram(device), [], [], []
    for number in range(20):
        places = (numbers % together + (numbers // together + number * bursts // together) * apart) * 64
        given.append((places, bool(writes and number % 2)))
        served = memory.serve(*given[-1], start=start)
        accepted.append(int(served.accepted.max()))
        done.append(int(served.done.max()))
        start = accepted[-1]
    (least, *_), actual = least_left(device, given), done[-1] - accepted[0]
    assert share * actual <= least <= actual


@pytest.mark.parametrize(
    ("name", "run", "apart", "times"),
    [
        # A row of 2 KiB in each of 8 channels, or of 16: what of each 8 KiB or 32 KiB is in a quarter, in a sixteenth.
        ("hbm2_8ch_300", 2048, 8192, 4),
        ("hbm2_8ch_300", 2048, 16384, 8),
        ("hbm2_16ch_700", 2048, 32768, 16),
        ("hbm2_8ch_300", 1792, 7168, 1),
        ("hbm2_8ch_300", 2048, 2048, 1),
    ],
)
def test_runs_some_power_of_two_apart_crowd_few_channels(name: str, run: int, apart: int, times: int) -> None:
    assert crowding(load_device(name), run, apart, 400) == pytest.approx(times, rel=0.07)


def test_runs_that_crowd_channels_only_for_a_while_are_told_too() -> None:
    """Over many runs all 16 channels have as much; but a run of 6.5 KiB of every 32.5 KiB moves on by 512 bytes."""
    assert crowding(load_device("hbm2_16ch_700"), 6656, 33280, 400) > 2
    # One run is as much as its bytes side by side.
    assert crowding(load_device("hbm2_16ch_700"), 6656, 33280, 1) == 1


def test_a_refresh_that_falls_into_a_turn_of_the_bus_counts_once() -> None:
    timing = {"tBURST": 1, "tCCD_S": 1, "tCCD_L": 1, "tCL": 80, "tCWL": 1, "tRP": 1, "tRTP": 0, "tWR": 0, "tWTR_S": 30,
              "tWTR_L": 30, "tRFC": 60, "tREFI": 400}  # fmt: skip
    changes = {f"timing.{name}": cycles for name, cycles in timing.items()}
    device = load_device("hbm2_1ch", changes | {"refresh": "all_banks"})
    memory, given, accepted, done, start = OnePassDram(device), [], [], [], 0
    for number in range(200):
        given.append((np.array([64 * number]), bool(number % 2)))
        served = memory.serve(*given[-1], start=start)
        accepted.append(int(served.accepted.max()))
        done.append(int(served.done.max()))
        start = accepted[-1]
    (least, *_), actual = least_left(device, given), done[-1] - accepted[0]
    assert 0.8 * actual <= least <= actual
