"""What somebody timed on chips from TPU v3 to 7x: a convolution in hundreds of tiles, products, whole networks.

Nothing here is estimated or scheduled, and no constant of a machine is fitted on it, but for the time of a launch on
TPU v6e, on its set A.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tpusim.network.ops.array_op import Conv2d, Gemm
from tpusim.network.ops.elementwise import Add, Gelu, Mul, Silu
from tpusim.network.ops.op import Op
from tpusim.network.ops.rows import LayerNorm, Softmax
from tpusim.study.validation.cases import Case, NumberSet, Omission, Row, cached, numbers, rows, sizes
from tpusim.study.validation.convolutions import LANES, SUBLANES

V3, V4, V6E, V7X = "tpu_v3_core", "tpu_v4", "tpu_v6e", "tpu_v7x_core"
"""Cores of TPU v3 and 7x, and the chips that products and networks ran on: TPU v4 with both of its cores, and TPU v6e.
"""


@cached
def chip_sets() -> dict[str, NumberSet]:
    """Every set of what was timed, by its name."""
    return {each.name: each for each in (*_tiles(), *_products(), *_networks()) if each.cases}


# ---- tiles

TILED = {
    "fusion.191": ("v3_tiles", "a 3x3 convolution of 32 maps"),
    "fusion.205": ("v3_tiles_product", "a product of 32 x 4096"),
    "fusion.261": ("v3_tiles_gradient", "a gradient of a filter, 4096 x 32"),
}
"""Ops of the table, by what it calls them: the set of each, and what it is."""


def _tiles() -> Iterator[NumberSet]:
    """An op of which every case is a tile of the compiler's, imposed as `mapping.block`; float32, as it fits best."""
    for kernel, (name, about) in TILED.items():
        cases = tuple(_tile(row) for row in rows("tpu_v3_measured_tiles") if row["kernel"] == kernel)
        yield NumberSet(
            name, "measured", "tiles", f"{about} in tiles on one core of TPU v3", V3, cases, unit="us",
            generation="v3", part="tiles", group="v3_tiles", tiles=True,
        )  # fmt: skip


def _tile(row: Row) -> Case:
    """A tile as a block of ours; a size above what the layer has means all of it."""
    layer, batch = _tiled(row["kernel"])
    kernel, output = sizes(row["kernel_bounds"]), sizes(row["output_bounds"])
    if isinstance(layer, Conv2d):
        columns = "rows", "cols", "images", "in_channels", "out_channels", "taps"
        block = {column: int(row[f"block_{column}"]) for column in columns} | {"tap_cols": kernel[1]}
    else:
        # Sublanes of rows and lanes of columns come out. Weights of 4096 x 1000 lie with their reduction in lanes.
        deep = kernel[1] * LANES if layer.k > LANES else kernel[0] * SUBLANES
        block = {"images": output[0] * SUBLANES, "out_channels": output[1] * LANES, "in_channels": min(deep, layer.k)}
    changes = tuple(f"mapping.block.{size}={value}" for size, value in block.items())
    name = f"{row['kernel_bounds']} {row['output_bounds']}" + " default" * (row["default"] == "1")
    return Case(name, (layer,), batch, float(row["measured_ns"]) / 1000, changes=changes, dtype="f32")


def _tiled(kernel: str) -> tuple[Conv2d | Gemm, int]:
    """Read a layer, and its number of images, from a name of the table."""
    if kernel == "fusion.191":
        return Conv2d("conv2d", 192, 12, 12, 384, (3, 3), (1, 1), (1, 1)), 32
    return Gemm("product", *((32, 1000, 4096) if kernel == "fusion.205" else (1000, 4096, 32))), 1


# ---- products

LEAST_US = 10
"""A shorter product is mostly its launch; sets of small ones are told by themselves."""
_ELEMENT_BYTES = 2
_TOOK = "measured_us_op"
"""The op alone, where a table tells the whole program's time beside it."""

V6E_SETS = {
    "A": ("1024 to 4096 in steps of 512, float16 it seems", LEAST_US),
    "B": ("small ones, float16 it seems", 0),
    "C": ("unaligned shapes, bfloat16", LEAST_US),
    "D": ("small and thin ones, bfloat16", 0),
}
"""What is in each, and the microseconds that a row takes at least."""


def _products() -> Iterator[NumberSet]:
    """Products by set, of which rows are left out that an op does not explain."""
    v6e = [*rows("tpu_v6e_matmul_measured")]
    for letter, (about, least) in V6E_SETS.items():
        chosen = [row for row in v6e if row["set"] == letter]
        yield _measured(f"v6e_measured_{letter.lower()}", f"products on TPU v6e, {about}", V6E, "v6e", chosen, least)
    about = "products on TPU v4, float16 on both cores: a trend"
    yield _measured("v4_measured", about, V4, "v4", [*rows("tpu_v4_matmul_measured")], LEAST_US)
    about = "products on a core of TPU 7x, Google's own benchmark"
    yield _measured("v7x_measured", about, V7X, "v7x", [*rows("tpu_v7x_gemm_public")], 0)


def _measured(name: str, about: str, machine: str, generation: str, found: Iterable[Row], least: float) -> NumberSet:
    cases: list[Case] = []
    others: list[Omission] = []
    for row in found:
        m, n, k = numbers(row, "m n k")
        took, shape = float(row[_TOOK if _TOOK in row else "measured_us"]), f"{m}x{n}x{k}"
        told = f"{shape} {row['set']}" if "set" in row else shape
        moved = _ELEMENT_BYTES * (m * n + m * k + n * k) / _bandwidth(generation) * 1e6
        if took <= least:
            others.append(Omission(told, took, f"at most {least} us"))
        elif took < moved:
            others.append(Omission(told, took, "faster than HBM"))
        else:
            cases.append(Case(told, (Gemm(shape, m, n, k),), 1, took, dtype=row["dtype"].rstrip("?")))
    return NumberSet(name, "measured", "measured products", about, machine, tuple(cases), unit="us",
                     left_out=tuple(others), generation=generation, part="products",
                     group=f"{generation}_measured")  # fmt: skip


def _bandwidth(generation: str) -> float:
    """Bytes a second of a chip's HBM, as published."""
    known = {row["generation"]: row["value"] for row in rows("tpu_generations_facts") if row["quantity"] == _PUBLISHED}
    return 1e9 * float(known[generation])


_PUBLISHED = "HBM bandwidth a chip"

# ---- networks


class Decoder(NamedTuple):
    """A language model by its published sizes; heads are 64 wide. `gated`: the feed-forward part has two inputs."""

    blocks: int
    width: int
    heads: int
    key_heads: int
    inner: int
    gated: bool


_HEAD = 64
DECODERS = {
    "gpt2": Decoder(12, 768, 12, 12, 3072, False),
    "qwen2.5-0.5b": Decoder(24, 896, 14, 2, 4864, True),
    "smollm2-135m": Decoder(30, 576, 9, 3, 1536, True),
}
"""Radford et al. 2019, table 2; the model cards of Qwen2.5-0.5B and SmolLM2-135M."""


def _networks() -> Iterator[NumberSet]:
    """Forward passes, op by op, every one by itself; what XLA fuses is not fused here."""
    for generation, machine in (("v4", V4), ("v6e", V6E)):
        found = [row for row in rows("tpu_models_measured") if row["device"] == f"TPU {generation}"]
        cases = tuple(_network(row) for row in found if row["model"] in DECODERS)
        others = tuple(
            Omission(_named(row), 1000 * float(row["measured_device_ms"]), "not known here")
            for row in found
            if row["model"] not in DECODERS
        )
        about = f"forward passes of language models on TPU {generation}, logits of all words"
        yield NumberSet(f"models_measured_{generation}", "measured", "measured networks", about, machine, cases,
                        unit="us", lowering="auto", left_out=others, generation=generation,
                        part="networks", group="models_measured")  # fmt: skip


def _named(row: Row) -> str:
    return "{model} {batch} of {seq} words".format(**row)


def _network(row: Row) -> Case:
    seq, batch, vocabulary = numbers(row, "seq batch vocab")
    layers = layers_of(DECODERS[row["model"]], seq, batch, vocabulary)
    # The batch of attention's words, as it is made here; products and rows have their own counts.
    return Case(_named(row), layers, SUBLANES, 1000 * float(row["measured_device_ms"]), dtype=row["dtype"])


def layers_of(model: Decoder, seq: int, batch: int, vocabulary: int) -> tuple[Op, ...]:
    """The ops of a forward pass; masked scores are computed, too."""
    words, width, keys = seq * batch, model.width, model.key_heads * _HEAD
    products = model.heads * batch

    def attention(rows_: int, depth: int, columns: int) -> Conv2d:
        """A product for each sequence and head, as groups of a convolution."""
        sides = products * depth, 1, rows_ // SUBLANES, products * columns
        return Conv2d("attention", *sides, (1, 1), groups=products)

    norm, residual = LayerNorm("norm", width, words), Add("sum", width, images=words)
    inner: list[Op] = [Gemm("up", words, model.inner, width)] * (1 + model.gated)
    if model.gated:
        inner += [Silu("gate", model.inner, images=words), Mul("gated", model.inner, images=words)]
    else:
        inner.append(Gelu("gelu", model.inner, images=words, approximate="tanh"))
    block: list[Op] = [
        norm, Gemm("query_key_value", words, width + 2 * keys, width), attention(seq, _HEAD, seq),
        Softmax("softmax", seq, products * seq), attention(seq, seq, _HEAD), Gemm("projection", words, width, width),
        residual, norm, *inner, Gemm("down", words, width, model.inner), residual,
    ]  # fmt: skip
    return (*block * model.blocks, norm, Gemm("logits", words, vocabulary, width))
