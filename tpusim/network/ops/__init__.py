"""The ops that layers of a network may be. A new one is a class in a module here, its name below, and its oracle; the
functions of single elements are rows of `elementwise.ROWS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpusim.base.imports import Registry
from tpusim.network.ops.elementwise import ROWS, class_name

if TYPE_CHECKING:
    from tpusim.network.ops.op import Op

POINTWISE = (*ROWS, "scale_shift", "masked", "leaky_relu", "clip", "power", "hard_sigmoid", "hard_swish", "gelu")
"""Ops that make each element from the one at the same place of a map."""
_MODULES = {
    **dict.fromkeys(("conv2d", "conv1d", "conv_transpose2d"), "array_op"),
    **dict.fromkeys(("conv2d_input_gradient", "conv2d_filter_gradient"), "gradients"),
    "deform_conv2d": "deform_conv2d",
    "gemm": "array_op",
    "pool2d": "pool2d",
    **dict.fromkeys(POINTWISE, "elementwise"),
    **dict.fromkeys(("softmax", "layer_norm", "reduce_mean", "sum_exp", "sum_squares", "lrn"), "rows"),
    **dict.fromkeys(("transpose", "channel_shuffle", "slice", "pad", "upsample"), "moves"),
}
"""The module of each class, by the op's name in files."""
OPS: Registry[type[Op]] = Registry(__name__, {op: f"{module}.{class_name(op)}" for op, module in _MODULES.items()})
"""The classes by the op's name in files."""
