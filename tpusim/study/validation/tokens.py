"""A block of Llama 3 8B on TPUs from v5e to 7x: the code that Google's compiler emitted for it, op by op, and the bytes
that this code reads; and products of experts, and attentions, that somebody timed.

Layers of the block overlap, as the compiler's ops do: it brings weights of the next op while one works. What is
compared of each product is its share of the block's time. Layers of a timed kernel come one after another, each in the
blocks of that kernel.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, TypeVar

from tpusim.base.errors import InputError
from tpusim.machines.family import load_hardware
from tpusim.network.formats import ModelOptions
from tpusim.network.ops.array_op import Gemm
from tpusim.network.ops.elementwise import Copy
from tpusim.network.ops.flash_attention import FlashAttention
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.network.workload_file import open_workload, workload_of
from tpusim.study.validation.cases import Case, NumberSet, Omission, Row, cached, rows
from tpusim.study.validation.generations import CODE_LEAVES_OUT, GENERATIONS

T = TypeVar("T")

LLM = "llm"
"""The name of all these sets together."""
_MODEL, _PRODUCTS = "llama3_8b", ("query", "key", "value", "projection", "gate", "up", "down")
_TOTAL = "TOTAL"
_MEASURED = 2
"""The block of a network that is compared: weights of its first product come while the block ahead ends."""
_CHANGES = (*CODE_LEAVES_OUT, "sequencer.between_layers=overlap")
_TIMED = {
    "tpu_v5_lite": ("v5e", "tpu_v5e"), "tpu_v5": ("v5p", "tpu_v5p"), "tpu_v6_lite": ("v6e", "tpu_v6e"),
    "tpu7x": ("v7x", "tpu_v7x_core"),
}  # fmt: skip
"""Devices of the table of timed kernels: generation and machine of each. A device of v5p is a chip of two cores that
work on one op, a device of 7x a core.
"""
_RAGGED, _ATTENTION = "pallas_mosaic_tpu_ragged_dot", "pallas_mosaic_tpu_flash_attention"
_ASKING = 1 << 15
"""Queries of all heads of an attention that are simulated at least: heads take as long as one another."""
_RESIDUAL = 256
"""Elements of bf16 that have as many bytes as the 128 float32 that a kernel of attention writes for each residual of a
query and head (tokamax, splash_attention_kernel.py: NUM_LANES).
"""
_STEP_NS = 500
"""What a step of this kernel's grid takes beyond its work: it looks up whose rows it has, and masks those of others.
Fitted on half of the products of experts on TPU v5e and 7x, of no gradient or turned weights.
"""
_ROWS, _COLUMNS = 0, 1
"""Axes of [row, column], and of [expert, row, column]."""


@cached
def token_sets() -> dict[str, NumberSet]:
    """Every set by its name: products of a block, a whole block that makes a token, and what somebody timed: products
    of experts, and attentions.
    """
    return {each.name: each for each in (*_sets(), *_ragged_sets(), *_attention_sets()) if each.cases}


def _ragged_sets() -> Iterator[NumberSet]:
    """Products of experts by device; each group of rows is a product, in blocks of the tile that was timed."""
    for device, (generation, machine) in _TIMED.items():
        read = [*_timed(device, _RAGGED, "product of experts", _experts)]
        step = round(load_hardware(machine).clock_hz * _STEP_NS / 1e9)
        for end, part in (("", "experts"), ("_turned", "turned experts")):
            cases = tuple(case for case, turned in read if turned == bool(end))
            about = f"products of {part} by a kernel on TPU {generation}, in its tiles, the launch left out"
            yield NumberSet(
                f"{LLM}_{generation}_experts{end}", "measured", part, about, machine, cases,
                ("sequencer.launch_cycles=0", f"sequencer.block_cycles={step}"), unit="us", fitted=not end,
                generation=generation, part=part, group=LLM,
            )  # fmt: skip


def _attention_sets() -> Iterator[NumberSet]:
    """Attentions by device, in blocks of the tile that was timed."""
    for device, (generation, machine) in _TIMED.items():
        read = [*_timed(device, _ATTENTION, "attention", _attention)]
        cases = tuple(each for each in read if isinstance(each, Case))
        left = tuple(each for each in read if isinstance(each, Omission))
        about = f"attention by a kernel on TPU {generation}, in its tiles, the launch left out"
        yield NumberSet(
            f"{LLM}_{generation}_attention", "measured", "attention", about, machine, cases,
            ("sequencer.launch_cycles=0",), "us", left_out=left, generation=generation, part="attention", group=LLM,
        )  # fmt: skip


def _timed(
    device: str, kernel: str, what: str, told: Callable[[Row, Mapping[str, Any], Mapping[str, int]], T]
) -> Iterator[T]:
    """What is told of each row of a kernel on a device. Raises InputError for a row that tells of none."""
    for row in rows("tpu_tokamax_measured"):
        if (row["device"], row["kernel"]) == (device, kernel):
            try:
                yield told(row, json.loads(row["arguments"]), json.loads(row["config"]))
            except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
                says = f"tpu_tokamax_measured: {row['arguments'][:60]!r} is no {what} ({error!r})"
                raise InputError(f"{says}; write arguments and config as in the shipped table") from None


def _sizes(operand: str) -> list[int]:
    """The sizes of an operand such as "bf16[32,4096]"."""
    return [*map(int, re.findall(r"\d+", operand.partition("[")[2]))]


def _attention(row: Row, given: Mapping[str, Any], tile: Mapping[str, int]) -> Case | Omission:
    """Some heads of an attention, and what it takes to lay out operands by heads, and the result by tokens: a copy of
    each. A residual is written for every lane, and read to take one number of these: a copy, too.
    """
    (images, queries, heads, head), (_, keys, kv_heads, _) = _sizes(given["q"]), _sizes(given["k"])
    causal, took = given["mask"]["is_causal"], float(row["min_ms"]) * 1000
    name = f"{queries}x{keys} {heads}x{head}" + " causal" * causal + ", and residuals" * given["return_residuals"]
    name += f", tile {tile['block_q']}x{tile['block_kv']}"
    if given["k"] != given["v"]:
        return Omission(name, took, f"values are {given['v']}, keys {given['k']}")
    shared, wanted = heads // kv_heads, -(-_ASKING // queries)
    # Some heads of one sequence, together with all that share their keys; or several sequences.
    mine, some = min(heads, -(-wanted // shared) * shared), min(images, -(-wanted // heads))
    theirs, share = mine // shared, mine * some / (heads * images)
    sizes = ("queries", mine, queries), ("keys", theirs, keys), ("values", theirs, keys), ("result", mine, queries)
    layers: list[Op] = [
        FlashAttention("attention", mine, head, queries, theirs, keys, some, causal),
        *(Copy(f"turned_{what}", many * head, images=some * tokens) for what, many, tokens in sizes),
    ]
    if given["return_residuals"]:
        whole, tokens = mine * _RESIDUAL, some * queries
        layers += [Copy(f"residual_{what}", whole, images=tokens) for what in ("maximum", "sum")]
    changes = f"mapping.block.images={tile['block_q']}", f"mapping.block.in_channels={tile['block_kv']}"
    return Case(name, tuple(layers), 1, took * share, changes=changes, dtype=given["q"].partition("[")[0])


def _experts(row: Row, given: Mapping[str, Any], tile: Mapping[str, int]) -> tuple[Case, bool]:
    """A product of which every expert takes some rows, as many each where the table has their sum alone; and whether an
    operand lies across: weights by their outputs, or rows in a gradient of weights.
    """
    first, second = _sizes(given["lhs"]), _sizes(given["rhs"])
    over, other = given["ragged_dot_dimension_numbers"]["dot_dimension_numbers"][0]
    taken = given["group_sizes"]
    if isinstance(taken, dict):
        less, more = divmod(taken["total_size"], taken["num_groups"])
        taken = [less + (number < more) for number in range(taken["num_groups"])]
    taken = [size for size in taken if size]
    block = {"images": tile["tile_m"], "in_channels": tile["tile_k"], "out_channels": tile["tile_n"]}
    if over == [_ROWS]:
        # This product sums over rows, so the kernel's tile of rows cuts our sum.
        shapes = [(first[1], second[1], size) for size in taken]
        block |= {"images": tile["tile_k"], "in_channels": tile["tile_m"]}
    else:
        shapes = [(size, second[2 if other == [_COLUMNS] else 1], first[1]) for size in taken]
    layers: list[Op] = [Gemm(f"expert_{number}", *shape) for number, shape in enumerate(shapes, 1)]
    m, n, k = shapes[0]
    kept = ""
    if given["return_residuals"]:
        # Such rows take longer by a read and a write of the result.
        layers.append(Copy("residual", n, images=first[0]))
        kept = ", and a copy"
    name = f"{len(taken)} experts, {m}x{k}>{n}{kept}, tile {tile['tile_m']}x{tile['tile_k']}x{tile['tile_n']}"
    changes = tuple(f"mapping.block.{what}={size}" for what, size in block.items())
    dtype = given["lhs"].partition("[")[0]
    case = Case(name, tuple(layers), 1, float(row["min_ms"]) * 1000, changes=changes, dtype=dtype)
    return case, (over, other) != ([_COLUMNS], [_COLUMNS])


def _sets() -> Iterator[NumberSet]:
    for generation in GENERATIONS:
        machine = load_hardware(generation.core)
        # Cycles in which HBM moves a byte, at the public bandwidth.
        a_byte = machine.clock_hz / machine.hbm_bytes_per_s
        found: dict[tuple[str, int, int], list[Row]] = {}
        for row in rows("xla_tpu_gen_llm"):
            if row["gen"] == generation.name:
                found.setdefault((row["phase"], int(row["batch"]), int(row["seq"])), []).append(row)
        for (phase, batch, context), some in found.items():
            named = f"{LLM}_{generation.name}_{phase}" + (f"_batch_{batch}" if batch > 1 else "")
            blocks, products = _blocks(phase, batch, context), "token products"
            cases, left = _products(some, blocks, phase, a_byte)
            about = f"products of a {phase} block on TPU {generation.name}, the longer of code and bytes of weights"
            made = partial(NumberSet, status="scheduled", hardware=generation.core, changes=_CHANGES,
                           generation=generation.name, group=LLM)  # fmt: skip
            yield made(f"{named}_products", kind=products, about=about, cases=cases, left_out=left, part=products)
            total = next((row for row in some if row["category"] == _TOTAL), None)
            if phase == "decode" and total:
                moved, whole = float(total["hbm_read_bytes"]) * a_byte, "token blocks"
                layers = tuple(each for each in blocks.layers if _of_block(each, _MEASURED))
                case = Case(f"a block, batch {batch}", layers, batch, moved, network=blocks)
                about = f"a block that makes a token on TPU {generation.name}, against the bytes that its code reads"
                yield made(f"{named}_block", kind=whole, about=about, cases=(case,), part=whole)


@cached
def _blocks(phase: str, batch: int, context: int) -> Workload:
    """The first blocks of the network, up to the one that is measured: it follows on another, as all but one do."""
    work = workload_of(open_workload(_MODEL, ModelOptions({"context": context}, phase=phase)), batch)
    return work.with_layers(lambda layer: any(_of_block(layer, number + 1) for number in range(_MEASURED)))


def _of_block(layer: Op, number: int) -> bool:
    return re.search(rf"_{number}($|\.)", layer.name) is not None


def _products(
    some: Sequence[Row], blocks: Workload, phase: str, a_byte: float
) -> tuple[tuple[Case, ...], tuple[Omission, ...]]:
    """The products with weights, each by the first row that multiplies as many weights; and rows of the array that are
    none.
    """
    wanted: Mapping[str, Gemm] = {
        name: layer
        for name in _PRODUCTS
        for layer in blocks.layers
        if layer.name == f"{name}_{_MEASURED}" and isinstance(layer, Gemm)
    }
    left = dict(wanted)
    cases: list[Case] = []
    others: list[Omission] = []
    for row in some:
        if row["unit"] != "array":
            continue
        said = f"{row['category']}, op {row['index']}"
        name = _multiplied(row, left)
        code = float(row["scheduled_cycles"]) if row["scheduled_cycles"] else None
        if name is None or code is None:
            others.append(Omission(said, code, "not scheduled" if code is None else "no product with weights"))
            continue
        layer = left.pop(name)
        # A weight has two bytes, whether or not the code brings it ahead of the op.
        theirs = max(code, 2 * layer.k * layer.n * a_byte) if phase == "decode" else code
        price = float(row["estimated_cycles"]) if row["estimated_cycles"] else None
        cases.append(Case(f"{name} {layer.text}", (layer,), blocks.batch, theirs, price, code, network=blocks))
    return tuple(cases), tuple(others)


def _multiplied(row: Row, left: Mapping[str, Gemm]) -> str | None:
    """The next product of as many weights as an operand of the row has."""
    shapes = [[int(size) for size in text.split("x")] for text in re.findall(r"bf16\[([\dx]+)\]", row["operands"])]
    for name, layer in left.items():
        # Weights are [k, n], or [heads, head, k]; those of gate and down differ in which way round.
        if any(
            len(shape) > 1
            and prod(shape) == layer.k * layer.n
            and layer.k in (shape[0], shape[-1])
            and (shape[0] == layer.k or len(shape) > 2)
            for shape in shapes
        ):
            return name
    return None
