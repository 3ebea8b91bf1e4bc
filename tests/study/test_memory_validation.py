"""The DRAM against DRAMsim3: rows whose requests are known to the address are met closely, by mechanism alone."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests import ROOT
from tpusim.cli.names import MEMORY_SETS
from tpusim.report.tables.validation import summaries
from tpusim.study.validation.memory import BURST, _feature_map, _in_turn, compare_memory, memory_sets, play, streams

KNOWN = [each for each in streams() if each.group != "older" and "random" not in each.name]
SHORT = [each for each in KNOWN if int(each.row["bursts"]) <= 6000]


def test_every_row_is_in_one_set_of_bandwidths() -> None:
    assert len(streams()) == 722
    assert all(name.startswith(MEMORY_SETS) for name in memory_sets())


@pytest.mark.parametrize("stream", SHORT[::4], ids=lambda stream: stream.name)
def test_known_requests_end_when_they_should(stream) -> None:
    found = play((stream, ()))
    assert found.finish == pytest.approx(stream.finish, rel=0.01)
    assert found.bandwidth == pytest.approx(stream.bandwidth, rel=0.01)


def test_streams_in_turn_have_places_of_their_own() -> None:
    """Two bursts of a stream that reads, two of one that writes, and again."""
    addresses, writes = _in_turn({"batch": f"{2 * BURST}", "write_base": "4096"}, 8)
    assert addresses.tolist() == [0, 64, 4096, 4160, 128, 192, 4224, 4288]
    assert writes.tolist() == [False, False, True, True] * 2


@pytest.mark.long
def test_the_document_says_what_the_command_prints() -> None:
    comparisons = compare_memory([*memory_sets().values()], [], lambda *_: None)
    text = io.StringIO()
    for heading, table in summaries(comparisons):
        Console(file=text, width=250).print(heading, table.drawn(), sep="\n")
    written = {" ".join(line.split()) for line in (ROOT / "docs" / "validation.md").read_text().splitlines()}
    assert [line for line in text.getvalue().splitlines() if " ".join(line.split()) not in written] == []
    bandwidths, finishes = ([row.error for each in comparisons if each.numbers.unit == unit for row in each.rows]
                            for unit in ("GB/s", "ns"))  # fmt: skip
    for errors, goal in ((bandwidths, 0.02), (finishes, 0.03)):
        assert sum(map(abs, errors)) / len(errors) < goal


def test_bursts_of_a_map_by_hand() -> None:
    """3 channels of 2 rows of 8 pixels, 4 of them in a burst: channels are 4 bursts apart, rows 2."""
    given = {
        "shape": "2x8x3", "batch": "1", "element": f"{BURST // 4}", "stride": "1", "rows": "all", "layout": "CHW",
    }  # fmt: skip
    by_pixels = [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]
    assert [*_feature_map({**given, "order": "pixel"}, 0) // BURST] == by_pixels
    assert [*_feature_map({**given, "order": "pixel"}, 0) % BURST] == [0] * 12
    assert [*_feature_map({**given, "order": "address"}, 0) // BURST] == sorted(by_pixels)
    # Every second row and pixel: half of the pixels that a burst holds, and the second row of none.
    assert [*_feature_map({**given, "order": "pixel", "stride": "2"}, 0) // BURST] == [0, 4, 8, 1, 5, 9]
