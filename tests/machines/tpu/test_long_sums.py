"""Products of every size: the reduction comes in chunks where it is long, and neither array nor HBM waits for long."""

from __future__ import annotations

from functools import cache

import pytest

from tests.checks import check_layer
from tests.strategies import conv, machine
from tpusim.machines.tpu import event
from tpusim.machines.tpu.description import load_hardware
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST
from tpusim.machines.tpu.observation.timeline import Timing
from tpusim.machines.tpu.program.program import ExplainedProgram
from tpusim.network.ops.array_op import Conv2d, Gemm

HARDWARE = load_hardware("tpu_v2")


@cache
def product(m: int, n: int, k: int) -> ExplainedProgram:
    return CHANNEL_FIRST.lower(Gemm("product", m=m, n=n, k=k), 1, HARDWARE)


def timing(m: int, n: int, k: int) -> Timing:
    return event.run(product(m, n, k)[0], HARDWARE)


def bound(m: int, n: int, k: int) -> float:
    """Cycles of the array for all passes, or of HBM for every operand and result once, whichever is greater."""
    passes = -(-k // HARDWARE.array.rows) * -(-n // HARDWARE.array.cols)
    moved = HARDWARE.vector_memory.element_bytes * (m * k + k * n + m * n)
    return max(passes * m, moved / float(HARDWARE.hbm_bytes_per_cycle))


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (128, 128, 16_384), (128, 16_384, 128), (1_024, 1_024, 1_024), (16_384, 128, 128),
        (1_048_576, 128, 128), (214, 454, 25_901),
        *(pytest.param(*sizes, marks=pytest.mark.long) for sizes in (
            (1_024, 128, 131_072), (128, 128, 1_024), (128, 128, 131_072),
            (128, 1_024, 16_384), (128, 1_024, 1_024), (128, 128, 1_048_576),
            (1_024, 128, 128), (1_024, 1_024, 128), (1_024, 1_024, 65_536), (16_384, 128, 16_384),
            (16_384, 16_384, 128), (16_384, 16_384, 1_024), (131_072, 128, 128), (131_072, 1_024, 1_024),
            (1_048_576, 1_024, 128), (128, 256, 20_000), (292, 520, 22_562),
        )),
    ],
)  # fmt: skip
def test_products_are_near_the_bound_of_array_or_hbm(m: int, n: int, k: int) -> None:
    """Within 5 %, and what the first words in and the last words out take: a product of a single pass, twice."""
    alone = timing(128, 128, 128).cycles
    assert bound(m, n, k) <= timing(m, n, k).cycles <= 1.05 * bound(m, n, k) + 2 * alone


@pytest.mark.parametrize("k", [65_536, pytest.param(262_144, marks=pytest.mark.long)])
def test_many_terms_keep_the_array_busy(k: int) -> None:
    """And read every operand once."""
    m, n = 1_024, 1_024
    program, explanation = product(m, n, k)
    assert m * n * k / HARDWARE.pes / timing(m, n, k).cycles >= 0.9
    assert program.use.hbm_read_bytes == HARDWARE.vector_memory.element_bytes * (m * k + k * n)
    assert explanation.blocking.chunks > 1
    assert f"the reduction comes in {explanation.blocking.chunks:,} chunks of" in explanation.aspects["chunks"]


def test_a_sum_that_fits_comes_at_once() -> None:
    _, explanation = product(1_024, 1_024, 1_024)
    assert explanation.blocking.chunks == 1
    assert "chunks" not in explanation.aspects


@pytest.mark.long
def test_half_a_million_terms_fit() -> None:
    assert timing(1_024, 128, 524_288).cycles < 1.05 * bound(1_024, 128, 524_288)


@pytest.mark.parametrize(
    "layer",
    [
        pytest.param(Gemm("long", m=128, n=32, k=100_000), marks=pytest.mark.long),
        Conv2d("filter", 1, 3, 5_000, 64, (1, 4_990), (1, 1), (0, 0), (1, 1), 1),
    ],
)
def test_long_sums_are_right(layer: Gemm | Conv2d) -> None:
    """A product, and a filter whose taps do not fit together."""
    program, explanation = CHANNEL_FIRST.lower(layer, 1, HARDWARE)
    assert explanation.blocking.chunks > 1
    verdict = check_layer(layer, 1, program, HARDWARE, seed=0)
    assert (verdict.checked, verdict.mismatched) == (layer.outputs(1), 0)


def test_sums_of_several_column_folds_stay_while_chunks_come_and_go() -> None:
    """Chunk by chunk, all column folds: the ifmap is read once."""
    hardware = machine(4, 4, capacity_words=80, bytes_per_cycle=8)
    layer = Gemm("product", m=16, n=16, k=200)
    program, explanation = CHANNEL_FIRST.lower(layer, 1, hardware)
    assert explanation.blocking.chunks > 1
    assert explanation.choices["kept_folds"] == 4
    assert program.use.hbm_read_bytes == 4 * (16 * 200 + 200 * 16)
    bases = [stream.result_base for stream in program.streams]
    first_chunk = len(bases) // explanation.blocking.chunks
    assert len({*bases[:first_chunk]}) == 4


@pytest.mark.parametrize(("size", "kernel"), [(7_680, 3), (1_000, 1), (77, 5)])
def test_a_wide_layer_takes_no_longer_than_a_tall_one(size: int, kernel: int) -> None:
    """At batch 1 words are filled from strips, whichever axis is long."""
    cycles = []
    for height, width, taps in ((size, 1, (kernel, 1)), (1, size, (1, kernel))):
        layer = Conv2d("strip", 128, height, width, 128, taps, (1, 1), (0, 0), (1, 1), 1)
        cycles.append(event.run(CHANNEL_FIRST.lower(layer, 1, HARDWARE)[0], HARDWARE).cycles)
    assert max(cycles) <= 1.03 * min(cycles)


def test_the_longer_axis_is_cut() -> None:
    """And a map that lies is read as often as one that stands."""
    strips, read = [], []
    for height, width in ((20, 3_000), (3_000, 20)):
        layer = Conv2d("map", 64, height, width, 64, (3, 3), (1, 1), (1, 1), (1, 1), 1)
        program, explanation = CHANNEL_FIRST.lower(layer, 1, HARDWARE)
        strips.append(explanation.blocking.strips)
        read.append(program.use.hbm_read_bytes)
    assert strips[0] == strips[1]
    assert max(read) < 1.1 * min(read)


def test_both_axes_are_cut_where_neither_fills_the_word() -> None:
    """Two by two strips of a 2 x 2 map share the words of four elements."""
    program, explanation = CHANNEL_FIRST.lower(conv(3, 2, 3, 1), 1, machine(4, 4, word_elements=4))
    assert explanation.blocking.strips == 4
    assert program.streams[0].words == 1
