"""The ops that layers of a network may be; a new one is a class in a module here, its name below, and its oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpusim.base.registry import Registry

if TYPE_CHECKING:
    from tpusim.network.ops.op import Op

_MODULES = {
    **{name: name for name in ("conv2d", "conv1d", "conv_transpose2d", "deform_conv2d", "gemm", "pool2d")},
    **dict.fromkeys(("add", "sub", "rsub", "mul", "div", "rdiv"), "arithmetic"),
    "scale_shift": "scale_shift",
    **dict.fromkeys(("relu", "leaky_relu", "clip", "power", "hard_sigmoid", "hard_swish"), "activations"),
    **dict.fromkeys(("exp", "sqrt", "tanh", "erf", "sigmoid", "silu", "gelu"), "functions"),
    **dict.fromkeys(("softmax", "layer_norm", "reduce_mean", "sum_exp", "sum_squares"), "rows"),
    "lrn": "lrn",
    "copy": "activations",
    **dict.fromkeys(("transpose", "channel_shuffle", "slice", "pad", "upsample"), "moves"),
}
"""The module of each, by its name in files; the class has that name too: `leaky_relu` is LeakyRelu."""
OPS: Registry[type[Op]] = Registry(
    __name__, {op: f"{module}.{''.join(map(str.capitalize, op.split('_')))}" for op, module in _MODULES.items()}
)
"""By their names in files."""
