"""Figures of a data sheet, worked out by hand, on hbm2_1ch: CL 14, CWL 4, tRCD 14, a burst 2, in cycles of 1 ns."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from tests import ROOT
from tests.rules import rule
from tpusim.memory.dram import rules
from tpusim.memory.dram.clocked import ClockedDram
from tpusim.memory.dram.device import load_device
from tpusim.memory.dram.one_pass import OnePassDram

MODELS = [OnePassDram, ClockedDram]
FIRST = 31
"""The first read of a closed bank: 1 cycle to its queue, tRCD 14, CL 14, its burst 2."""

ROW = 2048
BANK, GROUP = ROW, 4 * ROW
"""What is added to an address for the next bank of the group, and for the next group (mapping rorabgbachco)."""


def done(model, addresses, write=False, changes=(), **given):
    return model(load_device("hbm2_1ch", changes), **given).serve(np.array(addresses), write).done.tolist()


def test_the_shipped_devices_have_the_table_of_timings() -> None:
    table = ROOT / "tpusim" / "study" / "validation" / "truth" / "dramsim3_timing.csv"
    named = {"CL": "tCL", "CWL": "tCWL", "burst_cycles": "tBURST"}
    for name in ("1ch", "16ch", "16ch_700", "8ch_300"):
        device = load_device(f"hbm2_{name}")
        rows = {row["cycles"]: row[name] for row in csv.DictReader(table.read_text().splitlines())}
        times = {key: int(value) for key, value in rows.items() if key[:2] in ("tR", "tF", "tC", "tW", "CL", "CW", "bu")
                 and key != "tCK_ns"}  # fmt: skip
        assert {key: device.cycles(named.get(key, key)) for key in times} == times
        assert device.channels == int(rows["channels"])
        assert device.peak_bytes_per_s == float(rows["peak_GBps"]) * 1e9
        assert device.controller.transaction_queue == int(rows["trans_queue_size"])


@pytest.mark.parametrize("model", MODELS)
def test_a_read_and_a_write_of_a_closed_bank(model) -> None:
    assert done(model, [0]) == [FIRST]
    # 1 + tRCD 14 + CWL 4 + 2.
    assert done(model, [0], True) == [21]


@pytest.mark.parametrize("model", MODELS)
def test_bursts_of_a_row_follow_every_two_cycles(model) -> None:
    assert done(model, np.arange(8) * 64) == [FIRST + 2 * k for k in range(8)]


@pytest.mark.parametrize("model", MODELS)
def test_another_row_of_the_bank_waits_for_the_row_cycle(model) -> None:
    # Activates 48 (tRAS 34 + tRP 14) after the first.
    assert done(model, [0, 16 * ROW]) == [FIRST, FIRST + 48]


@pytest.mark.parametrize("model", MODELS)
def test_a_slower_bank_group_slows_only_what_stays_in_it(model) -> None:
    """Two groups in turn: 2 from one to the other, as long as a burst is, and so 4 to the next of the same group."""
    within, in_turn = np.array([128, 192, 256, 320]), np.array([128, GROUP + 128, 192, GROUP + 192])
    found = {}
    for slower in (2, 4):
        for name, places in (("within", within), ("in turn", in_turn)):
            memory = model(load_device("hbm2_1ch", [f"timing.tCCD_L={slower}"]))
            memory.serve(np.array([0, GROUP]))
            # Both rows are open: the first read comes in the cycle after it is accepted, its data 16 later.
            found[name, slower] = memory.serve(places, start=100).done.tolist()
    assert found["within", 2] == found["in turn", 2] == found["in turn", 4] == [117, 119, 121, 123]
    assert found["within", 4] == [117, 121, 125, 129]


@pytest.mark.parametrize("model", MODELS)
def test_the_window_of_four_activates_binds(model) -> None:
    # Five banks, each in another group than the one before: activates at 1, 5, 9, 13, and tFAW 30 after the first.
    places = [0, GROUP, 2 * GROUP, 3 * GROUP, BANK]
    assert done(model, places) == [31, 35, 39, 43, 31 + 30]
    # With a window that does not bind, tRRD_S 4 does.
    assert done(model, places, changes=["timing.tFAW=16"]) == [31, 35, 39, 43, 47]


@pytest.mark.parametrize("model", MODELS)
def test_from_writing_to_reading_and_back(model) -> None:
    # All are there, and nothing else is to do: the write drains, WR comes in cycle 15. In its group the read follows
    # CWL 4 + 2 + tWTR_L 8 later, RD in 29; in another one CWL 4 + 2 + tWTR_S 6, RD in 27. Its data takes 16.
    assert done(model, [0, 64], np.array([True, False])) == [21, 29 + 16]
    assert done(model, [0, GROUP], np.array([True, False])) == [21, 27 + 16]
    # RD in cycle 15, then WR CL 14 + 2 - CWL 4 + tRTRS 2 later, in 29; its data takes 6.
    memory = model(load_device("hbm2_1ch"))
    assert memory.serve(np.array([0])).done.tolist() == [31]
    assert memory.serve(np.array([64]), True, start=16).done.tolist() == [29 + 6]


@pytest.mark.parametrize("model", MODELS)
def test_the_example_of_the_document(model) -> None:
    told = (ROOT / "docs" / "memory.md").read_text()
    ends = done(model, [0, 64, 16 * ROW], np.array([True, False, False]))
    assert ends == [21, 45, 81]
    for sum_ in ("15 + 4 + 2 = 21", "29 + 14 + 2 = 45", "65 + 16 = 81"):
        assert sum_ in told


@pytest.mark.parametrize("model", MODELS)
def test_a_refresh_that_is_due(model) -> None:
    # Refreshed in cycle 0: the activate waits for tRFC 260, instead of cycle 1.
    assert done(model, [0], first_refresh=0) == [FIRST - 1 + 260]
    assert done(model, [0], changes=["refresh=none"], first_refresh=0) == [FIRST]


@rule("T134")
@pytest.mark.parametrize("model", MODELS)
def test_bursts_that_are_pending_are_read_and_written_once(model) -> None:
    memory = model(load_device("hbm2_1ch"))
    served = memory.serve(np.array([0, 0, 64, 0]))
    assert served.done.tolist() == [31, 31, 33, 31]
    assert int(memory.counts().reads.sum()) == 2
    memory = model(load_device("hbm2_1ch"))
    # A read of what is still to be written is answered in the next cycle.
    assert memory.serve(np.array([0, 0]), np.array([True, False])).done.tolist() == [21, 1]


@pytest.mark.parametrize("model", MODELS)
def test_what_transfers_ask_for_adds_up(model) -> None:
    """Of 16 channels: eight bursts a channel each, then three of the first and one of the second, one of them twice."""
    device = load_device("hbm2_16ch")
    memory = model(device)
    channel = rules.places(device.addresses(), np.arange(4096) * 64).channel
    first, second = (np.flatnonzero(channel == each) * 64 for each in (0, 1))
    evenly = np.concatenate([np.flatnonzero(channel == each)[:8] for each in range(16)]) * 64
    memory.serve(evenly)
    assert memory.requested == (128, 0, 8)
    write = np.array([False, True, False, False])
    memory.serve(np.array([first[0], second[0], first[1], first[0]]), write, start=10_000)
    assert memory.requested == (131, 1, 11)
