"""Blocks of a few ops that Google's compiler fuses, on TPU v5e, v6e and 7x: the emitted code of a whole block, with
what its ops move.

Layers fuse, overlap and keep results on chip, as the code does. Attentions stand apart: those of a kernel have blocks
of its own, of as many queries as keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from tpusim.flow.jobs import resolve
from tpusim.input.document import Document
from tpusim.machines.family import load_hardware
from tpusim.network.ops.array_op import Conv2d, Gemm
from tpusim.network.ops.elementwise import Relu, ScaleShift
from tpusim.network.ops.flash_attention import FlashAttention
from tpusim.network.ops.fused import Fused
from tpusim.network.workload import Workload
from tpusim.network.workload_file import workload_of
from tpusim.study.validation.cases import Case, NumberSet, Row, cached, rows, sizes
from tpusim.study.validation.generations import GENERATIONS

FUSED = "fused"
"""The name of all these sets together."""
_CHANGES = ("sequencer.fusion=results", "sequencer.between_layers=stay")
_TABLE, _KERNEL = "xla_tpu_gen_fused", "attention_flash"
Operands = list[tuple[int, ...]]
"""The sizes of each operand of a block."""


@cached
def fused_sets() -> dict[str, NumberSet]:
    """Every set by its name: blocks of products and convolutions, and attentions."""
    return {each.name: each for each in _sets() if each.cases}


def _sets() -> Iterator[NumberSet]:
    for generation in GENERATIONS:
        found = [row for row in rows(_TABLE) if row["gen"] == generation.name]
        for part, chosen in (("blocks", _NETWORKS), ("attention", _ATTENTION)):
            changes = (*generation.code, *_CHANGES)
            cases = tuple(_case(row, chosen, generation.core, changes) for row in found if row["op"] in chosen)
            yield NumberSet(
                f"{FUSED}_{generation.name}_{part}", "scheduled", f"fused {part}",
                f"{part} that the compiler fuses on TPU {generation.name}", generation.core, cases, changes,
                generation=generation.name, part=f"fused {part}", group=FUSED,
            )  # fmt: skip


def _case(
    row: Row,
    networks: Mapping[str, Callable[[Operands, int], Workload]],
    machine: str,
    changes: tuple[str, ...],
) -> Case:
    """A block with its layers as they run; a loop whose bytes nobody told counts without them."""
    operands = [text.partition(":")[0] for text in row["shapes"].split("|")]
    tile = re.search(r"block (\d+)", row["note"])
    block = tuple(f"mapping.block.{size}={tile[1]}" for size in ("images", "in_channels")) if tile else ()
    stride = re.search(r"x\d+/(\d+)", row["note"])
    network = networks[row["op"]]([sizes(each) for each in operands], int(stride[1]) if stride else 1)
    work = resolve(network, load_hardware(machine, (*changes, *block))).work
    name = " ".join((row["op"], " ".join(operands), *([f"block {tile[1]}"] if tile else [])))
    theirs = float(row["scheduled_with_hbm_total"] or row["scheduled_cycles_total"])
    return Case(name, work.layers, work.batch, theirs, changes=block, network=network)


# ---- what the compiler was given


def _graph(*layers: Mapping[str, object]) -> Workload:
    return workload_of(Document("block", {"name": "block", "layers": [*layers]}), 1)


def _with_gelu(operands: Operands, stride: int) -> Workload:
    (m, k), (_, n), _ = operands
    product = {"name": "product", "op": "gemm", "m": m, "n": n, "k": k, "biases": True}
    return _graph(product, {"name": "gelu", "op": "gelu", "approximate": "tanh"})


def _with_sum(operands: Operands, stride: int) -> Workload:
    (m, k), (_, n), _ = operands
    return Workload("block", 1, (Fused("product", Gemm("product", m, n, k), adds=True),))


def _with_scale(operands: Operands, stride: int) -> Workload:
    """Maps lie as rows, columns, images, channels; kernels as rows, columns, input and output channels."""
    (height, width, batch, channels), (high, wide, _, out), *_ = operands
    layer = Conv2d("conv", channels, height, width, out, (high, wide), (stride, stride), (high // 2, wide // 2))
    scale = ScaleShift("scale", out, width=layer.out_width, height=layer.out_height)
    relu = Relu("relu", out, width=layer.out_width, height=layer.out_height)
    return Workload("block", batch, (Fused("conv", layer, behind=(scale, relu)),))


def _gated(operands: Operands, stride: int) -> Workload:
    (m, k), (_, n), *_ = operands
    product = {"op": "gemm", "m": m, "n": n, "k": k, "inputs": ["input"]}
    act = {"name": "act", "op": "swiglu", "inputs": ["gate", "up"]}
    return _graph({"name": "gate", **product}, {"name": "up", **product}, act, {"name": "down", "op": "gemm", "n": k})


def _attention(operands: Operands, stride: int) -> Workload:
    (images, heads, queries, head), (_, kv_heads, keys, _), _ = operands
    return Workload("block", 1, (FlashAttention("attention", heads, head, queries, kv_heads, keys, images, False),))


_NETWORKS = {
    "matmul_bias_gelu": _with_gelu, "matmul_residual": _with_sum, "conv_scale_relu": _with_scale, "gated_mlp": _gated,
}  # fmt: skip
_ATTENTION = {"attention_plain": _attention, _KERNEL: _attention}
