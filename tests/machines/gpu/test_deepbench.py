"""Against what cuDNN and cuBLAS take on a V100: as near as the documents say, and for the reasons they give."""

from __future__ import annotations

import io
import re
from functools import cache
from statistics import fmean

import pytest
from rich.console import Console

from tests import ROOT
from tpusim.cli.names import GPU_SETS
from tpusim.machines.family import load_hardware
from tpusim.report.tables.validation import summaries
from tpusim.study.validation.comparison import ComparedCase, Comparison, Validation, taken
from tpusim.study.validation.sets import deepbench_sets, gpu_convolutions

JUDGED = "deepbench_judged"


@cache
def compared(name: str, *changes: str) -> Comparison:
    """A set, under such changes of the machine: what `tpusim validate` says, on this process alone."""
    plan = Validation([deepbench_sets()[name]], changes)
    (found,) = plan.comparisons({each: taken(each) for each in plan.simulations})
    return found


def bias(rows: list[ComparedCase]) -> float:
    """The mean error, with its sign."""
    return fmean(row.error for row in rows)


def test_the_half_that_nothing_was_fitted_on() -> None:
    found = compared(JUDGED)
    assert found.ours.mean <= 0.10
    assert found.ours.median <= 0.075
    assert found.ours.p90 <= 0.23
    assert found.roofline.mean > 0.5


def test_no_class_of_strides_or_channels_is_biased() -> None:
    classes: dict[str, list[ComparedCase]] = {}
    for row in compared(JUDGED).rows:
        channels = int(re.match(r"\d+x\d+x(\d+)>", row.name)[1])  # type: ignore[index]
        thin = next(most for most in (16, 64, 256, 4096) if channels <= most)
        for key in ("strided" if "/" in row.name else "unstrided", f"up to {thin}"):
            classes.setdefault(key, []).append(row)
    assert len(classes) == 6
    assert {key: bias(rows) for key, rows in classes.items() if abs(bias(rows)) > 0.10} == {}


@pytest.mark.long
def test_products_without_another_fit() -> None:
    assert compared("deepbench_products").ours.mean <= 0.15


def test_the_staircase_of_waves() -> None:
    """DeepSpeech's second layer, 4 to 32 images: 102, 205, 310, 523 us; 80 SMs make 512 rows at a time."""
    rows = [row for name in (JUDGED, "deepbench_fitted") for row in compared(name).rows if "5x10" in row.name]
    assert sorted(row.theirs for row in rows) == pytest.approx([102, 205, 310, 523])
    assert max(abs(row.error) for row in rows) <= 0.05


@pytest.mark.parametrize("without", ["mapping.pad_taps=false", "mapping.split_k=none"])
def test_each_mechanism_is_needed(without: str) -> None:
    """Without taps that begin a k-step, or sums that are cut, the error is at least half as large again."""
    assert compared(JUDGED, without).ours.mean > 1.5 * compared(JUDGED).ours.mean


def test_shapes_count_once_and_halves_are_apart() -> None:
    cases = gpu_convolutions()
    assert len({case.name for case in cases}) == len(cases) == 90
    fitted, judged = (deepbench_sets()[name].cases for name in ("deepbench_fitted", JUDGED))
    assert not {*fitted} & {*judged}
    assert len(fitted) + len(judged) == 90
    assert {name.split("_")[0] for name in deepbench_sets()} == {GPU_SETS}


def test_at_most_eight_constants_are_fitted_and_every_value_has_a_source() -> None:
    text = (ROOT / "configs" / "v100.yaml").read_text()
    assert text.count("# fitted") == 8
    assert load_hardware("v100").name == "v100"


def test_the_document_says_what_the_command_prints() -> None:
    said = {" ".join(line.split()) for line in (ROOT / "docs" / "validation.md").read_text().splitlines()}
    text = io.StringIO()
    for _, table in summaries([compared(name) for name in deepbench_sets()]):
        Console(file=text, width=250).print(table.drawn())
    assert [line for line in map(str.split, text.getvalue().splitlines()) if " ".join(line) not in said] == []
