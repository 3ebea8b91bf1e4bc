"""Blocks of fused ops: the networks that rows stand for, and how close they come to the code."""

from __future__ import annotations

import pytest

from tests.covering import few
from tpusim.network.ops.flash_attention import FlashAttention
from tpusim.network.ops.fused import Fused
from tpusim.study.validation import fused
from tpusim.study.validation.cases import Case, rows
from tpusim.study.validation.comparison import Validation, taken
from tpusim.study.validation.fused import fused_sets


def case_of(name: str, begins: str) -> Case:
    return next(case for case in fused_sets()[name].cases if case.name.startswith(begins))


def test_every_row_is_one_case() -> None:
    """Of three generations, blocks and attentions apart."""
    sets = fused_sets()
    assert [*sets] == [f"fused_{tpu}_{part}" for tpu in ("v5e", "v6e", "v7x") for part in ("blocks", "attention")]
    assert sum(len(each.cases) for each in sets.values()) == len([*rows("xla_tpu_gen_fused")]) == 33


def test_a_block_has_the_layers_that_run() -> None:
    gelu = case_of("fused_v5e_blocks", "matmul_bias_gelu 2048x1024")
    assert [layer.text for layer in gelu.layers] == ["2048x1024>4096 + bias", "1x1x4096 n2048 tanh"]
    (residual,) = case_of("fused_v5e_blocks", "matmul_residual").layers
    assert isinstance(residual, Fused)
    assert residual.fused == ("add",)
    (scaled,) = case_of("fused_v6e_blocks", "conv_scale_relu 56x56").layers
    assert (scaled.text, scaled.outputs(8)) == ("56x56x64>64 3x3 + scale_shift + relu", 8 * 56 * 56 * 64)
    (strided,) = fused._with_scale([(56, 56, 8, 64), (3, 3, 64, 128)], 2).layers
    assert strided.text == "56x56x64>128 3x3/2 + scale_shift + relu"
    gated = case_of("fused_v7x_blocks", "gated_mlp")
    assert sum(layer.macs(1) for layer in gated.layers) == 3 * 1024 * 2048 * 5632
    assert gated.network is not None


def test_attentions_have_the_blocks_of_their_kernel() -> None:
    tiled, plain = (case_of("fused_v6e_attention", f"attention_{kind}") for kind in ("flash", "plain"))
    assert tiled.changes == ("mapping.block.images=128", "mapping.block.in_channels=128")
    assert tiled.layers == (FlashAttention("attention", 16, 128, 1024, 16, 1024, 1, False),)
    assert plain.changes == ()


@pytest.mark.parametrize(("generation", "most"), few(1, [("v7x", 0.12), ("v6e", 0.12), ("v5e", 0.06)]))
def test_blocks_are_near_the_code(generation: str, most: float) -> None:
    plan = Validation([fused_sets()[f"fused_{generation}_blocks"]])
    (compared,) = plan.comparisons({each: taken(each) for each in plan.simulations})
    assert compared.ours.mean < most
    # All but those whose GELU runs behind the product here, instead of on its results.
    assert all(abs(row.error) < 0.15 for row in compared.rows if "gelu" not in row.name)
