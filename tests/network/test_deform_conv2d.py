"""The deformable convolution as files write it: its sizes, its text, and what is wrong with it, at its line."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest

from tpusim import load_workload
from tpusim.base.errors import InputError
from tpusim.network.ops.deform_conv2d import DeformConv2d

NET = """\
name: net
layers:
  - {name: dcn, op: deform_conv2d, in_channels: 6, in_height: 5, in_width: 7, out_channels: 4, MORE}
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(more: str) -> DeformConv2d:
    Path("net.yaml").write_text(NET.replace("MORE", more))
    (layer,) = load_workload("net.yaml").layers
    assert isinstance(layer, DeformConv2d)
    return layer


@pytest.mark.parametrize(
    ("more", "sides", "text"),
    [
        ("kernel: 3, padding: 1", (5, 7), "5x7x6>4 3x3"),
        ("kernel: [3, 2], stride: [2, 1], padding: [1, 0], modulated: true", (3, 6), "5x7x6>4 3x2/2x1 m"),
        ("kernel: 3, padding: 2, dilation: 2, groups: 2, offset_groups: 3", (5, 7), "5x7x6>4 3x3 d2 g2 o3"),
        ("kernel: 1, offsets: [0.5, -1]", (5, 7), "5x7x6>4 1x1"),
    ],
)
def test_the_sizes_are_those_of_torchvision(more: str, sides: tuple[int, int], text: str, written: None) -> None:
    layer = read(more)
    assert ((layer.out_height, layer.out_width), layer.text) == (sides, text)
    assert layer.tensors(8).ofmap == (4, *sides, 8)
    given = (3 if layer.modulated else 2) * layer.offset_groups * prod(layer.kernel) * prod(sides) * 8
    assert layer.operands(8) == 8 * 6 * 35 + prod(layer.tensors(8).filter) + given


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("kernel: 3, groups: 4", "groups 4 does not divide in_channels 6; choose a divisor of both channel counts"),
        ("kernel: 3, offset_groups: 4", "offset_groups: layer \"dcn\": offset_groups 4 does not divide in_channels 6"),
        ("kernel: 3, offsets: [1, 2]",
         "offsets: layer \"dcn\": 2 offsets for 1 x 3 x 3 taps, each down and across; write 18 of them, or a word"),
        ("kernel: 1, offsets: [1, 0.3]", "0.3 is no offset; write a multiple of 1/4, such as -1.25, up to 4,194,304"),
        ("kernel: 1, offsets: [1, .nan]", "\".nan\" is no offset"),
        ("kernel: 3, offsets: randon", "\"randon\" are no offsets; did you mean random?"),
        ("kernel: 3, offsets: 3",
         "3 are no offsets; write random, zero, integer, half, a list of numbers, or an .npz file"),
        ("kernel: 3, modulated: 1", "1 is neither true nor false; write one of them"),
        ("kernel: 9", "the kernel spans 9 in height"),
        ("kernel: 3, offset_group: 1", "did you mean offset_groups?"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_at_its_line(more: str, says: str, written: None) -> None:
    with pytest.raises(InputError) as error:
        read(more)
    told = str(error.value)
    assert told.startswith("net.yaml:3: layers[0]")
    assert says in told, told


def test_filled_layers_have_whole_groups() -> None:
    layer, told = DeformConv2d("d", 12, 5, 5, 8, 3, groups=2, offset_groups=3).filled(8, 8)
    assert (layer.in_channels, layer.out_channels) == (48, 16)
    assert told == "in_channels=48 out_channels=16"
