"""Where a description comes from: a shipped name, a path, or standard input."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from tpusim.base.errors import InputError, Problem
from tpusim.input.document import Document, parse_document
from tpusim.input.foreign import FOLDERS, refuse_kind, refuse_suffix, unknown
from tpusim.input.scalars import show

MAX_BYTES = 8 * 2**20


def shipped(folder: str) -> dict[str, Path]:
    """Name to path of the YAML files that come with tpusim in `folder` ("configs" or "workloads"), sorted."""
    package = Path(__file__).parents[1]
    # In a wheel the folder lies inside the package; in a checkout, beside it.
    root = next((base / folder for base in (package, package.parent) if (base / folder).is_dir()), None)
    return {path.stem: path for path in sorted(root.glob("*.yaml"))} if root else {}


def open_document(name_or_path: str | Path, folder: str) -> Document:
    """Read a shipped name, a path, or "-" for standard input. Raises InputError."""
    name, known = str(name_or_path), shipped(folder)
    if isinstance(name_or_path, str) and name in known:
        return parse_document(read_text(known[name]), f"{folder}/{name}.yaml")
    document = _given(name, folder)
    refuse_kind(document.data, document.label, folder)
    return document


def with_neighbours(document: Document, files: Mapping[str, str]) -> Document:
    """The same, the `files` that it names by their paths as they are seen from its own folder, where they are there.

    `files` has the folder of those shipped by the path of each: their names stay.
    """
    for path, folder in files.items():
        name = document.value(path)
        if isinstance(name, str) and name not in shipped(folder):
            beside = os.path.join(os.path.dirname(document.label), name)
            document = document.override(path, beside, document.place(path)) if os.path.isfile(beside) else document
    return document


def _given(name: str, folder: str) -> Document:
    if name == "-":
        return parse_document(*given_text(name))
    refuse_suffix(name, folder)
    if not os.path.exists(name):
        where = name[:200] if name and name.isprintable() else show(name)
        raise InputError(Problem(unknown(name, folder, {each: shipped(each) for each in FOLDERS}), where))
    return parse_document(read_text(Path(name)), name)


def given_text(path: str | Path, most: int = MAX_BYTES) -> tuple[str, str]:
    """The text of a file, or of standard input for "-", and what messages call it. Raises InputError."""
    if str(path) == "-":
        return _decode(_standard_input(most), "<stdin>", most), "<stdin>"
    return read_text(Path(path), most), str(path)


def read_text(path: Path, most: int = MAX_BYTES) -> str:
    """The text of a file of at most `most` bytes. Raises InputError that names it."""
    return _decode(read_bytes(path, most + 1), str(path), most)


def read_bytes(path: Path, most: int) -> bytes:
    """The first `most` bytes of a file. Raises InputError that names it."""
    try:
        with path.open("rb") as file:
            return file.read(most)
    except FileNotFoundError:
        raise InputError(Problem("no such file; check the path", str(path))) from None
    except IsADirectoryError:
        raise InputError(Problem("is a directory; give a file", str(path))) from None
    except OSError as error:
        reason = f"cannot be read ({error.strerror}); check the file and its permissions"
        raise InputError(Problem(reason, str(path))) from None


def _standard_input(most: int) -> bytes:
    if sys.stdin is None:
        raise InputError("standard input is closed; give a file or a shipped name instead of -")
    data: str | bytes = getattr(sys.stdin, "buffer", sys.stdin).read(most + 1)
    return data.encode() if isinstance(data, str) else data


def _decode(data: bytes, label: str, most: int) -> str:
    if len(data) > most:
        raise InputError(Problem(f"larger than {most // 2**20} MiB, which is the most that is read", label))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"byte 0x{data[error.start]:02x} is not UTF-8 text; save the file as UTF-8"
        raise InputError(Problem(message, f"{label}:{line}", line)) from None
