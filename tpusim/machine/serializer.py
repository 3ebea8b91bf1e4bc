"""The word registers between a vector memory and the array: one word is read, W elements are issued."""

from __future__ import annotations


def preload_words(rows: int, word_elements: int) -> int:
    """Weight words a lane needs to fill one column of `rows` weights, W to a word."""
    return -(-rows // word_elements)


def last_weight(last_read: int, rows: int, word_elements: int) -> int:
    """The cycle in which the last weight enters the array, its word having been read in `last_read`."""
    return last_read + rows - (preload_words(rows, word_elements) - 1) * word_elements
