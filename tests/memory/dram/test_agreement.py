"""The one-pass model has every request accepted and done in the very cycle in which the clocked controller has it."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from tpusim.memory.dram.clocked import ClockedDram
from tpusim.memory.dram.device import _ONE_ACCESS, Device, load_device
from tpusim.memory.dram.one_pass import OnePassDram
from tpusim.memory.dram.rules import ACT, PRE, RD, REF, Rules

CASES = int(os.environ.get("TPUSIM_CASES", 130))

MAPPINGS = ("rorabgbachco", "rorababgcoch", "rocorababgch", "rocorabgbach", "chrorabgbaco", "row:bank:column:channel",
            "row2:channel:bank:row:group:column")  # fmt: skip


def random_device(random: np.random.Generator) -> Device:
    """A small one, whatever its times are, as long as they do not contradict one another."""

    def one(*choices: int) -> int:
        return int(random.choice(choices))

    rcd, writing, rrd, ccd, wtr = one(1, 3, 7), one(1, 3), one(1, 2, 4), one(1, 2), one(0, 2, 4)
    given: dict[str, Any] = {
        "organisation.stacks": 1, "organisation.channels": one(1, 2, 4), "organisation.bank_groups": one(1, 2, 4),
        "organisation.banks": one(1, 2, 4), "organisation.rows": one(4, 8, 64), "organisation.columns": one(2, 4, 8),
        "timing.tBURST": one(1, 2, 3), "timing.tCL": one(1, 5, 9), "timing.tCWL": one(0, 2, 4), "timing.tRCDRD": rcd,
        "timing.tRCDWR": writing, "timing.tRP": one(1, 4, 9), "timing.tRAS": max(rcd, writing) + one(0, 3, 12),
        "timing.tRRD_S": rrd, "timing.tRRD_L": rrd + one(0, 2), "timing.tFAW": rrd + one(0, 5, 20),
        "timing.tCCD_S": ccd, "timing.tCCD_L": ccd + one(0, 2), "timing.tRTP": one(0, 2, 5), "timing.tWR": one(0, 5),
        "timing.tWTR_S": wtr, "timing.tWTR_L": wtr + one(0, 3), "timing.tRTRS": one(0, 2), "timing.tRFC": one(5, 20),
        "timing.tRFC_bank": one(3, 5), "mapping": random.choice(MAPPINGS),
        "refresh": random.choice(["all_banks", "per_bank", "none"]), "page": random.choice(["open", "closed"]),
        "hash": random.choice(["none", "row"]), "controller.transaction_queue": one(1, 2, 4, 9),
        "controller.command_queue": one(1, 2, 8), "controller.row_hits": one(1, 2, 4),
        "controller.idle_writes": one(0, 1, 8), "requests.per_cycle": one(1, 2, 32),
        "requests.lookahead": one(1, 1, 3, 8), "requests.outstanding": one(0, 0, 0, 1, 3),
    }  # fmt: skip
    # The least that a device allows, or more.
    every = {name: given.get(f"timing.{name}", max(rcd, writing) + 21) for name in _ONE_ACCESS}
    banks = given["organisation.bank_groups"] * given["organisation.banks"] if given["refresh"] == "per_bank" else 1
    least = given["timing.tRFC"] + sum(every[name] for name in _ONE_ACCESS)
    return load_device("hbm2_16ch", {**given, "timing.tREFI": (least + one(0, 3, 50, 400)) * banks})


def random_transfer(random: np.random.Generator, device: Device, start: int) -> dict[str, Any]:
    count, bursts = int(random.integers(1, 40)), device.capacity_bytes // 64
    places = {
        "sequence": np.arange(count), "stride": np.arange(count) * int(random.integers(1, 9)),
        "anywhere": random.integers(0, min(bursts, int(random.choice([4, 16, 4096]))), count),
        "twice": np.arange(count) // 2,
    }  # fmt: skip
    addresses = (int(random.integers(0, bursts)) + places[str(random.choice([*places]))]) * 64
    times = start + np.sort(random.integers(0, int(random.choice([1, 30, 500])), count))
    write = random.random(count) < random.choice([0, 0, 0.2, 0.5, 1])
    return {"addresses": addresses, "write": write, "start": start, "times": times if random.random() < 0.4 else None}


def check(seed: int) -> None:
    random = np.random.default_rng(seed)
    device = random_device(random)
    due = int(random.integers(0, 50)) if random.random() < 0.5 else None
    one_pass, clocked = OnePassDram(device, due), ClockedDram(device, due)
    served, offered, start = [], [], 0
    for _ in range(int(random.integers(1, 4))):
        transfer = random_transfer(random, device, start)
        served.append(one_pass.serve(**transfer))
        offered.append(clocked.offer(**transfer))
        # The next one begins before this one ends, in the cycle of its last acceptance at the earliest.
        start = int(random.integers(served[-1].accepted.max(), served[-1].done.max() + 20))
    last = max(int(each.done.max()) for each in served)
    while clocked.now < last + 5:
        clocked.clock()
    for ours, theirs in zip(served, offered, strict=True):
        np.testing.assert_array_equal(ours.accepted, theirs.accepted, f"seed {seed}: {device}")
        np.testing.assert_array_equal(ours.done, theirs.done, f"seed {seed}: {device}")
    np.testing.assert_array_equal(one_pass.counts(last + 5), clocked.counts(), f"seed {seed}: {device}")


@pytest.mark.parametrize("first", range(0, CASES, 500))
def test_the_two_models_agree_to_the_cycle(first: int) -> None:
    """Reads and writes, transfers one into the other, cold and warm, across refreshes of either kind."""
    for seed in range(first, min(first + 500, CASES)):
        check(seed)


def test_transfers_one_by_one_are_the_same_as_all_at_once() -> None:
    device = load_device("hbm2_1ch")
    one_pass, clocked = OnePassDram(device), ClockedDram(device)
    for start in (0, 5000):
        ours, theirs = (model.serve(np.arange(64) * 64, start=start) for model in (one_pass, clocked))
        np.testing.assert_array_equal(ours, theirs)


def test_nothing_depends_on_what_comes_after() -> None:
    device = load_device("hbm2_1ch")
    alone, followed = OnePassDram(device), OnePassDram(device)
    first = np.arange(300) * 4096
    np.testing.assert_array_equal(alone.serve(first), before := followed.serve(first))
    kept = before.done.copy()
    followed.serve(first + 64, start=int(before.accepted.max()))
    np.testing.assert_array_equal(before.done, kept)


def test_reads_and_writes_hold_back_only_what_the_one_pass_model_looks_at() -> None:
    """The model takes them for the only commands that its fast loop issues (`channel._row_hits`)."""
    for seed in range(50):
        found = Rules.of(random_device(np.random.default_rng(seed)))
        assert not found.same_bank[RD:REF, RD:REF].any()
        for table in (found.same_group, found.same_channel):
            assert not table[RD:REF, [ACT, PRE, REF]].any()
