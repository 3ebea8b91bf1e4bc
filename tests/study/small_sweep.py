"""A small sweep, as the tests of sweeps write, run and read it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml
from typer.testing import CliRunner, Result

from tests import ROOT
from tpusim.api import sweep as action
from tpusim.cli import app as cli
from tpusim.study.sweep.parcels import Parcel, WorkFinding, simulated
from tpusim.study.sweep.store import FILE

MACHINE = yaml.safe_load((ROOT / "configs" / "tiny_4x4.yaml").read_text())
MACHINE["mapping"]["search"] = "estimate"
"""Blocks that simulation chooses take most of the time of a point, and are not what tests of sweeps are about."""
QUICK = yaml.safe_dump(MACHINE, sort_keys=False)
NET = """
name: net
layers:
  - {name: one, op: conv2d, in_channels: 5, in_height: 9, in_width: 9, out_channels: 6, kernel: 3}
  - {name: two, op: conv2d, in_channels: 5, in_height: 9, in_width: 9, out_channels: 6, kernel: 3}
  - {name: fc, op: gemm, m: batch, n: 7, k: 9}
"""
SPEC = """
name: small
workloads: [net.yaml]
hardware: quick.yaml
batch: 2
axes:
  array.size: [2, 4, 8]
  vector_memory.word_elements: {powers_of_two: [1, 4]}
"""


KNOWN: dict[Parcel, Sequence[WorkFinding]] = {}


def known(parcel: Parcel) -> Sequence[WorkFinding]:
    """Parcels are simulated once in a process: hundreds of sweeps here have the same points. What has failed is not
    kept: it may be the fault of one test.
    """
    if (found := KNOWN.get(parcel)) is None:
        found = simulated(parcel)
        if not any(isinstance(each, str) for each in found):
            KNOWN[parcel] = found
    return found


def sweep(*arguments: str) -> Result:
    with patch.object(action, "simulated", known):
        return swept_anew(*arguments)


def swept_anew(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["sweep", *arguments, "--workers", "1"])


def stored(folder: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(Path(folder) / FILE)) as connection:
        points = connection.execute("SELECT * FROM points ORDER BY key").fetchall()
        return points + connection.execute("SELECT * FROM layers ORDER BY key, position").fetchall()
