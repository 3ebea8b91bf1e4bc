"""Sources of input: descriptions by a shipped name, a path, or standard input; arrays; and files of other tools.

Messages about files of other tools and unknown names say what they are, and what to write.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias
from zipfile import ZipFile, is_zipfile

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import InputError, Problem
from tpusim.base.files import is_named_pipe, replacing
from tpusim.input.document import Document, parse_document
from tpusim.input.scalars import show

Arrays: TypeAlias = Mapping[str, NDArray[Any]]

MAX_BYTES = 8 * 2**20

PIPE = "is a named pipe, on which a reader may wait for ever; give a file, or send it to standard input"

_KINDS = {
    "workloads": ("a workload", "layers", "tpusim run {}"),
    "configs": ("hardware", "array", "tpusim run WORKLOAD --hardware {}"),
    "configs/sweeps": ("a sweep", "axes", "tpusim sweep {}"),
    "configs/dram": ("a DRAM", "organisation", "tpusim dram TRACE --device {}"),
    "configs/technology": ("a technology", "arithmetic", "tpusim area --set technology={}"),
    "configs/slices": ("a slice", "torus", "tpusim collective all-reduce --slice {}"),
    "configs/interconnects": (
        "an interconnect",
        "collectives",
        "tpusim collective OP --slice FILE, where FILE says interconnect: {}",
    ),
    "configs/chips": ("a chip", "cores", "tpusim area"),
}
"""By folder: the kind of its files, a key that only such files have, and the command that takes them."""

_EXAMPLES = ("resnet18", "tpu_v2", "array_size", "hbm2_16ch_700", "45nm", "v6e_2x4", "v6e")
"""Shipped files that make good first copies."""

_CONV = "op: conv2d, in_channels: 3, in_height: 224, in_width: 224, out_channels: 64, kernel: 7, stride: 2, padding: 3"
_NETWORK = f"{{name: my_net, layers: [{{name: conv1, {_CONV}}}, {{name: fc, op: gemm, m: batch, n: 1000, k: 512}}]}}"
_WRITE = f"write its convolutions and matrix products as YAML, such as {_NETWORK}"
_MODEL = f"models of other tools are not read; {_WRITE}"
_RUN = "tpusim run takes it, and tpusim import makes a workload file of it"
_MACHINES = (
    "each has a TPU's matrix unit or a GPU's tensor cores; change a field of one, such as --hardware tpu_v2 --set "
    "array.size=256"
)
_DECODER = "model_type"
"""The key of the config.json of a language model."""
_CONFIGURATION = ".cfg"
"""Suffix of SCALE-Sim's machines."""
_SUFFIXES = {
    ".onnx": f"an ONNX model is a network; {_RUN}",
    ".csv": f"a topology of SCALE-Sim is a network; {_RUN}",
    _CONFIGURATION: "a configuration of SCALE-Sim is a machine; tpusim run WORKLOAD --hardware FILE.cfg takes it",
    **dict.fromkeys((".pt", ".pth", ".pb", ".h5", ".keras", ".tflite", ".safetensors", ".mlir", ".hlo", ".py"), _MODEL),
}
"""Messages about files that are no YAML, whether or not they exist."""

_TRACE = (
    "a DRAM is a shipped name, see tpusim list, or a .yaml file; a trace of requests comes first, without an option: "
    "tpusim dram TRACE.csv --device hbm2_16ch"
)

_WRITE = "write one with numpy.savez(file, **{name: array})"


def shipped(folder: str) -> dict[str, Path]:
    """Name to path of the YAML files that come with tpusim in `folder` ("configs" or "workloads"), sorted."""
    package = Path(__file__).parents[1]
    # In a wheel the folder is inside the package; in a checkout, beside it.
    root = next((base / folder for base in (package, package.parent) if (base / folder).is_dir()), None)
    return {path.stem: path for path in sorted(root.glob("*.yaml"))} if root else {}


def open_document(name_or_path: str | Path, folder: str) -> Document:
    """Read a shipped name, a path, or "-" for standard input. Raises InputError."""
    name, known = str(name_or_path), shipped(folder)
    if isinstance(name_or_path, str) and name in known:
        return parse_document(read_text(known[name]), f"{folder}/{name}.yaml")
    if name == "-":
        document = parse_document(*given_text(name))
    else:
        if (suffix := Path(name).suffix.lower()) == _CONFIGURATION and folder == "configs":
            # Imported here, as hardly any run has one.
            from tpusim.input.configuration import read_configuration

            return read_configuration(read_text(Path(name)), name)
        if suffix in _SUFFIXES:
            # The file of another tool, or a list of requests in place of a DRAM.
            trace = (suffix, folder) == (".csv", "configs/dram")
            raise InputError(Problem(_TRACE if trace else _SUFFIXES[suffix], name))
        if not os.path.exists(name):
            where = name[:200] if name and name.isprintable() else show(name)
            raise InputError(Problem(_unknown(name, folder), where))
        document = parse_document(read_text(Path(name)), name)
    refuse_kind(document.data, document.label, folder)
    if _DECODER in document.data and "layers" not in document.data:
        says = f"is the config of a language model; call the file {Path(name).stem.strip('-') or 'config'}.json"
        raise InputError(Problem(f"{says}: {_RUN}", document.label))
    return document


def with_neighbours(document: Document, files: Mapping[str, str]) -> Document:
    """A document in which names of neighbouring files are paths relative to the working directory.

    `files` has the folder of shipped files for the path of each such field; shipped names stay as they are.
    """
    for path, folder in files.items():
        name = document.value(path)
        if isinstance(name, str) and name not in shipped(folder):
            beside = os.path.join(os.path.dirname(document.label), name)
            document = document.override(path, beside, document.place(path)) if os.path.isfile(beside) else document
    return document


def given_text(path: str | Path, most: int = MAX_BYTES) -> tuple[str, str]:
    """Text of a file, or of standard input for "-", and its name in messages. Raises InputError."""
    if str(path) != "-":
        return read_text(Path(path), most), str(path)
    if sys.stdin is None:
        raise InputError("standard input is closed; give a file or a shipped name instead of -")
    data: str | bytes = getattr(sys.stdin, "buffer", sys.stdin).read(most + 1)
    return _decode(data.encode() if isinstance(data, str) else data, "<stdin>", most), "<stdin>"


def read_text(path: Path, most: int = MAX_BYTES) -> str:
    """The text of a file of at most `most` bytes. Raises InputError that names it."""
    return _decode(read_bytes(path, most + 1), str(path), most)


def read_bytes(path: Path, most: int) -> bytes:
    """The first `most` bytes of a file. Raises InputError that names it."""
    if is_named_pipe(path):
        raise InputError(Problem(PIPE, str(path)))
    try:
        with path.open("rb") as file:
            return file.read(most)
    except FileNotFoundError:
        raise InputError(Problem("no such file; check the path", str(path))) from None
    except IsADirectoryError:
        raise InputError(Problem("is a directory; give a file", str(path))) from None
    except (OSError, ValueError) as error:  # The latter for a name with a NUL in it.
        reason = f"cannot be read ({getattr(error, 'strerror', error)}); check the file and its permissions"
        raise InputError(Problem(reason, str(path))) from None


def _decode(data: bytes, label: str, most: int) -> str:
    if len(data) > most:
        raise InputError(Problem(f"larger than {most // 2**20} MiB, which is the most that is read", label))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"byte 0x{data[error.start]:02x} is not UTF-8 text; save the file as UTF-8"
        raise InputError(Problem(message, f"{label}:{line}", line)) from None


def read_arrays(path: Path) -> Arrays:
    """All arrays of a file; nothing in it is unpickled. Raises InputError that names it."""
    if is_named_pipe(path):
        raise InputError(Problem(PIPE, str(path)))
    if not os.path.isfile(path):
        raise InputError(Problem("is a directory; give a file" if os.path.isdir(path) else "no such file", str(path)))
    try:
        if not is_zipfile(path):
            raise InputError(Problem(f"is no .npz; {_WRITE}", str(path)))
        with np.load(path, allow_pickle=False) as held:
            arrays = {name: held[name] for name in held.files}
        # An entry without a NumPy header is read as bytes.
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
    # Not by numpy.savez, which would take an array named "file" for the file.
    with replacing(path) as temporary, ZipFile(temporary, "w") as archive:
        for name, each in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(each), allow_pickle=False)


def refuse_kind(data: Mapping[str, Any], label: str, folder: str) -> None:
    """Raise InputError if the keys of a file show that it belongs into another folder, or is a result."""
    _, own, _ = _KINDS[folder]
    if own in data and "tpusim" not in data:
        return
    if {"tpusim", "total"} <= data.keys():
        raise InputError(Problem("is the result of a run; tpusim report, plot and compare read it", label))
    if _DECODER in data and folder != "workloads":
        raise InputError(Problem(f"is the config of a language model, a network; {_RUN}", label))
    for kind, key, use in _KINDS.values():
        if key in data and key != own:
            raise InputError(Problem(f"is {kind}, not {_KINDS[folder][0]}; use it with {use.format(label)}", label))


def _unknown(name: str, folder: str) -> str:
    """Message about a name that is neither shipped nor a file."""
    kind, known = _KINDS[folder][0].split()[-1], shipped(folder)
    is_path = "/" in name or name.endswith((".yaml", ".yml"))
    missing = "no such file" if is_path else f"no shipped {kind} and no file of that name"
    folded = Path(name).stem.casefold()
    # The name itself, if it is known, or at most three names that begin with it or are spelt alike.
    begin = [each for each in known if folded and each.startswith(folded)]
    near = [folded] if folded in known else begin[:3] or get_close_matches(folded, known, 3, 0.7)
    uses = ((what, use) for at, (what, _, use) in _KINDS.items() if name in shipped(at))
    elsewhere = next((f"{name} is {what}: {use.format(name)}" for what, use in uses), "")
    hint = f"; did you mean {' or '.join(near)}?" if near else ";"
    return f"{missing}{hint} shipped: {', '.join(known) or 'none'}; {elsewhere or _own(folder, known)}"


def _own(folder: str, known: Mapping[str, Path]) -> str:
    """The end of that message: how to get another file."""
    example = next((path for name, path in known.items() if name in _EXAMPLES), "")
    copy = f"write your own, beginning with a copy of {example}"
    return f"{_MACHINES}, or {copy}" if folder == "configs" else copy
