"""Operators of a network that are not layers of a machine, each straight from ONNX's definition of it, or from JAX's.

Maps are [image, channel, row, col], as in ONNX. Numbers stay of the type that they come in.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from inspect import signature
from math import inf

import numpy as np

from tpusim.base.errors import InputError
from tpusim.reference.nodes import elementwise, moves, primitives, quantized, recurrent, reductions, sampling, standard
from tpusim.reference.nodes.node import Call, Function, Values
from tpusim.reference.nodes.refusals import refusal

__all__ = ["IMAGE_BY_IMAGE", "NODES", "Call", "Values", "compute", "refusal"]

NODES: dict[str, Function] = {
    **standard.NODES,
    **elementwise.NODES,
    **moves.NODES,
    **reductions.NODES,
    **sampling.NODES,
    **recurrent.NODES,
    **quantized.NODES,
    **{f"lax.{name}": each for name, each in primitives.NODES.items()},
}
"""The functions by the name of the operator; of JAX by those of `jax.lax`."""
IMAGE_BY_IMAGE = frozenset({"BatchNormalization"})
"""Operators that make each image of the first operand by itself, all alike: so images may come in any number."""


def compute(op: str, call: Call, operands: Sequence[Values | None]) -> tuple[Values, ...]:
    """Return the results of a node of an operator in NODES. Raises InputError where `refusal` says why."""
    if why := refusal(op, call):
        raise InputError(why)
    told = {**call.attributes, "call": call}
    # An operand takes precedence over an attribute of the same name.
    asked = {name: told[name] for at, name in _parameters(op) if at >= len(operands) and name in told}
    with np.errstate(all="ignore"):
        results = NODES[op](*operands, **asked)
    made = tuple(results) if isinstance(results, tuple | list) else (np.asarray(results),)
    if len(made) < call.results:
        raise InputError(f"it has {call.results} results, of which {len(made)} are known here")
    return made


@cache
def _parameters(op: str) -> tuple[tuple[float, str], ...]:
    """Return what a function takes besides operands: how many operands leave it free, and its name.

    NumPy's own functions, which work element by element, take no attributes.
    """
    if isinstance(NODES[op], np.ufunc):
        return ()
    every = enumerate(signature(NODES[op]).parameters.values())
    return tuple((inf if each.kind == each.KEYWORD_ONLY else at, each.name) for at, each in every)
