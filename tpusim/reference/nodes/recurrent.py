"""Recurrent networks that are not layers of a machine, worked out step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from tpusim.base.errors import InputError
from tpusim.reference.nodes.node import Call, Function, Values
from tpusim.reference.pointwise import sigmoid

_State: TypeAlias = tuple[Values, ...]
_Step: TypeAlias = Callable[[Values, _State], _State]
"""A step: from its inputs, [image, input], and the state before it, to the state behind it, outputs first."""

USUAL = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"]}
"""The activations of an operator, those that are known of it."""


def _lstm(
    sequence: Values, weights: Values, recurrent: Values, bias: Values | None = None, lengths: Values | None = None,
    outputs: Values | None = None, cells: Values | None = None, peepholes: Values | None = None, *, call: Call,
) -> Sequence[Values]:  # fmt: skip
    def step_of(direction: int) -> _Step:
        ins, backs = weights[direction].T, recurrent[direction].T
        added = 0 if bias is None else np.add(*np.split(bias[direction], 2))
        peeps = (0, 0, 0) if peepholes is None else np.split(peepholes[direction], 3)

        def step(given: Values, state: _State) -> _State:
            output, cell = state
            enters, leaves, stays, new = np.split(given @ ins + output @ backs + added, 4, axis=-1)
            cell = sigmoid(stays + peeps[2] * cell) * cell + sigmoid(enters + peeps[0] * cell) * np.tanh(new)
            return sigmoid(leaves + peeps[1] * cell) * np.tanh(cell), cell

        return step

    return _unrolled(call, "LSTM", sequence, lengths, step_of, [outputs, cells], recurrent)


def _gru(
    sequence: Values, weights: Values, recurrent: Values, bias: Values | None = None, lengths: Values | None = None,
    outputs: Values | None = None, *, call: Call, linear_before_reset: int = 0,
) -> Sequence[Values]:  # fmt: skip
    def step_of(direction: int) -> _Step:
        ins, backs = weights[direction].T, recurrent[direction].T
        both = np.zeros(2 * ins.shape[1], ins.dtype) if bias is None else bias[direction]
        size, (before, behind) = recurrent.shape[-1], np.split(both, 2)

        def step(given: Values, state: _State) -> _State:
            (output,) = state
            entering = given @ ins + before
            gates = sigmoid(entering[:, : 2 * size] + output @ backs[:, : 2 * size] + behind[: 2 * size])
            keeps, resets = np.split(gates, 2, axis=-1)
            old = resets * (output @ backs[:, 2 * size :] + behind[2 * size :])
            if not linear_before_reset:
                old = (resets * output) @ backs[:, 2 * size :] + behind[2 * size :]
            return ((1 - keeps) * np.tanh(entering[:, 2 * size :] + old) + keeps * output,)

        return step

    return _unrolled(call, "GRU", sequence, lengths, step_of, [outputs], recurrent)


def _unrolled(
    call: Call, op: str, sequence: Values, lengths: Values | None, step_of: Callable[[int], _Step],
    given: Sequence[Values | None], recurrent: Values,
) -> Sequence[Values]:  # fmt: skip
    """Return all outputs, [step, direction, image, output], then the state behind the last step; images first if laid
    so.

    Raises InputError for what is not known here.
    """
    images_first = bool(call.get("layout", 0))
    steps = np.swapaxes(sequence, 0, 1) if images_first else sequence
    if lengths is not None and (lengths != len(steps)).any():
        raise InputError(f"{op} of sequences of several lengths")
    shape = len(recurrent), steps.shape[1], recurrent.shape[-1]
    states = [np.zeros(shape, sequence.dtype) if each is None else _turned(each, images_first) for each in given]
    made, last = [], []
    for direction in range(len(recurrent)):
        step, state = step_of(direction), tuple(each[direction] for each in states)
        # The second direction always runs backward; a single one does if the node says so.
        turn = slice(None, None, -1 if direction or call.get("direction") == "reverse" else 1)
        told = []
        for inputs in steps[turn]:
            state = step(inputs, state)
            told.append(state[0])
        # Outputs stand in the order of the inputs, also those of a pass from the end.
        made.append(np.stack(told)[turn])
        last.append(state)
    every = np.stack(made, 1)
    ends = [_turned(np.stack(each), images_first) for each in zip(*last, strict=True)]
    return [every.transpose(2, 0, 1, 3) if images_first else every, *ends]


def _turned(state: Values, images_first: bool) -> Values:
    return np.swapaxes(state, 0, 1) if images_first else state


NODES: dict[str, Function] = {"GRU": _gru, "LSTM": _lstm}
"""The functions by the name of the operator."""
