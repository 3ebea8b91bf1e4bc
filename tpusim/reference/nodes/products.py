"""Products of weights alone, which are worked out before a network runs, and what is added to a machine's products."""

from __future__ import annotations

import numpy as np

from tpusim.reference.nodes.node import Call, Function, Values, as_real


def _matmul(_: Call, first: Values, second: Values) -> Values:
    return np.asarray(np.matmul(first, second))


def _gemm(call: Call, first: Values, second: Values, bias: Values | None = None) -> Values:
    one, other = (each.T if call.get(name, 0) else each for each, name in ((first, "transA"), (second, "transB")))
    return with_bias(call, one @ other, bias)


def with_bias(call: Call, product: Values, bias: Values | None) -> Values:
    """What Gemm makes of a product: alpha times it, and beta times the bias."""
    scaled = product * call.get("alpha", 1.0)
    return as_real(scaled if bias is None else scaled + call.get("beta", 1.0) * bias, product)


NODES: dict[str, Function] = {"Gemm": _gemm, "MatMul": _matmul}
"""By the name of the operator."""
