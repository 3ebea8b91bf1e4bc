"""Offsets of a deformable convolution from a file: whose they are, and what is wrong with them, at the layer's line."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpusim import load_workload, simulate
from tpusim.base.errors import InputError
from tpusim.flow.jobs import resolve
from tpusim.machines.tpu.description import load_hardware
from tpusim.network.ops.deform_conv2d import DeformConv2d
from tpusim.network.workload import Workload
from tpusim.study.sweep.store import key_of

NET = """\
name: net
layers:
  - {name: dcn, op: deform_conv2d, in_channels: 4, in_height: 4, in_width: 5, out_channels: 3, kernel: [2, 3],
     padding: [0, 1], offset_groups: 2, offsets: offsets.npz}
"""
SHAPE = (24, 3, 5)
"""2 x 2 offset groups x 6 taps, rows, columns."""


def quarters(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).integers(-6, 6, shape) / 4


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Workload and offsets lie beside each other, and not where one is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "net.yaml").write_text(NET)
    return tmp_path / "nets"


def read(folder: Path, values: np.ndarray, batch: int = 2) -> DeformConv2d:
    np.savez(folder / "offsets.npz", values)
    (layer,) = load_workload("nets/net.yaml", batch).layers
    assert isinstance(layer, DeformConv2d)
    return layer


@pytest.mark.parametrize("images", [(), (1,), (2,)])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_they_are_in_the_order_of_torchvision(folder: Path, images: tuple[int, ...], kind: Any) -> None:
    values = quarters((*images, *SHAPE)).astype(kind)
    found = read(folder, np.asfortranarray(values) if images else values).displaced(2)
    by_image = np.broadcast_to(values.reshape(-1, 2, 2, 3, 2, 3, 5), (2, 2, 2, 3, 2, 3, 5))
    for axis, parts in enumerate((found.down, found.across)):
        np.testing.assert_array_equal(np.moveaxis(parts, -1, 0) / found.parts, by_image[:, :, :, :, axis])


def test_a_layer_with_them_is_computed_exactly(folder: Path) -> None:
    layer = read(folder, quarters((2, *SHAPE)))
    (found,) = simulate(Workload("net", 2, (layer,)), load_hardware("tiny_4x4"), engine="both").layers
    assert (found.outputs_checked, found.outputs_mismatched) == (found.outputs, 0)
    assert layer.shape_key != read(folder, quarters((2, *SHAPE)) + 0.25).shape_key
    assert len(repr(layer)) < 600


def of(values: Any) -> Any:
    return lambda path: np.savez(path, values)


def truncated(path: Path) -> None:
    np.savez(path, quarters(SHAPE))
    path.write_bytes(path.read_bytes()[:300])


def larger_than_it_is(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file, file.open("offsets.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"shape": (10**6,) * 3, "fortran_order": False, "descr": "<f4"})


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (of(quarters((24, 3, 4))), "the file has 24 x 3 x 4 offsets an image; save 24 x 3 x 5: 2 x offset groups"),
        (of(quarters((3, *SHAPE))), "offsets for 3 images in a batch of 2; give those of 1, or of 2"),
        (of(quarters((24, 15))), "has 2 axes of float64; write numbers [image, 2 x offset group x tap, row, col]"),
        (of(np.full(SHAPE, 0.3)), "0.3 at [0, 0, 0] is no offset; multiples of 1/4 up to 4,194,304 are"),
        (of(np.full(SHAPE, np.nan)), "nan at [0, 0, 0] is no offset"),
        (of(np.full(SHAPE, 1j)), "has 3 axes of complex128"),
        (of(np.full(SHAPE, None)), '"nets/offsets.npz": holds objects, which are never unpickled; write one with'),
        (lambda path: np.savez(path, a=quarters(SHAPE), b=quarters(SHAPE)), "has 2 arrays; save one"),
        (lambda path: path.write_bytes(pickle.dumps([1])), '"nets/offsets.npz": is no .npz'),
        (truncated, "is no .npz"),
        (larger_than_it_is, "is broken"),
        (lambda path: None, '"nets/offsets.npz": no such file'),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_at_the_layers_line(folder: Path, write: Any, says: str) -> None:
    write(folder / "offsets.npz")
    with pytest.raises(InputError) as error:
        load_workload("nets/net.yaml", 2)
    told = str(error.value)
    assert told.startswith('nets/net.yaml:4: layers[0].offsets: layer "dcn": ')
    assert says in told
    assert "\n" not in told


def test_points_of_a_sweep_know_what_the_file_holds(folder: Path) -> None:
    """Other offsets are another point, under the same name."""
    keys = set()
    for more in (0, 0.25, 0):
        work = Workload("net", 2, (read(folder, quarters(SHAPE) + more),))
        keys.add(key_of(resolve(work, load_hardware("tiny_4x4"), "deformable")))
    assert len(keys) == 2
