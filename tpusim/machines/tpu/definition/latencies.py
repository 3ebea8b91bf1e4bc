"""How long words and weights take, seen from lane 0 (paper Fig. 9, 10).

Element m of a stream enters row r of the R x C array at cycle `s + m + r` and meets PE(r, c) at `s + m + r + c`. The
sum of column c is in the register below row R-1 at `s + m + R + c`: for lane c, which runs c cycles late, R cycles
after the element entered.
"""

from __future__ import annotations

from tpusim.machines.tpu.description import Hardware

BIAS_CYCLES = 1
"""In which the bias of a column enters the register above its first PE, once its word is read."""


def word_latency(elements: int, hardware: Hardware) -> int:
    """The cycles from the ifmap read of a word until its last result stands in the de-serializer.

    One to load the serializer, `elements` to issue, R to flow through the array.
    """
    return 1 + elements + hardware.array.rows


def add_cycles(elements: int, hardware: Hardware) -> int:
    """The cycles to add a word of every array to partial sums, in every lane (Table II: 256 ALUs, 2 a lane)."""
    return finish_cycles(elements, 1, hardware)


def finish_cycles(elements: int, operations: int, hardware: Hardware) -> int:
    """The cycles of so many ALU operations on every element of a word of every array, in every lane."""
    return -(-operations * elements * hardware.array.count * hardware.lanes // hardware.vector_unit.alus)


def transposed_word_cycles(words: int, hardware: Hardware) -> int:
    """The cycles a word in which the `words` of a pixel are transposed, so many of them together."""
    unit = hardware.vector_unit
    return -(-unit.transpose_cycles // min(unit.transpose_words, words))


def preload_words(hardware: Hardware) -> int:
    """The weight words that a lane reads for one column of R weights, W to a word."""
    return -(-hardware.array.rows // hardware.vector_memory.word_elements)


def last_weight(last_read: int, hardware: Hardware) -> int:
    """The cycle in which the last weight enters the array, its word having been read in `last_read`."""
    return last_read + hardware.preload_cycles - (preload_words(hardware) - 1) * hardware.weight_word_cycles


def word_cycles(words: int, transposed: bool, hardware: Hardware) -> int:
    """Cycles that a streamed word takes at least: to be transposed, and to stream all of it, as far as that must be."""
    streams = hardware.vector_memory.word_elements if hardware.array.streamed == "all" else 0
    return max(streams, transposed_word_cycles(words, hardware) if transposed else 0)
