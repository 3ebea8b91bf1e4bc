"""Timing of the R x C weight-stationary array, seen from lane 0 (paper Fig. 9, 10)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SystolicArray:
    """Element m of a stream enters row r at cycle `s + m + r`, meets PE(r, c) at `s + m + r + c`.

    The sum of column c is in the register below row R-1 at `s + m + R + c`: for lane c, which runs c cycles
    late, R cycles after the element entered.
    """

    rows: int
    cols: int
    weight_buffers: int

    def word_latency(self, elements: int) -> int:
        """Cycles from the ifmap read of a word until its last result stands in the de-serializer.

        One to load the serializer, `elements` to issue, `rows` to flow through the array.
        """
        return 1 + elements + self.rows
