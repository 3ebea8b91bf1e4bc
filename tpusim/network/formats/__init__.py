"""Networks in files of other tools: a format is a module whose `read` makes a Document of a file, and a line below.

What a format reads becomes the same plain data that a workload's YAML has: nobody above knows where it came from.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from tpusim.base.errors import InputError, Problem
from tpusim.base.imports import need
from tpusim.input.document import Document
from tpusim.network.formats.asked import ModelOptions
from tpusim.network.graph import Graph

FORMATS = {".csv": "scale_sim", ".onnx": "onnx_model"}
"""Modules by the suffix of what they read; imported when they are asked for, as some need a library."""
NEEDS = {".onnx": ("an ONNX model", "onnx", "onnx")}
"""What of them needs one: for whom, the library, and its module."""
WITH_WEIGHTS = frozenset({".onnx"})
"""Those that hold weights, so that values can go from layer to layer; their module has a `read_graph`."""


def is_foreign(name: str | Path) -> bool:
    """Whether a file is of another tool, by its name."""
    return Path(name).suffix.lower() in FORMATS


def read(path: Path, asked: ModelOptions) -> Document:
    """What the file holds, as a workload. Raises InputError with all that is wrong with it."""
    document: Document = _module(path).read(path, asked)
    return document


def read_graph(path: Path, asked: ModelOptions, images: int) -> Graph:
    """The network in a file with its weights, for `images` images. Raises InputError, also where it has no weights."""
    if path.suffix.lower() not in WITH_WEIGHTS:
        says = f"holds no weights, so no values go from layer to layer; give a model: {', '.join(WITH_WEIGHTS)}"
        raise InputError(Problem(f"{says}, or leave --input and --save-outputs out", str(path)))
    graph: Graph = _module(path).read_graph(path, asked, images)
    return graph


def _module(path: Path) -> Any:
    suffix = path.suffix.lower()
    if needed := NEEDS.get(suffix):
        need(*needed)
    return import_module(f"{__name__}.{FORMATS[suffix]}")
