"""The ops that layers of a network may be. A new one is a class in a module here, its name below, and its oracle; the
functions of single elements are rows of `elementwise.ROWS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tpusim.base.imports import Registry
from tpusim.network.ops.elementwise import ROWS, class_name

if TYPE_CHECKING:
    from tpusim.network.ops.op import Op

_OWN = "leaky_relu", "clip", "power", "hard_sigmoid", "hard_swish", "gelu", "soft_cap"
_BY_MODULE: Sequence[tuple[str, Sequence[str]]] = (
    ("array_op", ("conv2d", "conv1d", "conv_transpose2d")),
    ("deform_conv2d", ("deform_conv2d",)),
    ("array_op", ("gemm",)),
    ("flash_attention", ("flash_attention", "flash_attention_gradient")),
    ("gradients", ("conv2d_input_gradient", "conv2d_filter_gradient")),
    ("pool2d", ("pool2d", "pool2d_choice", "pool2d_gradient")),
    ("elementwise", (*ROWS, *_OWN, "rotary")),
    ("training", (
        "weighted_sum", "adam_second", "adam_step", "over_deviation", "batch_norm_slope", "batch_norm_offset",
        "shortcut", "mean_of_total", "variance_of_squares",
    )),
    ("rows", (
        "softmax", "layer_norm", "rms_norm", "top_k", "reduce_mean", "sum_exp", "sum_squares", "lrn",
        "layer_norm_gradient", "rms_norm_gradient", "softmax_gradient", "cross_entropy", "cross_entropy_gradient",
    )),
    ("channels", ("channel_sum", "channel_mean", "channel_variance", "channel_products", "channel_masked_sums")),
    ("moves", ("transpose", "channel_shuffle", "slice", "pad", "upsample", "spread", "embedding")),
)  # fmt: skip
"""Ops by their names in files, in the order in which they are listed, with the module of their classes."""
MODULES: Mapping[str, str] = {op: module for module, ops in _BY_MODULE for op in ops}
"""The module of each class, by the op's name in files."""
OPS: Registry[type[Op]] = Registry(__name__, {op: f"{module}.{class_name(op)}" for op, module in MODULES.items()})
"""The classes by the op's name in files."""
