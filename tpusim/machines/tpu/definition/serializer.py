"""The word registers between a vector memory and the array: one word is read, W elements are issued."""

from __future__ import annotations

from tpusim.machines.tpu.description import Hardware


def preload_words(rows: int, word_elements: int) -> int:
    """Weight words a lane needs to fill one column of `rows` weights, W to a word."""
    return -(-rows // word_elements)


def last_weight(last_read: int, hardware: Hardware) -> int:
    """The cycle in which the last weight enters the array, its word having been read in `last_read`."""
    words = preload_words(hardware.array.rows, hardware.vector_memory.word_elements)
    return last_read + hardware.preload_cycles - (words - 1) * hardware.weight_word_cycles
