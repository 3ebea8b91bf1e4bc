"""scripts/size_laws: no size of rows costs much more than its neighbours, and a size that does would be shown."""

from __future__ import annotations

import runpy

import pytest

from tests import ROOT
from tpusim import load_hardware

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "size_laws"))


@pytest.mark.parametrize(
    ("sizes", "elements"), [(20, 1 << 15), pytest.param(60, 1 << 22, marks=pytest.mark.long)], ids=["small", "large"]
)
def test_no_size_costs_more_than_its_neighbours(sizes: int, elements: int) -> None:
    assert [case for case in SCRIPT["measured"](sizes, 1, elements) if case.times > 1.25] == []


@pytest.mark.parametrize("op", SCRIPT["OPS"])
@pytest.mark.parametrize("machine", ["tpu_v2", pytest.param("tpu_v5e", marks=pytest.mark.long)])
def test_a_prime_number_of_channels(op: str, machine: str) -> None:
    """Of few rows, so that no equal shares do."""
    case = SCRIPT["case_of"](machine, load_hardware(machine), op, 1021, 8, "channels")
    assert case.times <= 1.25


def test_a_cliff_is_counted_and_listed(capsys: pytest.CaptureFixture[str]) -> None:
    cases = [SCRIPT["Case"]("tpu_v2", "softmax", 1021, 8, "channels", cycles, (90, 100)) for cycles in (100, 260)]
    SCRIPT["report"](cases, 1.25)
    told = capsys.readouterr().out
    assert "1 of 2 (50.00%) above 1.25; the worst takes 2.600" in told
    assert "8x1021" in told
