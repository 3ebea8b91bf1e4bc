"""Blocks of a language model against the compiler's code: which op each product is held against, and how far off."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tpusim import Workload, simulate
from tpusim.base.errors import InputError
from tpusim.machines.family import load_hardware
from tpusim.network.ops.array_op import Gemm
from tpusim.network.ops.elementwise import Add
from tpusim.network.ops.flash_attention import FlashAttention
from tpusim.network.ops.op import OFMAP
from tpusim.study.validation import tokens
from tpusim.study.validation.cases import Case, NumberSet, tables_from
from tpusim.study.validation.comparison import Validation, taken
from tpusim.study.validation.generations import PARTS
from tpusim.study.validation.tokens import token_sets


def test_every_product_is_held_against_an_op_of_its_own() -> None:
    """All seven products of a block that makes a token; the code of a prompt fuses some of them to others."""
    sets = token_sets()
    names = [case.name.split()[0] for case in sets["llm_v7x_decode_products"].cases]
    assert sorted(names) == sorted(["query", "key", "value", "projection", "gate", "up", "down"])
    assert len({case.name for case in sets["llm_v7x_prefill_products"].cases}) == 6
    assert all(case.theirs == case.scheduled for case in sets["llm_v7x_prefill_products"].cases)


def test_every_set_has_a_column_in_the_table_over_generations() -> None:
    assert {each.part for each in token_sets().values()} <= {*PARTS}


def test_a_block_is_compared_behind_another() -> None:
    """Weights of the first product come while the block ahead ends, as in all blocks of a network but one."""
    (case,) = token_sets()["llm_v7x_decode_block"].cases
    assert case.network is not None
    assert {re.search(r"_(\d+)", each.name)[1] for each in case.network.layers} == {"1", "2"}
    assert [*case.layers] == [each for each in case.network.layers if re.search(r"_2($|\.)", each.name)]


def test_layers_that_ride_on_others_have_no_share_of_a_network() -> None:
    """A case of all layers of a network takes what the network takes, on a machine that fuses, too."""
    layers = Gemm("a", 8, 128, 128), Gemm("b", 8, 128, 128), Add("sum", 128, images=8)
    work = Workload("two", 8, layers, edges={"b": ["a"], "sum": ["b", "a"]})
    plan = Validation(
        [NumberSet("own", "scheduled", "own", "own", "tpu_v5e", (Case("whole", layers, 8, 1, network=work),))]
    )
    (compared,) = plan.comparisons({each: taken(each) for each in plan.simulations})
    result = simulate(work, load_hardware("tpu_v5e"), check=False)
    assert [layer.riders for layer in result.layers] == [(), ("sum",)]
    assert compared.rows[0].ours == result.total.cycles


def test_a_token_is_held_against_the_longer_of_code_and_bytes() -> None:
    machine = load_hardware("tpu_v7x_core")
    for case in token_sets()["llm_v7x_decode_products"].cases:
        (layer,) = case.layers
        moved = 2 * layer.weights(1) * machine.clock_hz / machine.hbm_bytes_per_s
        assert case.scheduled is not None
        assert case.theirs == pytest.approx(max(case.scheduled, moved))


def test_rows_of_experts_are_products_in_the_tiles_of_the_kernel() -> None:
    """All rows and all weights of a timed kernel; a kernel that keeps its residual makes a copy, too."""
    sets = token_sets()
    case = next(each for each in sets["llm_v7x_experts"].cases if each.name.endswith("copy, tile 128x7168x1024"))
    *products, residual = case.layers
    assert {layer.shape_key for layer in products} == {products[0].shape_key}
    first = products[0]
    assert isinstance(first, Gemm)
    assert (len(products), first.m, first.n, first.k) == (256, 512, 1024, 7168)
    assert (residual.op, residual.shapes(1)[OFMAP]) == ("copy", (1024, 1, 1, 131072))
    assert case.changes == (
        "mapping.block.images=128",
        "mapping.block.in_channels=7168",
        "mapping.block.out_channels=1024",
    )
    assert case.theirs == pytest.approx(4004)


def test_gradients_of_experts_sum_over_their_rows() -> None:
    """A gradient of weights is as large as they are, for each expert, and sums over that expert's rows."""
    case = next(each for each in token_sets()["llm_v5e_experts_turned"].cases if "2048x1281>768" in each.name)
    products = [layer for layer in case.layers if isinstance(layer, Gemm)]
    assert len(products) == 117
    assert sum(layer.k for layer in products) == 131072
    assert {(layer.m, layer.n) for layer in products} == {(2048, 768)}


def test_rows_of_attention_are_one_op_and_what_lies_around_it() -> None:
    """Of 32 sequences of 32 heads, eight heads: the op in the tile of the kernel, what turns operands and result, and a
    copy of each residual, whose elements are twice as wide. Of 32 heads of 16,384 tokens, two.
    """
    case = next(each for each in token_sets()["llm_v7x_attention"].cases if each.name.startswith("4096x4096 32x128"))
    assert case.name == "4096x4096 32x128 causal, tile 1024x1024"
    attention, *turned = case.layers
    assert attention == FlashAttention("attention", 8, 128, 4096, 2, 4096, 1)
    assert [layer.outputs(1) for layer in turned] == [4096 * heads * 128 for heads in (8, 2, 2, 8)]
    assert case.changes == ("mapping.block.images=1024", "mapping.block.in_channels=1024")
    assert case.theirs == pytest.approx(20555 / 32 / 4)
    with_residuals = next(each for each in token_sets()["llm_v7x_attention"].cases if "residuals" in each.name)
    assert [layer.outputs(1) for layer in with_residuals.layers[-2:]] == [4096 * 8 * 128 * 2] * 2
    long = next(each for each in token_sets()["llm_v7x_attention"].cases if each.name.startswith("16384x16384 32x64"))
    assert long.layers[0] == FlashAttention("attention", 2, 64, 16384, 2, 16384, 1)
    assert long.theirs == pytest.approx(6970 / 16)
    (left,) = token_sets()["llm_v5p_attention"].left_out
    assert left.why == "values are bf16[512,1024,16,128], keys bf16[512,1024,16,192]"


@pytest.mark.parametrize(
    ("lost", "what"), [("ragged_dot_dimension_numbers", "product of experts"), ("is_causal", "attention")]
)
def test_a_row_that_tells_of_no_product_is_refused(tmp_path: Path, lost: str, what: str) -> None:
    shipped = Path(tokens.__file__).with_name("truth") / "tpu_tokamax_measured.csv"
    (tmp_path / shipped.name).write_text(shipped.read_text().replace(lost, "numbers", 1))
    with tables_from(tmp_path), pytest.raises(InputError, match=rf"is no {what} .*; write arguments"):
        token_sets()


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("llm_v7x_decode_block", 0.12), ("llm_v6e_decode_block", 0.12), ("llm_v5e_decode_block", 0.12),
        ("llm_v7x_decode_products", 0.1), ("llm_v7x_prefill_products", 0.15),
        ("llm_v5e_experts", 0.05), ("llm_v5e_experts_turned", 0.2), ("llm_v7x_experts", 0.1),
        ("llm_v7x_experts_turned", 0.25),
        ("llm_v5p_attention", 0.25), ("llm_v6e_attention", 0.12), ("llm_v7x_attention", 0.13),
    ],
)  # fmt: skip
def test_blocks_are_near_the_code(name: str, most: float) -> None:
    plan = Validation([token_sets()[name]])
    (compared,) = plan.comparisons({each: taken(each) for each in plan.simulations})
    assert compared.ours.mean <= most


@pytest.mark.long
def test_what_a_step_of_experts_takes_was_fitted_on_half_of_them_and_serves_the_rest() -> None:
    """Half as much of it is worse on either half, on both generations."""
    own = [token_sets()[f"llm_{generation}_experts"] for generation in ("v5e", "v7x")]
    assert all(each.fitted for each in own)
    for each in own:
        step, path = int(each.changes[-1].split("=")[1]), "sequencer.block_cycles"
        errors = []
        for cycles in (step, step // 2):
            plan = Validation([each], [f"{path}={cycles}"])
            (compared,) = plan.comparisons({some: taken(some) for some in plan.simulations})
            errors.append((compared.half(True), compared.half(False)))
        ours, less = errors
        for mine, other, most in zip(ours, less, (0.06, 0.09), strict=True):
            assert mine is not None
            assert mine < min(most, other or 0)
