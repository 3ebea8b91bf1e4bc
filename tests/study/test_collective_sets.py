"""Collectives held against slices that somebody ran, and against the code that the compiler writes."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import ROOT
from tpusim.base.errors import InputError
from tpusim.cli import names
from tpusim.study.validation.cases import tables_from
from tpusim.study.validation.collectives import (
    COLLECTIVES,
    LARGE,
    NO_LAUNCH_SETS,
    collective_sets,
    compare_collectives,
    compiled_collectives,
    measured_collectives,
)
from tpusim.study.validation.comparison import Comparison

TRUTH = ROOT / "tpusim" / "study" / "validation" / "truth"


def compared(changes: Sequence[str] = ()) -> dict[str, Comparison]:
    sets = [*collective_sets().values()]
    return {each.numbers.name: each for each in compare_collectives(sets, changes, lambda *_: None)}


def rows_of(name: str) -> list[dict[str, str]]:
    return [*csv.DictReader(io.StringIO((TRUTH / f"{name}.csv").read_text()))]


def written(folder: Path, name: str, rows: Sequence[dict[str, str]]) -> None:
    with (folder / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_the_name_of_all_sets() -> None:
    assert names.COLLECTIVE_SETS == COLLECTIVES
    assert all(name.startswith(COLLECTIVES) for name in collective_sets())


def test_measured_collectives_come_close() -> None:
    """Gathers of 7x and permutes of v5p and v6e within 5 %, the gather of a profile of v5e within 10 %."""
    found = compared()[LARGE]
    assert len(found.rows) == 8
    for row in found.rows:
        assert abs(row.error) < (0.1 if row.name.startswith("v5e") else 0.05), row


def test_the_readme_says_how_close_they_come() -> None:
    found = compared()[LARGE]
    (row,) = (line for line in (ROOT / "README.md").read_text().splitlines() if f"`{COLLECTIVES}`" in line)
    assert row.endswith(f"| {len(found.rows)} | {100 * found.ours.mean:.1f} % |")


def test_without_the_fitted_number_large_ones_are_still_close() -> None:
    """What is fitted is a launch: of a few microseconds, so it counts where a collective takes a few more."""
    found = compared()[LARGE + NO_LAUNCH_SETS]
    long = [row for row in found.rows if row.theirs > 300]
    assert long
    assert all(abs(row.error) < 0.05 for row in long)
    assert all(row.error < 0 for row in found.rows)


def test_compiled_collectives_are_named_alike() -> None:
    found = compiled_collectives()
    assert len(found) == 84
    assert not [each for each in found if each.differs]
    # Of 7x the emitter of gathers and sums is not named: what is booked stands in its place.
    assert sum("SparseCore0" in each.theirs for each in found) >= 9


def test_every_row_is_compared_or_told_apart() -> None:
    asked, left_out = measured_collectives()
    rows = [row for row in rows_of("multichip_measured") if row["kind"] == "collective"]
    assert len(asked) + len(left_out) == len(rows)


def test_another_table_takes_its_place(tmp_path: Path) -> None:
    """Rows of other kinds, of which some columns are empty, are passed over; those that cannot be asked are told."""
    rows = rows_of("multichip_measured")
    first = rows[0]
    host = {**first, "id": "a", "note": "wall time on the host"}
    odd = [
        host, {**first, "id": "b", "bytes": "", "time_us": ""}, {**first, "id": "c", "topology": "3x5"},
        {**first, "id": "d", "model": "broadcast f32"}, {**first, "id": "e", "batch_per_chip": "3"},
        {**first, "id": "f", "generation": "v9"},
        {**first, "id": "g", "kind": "training", "bytes": "", "time_us": "", "gbytes_s": ""},
    ]  # fmt: skip
    small = {**first, "id": "h", "bytes": "4096", "time_us": "14"}
    written(tmp_path, "multichip_measured", [first, *odd, small])
    written(tmp_path, "xla_collectives", rows_of("xla_collectives")[:20])
    with tables_from(tmp_path):
        asked, left_out = measured_collectives()
        assert [len(asked), len(left_out)] == [2, 6]
        assert all(each.why for each in left_out)
        found = compared()
        assert {*found} == {"collectives_large", "collectives_small", "collectives_large_no_launch",
                            "collectives_small_no_launch"}  # fmt: skip
        assert len(compiled_collectives()) < 20
    assert len(measured_collectives()[0]) == 8


def test_a_wrong_choice_is_seen(tmp_path: Path) -> None:
    rows = rows_of("xla_collectives")
    wrong = next(row for row in rows if row["colors"] == "4")
    written(tmp_path, "xla_collectives", [{**wrong, "colors": "6"}, {**wrong, "emitter": "RotatedPincerShortEmitter"}])
    with tables_from(tmp_path):
        assert [each.differs for each in compiled_collectives()] == [("colors",), ("algorithm",)]


def test_what_is_set_changes_the_links() -> None:
    slow = compared(["interconnect.link.bandwidth=10 GB/s"])[LARGE]
    assert all(row.error > 1 for row in slow.rows)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["foo=1"], 'no field "foo"'),
        (["interconnect.link.bandwidth=100"], "100 has no unit"),
        (["torus=1x2"], "torus=1x2: no slice of collectives_large has the axes of its rows then"),
    ],
)
def test_what_cannot_be_set_is_refused(tmp_path: Path, changes: list[str], says: str) -> None:
    of_v5e = [each for each in rows_of("multichip_measured") if each["id"].startswith("collective-v5e")]
    written(tmp_path, "multichip_measured", of_v5e)
    with tables_from(tmp_path), pytest.raises(InputError, match=says):
        compared(changes)


@pytest.mark.parametrize("name", ["multichip_measured", "xla_collectives"])
def test_tables_say_where_they_are_from(name: str) -> None:
    assert f"`{name}.csv`" in (TRUTH / "README.md").read_text()
    assert all(row["source"] for row in rows_of(name))
