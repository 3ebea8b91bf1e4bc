"""A decoder of GPT-2's kind as tools export it, with random weights: a graph in ONNX that takes and gives its cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

Arrays = dict[str, np.ndarray]
FLOAT, WHOLE = TensorProto.FLOAT, TensorProto.INT64
EPSILON = 1e-5


@dataclass(frozen=True)
class Size:
    """Sizes of a decoder; a head has `width / heads` numbers, and there are places for `context` tokens."""

    blocks: int
    width: int
    heads: int
    vocabulary: int
    context: int

    @property
    def head(self) -> int:
        return self.width // self.heads

    @property
    def caches(self) -> list[str]:
        """The parts of the cache, block by block."""
        return [f"{part}_{block}" for block in range(self.blocks) for part in ("key", "value")]

    def first(self, prompts: np.ndarray) -> Arrays:
        """The inputs of the first step: the prompts, and a cache of no token."""
        empty = np.zeros((len(prompts), self.heads, 0, self.head), np.float32)
        return {"tokens": prompts, **{f"past_{each}": empty for each in self.caches}}


SMALL = Size(12, 768, 12, 50_257, 1024)
"""Radford et al. 2019, table 2, the smallest model."""


def weights_of(size: Size, seed: int) -> Arrays:
    """Random weights by name. Places weigh more than words, so that a sequence does not repeat its last word."""
    random, width = np.random.default_rng(seed), size.width

    def of(*shape: int, spread: float = 1.0) -> np.ndarray:
        return random.standard_normal(shape, np.float32) * np.float32(spread)

    def normal(name: str) -> Arrays:
        return {f"{name}.scale": 1 + of(width, spread=0.1), f"{name}.shift": of(width, spread=0.1)}

    def linear(name: str, inner: int, outer: int) -> Arrays:
        return {f"{name}.weight": of(inner, outer, spread=1 / sqrt(inner)), f"{name}.bias": of(outer, spread=0.1)}

    made = {"words": of(size.vocabulary, width, spread=1 / sqrt(width)), "places": of(size.context, width)}
    for block in map(str, range(size.blocks)):
        made |= normal(f"{block}.before") | linear(f"{block}.queries_keys_values", width, 3 * width)
        made |= linear(f"{block}.projection", width, width) | normal(f"{block}.between")
        made |= linear(f"{block}.up", width, 4 * width) | linear(f"{block}.down", 4 * width, width)
    return made | normal("last")


def exported(size: Size, weights: Mapping[str, np.ndarray], folder: Path) -> Path:
    """Write a decoder of `tokens` behind those whose keys and values it takes as `past_*`, perhaps of none.

    The decoder makes logits, and all keys and values so far as `present_*`. Sequences, tokens and tokens of the past
    are open sizes. Weights lie in a file of their own, as those of large models do.
    """
    graph, at = _Writer(size).graph(), 0
    with (folder / "weights.bin").open("wb") as held:
        for name, each in weights.items():
            tensor = TensorProto(name=name, data_type=FLOAT, dims=each.shape, data_location=TensorProto.EXTERNAL)
            for key, value in (("location", "weights.bin"), ("offset", at), ("length", each.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            graph.initializer.append(tensor)
            at += held.write(each.tobytes())
    model: ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    path = folder / "decoder.onnx"
    path.write_bytes(model.SerializeToString())
    return path


class _Writer:
    """The nodes of a decoder, one after another."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.nodes: list[NodeProto] = []
        self.numbers: dict[str, np.ndarray] = {}

    def graph(self) -> GraphProto:
        size, tokens, past = self.size, ["batch", "tokens"], ["batch", self.size.heads, "past", self.size.head]
        hidden = self._embedded()
        for block in range(size.blocks):
            hidden = self._block(block, hidden)
        last = self._normal("last", hidden)
        rows = self._add("Reshape", last, self._whole("rows", -1, size.width))
        logits = self._add("Gemm", rows, "words", transB=1)
        shape = self._add("Concat", "tokens_shape", self._whole("vocabulary", size.vocabulary), axis=0)
        self._add("Reshape", logits, shape, makes="logits")
        given = [helper.make_tensor_value_info("tokens", WHOLE, tokens)]
        given += [helper.make_tensor_value_info(f"past_{each}", FLOAT, past) for each in size.caches]
        made = [helper.make_tensor_value_info("logits", FLOAT, [*tokens, size.vocabulary])]
        whole = ["batch", size.heads, "seen", size.head]
        made += [helper.make_tensor_value_info(f"present_{each}", FLOAT, whole) for each in size.caches]
        constants = [numpy_helper.from_array(each, name) for name, each in self.numbers.items()]
        return helper.make_graph(self.nodes, "decoder", given, made, constants)

    def _embedded(self) -> str:
        """Add the words, the places behind those of the past, and the mask of what each token does not see."""
        self._add("Shape", "tokens", makes="tokens_shape")
        many = self._add("Gather", "tokens_shape", self._number("one", 1))
        before = self._add("Gather", self._add("Shape", "past_key_0"), self._number("two", 2))
        seen = self._add("Add", before, many)
        places = self._add("Range", before, seen, self._number("one", 1))
        columns = self._add("Range", self._number("nothing", 0), seen, self._number("one", 1))
        later = self._add("Greater", columns, self._add("Unsqueeze", places, self._whole("last_axis", 1)))
        self._add("Where", later, self._real("never", -np.inf), self._real("always", 0), makes="mask")
        return self._add("Add", self._add("Gather", "words", "tokens"), self._add("Gather", "places", places))

    def _block(self, block: int, hidden: str) -> str:
        size = self.size
        seen = self._normal(f"{block}.before", hidden)
        together = self._linear(f"{block}.queries_keys_values", seen)
        parts = [f"{block}.{each}" for each in ("query", "key", "value")]
        self._add("Split", together, makes=" ".join(parts), axis=-1, num_outputs=3)
        heads = self._whole("heads", 0, 0, size.heads, size.head)
        query, key, value = (
            self._add("Transpose", self._add("Reshape", each, heads), perm=[0, 2, 1, 3]) for each in parts
        )
        key = self._add("Concat", f"past_key_{block}", key, makes=f"present_key_{block}", axis=2)
        value = self._add("Concat", f"past_value_{block}", value, makes=f"present_value_{block}", axis=2)
        scores = self._add("MatMul", query, self._add("Transpose", key, perm=[0, 1, 3, 2]))
        scores = self._add("Div", scores, self._real("root", sqrt(size.head)))
        shares = self._add("Softmax", self._add("Add", scores, "mask"), axis=-1)
        found = self._add("Transpose", self._add("MatMul", shares, value), perm=[0, 2, 1, 3])
        found = self._add("Reshape", found, self._whole("joined", 0, 0, size.width))
        hidden = self._add("Add", hidden, self._linear(f"{block}.projection", found))
        inner = self._linear(f"{block}.up", self._normal(f"{block}.between", hidden))
        return self._add("Add", hidden, self._linear(f"{block}.down", self._add("Gelu", inner, approximate="tanh")))

    def _normal(self, name: str, of: str) -> str:
        return self._add("LayerNormalization", of, f"{name}.scale", f"{name}.shift", axis=-1, epsilon=EPSILON)

    def _linear(self, name: str, of: str) -> str:
        return self._add("Add", self._add("MatMul", of, f"{name}.weight"), f"{name}.bias")

    def _add(self, op: str, *reads: str, makes: str = "", **attributes: Any) -> str:
        """Add a node; return its first result."""
        results = makes.split() or [f"{op.lower()}_{len(self.nodes)}"]
        self.nodes.append(helper.make_node(op, reads, results, name=f"{op.lower()}_{len(self.nodes)}", **attributes))
        return results[0]

    def _whole(self, name: str, *numbers: int) -> str:
        self.numbers[name] = np.array(numbers, np.int64)
        return name

    def _number(self, name: str, number: int) -> str:
        self.numbers[name] = np.array(number, np.int64)
        return name

    def _real(self, name: str, number: float) -> str:
        self.numbers[name] = np.array(number, np.float32)
        return name
