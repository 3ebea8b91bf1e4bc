"""Arrays by name in NumPy's .npz files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias
from zipfile import ZipFile, is_zipfile

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import InputError, Problem
from tpusim.base.files import replacing

Arrays: TypeAlias = Mapping[str, NDArray[Any]]

_WRITE = "write one with numpy.savez(file, **{name: array})"


def read_arrays(path: Path) -> Arrays:
    """All arrays of a file; nothing in it is unpickled. Raises InputError that names it."""
    if not path.is_file():
        raise InputError(Problem("is a directory; give a file" if path.is_dir() else "no such file", str(path)))
    try:
        if not is_zipfile(path):
            raise InputError(Problem(f"is no .npz; {_WRITE}", str(path)))
        with np.load(path, allow_pickle=False) as held:
            arrays = {name: held[name] for name in held.files}
        # What has no header of NumPy's comes as bytes.
        if any(isinstance(each, bytes) for each in arrays.values()):
            raise InputError(Problem(f"holds more than arrays; {_WRITE}", str(path)))
        if not arrays:
            raise InputError(Problem(f"holds no array; {_WRITE}", str(path)))
        return arrays
    except InputError:
        raise
    except Exception as error:  # What NumPy, zipfile and zlib raise for broken files is of no common class.
        says = "holds objects, which are never unpickled" if "pickle" in str(error).lower() else "is broken"
        raise InputError(Problem(f"{says}; {_WRITE}", str(path))) from None


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Replace the file in one step. Raises InputError where it cannot be written."""
    # Not by numpy.savez, to which an array of the name "file" would be the file.
    with replacing(path) as temporary, ZipFile(temporary, "w") as archive:
        for name, each in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(each), allow_pickle=False)
