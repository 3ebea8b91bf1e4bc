"""Every lowering of a GPU by its name, the usual one first."""

from __future__ import annotations

from collections.abc import Callable

from tpusim.machines.gpu.lowering import block_channel_first, channel_last, explicit
from tpusim.machines.gpu.lowering.layer import Layer
from tpusim.machines.gpu.program.kernels import Program

LOWERINGS: dict[str, Callable[[Layer], Program]] = {
    "channel_last": channel_last.lower,
    "block_channel_first": block_channel_first.lower,
    "explicit": explicit.lower,
}
GLOSSES = {
    "channel_last": "as the library does it: each tap gathered by itself",
    "block_channel_first": "the paper's, in blocks: taps of a slab of channels share what was staged",
    "explicit": "the lowered matrix written to DRAM first",
}
