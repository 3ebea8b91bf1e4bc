"""The shipped language models against published counts, phase by phase."""

from __future__ import annotations

from functools import cache
from math import prod

import pytest

from tpusim import Workload
from tpusim.network.formats import ModelOptions
from tpusim.network.ops.array_op import Gemm
from tpusim.network.workload_file import open_workload, workload_of

MODELS = ("gpt2_small", "llama3_8b", "llama3_70b", "gemma2_9b", "mixtral_8x7b")
FEWER = [pytest.param(each, marks=[pytest.mark.long] * (each == "llama3_70b")) for each in MODELS]


@cache
def model(name: str, phase: str = "decode", batch: int = 1, **dims: int) -> Workload:
    return workload_of(open_workload(name, ModelOptions(dims, phase=phase)), batch)


def parameters(name: str) -> int:
    """Weights of products, biases, scales and shifts of norms, and rows of embeddings.

    They are those of a prompt in which every expert has some tokens.
    """
    return parameters_of(model(name, "prefill", context=64))


def parameters_of(work: Workload) -> int:
    """Likewise, of a workload."""
    cached = with_cache(work)
    found = 0
    for layer in work.layers:
        if isinstance(layer, Gemm) and layer.name not in cached:
            found += prod(layer.tensors(1).filter) + (layer.n if layer.name in work.biases else 0)
        elif layer.op in ("rms_norm", "layer_norm"):
            found += layer.channels * (2 if layer.op == "layer_norm" else 1)
        elif layer.op == "embedding":
            found += prod(layer.shapes(1)["ifmap"])
    return found


def with_cache(work: Workload) -> set[str]:
    """Layers that read keys or values of tokens before."""
    return {layer for layer, sources in work.sources().items() if any(each.cache for each in sources)}


def test_parameters_are_those_published() -> None:
    """As their makers and Hugging Face count them; embeddings that the last product shares count once."""
    assert parameters("llama3_8b") == 8_030_261_248
    assert parameters("gemma2_9b") - 256_128 * 3584 == 8_324_201_984 + 917_962_752
    assert parameters("mixtral_8x7b") == 46_702_792_704
    # The positions of GPT-2 are an operand of an addition.
    assert parameters("gpt2_small") - 50_257 * 768 + 1024 * 768 == 124_439_808
    assert parameters("llama3_70b") == 70_553_706_496


@pytest.mark.parametrize("name", FEWER)
def test_a_token_costs_two_operations_a_parameter_and_its_cache(name: str) -> None:
    """Of a mixture of experts the parameters of those that the token takes."""
    short, long = (model(name, context=each) for each in (512, 1024))
    macs = [sum(layer.macs(1) for layer in work.layers) for work in (short, long)]
    cached = [
        sum(layer.macs(1) for layer in work.layers if layer.name in names)
        for work, names in ((work, with_cache(work)) for work in (short, long))
    ]
    assert cached[1] == 2 * cached[0]
    assert macs[1] - macs[0] == cached[0]


@pytest.mark.parametrize("name", FEWER)
def test_a_prefill_is_as_much_work_as_its_tokens_one_by_one(name: str) -> None:
    """But for the last product, which is of one token, and for scores that are computed and masked."""
    prefill, token = model(name, "prefill", context=64), model(name, "decode", context=64)
    weights = [
        sum(layer.macs(1) for layer in work.layers[:-2] if isinstance(layer, Gemm) and layer.name not in names)
        for work, names in ((work, with_cache(work)) for work in (prefill, token))
    ]
    assert weights[1] > 0
    assert weights[0] == 64 * weights[1]
