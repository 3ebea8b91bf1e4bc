"""Areas in square millimetres, of what is counted in bits, words and ports."""

from __future__ import annotations

import numpy as np

from tpusim.technology.constants import Technology

_NM2 = 1e-12
"""Of a square nanometre in square millimetres."""
_BITS = 8


def sram_by_pitch(technology: Technology, words: int, bits: int) -> float:
    """An SRAM of so many words of `bits`, by the pitch of its cells: a row a word, and periphery beside each row."""
    pitch = technology.pitch
    return words * pitch.row_nm * (pitch.column_nm * bits + pitch.periphery_nm) * _NM2


def sram_by_macro(technology: Technology, words: int, bits: int) -> float:
    """The same by the macros that were compiled, in proportion to the capacity.

    Between two widths of a word the area is interpolated, logarithms of both; beyond the last it stays.
    """
    macro = technology.macro
    area = np.exp(np.interp(np.log(bits / _BITS), np.log(macro.word_bytes), np.log(macro.area_nm2)))
    return float(area) * words * bits / (_BITS * macro.capacity_bytes) * _NM2


def crossbar(technology: Technology, inputs: int, outputs: int, bits: int) -> float:
    """One of so many ports of `bits`: in proportion to inputs, outputs, bits, and the square of the feature."""
    known = technology.crossbar
    crossings = inputs * outputs * bits / (known.ports**2 * known.width)
    return crossings * known.area_nm2 * _NM2 * shrink(known.feature_nm, technology.feature_nm)


def shrink(before_nm: float, after_nm: float) -> float:
    """What becomes of an area in another process: the square of the features' ratio (Dennard et al., JSSC 1974)."""
    return (after_nm / before_nm) ** 2


def registers(technology: Technology, bits: int) -> float:
    """So many bits of flip-flops."""
    return bits * technology.flip_flop.area_nm2 * _NM2


def multiply_adders(technology: Technology, count: int, narrow: bool) -> float:
    """So many multipliers, each with an FP32 adder: of bfloat16 where they are `narrow`, else of FP32."""
    each = technology.arithmetic
    multiplier = each.bf16_multiplier_nm2 if narrow else each.fp32_multiplier_nm2
    return count * (multiplier + each.fp32_adder_nm2) * _NM2
