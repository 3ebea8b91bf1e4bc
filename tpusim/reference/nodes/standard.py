"""Operators that no machine here has a layer for, as the onnx library's own reference computes them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from tpusim.base.errors import InputError
from tpusim.reference.nodes.node import Call, Function, Values


def evaluated(op: str, *operands: Values | None, call: Call, of: str = "") -> Sequence[Values]:
    """Return the results of a model of the node alone, of the opset of its model, or of a domain `of` another name.

    Raises InputError.
    """
    # Loaded for models that have such an operator alone: they were read by this library.
    from onnx import TensorProto, helper, numpy_helper
    from onnx.reference import ReferenceEvaluator

    given = {f"x{at}": each for at, each in enumerate(operands) if each is not None}
    made = [f"y{at}" for at in range(call.results)]
    tensors = {
        name: numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
        for name, value in call.attributes.items()
    }
    reads = [f"x{at}" if f"x{at}" in given else "" for at in range(len(operands))]
    node = helper.make_node(op, reads, made, domain=of, **tensors)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
        for name, each in given.items()
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in made]
    graph = helper.make_graph([node], "alone", inputs, outputs)
    opsets = [helper.make_opsetid("", call.opset), helper.make_opsetid(ML, _OPSET_OF_ML)]
    model = helper.make_model(graph, opset_imports=opsets)
    try:
        found: Any = ReferenceEvaluator(model).run(None, given)
    except Exception as error:  # The library raises what its functions do, of no common class.
        raise InputError(" ".join(str(error).split())) from None
    return [np.asarray(each) for each in found]


def _one_hot(places: Values, depth: Values, values: Values, *, axis: int = -1) -> Values:
    """Write the second of two values at each place along a new axis, and the first everywhere else."""
    along, size = axis % (places.ndim + 1), int(depth.item())
    every = np.arange(size).reshape(-1, *[1] * (places.ndim - along))
    at = np.expand_dims(np.where(places < 0, places + size, places), along)
    return np.asarray(np.where(at == every, values[1], values[0]))


def _kept_boxes(boxes: Values, scores: Values, *limits: Values | None, call: Call) -> Sequence[Values]:
    """Evaluate a NonMaxSuppression, whose limits may be numbers, or lists of one."""
    lists = (None if each is None else each.reshape(-1) for each in limits)
    return evaluated("NonMaxSuppression", boxes, scores, *lists, call=call)


ML = "ai.onnx.ml"
"""ONNX's domain of what comes before and behind networks."""
_OPSET_OF_ML = 1
_SAME = {"Scatter": "ScatterElements"}
"""Former names of operators."""
_NAMES = (
    "Acos Acosh AffineGrid Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor BlackmanWindow "
    "CenterCropPad Col2Im Compress Cosh CumProd DFT Det Einsum EyeLike HammingWindow HannWindow Hardmax "
    "MaxUnpool MelWeightMatrix NonZero ReverseSequence RoiAlign STFT Scatter ScatterElements ScatterND Shrink Sinh Tan "
    "TensorScatter TopK Unique"
)
NODES: dict[str, Function] = {
    **{name: partial(evaluated, _SAME.get(name, name)) for name in _NAMES.split()},
    **{f"{ML}.{name}": partial(evaluated, name, of=ML) for name in ("Normalizer", "Scaler")},
    "NonMaxSuppression": _kept_boxes,
    "OneHot": _one_hot,
}
"""The functions by the name of the operator."""
