"""Networks in files of other tools: a format is a module whose `read` makes a Document of a file, and a line below.

What a format reads becomes the same plain data that a workload's YAML has: nobody above knows where it came from.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tpusim.base.extras import need
from tpusim.input.document import Document
from tpusim.network.formats.asked import ModelOptions

FORMATS = {".csv": "scale_sim", ".onnx": "onnx_model"}
"""Modules by the suffix of what they read; imported when they are asked for, as some need a library."""
NEEDS = {".onnx": ("an ONNX model", "onnx", "onnx")}
"""What of them needs one: for whom, the library, and its module."""


def is_foreign(name: str | Path) -> bool:
    """Whether a file is of another tool, by its name."""
    return Path(name).suffix.lower() in FORMATS


def read(path: Path, asked: ModelOptions) -> Document:
    """What the file holds, as a workload. Raises InputError with all that is wrong with it."""
    if needed := NEEDS.get(path.suffix.lower()):
        need(*needed)
    module = import_module(f"{__name__}.{FORMATS[path.suffix.lower()]}")
    document: Document = module.read(path, asked)
    return document
