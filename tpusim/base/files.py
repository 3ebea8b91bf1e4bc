"""Files are written whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tpusim.base.errors import InputError


def named(place: object) -> Path:
    """Return the path of a file or folder. Raises InputError for what is neither text nor a path."""
    if not isinstance(place, str | Path):
        raise InputError(f"{place!r:.80} is no name of a file; give text, or a Path")
    return Path(place)


def probe(file: Path, make_folder: bool = False) -> None:
    """Find out, before the work, whether `file` can be written; nothing is left behind."""
    with _failures_named(file):
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a directory")
        if is_device(file):
            return
        target = _followed(file)
        there = next(each for each in target.parents if each.exists()) if make_folder else target.parent
        with TemporaryDirectory(prefix=".tpusim-", dir=there) as trial:
            copy = trial / target.relative_to(there)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.touch()


def make_folder(folder: Path) -> None:
    """Make `folder` and the folders above it, if necessary; other processes may be doing the same."""
    with _failures_named(folder):
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder}: it is a file; name a folder")
        _followed(folder).mkdir(parents=True, exist_ok=True)


def write(file: Path, data: bytes) -> None:
    """Replace `file` in one step, so that no reader ever sees half of it."""
    with replacing(file) as temporary:
        temporary.write_bytes(data)


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """A place to write to, piece by piece; it becomes `file` at the end, or vanishes when that fails."""
    with _failures_named(file):
        if is_device(file):
            yield file
            return
        # The temporary file is beside the target, with links resolved: os.replace works within one file system only.
        target = _followed(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".tpusim-{secrets.token_hex(8)}.tmp")
        try:
            yield temporary
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


def _followed(file: Path) -> Path:
    """Return the file to which links lead. Raises OSError where they lead to themselves."""
    target = Path(os.path.realpath(file))
    if any(each.is_symlink() for each in (target, *target.parents)):
        raise OSError(errno.ELOOP, "a link that leads to itself")
    return target


@contextmanager
def _failures_named(file: Path) -> Iterator[None]:
    """Turn every failure to write into an InputError that names `file`."""
    try:
        yield
    except InputError:  # Of what is written; it is a ValueError as well.
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be written ({getattr(error, 'strerror', error)})") from None


def is_device(file: Path) -> bool:
    """Whether `file` is a pipe or a device, such as /dev/stdout: written to, never replaced."""
    return os.path.exists(file) and not os.path.isfile(file)


def is_named_pipe(file: Path) -> bool:
    """Whether `file` is a pipe with a name, in which nothing is to be read until somebody writes; no pipe that this
    process was given, such as /dev/stdin or that of `<(command)`.
    """
    try:
        real = os.path.realpath(file)
        return stat.S_ISFIFO(os.stat(real).st_mode) and not real.startswith("/dev/")
    except (OSError, ValueError):
        return False
