"""The transposed convolution as files write it: its sizes, its text, and what is wrong with it, at its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpusim import load_hardware, load_workload, simulate
from tpusim.base.errors import CapacityError, InputError
from tpusim.network.ops.array_op import ConvTranspose2d
from tpusim.network.workload import Workload

NET = """\
name: net
layers:
  - {name: up, op: conv_transpose2d, in_channels: 6, in_height: 5, in_width: 7, out_channels: 4, MORE}
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(more: str) -> ConvTranspose2d:
    Path("net.yaml").write_text(NET.replace("MORE", more))
    (layer,) = load_workload("net.yaml").layers
    assert isinstance(layer, ConvTranspose2d)
    return layer


@pytest.mark.parametrize(
    ("more", "sides", "text"),
    [
        ("kernel: 4, stride: 2, padding: 1", (10, 14), "5x7x6>4 4x4*2"),
        ("kernel: [3, 2], stride: [2, 3], padding: [1, 0]", (9, 20), "5x7x6>4 3x2*2x3"),
        ("kernel: 3, stride: 2, padding: 1, output_padding: 1", (10, 14), "5x7x6>4 3x3*2"),
        ("kernel: 3, dilation: 2, output_padding: [1, 0], groups: 2", (10, 11), "5x7x6>4 3x3*1 d2 g2"),
    ],
)
def test_the_sizes_are_those_of_pytorch(more: str, sides: tuple[int, int], text: str, written: None) -> None:
    layer = read(more)
    assert ((layer.out_height, layer.out_width), layer.text) == (sides, text)
    assert layer.tensors(8).ofmap == (4, *sides, 8)
    assert layer.macs(8) == 8 * 5 * 7 * 6 * layer.kernel[0] * layer.kernel[1] * 4 // layer.groups


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("kernel: 3, stride: 2, output_padding: 2",
         "output_padding 2 in height is not below its stride 2 or its dilation 1; write at most 1"),
        ("kernel: 3, stride: 2, output_padding: [1, 3]",
         "output_padding 3 in width is not below its stride 2 or its dilation 1; write at most 1"),
        ("kernel: 3, groups: 4", "groups 4 does not divide in_channels 6; choose a divisor of both channel counts"),
        ("kernel: 1, padding: 3",
         "padding: layer \"up\": padding 3 cuts off all 5 of the output's height, from both ends; write at most 2"),
        ("kernel: 3, padding: [1, 1, 1]", "[1, 1, 1] is not one number or two; as much is cut off on opposite sides"),
        ("kernel: 3, output_paddin: 1", "did you mean output_padding?"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_at_its_line(more: str, says: str, written: None) -> None:
    with pytest.raises(InputError) as error:
        read(more)
    told = str(error.value)
    assert told.startswith("net.yaml:3: layers[0]")
    assert says in told, told


def test_a_stride_that_nobody_meant_is_refused_at_once() -> None:
    layer = ConvTranspose2d("t", 3, 6, 6, 5, 3, 65_536)
    with pytest.raises(CapacityError, match="makes 4,294,967,296 phases"):
        simulate(Workload("net", 1, (layer,)), load_hardware("tpu_v2"), lowering="stride_phases", check=False)


def test_output_padding_may_be_below_the_dilation_alone() -> None:
    assert ConvTranspose2d("t", 1, 2, 2, 1, 2, 1, 0, 2, 3).out_height == 7
