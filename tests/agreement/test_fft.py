"""Convolutions by Fourier transforms: what they take, what floating point loses, who they are for, where they win."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import log2

import numpy as np
import pytest

from tests.agreement.engines import agree
from tests.agreement.test_tiles import worked_out
from tests.rules import rule
from tests.strategies import conv, machine
from tpusim import simulate
from tpusim.base.errors import CapacityError
from tpusim.flow.verify import expected, operands_of
from tpusim.machines.tpu import datapath
from tpusim.machines.tpu.description import Hardware, load_hardware
from tpusim.machines.tpu.lowering.registry import lowered
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload, Step, Stream, Vector
from tpusim.machines.tpu.program.transfers import Spill
from tpusim.machines.tpu.tiles.fft import ErrorBound, fourier_tiles, growth, products, real_transform, waves, weighted
from tpusim.machines.tpu.tiles.tile_algorithm import Recipe
from tpusim.network.ops.array_op import Conv2d
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload

LENGTHS = [2, 4, 8, 16, 32]


def operations(recipe: Recipe) -> int:
    """Of the vector unit's ALUs, as a step counts them."""
    return sum(lines * operations for (_, operations), lines in recipe.kinds.items())


# ---- the transforms


@rule("T105")
@pytest.mark.parametrize("length", LENGTHS)
def test_split_radix_takes_as_many_operations_as_published(length: int) -> None:
    """2 N log2 N - 4 N + 6 (Sorensen and others), and as many transposed: 70 of 16 numbers."""
    graph = real_transform(length)
    published = 2 * length * log2(length) - 4 * length + 6
    assert operations(graph.recipe()) == operations(graph.transposed(length).recipe(over_inputs=True)) == published


@rule("T105", "T107")
@pytest.mark.parametrize("length", LENGTHS)
def test_every_recipe_makes_what_the_matrix_says(length: int) -> None:
    graph, matrix = real_transform(length), waves(length)
    for recipe in (graph.recipe(), graph.run_together().recipe()):
        np.testing.assert_allclose(worked_out(recipe, length), matrix, atol=1e-14)
    for wanted in range(1, length + 1, 3):
        back = graph.transposed(wanted)
        for recipe in (back.recipe(over_inputs=True), back.run_together().recipe(over_inputs=True)):
            np.testing.assert_allclose(worked_out(recipe, length), matrix.T[:wanted], atol=1e-14)


def test_what_sums_may_lose_by_hand() -> None:
    """A sum may be as large as what it adds up, and is off by their errors and by g of all that, errors included."""
    half, big = ErrorBound(1.0, 0.5), ErrorBound(8.0, 4.0)
    assert weighted([(big, 0.5), (half, -2.0)]) == (6, 3 + growth(2) * 9)
    # Each of three products is off by 0.5 of at most 12, and by 4 of 1.
    assert products(half, big, 3) == (24, 30 + growth(3) * 54)


@rule("T108")
def test_words_are_saved_for_operations() -> None:
    """Sums run together are for machines whose port is the bottleneck."""
    few, together = real_transform(16).recipe(), real_transform(16).run_together().recipe()
    assert [sum(len(line.factors) + 1 for line in recipe) for recipe in (few, together)] == [182, 150]
    assert [operations(recipe) for recipe in (few, together)] == [70, 114]


@rule("T106")
@pytest.mark.parametrize(("taps", "each"), [(3, 2.59), (5, 3.53), (7, 5.08), (11, 14.11)])
def test_multiplications_an_output(taps: int, each: float) -> None:
    by = fourier_tiles(16, (taps, taps))
    assert round(by.multiplications / by.outputs, 2) == each
    assert len(by.products) == 256


# ---- what floating point loses

LAYER = Conv2d("conv", 2, 16, 16, 1, (7, 3))
"""Just one tile, no number of which is padding."""
HARDWARE = machine(4, 4, word_elements=1)


def written(program: Program) -> np.ndarray:
    return datapath.run(program, HARDWARE, operands_of(LAYER, 1, seed=3))["ofmap"]


@pytest.fixture(scope="module")
def program() -> Program:
    return lowered(LAYER, 1, HARDWARE, "fft")[0]


def unrounded(program: Program) -> Program:
    """Spills leave numbers as they are."""
    (ofmap,) = (each for each in program.tensors if each.name == "ofmap")
    plain = replace(ofmap, lost=0.0)
    steps = tuple(replace(step, tensor=plain) if isinstance(step, Spill) else step for step in program.rows)
    return replace(program, tensors=(*(each for each in program.tensors if each != ofmap), plain), rows=steps)


def test_what_is_lost_is_within_the_bound_and_rounded_away(program: Program) -> None:
    right, bound = expected(LAYER, operands_of(LAYER, 1, seed=3)), program.tensor("ofmap").lost
    off = np.abs(written(unrounded(program)) - right).max()
    assert 0 < off <= bound < 0.5
    np.testing.assert_array_equal(written(program), right)


@pytest.mark.parametrize("channels", [1, 64, 512, 4096])
@pytest.mark.parametrize("taps", [1, 5, 7, 11, 15])
def test_rounding_finds_the_right_whole_number(taps: int, channels: int) -> None:
    """Whatever the operands: two whole numbers are never as near."""
    assert 0 < fourier_tiles(16, (taps, taps)).lost(channels) < 0.07


ONE_PE = machine(1, 1, word_elements=1, alus=1000, bytes_per_cycle=5000, latency_cycles=1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("layer", "hardware"),
    [(LAYER, HARDWARE), (conv(1, 4, 1, 2), ONE_PE)],
    ids=["full tile", "least"],
)
def test_both_engines_to_the_cycle_in_tiles_of_16(layer: Conv2d, hardware: Hardware) -> None:
    """Some 11,000 cycles at the least: a tile is of 256 products, however few of its outputs there are."""
    agree(layer, 1, lowered(layer, 1, hardware, "fft")[0], hardware, seed=3)


def turned(step: Step) -> Step:
    """One factor of a transform a thousandth larger, where it has any but 1."""
    if not isinstance(step, Vector) or abs(step.coefficients[0]) == 1:
        return step
    return replace(step, coefficients=(step.coefficients[0] * 1.001, *step.coefficients[1:]))


def moved(step: Step) -> Step:
    """Sums a word further on."""
    return replace(step, result_base=step.result_base + 1) if isinstance(step, Stream) else step


def exchanged(step: Step) -> Step:
    """The weights of another product."""
    return replace(step, base=step.base + step.words) if isinstance(step, Preload) else step


def negated(step: Step) -> Step:
    """A sum instead of a difference."""
    if not isinstance(step, Vector) or step.coefficients != (1, -1):
        return step
    return replace(step, coefficients=(1.0, 1.0))


@pytest.mark.parametrize("corrupt", [turned, moved, exchanged, negated])
def test_one_wrong_step_is_seen(program: Program, corrupt: Callable[[Step], Step]) -> None:
    """Any of those that it can be: every hundredth is tried."""
    right = expected(LAYER, operands_of(LAYER, 1, seed=3))
    able = [at for at, step in enumerate(program.rows) if corrupt(step) != step]
    for at in able[::100]:
        steps: Sequence[Step] = [corrupt(step) if at == here else step for here, step in enumerate(program.rows)]
        assert (written(replace(program, rows=tuple(steps))) != right).any()


# ---- who it is for

OTHERS: dict[str, Op] = {
    "16x16": conv(8, 20, 8, 16),
    "1x1": conv(8, 20, 8, 1),
    "stride 2": conv(8, 9, 8, 5, stride=2),
    "dilated": conv(8, 9, 8, 3, dilation=2),
    "grouped": conv(8, 9, 8, 5, groups=2),
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_layers_are_refused(other: str) -> None:
    with pytest.raises(CapacityError, match="FFT of 16 x 16 takes convolutions of 2 to 15 x 15 taps, stride 1"):
        lowered(OTHERS[other], 2, machine(), "fft")


def test_too_little_memory_says_how_much_would_do() -> None:
    with pytest.raises(CapacityError, match="capacity to at least"):
        lowered(LAYER, 2, machine(capacity_words=200), "fft")


# ---- how fast


def cycles(layer: Conv2d, lowering: str, alus: int) -> tuple[int, str]:
    hardware = load_hardware("tpu_v2", {"vector_unit.alus": alus})
    (found,) = simulate(Workload("net", 8, (layer,)), hardware, lowering=lowering, check=False).layers
    return found.cycles, found.lowering


@pytest.mark.long
def test_auto_takes_it_where_it_is_the_fastest() -> None:
    layer = conv(128, 28, 128, 7, padding=3)
    (direct, _), (tiles, _), found = (cycles(layer, each, 256) for each in ("channel_first", "fft", "auto"))
    assert direct > 1.2 * tiles
    assert found == (tiles, "fft")


@pytest.mark.long
def test_every_output_of_a_layer_of_large_kernels() -> None:
    workload = Workload("net", 8, (conv(64, 14, 64, 7, padding=3),))
    (found,) = simulate(workload, load_hardware("tpu_v2", {"vector_unit.alus": 2048}), lowering="fft").layers
    assert (found.outputs_checked, found.outputs_mismatched) == (found.outputs, 0)
