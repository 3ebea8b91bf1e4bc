"""Files and names that are none of ours: what they are, and what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tpusim.base.errors import InputError, Problem

_KINDS = {
    "workloads": ("a workload", "layers", "tpusim run {}"),
    "configs": ("hardware", "array", "tpusim run WORKLOAD --hardware {}"),
    "configs/sweeps": ("a sweep", "axes", "tpusim sweep {}"),
    "configs/dram": ("a DRAM", "organisation", "tpusim dram TRACE --device {}"),
    "configs/technology": ("a technology", "arithmetic", "tpusim area --set technology={}"),
    "configs/chips": ("a chip", "cores", "tpusim area"),
}
"""By folder: what is in it, a key that only such files have, and what takes them."""

FOLDERS = tuple(_KINDS)

_EXAMPLES = ("resnet18", "tpu_v2", "array_size", "hbm2_16ch_700", "45nm")
"""What a file of its kind may begin as a copy of."""

_CONV = "op: conv2d, in_channels: 3, in_height: 224, in_width: 224, out_channels: 64, kernel: 7, stride: 2, padding: 3"
_NETWORK = f"{{name: my_net, layers: [{{name: conv1, {_CONV}}}, {{name: fc, op: gemm, m: batch, n: 1000, k: 512}}]}}"
_WRITE = f"write its convolutions and matrix products as YAML, such as {_NETWORK}"
_MODEL = f"models of other tools are not read; {_WRITE}"
_RUN = "tpusim run takes it, and tpusim import makes a workload file of it"
_MACHINES = (
    "each has a TPU's matrix unit or a GPU's tensor cores; change a field of one, such as --hardware tpu_v2 --set "
    "array.size=256"
)
_SUFFIXES = {
    ".onnx": f"an ONNX model is a network; {_RUN}",
    ".csv": f"a topology of SCALE-Sim is a network; {_RUN}",
    ".cfg": (
        "the configuration of another tool is not read; a machine is YAML with units, in which ArrayHeight and "
        "ArrayWidth are array: {rows: 128, cols: 128}, and the bandwidth hbm: {bandwidth: 700 GB/s}; begin with a "
        "copy of a shipped one, see tpusim list"
    ),
    **dict.fromkeys((".pt", ".pth", ".pb", ".h5", ".keras", ".tflite", ".safetensors", ".mlir", ".hlo", ".py"), _MODEL),
}
"""What is no YAML, whether it is there or not."""

_TRACE = (
    "a DRAM is a shipped name, see tpusim list, or a .yaml file; a trace of requests comes first, without an option: "
    "tpusim dram TRACE.csv --device hbm2_16ch"
)


def refuse_suffix(name: str, folder: str) -> None:
    """Raise InputError where the suffix says that a file is another tool's, or a list of requests and no DRAM."""
    if (suffix := Path(name).suffix.lower()) in _SUFFIXES:
        raise InputError(Problem(_TRACE if (suffix, folder) == (".csv", "configs/dram") else _SUFFIXES[suffix], name))


def refuse_kind(data: Mapping[str, Any], label: str, folder: str) -> None:
    """Raise InputError where the keys of a file say that it belongs into another folder, or is a result."""
    _, own, _ = _KINDS[folder]
    if own in data and "tpusim" not in data:
        return
    if {"tpusim", "total"} <= data.keys():
        raise InputError(Problem("is the result of a run; tpusim report, plot and compare read it", label))
    for kind, key, use in _KINDS.values():
        if key in data and key != own:
            raise InputError(Problem(f"is {kind}, not {_KINDS[folder][0]}; use it with {use.format(label)}", label))


def unknown(name: str, folder: str, shipped: Mapping[str, Mapping[str, Path]]) -> str:
    """What to say of a name that is neither shipped nor a file; `shipped` are names and paths by folder."""
    kind, known = _KINDS[folder][0].split()[-1], shipped[folder]
    is_path = "/" in name or name.endswith((".yaml", ".yml"))
    what = "no such file" if is_path else f"no shipped {kind} and no file of that name"
    near = _near(Path(name).stem, [*known])
    hint = f"; did you mean {' or '.join(near)}?" if near else ";"
    return f"{what}{hint} shipped: {', '.join(known) or 'none'}; {_elsewhere(name, shipped) or _own(folder, known)}"


def _near(name: str, known: list[str]) -> list[str]:
    """Itself, or at most three that begin with it or are spelt alike."""
    folded = name.casefold()
    begin = [each for each in known if folded and each.startswith(folded)]
    return [folded] if folded in known else begin[:3] or get_close_matches(folded, known, 3, 0.7)


def _elsewhere(name: str, shipped: Mapping[str, Mapping[str, Path]]) -> str:
    uses = (f"{name} is {_KINDS[folder][0]}: {_KINDS[folder][2]}" for folder in shipped if name in shipped[folder])
    return next((use.format(name) for use in uses), "")


def _own(folder: str, known: Mapping[str, Path]) -> str:
    """How to get another one."""
    example = next((path for name, path in known.items() if name in _EXAMPLES), "")
    copy = f"write your own, beginning with a copy of {example}"
    return f"{_MACHINES}, or {copy}" if folder == "configs" else copy
