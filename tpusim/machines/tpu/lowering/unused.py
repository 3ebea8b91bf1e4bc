"""Choices of the mapping that a lowering does not know, so that nobody waits for what they would change.

A machine says what all lowerings are to do; each follows what it knows.
"""

from __future__ import annotations

from dataclasses import replace

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.policy import MappingPolicy
from tpusim.machines.tpu.program.explanation import Lowered

_ONE_WAY = {"transformation", "k_order"}
_DENSE = {"transformation", "multi_tile", "transposed_channels"}
_TRANSPOSED = {*_ONE_WAY, "patch", "search"}
_BY_VECTOR_UNIT = {
    *_TRANSPOSED, "multi_tile", "loop_order", "chunks", "loads", "fetch", "layout", "row_windows",
    "transposed_channels", "column_folds", "entry", "block_m", "block_k", "block.in_channels", "block.taps",
}  # fmt: skip
_BLOCKS = {"block.rows", "block.cols", "block.images", "block.out_channels"}
UNUSED: dict[str, frozenset[str]] = {
    "channel_first": frozenset(_ONE_WAY),
    "indirect": frozenset(_ONE_WAY),
    "block_diagonal": frozenset(_ONE_WAY),
    "implicit_gemm": frozenset(_DENSE),
    "channel_last": frozenset({*_DENSE, "k_order"}),
    "explicit": frozenset({
        "multi_tile", "fetch", "k_order", "row_windows", "transposed_channels", "entry", "block_k", "block.taps",
    }),
    "stride_phases": frozenset({*_TRANSPOSED, "row_windows", "transposed_channels", "block_k", "block.taps"}),
    "zero_insertion": frozenset(_TRANSPOSED),
    "vector": frozenset({*_BY_VECTOR_UNIT - {"patch"}, "block_n", "block.out_channels"}),
    "vector_ops": frozenset({*_BY_VECTOR_UNIT - {"layout"}, "block_n", "block.out_channels"}),
    "vector_rows": frozenset({*_BY_VECTOR_UNIT, *_BLOCKS, "block_n", "strips"}),
    "winograd_2": frozenset(_BY_VECTOR_UNIT),
    "winograd_4": frozenset(_BY_VECTOR_UNIT),
    "fft": frozenset(_BY_VECTOR_UNIT),
}  # fmt: skip
"""Fields below `mapping` that change nothing, by lowering; of explicit, where the lowered matrix is in HBM."""
_ON_CHIP = frozenset({"multi_tile", "fetch", "k_order", "transposed_channels"})
_OF_BANKS = frozenset({"row_windows", "transposed_channels"})
"""Of machines whose ifmap stands in banks."""


def unused(lowering: str, hardware: Hardware) -> list[str]:
    """The fields below `mapping` that a machine sets and the lowering of that name does not know."""
    on_chip = lowering == "explicit" and hardware.mapping.transformation == "on_chip"
    fields = _ON_CHIP if on_chip else UNUSED.get(lowering, frozenset())
    fields |= _OF_BANKS if hardware.banked else frozenset()
    return [name for name in _set(hardware.mapping) if name in fields]


def told(lowered: Lowered, lowering: str, hardware: Hardware) -> Lowered:
    """The same, and people are told which choices are for other lowerings."""
    program, explanation = lowered
    if not (names := unused(lowering, hardware)):
        return lowered
    words = f"of mapping, by {lowering}: {', '.join(names)}"
    return program, replace(explanation, aspects={**explanation.aspects, "unused": words})


def _set(mapping: MappingPolicy) -> list[str]:
    """The fields that differ from what they are unless something is said."""
    plain = MappingPolicy()
    own = [name for name, value in mapping if name != "block" and value != getattr(plain, name)]
    return [*own, *(f"block.{name}" for name in mapping.block.given)]
