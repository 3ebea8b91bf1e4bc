"""scripts/explicit_overhead: what explicit im2col costs over its product alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import ROOT


def printed(*words: str) -> list[list[str]]:
    """What the script prints, line by line in words."""
    command = [sys.executable, str(ROOT / "scripts" / "explicit_overhead"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.long
def test_what_the_transformation_costs() -> None:
    """First it costs what its bytes take; beside the product less, and with half the bytes less again."""
    name, *figures = printed("alexnet")[-2]
    assert name == "alexnet"
    before, once, beside, again, times, on_chip, _ = (float(figure.rstrip("%")) for figure in figures[:7])
    half, _, half_beside, *_ = (float(figure.rstrip("%")) for figure in figures[7:])
    assert 0 < beside < before
    assert on_chip < beside
    assert 0 < half_beside < half < before
    assert once == 1
    assert times > 1
    assert again >= before - 0.5
