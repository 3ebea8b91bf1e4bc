"""Ops of the vector unit that Google's compiler was given one by one: what it estimated of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Literal

from tpusim.network.ops.elementwise import Add, Copy, Gelu, LeakyRelu, Relu, ScaleShift
from tpusim.network.ops.op import Op
from tpusim.network.ops.pool2d import Pool2d
from tpusim.network.ops.rows import LayerNorm, Softmax
from tpusim.network.ops.vector_op import VectorOp
from tpusim.study.validation.cases import Case, Row, rows, sizes
from tpusim.study.validation.convolutions import USUAL_BATCH

_BFLOAT16 = 2
_FLOAT32 = ("vector_memory.element_bytes=4",)
_ELEMENTS: dict[str, Callable[..., VectorOp]] = {
    "add": Add,
    "add_f32": Add,
    "batchnorm": ScaleShift,
    "relu": Relu,
    "leaky_relu": LeakyRelu,
}
"""By what the table calls them; two that the compiler fuses into one are no layer here."""
_ROWS: dict[str, Callable[..., Op]] = {
    "softmax": lambda name, row, rows: Softmax(name, row, rows),
    "layernorm": lambda name, row, rows: LayerNorm(name, row, rows),
    "gelu_tanh": lambda name, row, rows: Gelu(name, row, images=rows, approximate="tanh"),
}
"""Those of rows, which it has along the last axis of any number of them."""


def estimated() -> tuple[Case, ...]:
    """Those of which all is priced, and which are layers here: element by element, by rows, pooling, and copies."""
    priced = [row for row in rows("xla_tpu_v2_vector_ops") if row["ops_without_estimate"] == "0"]
    found = ((row, _elements(row) or _rows(row) or _copy(row) or _pooling(row)) for row in priced)
    return tuple(_case(row, layer) for row, layer in found if layer is not None)


def _case(row: Row, layer: Op) -> Case:
    cycles = float(row["estimated_cycles_total"])
    changes = _FLOAT32 if row["op"].endswith("f32") else ()
    return Case(layer.name, (layer,), int(row["batch"]), cycles, estimated=cycles, changes=changes)


def _map(row: Row) -> tuple[int, int, int]:
    """Channels, rows and columns of the first operand."""
    _, height, width, channels = sizes(row["shapes"].split(":")[0])
    return channels, height, width


def _name(row: Row) -> str:
    channels, height, width = _map(row)
    batch = f" batch {row['batch']}" if int(row["batch"]) != USUAL_BATCH else ""
    return f"{row['op']} {height}x{width}x{channels}{batch}"


def _elements(row: Row) -> VectorOp | None:
    return _ELEMENTS[row["op"]](_name(row), *_map(row)) if row["op"] in _ELEMENTS else None


def _rows(row: Row) -> Op | None:
    if row["op"] not in _ROWS:
        return None
    shape = row["shapes"].split(":")[0]
    *outer, channels = sizes(shape)
    return _ROWS[row["op"]](f"{row['op']} {shape}", channels, prod(outer))


def _copy(row: Row) -> VectorOp | None:
    """A concatenation of maps is a copy of what it makes; to turn a map round is one, too."""
    if row["op"] == "nhwc_to_nchw":
        return Copy(_name(row), *_map(row))
    if not row["op"].startswith("concat"):
        return None
    shapes = [sizes(each.split(":")[0]) for each in row["shapes"].split("|")]
    channels = sum(each[-1] for each in shapes)
    _, height, width = _map(row)
    return Copy(f"{row['op']} {height}x{width}x{channels}", channels, height, width)


def _pooling(row: Row) -> VectorOp | None:
    """Padded where an output for each step of the stride came out, which the table tells by bytes."""
    if row["op"] == "global_avgpool":
        _, height, width = _map(row)
        return Pool2d(_name(row), "average", *_map(row), (height, width))
    found = re.fullmatch(r"(max|avg)pool(\d)x\ds(\d)", row["op"])
    if found is None:
        return None
    kind: Literal["max", "average"] = "max" if found[1] == "max" else "average"
    channels, height, width = _map(row)
    size, stride = (int(found[2]),) * 2, (int(found[3]),) * 2
    same = Pool2d(_name(row), kind, channels, height, width, size, stride, "same")
    bytes_out = same.outputs(int(row["batch"])) * _BFLOAT16
    return same if bytes_out == int(row["out_bytes"]) else replace(same, padding=(0, 0))
