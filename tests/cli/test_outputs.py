"""What commands say, word for word: a change of the house inside moves none of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import forked
from tests.network.test_composites import SMALL

NET = """
name: net
sizes: {side: 6}
training: {batch_norm: [first]}
layers:
  - {name: first, op: conv2d, in_channels: 4, in_height: side, in_width: side, out_channels: 4, kernel: 3, padding: 1}
  - {name: first_relu, op: relu}
  - {name: groups, op: conv2d, out_channels: 4, kernel: 3, padding: 1, groups: 4}
  - {name: sum, op: add, inputs: [groups, first_relu]}
  - {name: relu, op: relu}
  - {name: last, op: conv2d, out_channels: 4, kernel: 3, lowering: explicit}
"""
RUN = ("run", "net.yaml", "--batch", "2", "--hardware", "tiny_4x4", "--set", "mapping.search=estimate")
FUSED = ("--set", "sequencer.fusion=results")
COMMANDS = {
    "run": RUN,
    "fused": (*RUN, *FUSED, "--engine", "both"),
    "auto": (*RUN, *FUSED, "--lowering", "auto,la*=channel_last", "--dtype", "bf16"),
    "picked": (*RUN, *FUSED, "--layers", "first..sum", "--no-check"),
    "overlap": (*RUN, *FUSED, "--set", "sequencer.between_layers=stay"),
    "training": (*RUN, *FUSED, "--training", "--no-check"),
    "gpu": ("run", "net.yaml", "--batch", "2", "--hardware", "v100", "--ops", "array"),
    "tokens": ("run", "small.yaml", "--hardware", "tpu_v6e", "--phase", "decode", "--tokens", "3", *FUSED),
    "explain": ("explain", "net.yaml", *RUN[2:], *FUSED, "--layer", "first"),
    "trace": ("trace", "net.yaml", *RUN[2:], "--layers", "last", "--from", "20", "--to", "60"),
    "rides": (*RUN, *FUSED, "--layers", "first_relu"),
    "misspelt": (*RUN, "--lowering", "explcit,x*=fft"),
    "nowhere": (*RUN, "--lowering", "auto", "--layers", "first..nowhere"),
}
CLOCK = re.compile(r"simulated in [0-9.]+ s")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_what_it_said(name: str, tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    """All but the time that this computer takes."""
    (tmp_path / "net.yaml").write_text(NET)
    (tmp_path / "small.yaml").write_text(SMALL.replace("layers:\n  - b", "grows: context\nlayers:\n  - b", 1))
    done = forked.tpusim(*COMMANDS[name], folder=tmp_path, more={"COLUMNS": "120"})
    said = [f"$ tpusim {' '.join(COMMANDS[name])}", *done.stdout.splitlines(), *forked.told(done.stderr)]
    # The register engine tells of its compiler in the first run alone.
    said = [line for line in said if "loops are compiled" not in line] + [f"exit code {done.returncode}"]
    golden(f"outputs/{name}.txt", "".join(f"{CLOCK.sub('TIME', line)}\n" for line in said))
