"""How many different elements a row of outputs reads along one axis."""

from __future__ import annotations

from math import gcd


def unique(outputs: int, taps: int, stride: int, dilation: int) -> int:
    """Different positions y * stride + i * dilation, of `outputs` neighbouring outputs y and `taps` taps i.

    Output and tap may move against one another by stride / g taps and dilation / g outputs, g being their greatest
    common divisor: each pair that may has been counted already. Nothing is saved where the stride is as long as the
    kernel.
    """
    common = gcd(stride, dilation)
    again = max(0, outputs - dilation // common) * max(0, taps - stride // common)
    return outputs * taps - again
