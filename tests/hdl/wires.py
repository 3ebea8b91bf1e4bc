"""What runs from one unit of the hardware witness to the next, and the constants behind it."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Array, Const, Value, signed
from amaranth.lib import data

from tests.hdl.plan import Plan

VALUE_BITS = 24
OPERAND_BITS = 8
TIME_BITS = 24
COUNT_BITS = 12
ARRAY_BITS = 4

ACTIVATION = data.StructLayout({"value": signed(OPERAND_BITS), "valid": 1, "buffer": 1})
"""An element on its way to the right, and the weight buffer that it is meant for."""

WEIGHT = data.StructLayout({"value": signed(OPERAND_BITS), "moves": 1, "row": COUNT_BITS, "buffer": 1})
"""A weight on its way down, and where it belongs."""

ORDER = data.StructLayout(
    {
        "ifmap": 1,
        "ifmap_array": ARRAY_BITS,
        "ifmap_pass": COUNT_BITS,
        "ifmap_buffer": 1,
        "first": 1,
        "take": 1,
        "take_array": ARRAY_BITS,
        "psum": 1,
        "psum_address": COUNT_BITS,
        "psum_cols": COUNT_BITS,
        "result": 1,
        "result_array": ARRAY_BITS,
        "result_address": COUNT_BITS,
        "result_cols": COUNT_BITS,
        "weight": 1,
        "weight_address": COUNT_BITS,
        "weight_first": COUNT_BITS,
        "weight_rows": COUNT_BITS,
        "weight_cols": COUNT_BITS,
        "weight_buffer": 1,
        "dma": 1,
        "dma_transfer": COUNT_BITS,
        "dma_word": COUNT_BITS,
        "dma_fills": 1,
    }
)
"""What a lane does in one cycle: the addresses are skewed, never the data.

`take` moves a collected word to the adder, with or without a `psum` read. `weight_first` is the row of a word's
first weight.
"""


def word_of(plan: Plan) -> data.ArrayLayout:
    """A word of the memory."""
    return data.ArrayLayout(signed(VALUE_BITS), plan.word)


def rom(values: Sequence[int], index: Value) -> Value:
    """One of some constants."""
    if len(set(values)) < 2:
        return Const(values[0] if values else 0, signed(TIME_BITS))
    return Array([Const(value, signed(TIME_BITS)) for value in values])[index]


def masks(steps: Sequence[Sequence[int]], width: int, index: Value) -> Value:
    """One of some sets of steps, a bit for each step."""
    return Array([Const(sum(1 << step for step in set(each)), width) for each in steps])[index]
