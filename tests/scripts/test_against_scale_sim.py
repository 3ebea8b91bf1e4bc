"""scripts/against_scale_sim: what is left of SCALE-Sim's cycles where no pass waits for the one before to drain."""

from __future__ import annotations

import subprocess
import sys

from tests import ROOT

DOCUMENT = " ".join((ROOT / "docs" / "timing.md").read_text().split())


def test_every_layer_of_resnet18_takes_what_docs_timing_says() -> None:
    """Folds x M + passes x R, and at most 10 % more."""
    command = [sys.executable, str(ROOT / "scripts" / "against_scale_sim")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = (line.replace("│", " ").replace(",", "").split() for line in done.stdout.splitlines())
    rows = {words[0]: [int(each) for each in words[1:-1]] for words in lines if len(words) == 8 and words[1].isdigit()}
    assert len(rows) == 22
    for name, (_, _, _, expected, array, cycles) in rows.items():
        assert expected <= array < 1.1 * expected, name
        assert array < cycles
    _, _, scale_sim, expected, array, cycles = rows["together"]
    assert f"the closed form adds up to {scale_sim:,} cycles" in DOCUMENT
    assert f"ours to {cycles:,}, of which the array is at work for {array:,};" in DOCUMENT
    assert f"passes x R are {expected:,} of these" in DOCUMENT
