"""Time that follows the type of operands: bytes, rates and results of `types`."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rules import rule
from tpusim import Workload, load_hardware, simulate
from tpusim.machines.family import peak_tflops
from tpusim.machines.tpu.program.steps import Preload
from tpusim.machines.tpu.program.transfers import Spill
from tpusim.machines.tpu.runs.fastest_draft import prepared
from tpusim.machines.tpu.sections import Arrangement
from tpusim.network.ops.array_op import Gemm
from tpusim.numerics.element_types import ELEMENT_TYPES, to_float8, to_float16
from tpusim.report.plots.run import hardware_of
from tpusim.report.tables.sentences import heading
from tpusim.result.records import LayerResult

PRODUCT = Gemm("product", 64, 24, 32)
NARROW = ["types.int8.bytes=1", "types.int8.rate=2", "types.int8.result_bytes=4"]


def run(changes: list[str], dtype: str) -> LayerResult:
    """The product by both engines, every output checked."""
    machine = load_hardware("tiny_4x4", ["vector_memory.word_elements=4", "vector_memory.ports=separate", *changes])
    result = simulate(Workload("one", 1, [PRODUCT]), machine, engine="both", dtype=dtype)
    assert result.correct
    return result.layers[0]


def test_bytes_and_rates_of_a_type() -> None:
    """Operands have a quarter of the bytes, results as many as before, and passes take half of the time."""
    whole, narrow = run(NARROW, "integers"), run(NARROW, "int8")
    # A burst is the least that moves, so operands that fill whole bursts tell.
    assert narrow.hbm_read_bytes < whole.hbm_read_bytes / 2
    assert narrow.hbm_write_bytes == whole.hbm_write_bytes
    assert narrow.cycles < whole.cycles


def test_a_type_that_is_not_told_of_takes_no_other_time() -> None:
    """As on the machine of the paper, where nothing is gained."""
    assert run([], "int8").cycles == run([], "integers").cycles
    machine = load_hardware("tpu_v2")
    assert machine.of_type("int8") is machine


def test_words_keep_their_elements_or_hold_more() -> None:
    """A narrow type fills the bytes of a word; a wide one has as many elements in more bytes."""
    machine = load_hardware("tpu_v5e")
    assert (machine.vector_memory.word_elements, machine.word_bytes) == (8, 16)
    narrow, wide = machine.of_type("int8"), machine.of_type("f32")
    assert (narrow.vector_memory.word_elements, narrow.word_bytes) == (16, 16)
    assert (wide.vector_memory.word_elements, wide.word_bytes) == (8, 32)
    assert narrow.macs_per_cycle == 2 * machine.macs_per_cycle


def test_a_run_is_measured_against_the_peak_of_its_type() -> None:
    for dtype, peak in (("int8", 393.22), ("bf16", 196.61)):
        run = simulate(Workload("one", 1, [PRODUCT]), load_hardware("tpu_v5e"), dtype=dtype)
        assert heading(run).endswith(f"; peak {peak} TFLOPS")
        assert peak_tflops(hardware_of(run)) == pytest.approx(peak, rel=1e-4)


@rule("T52")
def test_converted_weights_have_a_pace_of_their_own() -> None:
    """TPU v6e has no e4m3: weights enter more slowly, and the array takes as many elements as of bf16.

    Both arrays together take as many as one: with weights of their own, half as many each.
    """
    machine = load_hardware("tpu_v6e")
    converted = machine.of_type("f8")
    rates = [converted.arranged(Arrangement(each, 1)).array.weights_per_cycle for each in ("shared", "own")]
    assert rates == [2, 1]
    assert machine.array.weights_per_cycle == machine.arranged(Arrangement("own", 1)).array.weights_per_cycle == 4
    assert converted.macs_per_cycle == machine.macs_per_cycle


@rule("T50")
def test_converted_activations_delay_every_body() -> None:
    """Of a step of a pipeline: 4 words of rows for each of 4 row folds, 5/2 cycles each, whether new or not."""
    changes = ["mapping.loads=windows", "sequencer.between_blocks=drain", "mapping.block.out_channels=8"]
    machine = load_hardware(
        "tiny_4x4", ["vector_memory.word_elements=4", "types.int8.bytes=4", "types.int8.convert_cycles=5/2", *changes]
    )
    program = prepared(Gemm("product", 16, 24, 16), 1, machine.of_type("int8"), "channel_first").program
    waits = [step.delay for step in program.rows if isinstance(step, Preload) and step.delay]
    assert waits == [40, 40, 40]
    result = simulate(Workload("one", 1, [Gemm("product", 16, 24, 16)]), machine, engine="both", dtype="int8")
    assert result.correct


@rule("T52")
def test_weights_are_converted_beside_passes_and_results_behind_them() -> None:
    """By hand: a body has 4 passes for each of 2 column folds. Each streams 4 words in 16 cycles, loads a word of
    weights, and all but the first add to sums, 2 cycles a word as a lane has 2 ALUs. So weights of 30 cycles a word
    take 8 x 30 + 6 x 4 x 2 cycles, of which passes hide 8 x 16. The last body leaves 4 words of each column fold.
    """
    changes = ["mapping.loads=windows", "sequencer.between_blocks=drain", "mapping.block.out_channels=8"]
    changes += ["mapping.block.in_channels=16", "types.f16.bytes=4", "vector_memory.word_elements=4"]
    layer, waits = Gemm("product", 16, 8, 32), {}
    for weights, results in ((30, 0), (2, 0), (0, "5/2"), (30, "5/2")):
        types = [f"types.f16.convert_weight_cycles={weights}", f"types.f16.convert_result_cycles={results}"]
        machine = load_hardware("tiny_4x4", [*changes, *types])
        program = prepared(layer, 1, machine.of_type("f16"), "channel_first").program
        waits[weights, results] = [step.delay for step in program.rows if isinstance(step, Preload) and step.delay]
        assert simulate(Workload("one", 1, [layer]), machine, engine="both", dtype="f16").correct
    # The second body adds in all of its passes. Where passes hide all of it, they still wait for their first weights.
    assert waits[30, 0] == [8 * 30 + 6 * 8 - 8 * 16, 8 * 30 + 8 * 8 - 8 * 16]
    assert waits[2, 0] == [2, 2]
    assert waits[0, "5/2"] == [20]
    assert waits[30, "5/2"] == [160, 176 + 20]


def test_arrays_with_weights_of_their_own_wait_for_what_is_converted() -> None:
    """The delay stands on the first preload of a body, and the first of the other array waits for it."""
    changes = ["array.count=2", "array.weights=own", "mapping.loads=windows", "sequencer.between_blocks=drain"]
    changes += ["vector_memory.word_elements=4", "vector_memory.ports=separate"]
    changes += ["mapping.block.out_channels=16", "mapping.block.images=16"]
    machine = load_hardware("tiny_4x4", [*changes, "types.f16.bytes=4", "types.f16.convert_result_cycles=100"])
    layer = Gemm("product", 16, 16, 8)
    program = prepared(layer, 1, machine.of_type("f16"), "channel_first").program
    loads = [(number, step) for number, step in enumerate(program.rows) if isinstance(step, Preload)]
    firsts = {array: next((n, step) for n, step in loads if step.array == array) for array in (0, 1)}
    (first, delayed), (_, other) = firsts[0], firsts[1]
    assert (delayed.delay, other.delay) == (4 * 4 * 100, 0)
    assert first in other.after
    assert simulate(Workload("one", 1, [layer]), machine, engine="both", dtype="f16").correct


def test_windows_hold_converted_operands_beside_those_that_come() -> None:
    """The same window has room for fewer elements, so there are more steps."""
    changes = ["mapping.loads=windows", "sequencer.between_blocks=drain", "mapping.window=3KiB"]
    changes.append("mapping.search=estimate")
    steps = []
    for kept in (0, 4):
        types = ["types.int8.bytes=4", "types.int8.convert_cycles=1", f"types.int8.convert_bytes={kept}"]
        machine = load_hardware("tiny_4x4", ["vector_memory.capacity=64KiB", *changes, *types]).of_type("int8")
        program = prepared(Gemm("product", 64, 64, 64), 1, machine, "channel_first").program
        steps.append(sum(isinstance(step, Spill) for step in program.rows))
    assert steps[0] < steps[1]


@pytest.mark.parametrize("name", ["tpu_v5e", "tpu_v6e", "tpu_v7x_core"])
def test_compute_bound_products_gain_what_the_peak_does(name: str) -> None:
    """A large product of int8 takes less time where the array has that type, else about as long."""
    large, machine = Gemm("large", 4096, 1024, 2048), load_hardware(name)
    plain, narrow = (
        prepared(large, 1, each, "channel_first").timing.cycles for each in (machine, machine.of_type("int8"))
    )
    gain = plain / narrow
    assert gain > 1.2 if machine.types.int8 and machine.types.int8.rate == 2 else 0.9 < gain < 1.3


def test_float16_has_eleven_bits_and_ends_at_65504() -> None:
    """By hand, from IEEE 754: ties to even, small steps below 2^-14, and infinity beyond the last number."""
    given = [2049, 2051, 65519, 65520, -1e9, 2**-24, 2**-26, 1 + 2**-11, 1 + 3 * 2**-11, 0.0]
    wanted = [2048, 2052, 65504, np.inf, -np.inf, 2**-24, 0.0, 1.0, 1 + 2**-9, 0.0]
    assert to_float16(np.array(given)).tolist() == wanted
    assert np.isnan(to_float16(np.array([np.nan]))).all()
    drawn = ELEMENT_TYPES["f16"].drawn(np.random.default_rng(0), (1000,))
    assert (to_float16(drawn) == drawn).all()
    assert len({*(drawn * 2**10 % 1).tolist()}) > 2


def test_e4m3_has_four_bits_and_ends_at_448() -> None:
    """By hand, from the OCP specification of 8-bit floating point."""
    given = [1.06, 1.0625, 1.19, 500, -449, 2**-9, 2**-10, 17, 19, 0.0]
    assert to_float8(np.array(given)).tolist() == [1.0, 1.0, 1.25, 448, -448, 2**-9, 0.0, 16, 20, 0.0]
    assert np.isnan(to_float8(np.array([np.nan]))).all()
    drawn = ELEMENT_TYPES["f8"].drawn(np.random.default_rng(0), (1000,))
    assert (to_float8(drawn) == drawn).all()
