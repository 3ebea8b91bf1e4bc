"""The witness in closed form says what the document quotes."""

from __future__ import annotations

import runpy

import pytest

from tests import ROOT

DOCUMENT = (ROOT / "docs" / "validation.md").read_text()
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "generation_model"))


@pytest.mark.long
def test_the_document_says_what_the_script_prints_and_the_tables_are_their_sums() -> None:
    """Sums of all rows but a few, to a ten-thousandth."""
    apart = 0
    for name, tpu in SCRIPT["tpus"]().items():
        for kind, cells in SCRIPT["compared"](name, tpu):
            assert f"| {name} | {kind} | {' | '.join(cells)} |" in DOCUMENT
            apart += int(cells[0]) - int(cells[1])
    assert apart <= 6


def test_a_product_of_one_step_loads_computes_and_stores() -> None:
    """One window of each, nothing of it twice: 128 x 128 x 128 on TPU v3."""
    tpu = SCRIPT["tpus"]()["v3"]
    row = {"m": "128", "n": "128", "k": "128"}
    windows = SCRIPT["Product"](row).windows(16, 1, 1)
    assert (windows.steps, windows.operands, windows.result) == (1, (2**15, 2**15), 2**15)
    assert SCRIPT["time_of"](tpu, windows, 312) == 312 + 3 * 2**15 / tpu.bytes_a_cycle
