"""Energies in picojoules, of what is counted in operations, accesses and bits; powers in picojoules a second."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tpusim.technology.constants import Technology

_PJ = 1e-6
"""Of an attojoule in picojoules."""
_BITS = 8


def sram_access(technology: Technology, kind: str, capacity_bytes: int, bits: int) -> float:
    """A "read" or a "write" of a word of `bits`, in an SRAM of that capacity.

    Between the macros of the technology energies are interpolated, logarithms of both; beyond them a bit takes what it
    takes at the last. Wires grow with the side of a macro: with the square root of its capacity.
    """
    macro = technology.macro
    energies = {"read": macro.read_aj, "write": macro.write_aj}[kind]
    usual = _interpolated(macro.word_bytes, energies, bits / _BITS) * _PJ
    return usual * math.sqrt(capacity_bytes / macro.capacity_bytes)


def _interpolated(words: Sequence[int], energies: Sequence[int], word: float) -> float:
    inside = min(max(word, words[0]), words[-1])
    return float(np.exp(np.interp(np.log(inside), np.log(words), np.log(energies)))) * word / inside


def sram_leakage(technology: Technology, capacity_bytes: int, bits: int) -> float:
    """What an SRAM of that capacity and word leaks in a second: in proportion to the capacity."""
    macro = technology.macro
    leaks = float(np.interp(np.log(bits / _BITS), np.log(macro.word_bytes), macro.leakage_pw))
    return leaks * capacity_bytes / macro.capacity_bytes


def register_leakage(technology: Technology, bits: int) -> float:
    """What so many bits of flip-flops leak in a second."""
    return float(bits * technology.flip_flop.leakage_pw)


def register_writes(technology: Technology, bits: int) -> float:
    """Writing so many bits of flip-flops once."""
    return bits * technology.flip_flop.write_aj * _PJ


def multiply_adds(technology: Technology, count: int) -> float:
    """So many products of bfloat16, each added to an FP32 sum."""
    return count * (technology.arithmetic.bf16_multiply_aj + technology.arithmetic.fp32_add_aj) * _PJ


def fp32(technology: Technology, products: int, sums: int) -> float:
    """So many FP32 multiplications and additions."""
    return (products * technology.arithmetic.fp32_multiply_aj + sums * technology.arithmetic.fp32_add_aj) * _PJ


def hbm_bits(technology: Technology, bits: int, activates_counted: bool) -> float:
    """So many bits moved: with their share of activates, unless those are counted."""
    return bits * (technology.hbm.column_bit_aj if activates_counted else technology.hbm.bit_aj) * _PJ


def hbm_activates(technology: Technology, count: int, row_bytes: int) -> float:
    """Opening so many rows, in proportion to the bytes of one."""
    return count * technology.hbm.activate_aj * _PJ * row_bytes / technology.hbm.row_bytes
