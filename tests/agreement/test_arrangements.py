"""Arrays that layers arrange in ways of their own, and bodies that are steps of a pipeline."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.agreement.test_agreement import MOST_CYCLES, least_cycles, suppose
from tests.covering import covering
from tests.rules import rule
from tests.strategies import among, cases, conv, machines_of_all_kinds, small_layers
from tpusim.base.errors import CapacityError, InputError
from tpusim.flow.simulation import simulate
from tpusim.machines.tpu.description import Hardware, load_hardware
from tpusim.machines.tpu.program.steps import Preload
from tpusim.machines.tpu.program.transfers import InboundTransfer, Spill
from tpusim.machines.tpu.runs.fastest_draft import prepared
from tpusim.machines.tpu.sections import Arrangement, BlockSizes
from tpusim.network.ops.array_op import Gemm
from tpusim.network.workload import Workload

PIPELINED = {"mapping.loads": "windows", "sequencer.between_blocks": "drain", "mapping.column_folds": "all"}


@st.composite
def arranged(draw: st.DrawFn) -> Hardware:
    """Machines of all kinds without banks, whose layers choose how they use several arrays."""
    hardware = draw(machines_of_all_kinds(12).filter(lambda each: not each.banked))
    rows, cols = (max(2, side) for side in (hardware.array.rows, hardware.array.cols))
    more: dict[str, Any] = {"count": draw(among(1, 2, 3)), "weights": draw(among("either", "either", "own"))}
    more["weights_rate"] = draw(among("each", "all"))
    array = hardware.array.model_copy(update={"rows": rows, "cols": cols, "split": draw(among(1, 2)), **more})
    return hardware.model_copy(update={"array": array})


@settings(max_examples=cases(0.1), deadline=None, suppress_health_check=list(HealthCheck))
@given(small_layers(), st.integers(1, 9), arranged(), among("channel_first", "implicit_gemm", "channel_last"))
def test_engines_and_values_agree(layer: Any, batch: int, hardware: Hardware, lowering: str) -> None:
    """By both engines, every output checked."""
    suppose(layer.macs(batch) / hardware.pes < 800)
    suppose(least_cycles(layer, batch, hardware) < MOST_CYCLES)
    try:
        result = simulate(Workload("one", batch, (layer,)), hardware, lowering=lowering, engine="both")
    except CapacityError:
        assume(False)
    assert result.total.outputs_mismatched == 0
    assert result.total.outputs_checked == result.total.outputs


def test_steps_of_a_pipeline_may_fetch_each_tap_by_itself() -> None:
    """A given block that holds several taps holds one at a time then."""
    changes = {**PIPELINED, "mapping.fetch": "per_tap", "mapping.block.taps": 2, "mapping.block.in_channels": 1}
    machine = load_hardware("tiny_4x4", [f"{path}={value}" for path, value in changes.items()])
    result = simulate(Workload("one", 2, (conv(5, 5, 3, 2),)), machine, engine="both")
    assert (result.total.outputs_mismatched, result.total.outputs_checked) == (0, 2 * 3 * 4 * 4)


@rule("T25")
def test_few_output_channels_split_the_array() -> None:
    """They take half of the time that they would on whole arrays, where ports let all of them work."""
    changes = ["array.rows=8", "array.cols=8", "array.count=2", "vector_memory.ports=separate"]
    whole = load_hardware("tiny_4x4", changes)
    split = whole.with_overrides(["array.split=2"])
    layer = conv(4, 12, 4, 3, padding=1)
    ready = [prepared(layer, 8, each, "channel_first") for each in (whole, split)]
    assert [each.draft and each.draft.arrangement for each in ready] == [
        Arrangement("shared", 1),
        Arrangement("shared", 2),
    ]
    assert ready[1].running.array.count == 4
    assert ready[1].running.pes == whole.pes // 2
    wide = conv(4, 12, 5, 3, padding=1)
    assert prepared(wide, 8, split, "channel_first").running.array.split == 1 or split.array.cols // 2 < 5


@rule("T24")
def test_few_rows_take_weights_of_their_own() -> None:
    """A product of a word of rows waits for weights: with weights of their own, arrays load them beside one another."""
    changes = {"array.count": 4, "array.weights": "either", "vector_memory.ports": "separate", **PIPELINED}
    changes |= {"hbm.bandwidth": "5000GB/s", "vector_memory.capacity": "64KiB"}
    machine = load_hardware("tiny_4x4", [f"{path}={value}" for path, value in changes.items()])
    few, many = Gemm("few", 2, 64, 64), Gemm("many", 512, 4, 64)
    assert prepared(few, 1, machine, "channel_first").running.array.weights == "own"
    assert prepared(many, 1, machine, "channel_first").running.array.weights == "shared"


@rule("T24")
def test_estimates_of_arrangements_that_the_bus_makes_alike_do_not_decide() -> None:
    """Estimates of 39,123 and 39,125 cycles: the first, with weights of their own and small blocks, took 72,879."""
    ready = prepared(conv(56, 64, 64, 3, padding=1), 8, load_hardware("tpu_v7x_core"), "explicit")
    assert ready.running.array.weights == "shared"


@rule("T43")
def test_a_step_of_the_pipeline_waits_for_its_windows_and_keeps_its_results() -> None:
    """All that a body reads is on its way before its first preload, and nothing leaves before its last pass."""
    machine = load_hardware("tiny_4x4", [f"{path}={value}" for path, value in PIPELINED.items()])
    program = prepared(Gemm("product", 16, 16, 8), 1, machine, "channel_first").program
    first = next(at for at, step in enumerate(program.rows) if isinstance(step, Preload))
    spills = [at for at, step in enumerate(program.rows) if isinstance(step, Spill)]
    ahead = [step for step in program.rows[:first] if isinstance(step, InboundTransfer)]
    assert {step.tensor.name for step in ahead} == {"ifmap", "filter"}
    for at in spills:
        last = max(index for index in program.rows[at].after)
        assert last in {step.preload + 1 for step in program.streams}


@rule("T46")
def test_a_window_is_no_larger_than_it_may_be() -> None:
    """A step of more bytes than allowed is cut; a smaller window means more bodies."""
    product = Gemm("product", 64, 64, 64)
    blocks = []
    for window in ("64KiB", "4KiB", "1KiB"):
        changes = [f"{path}={value}" for path, value in PIPELINED.items()] + [f"mapping.window={window}"]
        machine = load_hardware("tiny_4x4", [*changes, "vector_memory.capacity=64KiB", "mapping.search=estimate"])
        ready = prepared(product, 1, machine, "channel_first")
        tiling = ready.explanation.choices
        parts = -(-16 // int(tiling["chunk_folds"]))
        blocks.append(int(tiling["blocks"]) * parts * -(-16 // int(tiling["kept_folds"])))
    assert blocks[0] < blocks[1] < blocks[2]


def pipelined(**more: str | int) -> Hardware:
    """A machine whose bodies are steps of a pipeline, in given blocks, and whose HBM never keeps it waiting."""
    changes: dict[str, str | int] = {
        **PIPELINED, "hbm.bandwidth": "100 TB/s", "hbm.latency": "1 ps", "vector_memory.ports": "separate",
        "vector_memory.capacity": "64 KiB", "mapping.search": "estimate",
    }  # fmt: skip
    blocks = {f"mapping.block.{name}": size for name, size in more.items() if name in BlockSizes.model_fields}
    rest = {name.replace("__", "."): value for name, value in more.items() if name not in BlockSizes.model_fields}
    return load_hardware("tiny_4x4", [f"{path}={value}" for path, value in {**changes, **blocks, **rest}.items()])


@rule("T45")
@pytest.mark.parametrize(
    ("of", "weights"),
    covering(
        1,
        [
            ((64, 12, 8), 2),  # a column fold of two in the last window: two passes
            ((64, 20, 8), 2),
            ((96, 8, 8), 2),  # half of the rows, of two folds and two passes each
            ((64, 8, 12), 2),  # a row fold of two, for two column folds
            ((64, 8, 4), 0),
            ((128, 16, 16), 0),
        ],
        ["own", "shared"],
    ),
)
def test_the_last_windows_are_computed_whole(of: tuple[tuple[int, int, int], int], weights: str) -> None:
    """64 rows, two column folds and two row folds are a window: where the last has less, its body idles for the rest.

    Of arrays with weights of their own each takes a column fold, so that a fold less saves neither of them a pass.
    """
    sizes, missing = of
    machine = pipelined(images=64, out_channels=8, in_channels=8, array__count=2, array__weights=weights)
    layer = Gemm("product", *sizes)
    program = prepared(layer, 1, machine, "channel_first").program
    frame, words = program.frame(machine), max(each.words for each in program.streams)
    a_pass = max(frame.frames(words) * frame.period, machine.preload_cycles)
    shares = {(64, 12, 8): 0, (64, 20, 8): 0, (96, 8, 8): 1, (64, 8, 12): 1}
    passes = shares.get(sizes, 0) if weights == "own" else missing
    assert [each.delay for each in program.rows if isinstance(each, Preload) if each.delay] == [passes * a_pass] * (
        passes > 0
    )
    result = simulate(Workload("one", 1, (layer,)), machine, engine="both")
    assert (result.total.outputs_mismatched, result.total.outputs_checked) == (0, sizes[0] * sizes[1])


@rule("T45")
def test_no_window_hangs_over_where_all_are_full() -> None:
    """And no body idles."""
    machine = pipelined(images=16, out_channels=8, in_channels=8)
    rows = prepared(Gemm("product", 32, 16, 16), 1, machine, "channel_first").program.rows
    assert not any(each.delay for each in rows if isinstance(each, Preload))


@rule("T44")
@pytest.mark.parametrize(("m", "blocks"), [(16, 1), (32, 2), (64, 4)])
def test_a_window_comes_whenever_it_is_not_that_of_the_step_ahead(m: int, blocks: int) -> None:
    """Two row folds take turns, so both operands come in every step, though there are two slots for each."""
    program = prepared(Gemm("product", m, 4, 8), 1, pipelined(images=16, in_channels=4), "channel_first").program
    came = [step.tensor.name for step in program.rows if isinstance(step, InboundTransfer)]
    assert came.count("filter") == came.count("ifmap") == 2 * blocks
    whole = prepared(Gemm("product", m, 4, 8), 1, pipelined(images=16), "channel_first").program
    came = [step.tensor.name for step in whole.rows if isinstance(step, InboundTransfer)]
    assert came.count("filter") == 1


@rule("T49")
def test_bodies_of_a_loop_take_longer_than_one_by_itself() -> None:
    machine = pipelined(images=16, sequencer__block_cycles=5, sequencer__loop_cycles=7)
    for m, delays in ((16, [5]), (48, [12] * 3)):
        rows = prepared(Gemm("product", m, 4, 4), 1, machine, "channel_first").program.rows
        assert [each.delay for each in rows if isinstance(each, Preload)] == delays


@rule("T24")
def test_arrays_that_share_rows_load_tiles_beside_one_another() -> None:
    """Up to a word of weights a cycle; not where all arrays have one rate, nor where they have no choice."""
    machine = load_hardware("tpu_v5e")
    shared, own = (machine.arranged(Arrangement(weights, 1)) for weights in ("shared", "own"))
    assert (machine.array.count, machine.array.weights_per_cycle, machine.vector_memory.word_elements) == (4, 4, 8)
    assert (shared.array.weights_per_cycle, own.array.weights_per_cycle) == (8, 4)
    only = machine.with_overrides(["array.weights=shared"])
    assert only.arranged(Arrangement("shared", 1)).array.weights_per_cycle == 4
    among_all = machine.with_overrides(["array.weights_rate=all"])
    assert among_all.arranged(Arrangement("shared", 1)).array.weights_per_cycle == 4


@rule("T25")
def test_a_wavefront_still_crosses_the_array_that_is_split() -> None:
    machine = load_hardware("tpu_v6e")
    whole, split = (machine.arranged(Arrangement("shared", parts)) for parts in (1, 2))
    assert (whole.array.pes_per_cycle, split.array.pes_per_cycle) == (3, 2)
    assert split.array.flow_cycles + split.skew > (whole.array.flow_cycles + whole.skew) / 2


def test_an_array_without_room_for_two_is_refused() -> None:
    """In one line, with what to do."""
    with pytest.raises(InputError, match="do not fit on the diagonal: cols is 1"):
        load_hardware("tiny_4x4", ["array.cols=1", "array.split=2"])
