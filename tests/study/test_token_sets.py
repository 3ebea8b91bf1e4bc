"""Blocks of a language model against the compiler's code: which op each product is held against, and how far off."""

from __future__ import annotations

import pytest

from tpusim.machines.family import load_hardware
from tpusim.study.validation.comparison import Validation, taken
from tpusim.study.validation.tokens import token_sets


def test_every_product_is_held_against_an_op_of_its_own() -> None:
    """All seven products of a block that makes a token; the code of a prompt fuses some of them to others."""
    sets = token_sets()
    names = [case.name.split()[0] for case in sets["llm_v7x_decode_products"].cases]
    assert sorted(names) == sorted(["query", "key", "value", "projection", "gate", "up", "down"])
    assert len({case.name for case in sets["llm_v7x_prefill_products"].cases}) == 6
    assert all(case.theirs == case.scheduled for case in sets["llm_v7x_prefill_products"].cases)


def test_a_token_is_held_against_the_longer_of_code_and_bytes() -> None:
    machine = load_hardware("tpu_v7x_core")
    for case in token_sets()["llm_v7x_decode_products"].cases:
        (layer,) = case.layers
        moved = 2 * layer.weights(1) * machine.clock_hz / machine.hbm_bytes_per_s
        assert case.scheduled is not None
        assert case.theirs == pytest.approx(max(case.scheduled, moved))


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("llm_v7x_decode_block", 0.12), ("llm_v6e_decode_block", 0.12), ("llm_v5e_decode_block", 0.12),
        ("llm_v7x_decode_products", 0.1), ("llm_v7x_prefill_products", 0.1),
    ],
)  # fmt: skip
def test_blocks_are_near_the_code(name: str, most: float) -> None:
    plan = Validation([token_sets()[name]])
    (compared,) = plan.comparisons({each: taken(each) for each in plan.simulations})
    assert compared.ours.mean <= most
