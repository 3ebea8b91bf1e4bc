"""The Triton kernel in Triton's interpreter: every output equal to the reference, in both orders of the taps."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests import ROOT
from tests.strategies import conv
from tpusim.base.errors import InputError
from tpusim.kernels.block_channel_first import ORDERS, convolve, shapes

CASES = json.dumps(
    [
        # Strides 1, 2 and 4, dilations, uneven padding, ragged tiles, channels that are no multiples of a slab.
        {"in_channels": 5, "in_height": 9, "in_width": 7, "out_channels": 6, "kernel": [3, 3], "padding": [1, 1]},
        {"in_channels": 33, "in_height": 8, "in_width": 8, "out_channels": 17, "kernel": [3, 3], "stride": [2, 2]},
        {"in_channels": 17, "in_height": 9, "in_width": 9, "out_channels": 3, "kernel": [5, 3], "stride": [4, 4],
         "padding": [2, 1]},
        {"in_channels": 4, "in_height": 9, "in_width": 9, "out_channels": 8, "kernel": [3, 3], "dilation": [2, 2]},
        {"in_channels": 3, "in_height": 6, "in_width": 7, "out_channels": 2, "kernel": [2, 3],
         "padding": [0, 1, 1, 2], "stride": [1, 2]},
        {"in_channels": 40, "in_height": 5, "in_width": 4, "out_channels": 33, "kernel": [1, 1]},
    ]
)  # fmt: skip

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


@needs_triton
def test_every_output_equals_the_reference() -> None:
    """In a process of its own, as Triton asks for its interpreter before it is imported."""
    surroundings = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.kernels.interpreted", CASES]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=surroundings)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["outputs"], told["wrong"]) == (2 * 2932, 0)
    # 2^24 + 1 - 2^24 and 2^24 - 2^24 + 1, in float32.
    assert told["orders"] == {"taps_outside": 0.0, "channels_outside": 1.0}


class Shaped:
    """A tensor of which nobody looks at the values."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def data_ptr(self) -> int:
        return 0


LAYER = conv(3, 4, 2, 3)


def tensors(**others: Shaped) -> dict[str, Shaped]:
    return {**{name: Shaped(*shape) for name, shape in shapes(LAYER, 2).items()}, **others}


def test_what_the_kernel_is_not_for_is_refused() -> None:
    with pytest.raises(InputError, match=r"unknown order 'tap_outside'; did you mean taps_outside\?"):
        convolve(LAYER, **tensors(), order="tap_outside")
    with pytest.raises(InputError, match="has 2 groups, and the kernel is for layers of one"):
        convolve(conv(4, 4, 2, 3, groups=2), **tensors())
    with pytest.raises(InputError, match=r"its filters is \(3, 3, 2, 3\), and should be \(3, 3, 3, 2\)"):
        convolve(LAYER, **tensors(filters=Shaped(3, 3, 2, 3)))
    large = conv(1024, 1024, 2, 1)
    wanted = {name: Shaped(*shape) for name, shape in shapes(large, 4).items()}
    with pytest.raises(InputError, match="its ifmap has over 2,147,483,647 elements; take fewer images"):
        convolve(large, **wanted)


def test_without_triton_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(InputError, match="a kernel on a GPU needs Triton, which cannot be imported"):
        convolve(LAYER, **tensors(), order=ORDERS[0])
