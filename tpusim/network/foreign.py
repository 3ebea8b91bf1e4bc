"""What other tools call operations, and how they are written here."""

from __future__ import annotations

import re

_GEMM = "write {name: fc, op: gemm, m: batch, n: 1000, k: 512}: m rows of input, n outputs, k inputs"
_CONV = "write op: conv2d, with in_channels, in_height, in_width, out_channels and kernel"
_SIZES = "in_channels: 32, in_height: 56, in_width: 56, out_channels: 32, kernel: 3, padding: 1, groups: 32"
_ELSEWHERE = (
    (r"conv\w*transpose\w*[13]d", "write the product it is: op: gemm, m: input positions of all images, "
     "k: in_channels, n: out_channels x kernel elements"),
    (r"deform|^dcn", "write op: deform_conv2d, with in_channels, in_height, in_width, out_channels, kernel and, with "
     "masks, modulated: true"),
    (r"conv\w*transpose|transposed?\w*conv|deconv", "write op: conv_transpose2d, with in_channels, in_height, "
     "in_width, out_channels and kernel"),
    (r"conv\w*3d", "write the product it is: op: gemm, m: output positions of all images, k: in_channels x kernel "
     "elements, n: out_channels"),
    (r"depthwise|dwconv|dconv", f"write a group a channel: {{name: dw, op: conv2d, {_SIZES}}}"),
    (r"conv\w*1d", "write op: conv1d, with in_channels, in_length, out_channels and kernel"),
    (r"pointwise", f"{_CONV}: 1"),
    (r"conv", _CONV),
    (r"attention|sdpa", "write its products: op: gemm, m: tokens, n: tokens, k: size of a head, and the like"),
    (r"lstm|gru|rnn", "write its gates as a product: op: gemm, m: batch, n: gates x hidden, k: inputs + hidden"),
    (r"matmul|linear|dense|einsum|innerproduct|fullyconnected|addmm|bmm|matrix|^(fc|mm|dot|mlp|projection)$", _GEMM),
    (r"pool", "write op: pool2d, with kind: max or average, channels, in_height, in_width and kernel"),
    (r"relu6|hardtanh|clamp", "write op: clip, with channels, height, width, min and max"),
    (r"leaky", "write op: leaky_relu, with channels, height, width and slope"),
    (r"hardsigmoid", "write op: hard_sigmoid, with channels, height and width"),
    (r"hard\w*swish|hswish", "write op: hard_swish, with channels, height and width"),
    (r"^relu$", "write op: relu, with channels, height and width"),
    (r"batchnorm|^bn", "write op: scale_shift, with channels, height and width, or leave it out behind a convolution"),
    (r"gelu", "write op: gelu, with channels, height and width; approximate: tanh for that form"),
    (r"silu|swish", "write op: silu, with channels, height and width"),
    (r"logsigmoid|logsoftmax", "leave this layer out; it takes no time in this version"),
    (r"softmax", "write op: softmax, with channels (of a row) and images (the rows)"),
    (r"layernorm", "write op: layer_norm, with channels (of a row) and images (the rows)"),
    (r"sigmoid", "write op: sigmoid, with channels, height and width"),
    (r"tanh$", "write op: tanh, with channels, height and width"),
    (r"sqrt$", "write op: sqrt, with channels, height and width"),
    (r"^pow(er)?$|square", "write op: power, with channels, height, width and exponent: 2 or 3"),
    (r"^div(ide)?$", "write op: div, with channels, height and width"),
    (r"residual|eltwise|elementwise|^(plus|sum)$", "write op: add, with channels, height and width"),
    (r"lrn|localresponse", "write op: lrn, with channels, height, width, size, alpha, beta and bias"),
    (r"pixelshuffle|depthtospace|spacetodepth", "leave this layer out; it takes no time in this version"),
    (r"shuffle", "write op: channel_shuffle, with channels, height, width and groups"),
    (r"permute|transpose", "write op: transpose, with channels, height, width and order, such as [width, height, "
     "channels, images]"),
    (r"upsampl|interpolate|resize", "write op: upsample, with channels, height, width and scale: the nearest is taken"),
    (r"^split$|^narrow$|^chunk$", "write op: slice for each part, with channels, height, width, axis, start and stop"),
    (r"^\w*pad(ding)?(2d)?$", "write op: pad, with channels, height, width and padding"),
    (r"relu|^s?elu|tanh|norm|^bn|dropout|concat|flatten|reshape|"
     r"embedding|activation|identity|squeeze|quantize|im2col|"
     r"^(mean|max|min|cat|gather)$",
     "leave this layer out; it takes no time in this version"),
)  # fmt: skip
"""Part of a name, small letters and digits only, and what to do; the first that fits."""


def instead_of(op: str) -> str:
    """ "; " and what to write for another tool's operation, or an empty string where it is not known."""
    word = re.sub(r"[^a-z0-9]", "", re.split(r"[.:]", op.casefold())[-1])
    return next((f"; {instead}" for part, instead in _ELSEWHERE if re.search(part, word)), "")
