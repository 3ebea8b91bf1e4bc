"""Arrays in .npz files: whole, and nothing in them is run."""

from __future__ import annotations

import pickle
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

from tpusim.base.errors import InputError
from tpusim.input.source import read_arrays, write_arrays


def test_every_name_and_type_comes_back(tmp_path: Path) -> None:
    arrays = {
        "file": np.arange(6.0).reshape(2, 3),
        "gpu_0/y": np.array(7, np.int64),
        "none": np.zeros((0, 2), np.bool_),
    }
    write_arrays(tmp_path / "a.npz", arrays)
    again = read_arrays(tmp_path / "a.npz")
    assert {*again} == {*arrays}
    for name, each in arrays.items():
        np.testing.assert_array_equal(again[name], each, strict=True)
    with np.load(tmp_path / "a.npz") as held:
        np.testing.assert_array_equal(held["file"], arrays["file"])


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("exploded"),)  # type: ignore[return-value]


def broken(path: Path) -> None:
    np.savez(path, x=np.arange(1000))
    path.write_bytes(path.read_bytes()[:200] + b"\0" * 200 + path.read_bytes()[400:])


def cut_off(path: Path) -> None:
    np.savez(path, x=np.arange(1000))
    path.write_bytes(path.read_bytes()[:300])


def huge(path: Path) -> None:
    """A header that says that there are as many numbers as no computer holds."""
    np.savez(path, x=np.arange(10))
    path.write_bytes(path.read_bytes().replace(b"(10,), }      ", b"(10**15,), }  "))


def odd_header(path: Path) -> None:
    """One that Python's own tokenizer gives up on."""
    with ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00\x08\x00{'a': ((")


def locked(path: Path) -> None:
    """With the mark of a password."""
    np.savez(path, x=np.arange(10))
    data = bytearray(path.read_bytes())
    for start, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(start) + flags] |= 1
    path.write_bytes(data)


def no_array(path: Path) -> None:
    with ZipFile(path, "w") as archive:
        archive.writestr("notes.txt", "hello")


WRITERS = {
    "objects": (lambda path: np.savez(path, x=np.array([Bomb()], object)), "holds objects, which are never unpickled"),
    "a pickle": (lambda path: path.write_bytes(pickle.dumps(Bomb())), "is no .npz"),
    "one array": (lambda path: np.save(path.open("wb"), np.zeros(3)), "is no .npz"),
    "text": (lambda path: path.write_text("hello"), "is no .npz"),
    "nothing": (lambda path: path.touch(), "is no .npz"),
    "nothing inside": (np.savez, "holds no array"),
    "broken": (broken, "is broken"),
    "cut off": (cut_off, "is no .npz"),
    "huge": (huge, "is broken"),
    "an odd header": (odd_header, "is broken"),
    "locked": (locked, "is broken"),
    "other files": (no_array, "holds more than arrays"),
    "a folder": (lambda path: path.mkdir(), "is a directory; give a file"),
    "missing": (lambda path: None, "no such file"),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_what_is_none_is_told_in_one_message(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write, says = WRITERS[kind]
    write(Path("in.npz"))
    with pytest.raises(InputError) as caught:
        read_arrays(Path("in.npz"))
    assert str(caught.value).startswith(f"in.npz: {says}")
    assert "\n" not in str(caught.value)
    assert not Path("exploded").exists()
