"""The ops that layers of a network may be. A new one is a class in a module here, its name below, and its oracle; the
functions of single elements are rows of `elementwise.ROWS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpusim.base.imports import Registry
from tpusim.network.ops.elementwise import ROWS, class_name

if TYPE_CHECKING:
    from tpusim.network.ops.op import Op

_TRAINING = (
    "weighted_sum", "adam_second", "adam_step", "over_deviation", "batch_norm_slope", "batch_norm_offset", "shortcut",
    "mean_of_total", "variance_of_squares",
)  # fmt: skip
_OWN = "leaky_relu", "clip", "power", "hard_sigmoid", "hard_swish", "gelu", "soft_cap"
POINTWISE = (*ROWS, *_OWN, *_TRAINING)
"""Ops that make each element from the one at the same place of a map."""
_MODULES = {
    **dict.fromkeys(("conv2d", "conv1d", "conv_transpose2d"), "array_op"),
    "deform_conv2d": "deform_conv2d",
    "gemm": "array_op",
    **dict.fromkeys(("flash_attention", "flash_attention_gradient"), "flash_attention"),
    **dict.fromkeys(("conv2d_input_gradient", "conv2d_filter_gradient"), "gradients"),
    **dict.fromkeys(("pool2d", "pool2d_choice", "pool2d_gradient"), "pool2d"),
    **dict.fromkeys(POINTWISE, "elementwise"),
    "rotary": "elementwise",
    **dict.fromkeys(_TRAINING, "training"),
    **dict.fromkeys(
        ("softmax", "layer_norm", "rms_norm", "top_k", "reduce_mean", "sum_exp", "sum_squares", "lrn"), "rows"
    ),
    **dict.fromkeys(
        ("layer_norm_gradient", "rms_norm_gradient", "softmax_gradient", "cross_entropy", "cross_entropy_gradient"),
        "rows",
    ),
    **{f"channel_{what}": "channels" for what in ("sum", "mean", "variance", "products", "masked_sums")},
    **dict.fromkeys(("transpose", "channel_shuffle", "slice", "pad", "upsample", "spread", "embedding"), "moves"),
}
"""The module of each class, by the op's name in files."""
OPS: Registry[type[Op]] = Registry(__name__, {op: f"{module}.{class_name(op)}" for op, module in _MODULES.items()})
"""The classes by the op's name in files."""
