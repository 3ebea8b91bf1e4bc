"""scripts/gpu_bench without a GPU: what it would time, how it checks, and what it says where it cannot."""

from __future__ import annotations

import importlib.util
import os
import runpy
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from tests import ROOT
from tests.strategies import conv
from tpusim.base.errors import InputError
from tpusim.network.workload import Workload
from tpusim.network.workload_file import load_workload

SCRIPT = ROOT / "scripts" / "gpu_bench"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_without_a_gpu_it_says_so_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(sys, "argv", [str(SCRIPT)])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    shown = capsys.readouterr()
    assert (left.value.code, shown.out) == (2, "")
    (line,) = shown.err.splitlines()
    assert line.startswith("gpu_bench: ")


def test_every_shape_is_timed_once_at_each_stride_by_four(script: dict[str, Any]) -> None:
    found = [*script["cases"](load_workload("vgg16", batch=8), (1, 2, 4))]
    # conv3_2 is like conv3_3, conv4_2 like conv4_3, the three of conv5 alike.
    assert len(found) == 9 * 3 * 4
    assert {case.by for case in found if case.layout == "NCHW"} == {"cudnn"}
    assert {(case.stride, case.layer.stride) for case in found} == {(1, (1, 1)), (2, (2, 2)), (4, (4, 4))}


def test_what_is_not_for_it_is_left_out(script: dict[str, Any]) -> None:
    grouped, uneven = conv(4, 5, 4, 3, groups=2), replace(conv(4, 5, 4, 3), name="uneven", padding=(0, 0, 1, 1))
    with pytest.raises(InputError, match="net has no convolution of one group and even padding"):
        [*script["cases"](Workload("net", 1, (grouped, uneven)), (1,))]


needs_both = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("torch", "triton"))), reason="PyTorch or Triton is not installed"
)
CHECKED = """
import runpy, json
from tests.strategies import conv
from tpusim.network.workload import Workload
script = runpy.run_path({script!r})
measured = script["measured"]
measured.__globals__["timed"] = lambda run, repeat, device: iter([10.0, 30.0, 20.0])
work = Workload("net", 2, (conv(5, 6, 7, 3, padding=1),))
rows = [measured(case, 2, 3, "cpu") for case in script["cases"](work, (1, 2))]
print(json.dumps([[row["by"], row["layout"], row["median_us"], row["wrong"]] for row in rows]))
"""


@needs_both
def test_it_checks_what_it_times() -> None:
    """On a processor, in Triton's interpreter; times are given."""
    surroundings = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", CHECKED.format(script=str(SCRIPT))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=surroundings)
    ways = [["cudnn", "NHWC"], ["cudnn", "NCHW"], ["taps_outside", "NHWC"], ["channels_outside", "NHWC"]]
    assert done.stdout.strip().replace("'", '"') == str([[*way, "20.00", 0] for way in 2 * ways]).replace("'", '"'), (
        done.stderr
    )
