"""Ops of whole rows: right at every level, to the cycle, kept on chip or read again for each stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.agreement.engines import agree, agreed_timing
from tests.agreement.test_agreement import fitted, short, with_capacity
from tests.agreement.test_corruption import change, edit_part, shift_items
from tests.agreement.test_hazards import assert_waits_matter, hazards
from tests.agreement.test_vector_ops import moved, with_first_moved
from tests.checks import check_layer
from tests.covering import covering
from tests.rules import rule
from tests.strategies import cases, fills, machine, machines_of_all_kinds, row_ops, spills
from tpusim import simulate
from tpusim.base.errors import CapacityError, UnsuitableError
from tpusim.flow.jobs import resolve
from tpusim.flow.lowerings import known
from tpusim.flow.numbers import numbers_of
from tpusim.flow.verify import operands_of, verdict_of
from tpusim.machines.tpu import register
from tpusim.machines.tpu.cut.traffic import in_layout
from tpusim.machines.tpu.description import Hardware, load_hardware
from tpusim.machines.tpu.lowering import vector_rows as lowering
from tpusim.machines.tpu.lowering.registry import lowered, planned_of
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Step, Vector
from tpusim.machines.tpu.program.transfers import Fill, Part, Spill
from tpusim.machines.tpu.runs.fastest_draft import prepared
from tpusim.machines.tpu.runs.prepared import as_floats
from tpusim.machines.tpu.schedule.scheduler import planned, program_of
from tpusim.network.ops.elementwise import Relu
from tpusim.network.ops.op import Op
from tpusim.network.ops.rows import (
    CrossEntropy,
    CrossEntropyGradient,
    LayerNorm,
    LayerNormGradient,
    ReduceMean,
    RmsNorm,
    RmsNormGradient,
    RowOp,
    Softmax,
    SoftmaxGradient,
    SumExp,
    SumSquares,
    TopK,
)
from tpusim.network.workload import Workload

LOWERING = "vector_rows"
SMALL = machine(8, 8, word_elements=4, capacity_words=82)
NORM = LayerNorm("norm", 18, 40)
"""Twice as many rows as fit the lanes; they fit once, not twice, beside a scale and a shift."""


WITHOUT_BODIES = "vector_unit.slots.body_cycles=0"


@rule("T70")
def test_what_bodies_take_is_a_share_of_stages_that_make_numbers_of_all_elements() -> None:
    """Rows of 4,096 words: 4 bodies of 60 cycles a stage, and 170 where they are summed; a maximum of rows is one
    instruction, in 32 bodies of 115. Numbers of 512 x 8 rows reach all lanes twice.
    """
    found, given = [], {"body": 60, "sum": 170, "bare": 115, "spread": 4}
    told = tuple(f"vector_unit.slots.{name}_cycles={cycles}" for name, cycles in given.items())
    for changes in (told, (*told, WITHOUT_BODIES)):
        program, _ = lowered(Softmax("softmax", 1024, 4096), 1, load_hardware("tpu_v5e", changes), LOWERING)
        found.append(sum(each.body for each in program.vectors))
    whole = 32 * (115 + 170) + 4 * (60 + 170) + 4 * 60
    # Steps round up, and there are some.
    assert 0 <= found[0] - whole - 2 * 512 * 4 < 300
    assert 0 <= found[1] - 2 * 512 * 4 < 300


@rule("T71")
def test_pieces_of_rows_begin_a_body_where_a_window_is_full() -> None:
    layer, delays = ReduceMean("sum", 1024, 4096), []
    for window in ("1 KiB", "1 MiB"):
        hardware = load_hardware("tpu_v5e", [f"mapping.window={window}", WITHOUT_BODIES])
        program, _ = lowered(layer, 1, hardware, LOWERING)
        delays.append(sum(each.delay for each in program.vectors))
    # 16 pieces of 512 KiB, one in a body or two.
    begun = load_hardware("tpu_v5e").sequencer.block_cycles
    assert delays == [16 * begun, 8 * begun]


@settings(max_examples=cases(1 / 100), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    layer=row_ops(20, 20),
    batch=st.integers(1, 9),
    hardware=machines_of_all_kinds(8, st.sampled_from([1, 2, 3, 8])),
    again=st.booleans(),
)
@example(
    layer=Softmax("s", 33, 6),
    batch=1,
    hardware=machine(4, 4, word_elements=2, vector_unit={"scalar_words": 1}),
    again=True,
)
@example(
    layer=LayerNorm("n", 17, 5),
    batch=1,
    hardware=machine(4, 4, word_elements=1, vector_unit={"scalar_words": 1}),
    again=False,
)
@example(layer=LayerNormGradient("g", 17, 3), batch=1, hardware=machine(4, 4, word_elements=1), again=True)
@example(layer=LayerNormGradient("g", 40, 3), batch=1, hardware=machine(16, 8, word_elements=2), again=False)
@example(
    layer=CrossEntropy("c", 36, 3),
    batch=1,
    hardware=machine(16, 8, word_elements=2, vector_unit={"scalar_words": 1}),
    again=False,
)
@example(
    layer=Softmax("s", 36, 3),
    batch=1,
    hardware=machine(16, 8, word_elements=2, vector_unit={"scalar_words": 1}),
    again=True,
)
@example(
    layer=Softmax("s", 64, 1),
    batch=1,
    hardware=machine(64, 4, word_elements=1, vector_unit={"scalar_words": 1}),
    again=False,
)
@example(layer=Softmax("s", 36, 3, 3, 9), batch=1, hardware=machine(16, 8, word_elements=2), again=True)
@example(
    layer=Softmax("s", 9, 20, 7),
    batch=1,
    hardware=machine(4, 4, word_elements=2, vector_unit={"scalar_words": 1}),
    again=False,
)
@example(layer=LayerNorm("n", 49, 5), batch=1, hardware=machine(32, 4, word_elements=1), again=False)
@example(layer=LayerNorm("n", 19, 5), batch=1, hardware=machine(4, 4, word_elements=1, capacity_words=40), again=False)
@example(layer=TopK("k", 36, 3, 3), batch=1, hardware=machine(16, 8, word_elements=2), again=True)
@example(layer=TopK("k", 8, 9, 8, False), batch=1, hardware=machine(4, 4, word_elements=2), again=False)
@example(layer=RmsNorm("r", 49, 5), batch=1, hardware=machine(32, 4, word_elements=1), again=True)
@example(layer=ReduceMean("m", 64, 2), batch=1, hardware=machine(32, 4, word_elements=2), again=False)
@example(layer=ReduceMean("m", 40, 12), batch=1, hardware=machine(4, 4, capacity_words=12), again=False)
def test_random_layers(layer: RowOp, batch: int, hardware: Hardware, again: bool) -> None:
    """Values at both levels, bit for bit, the engines to the cycle, no wait missing, all steps told ahead."""
    rows = {"rows": "read_again" if again else "kept"}
    hardware = hardware.model_copy(update={"mapping": hardware.mapping.model_copy(update=rows)})
    assert_agreement(layer, batch, hardware, LOWERING)


@rule("T91")
@settings(max_examples=cases(1 / 100), deadline=None, suppress_health_check=list(HealthCheck))
@given(layer=row_ops(20, 20), batch=st.integers(1, 9), hardware=machines_of_all_kinds(8), data=st.data())
def test_rows_dealt_out_in_any_way(layer: RowOp, batch: int, hardware: Hardware, data: st.DataObject) -> None:
    """In any number of shares, of which the first are a channel longer, of any rows at a time: one block or several."""
    rows = layer.rows(batch)[3]
    shares = data.draw(st.integers(1, min(hardware.lanes, layer.channels)), "shares")
    together = data.draw(st.integers(1, hardware.lanes // shares), "lanes of a share")
    fill = data.draw(st.integers(1, min(rows, hardware.vector_memory.word_elements)), "rows of a word")
    assert_dealt(layer, batch, hardware, lowering.Deal(fill, together, shares))


DEALS = lowering.Deal(2, 2, 4), lowering.Deal(1, 2, 3)
DEALT = (
    Softmax("s", 11, 5, 3, 2), LayerNormGradient("g", 11, 5), RmsNormGradient("h", 11, 5), SumExp("e", 11, 5),
    CrossEntropyGradient("d", 11, 5), TopK("k", 11, 5, 2), SoftmaxGradient("b", 11, 5),
)  # fmt: skip
ALSO_DEALT = LayerNorm("n", 11, 5), RmsNorm("r", 11, 5), CrossEntropy("c", 11, 5), ReduceMean("m", 11, 5)
"""Of kinds that are among the examples above, with stages that gradients have too."""


@rule("T91")
@pytest.mark.parametrize(
    ("layer", "dealt"),
    [
        *covering(1, DEALT, DEALS),
        *(pytest.param(*each, marks=pytest.mark.long) for each in product(ALSO_DEALT, DEALS)),
    ],
    ids=lambda each: getattr(each, "op", None),
)
def test_uneven_shares(layer: RowOp, dealt: lowering.Deal) -> None:
    """In several blocks of rows, of which the last has fewer."""
    assert_dealt(layer, 1, machine(8, 4, word_elements=2), dealt)


def assert_dealt(layer: RowOp, batch: int, hardware: Hardware, dealt: lowering.Deal) -> None:
    """Hold everything against everything where rows are dealt out so, in as much memory as that takes."""
    units = lowering.RowUnits(layer, batch, hardware, dealt)
    if not units.fits:
        hardware = with_capacity(hardware, units.words * hardware.word_bytes)
        units = lowering.RowUnits(layer, batch, hardware, dealt)
    assert units.fits
    program = in_layout(program_of(units), hardware)
    assert_right(layer, batch, program, hardware, planned(units).transfers)


def assert_agreement(layer: Op, batch: int, hardware: Hardware, lowering: str) -> None:
    """Hold both engines against one another, both data paths against the reference, and steps against what is told."""
    program, hardware = fitted(layer, batch, hardware, lowering)
    most = planned_of(layer, batch, hardware, lowering)[0]
    assert most is not None
    assert_right(layer, batch, program, hardware, most.transfers)


def assert_right(layer: Op, batch: int, program: Program, hardware: Hardware, most_steps: int) -> None:
    """The same for a Program of at most so many steps."""
    agree(layer, batch, program, hardware, timing=short(program, hardware))
    assert not [*hazards(program, hardware)]
    assert most_steps >= len(program.rows) > 0
    assert spills(program)


@pytest.mark.parametrize(("layer", "dtype"), covering(1, [
        Softmax("s", 18, 40), NORM, ReduceMean("m", 18, 40), LayerNormGradient("g", 18, 40), CrossEntropy("c", 18, 40),
        CrossEntropyGradient("d", 18, 40, factor=0.1), RmsNorm("r", 18, 40), TopK("k", 18, 40),
        Softmax("s", 18, 40, queries=10, window=4), SoftmaxGradient("b", 18, 40),
    ],
    ["f32", "bf16", "int8"],
), ids=lambda each: getattr(each, "op", None))  # fmt: skip
def test_numbers_of_any_type_are_within_the_bound(layer: RowOp, dtype: str) -> None:
    program, _ = lowering.VECTOR_ROWS.lower(layer, 1, SMALL)
    verdict = check_layer(layer, 1, program, SMALL, seed=1, numbers=numbers_of(dtype, "any"))
    assert (verdict.mismatched, verdict.checked) == (0, layer.outputs(1))


# ---- the check bites


def next_rows(part: Part) -> Part:
    """The rows of a lane are those after its own."""
    (lane,) = part.lane
    assert isinstance(lane.coordinates, range)
    after = range(lane.coordinates.start + 1, lane.coordinates.stop + 1, lane.coordinates.step)
    return part._replace(lane=(lane._replace(coordinates=after),))


def with_half(step: Vector) -> Vector:
    return replace(step, coefficients=tuple(each / 2 for each in step.coefficients))


CORRUPTIONS: dict[str, Callable[[Program], Program]] = {
    "an operand": lambda p: change(p, Vector, with_first_moved, 1),
    "a lost element": lambda p: change(p, Vector, lambda v: replace(v, operands=v.operands[1:]), 1),
    "a result address": lambda p: change(p, Vector, lambda v: replace(v, writes=moved(v.writes)), 3),
    "a count": lambda p: change(p, Vector, with_half, [*map(bool, (v.coefficients for v in p.vectors))].index(True)),
    "a lane": lambda p: change(p, Fill, lambda f: edit_part(f, next_rows), of="ifmap"),
    "a channel": lambda p: change(p, Fill, lambda f: edit_part(f, lambda part: shift_items(part, 1)), of="scale"),
    "a spilled channel": lambda p: change(p, Spill, lambda s: edit_part(s, lambda part: shift_items(part, -1)), 1),
}


@cache
def sound() -> Program:
    """The Program that is corrupted below."""
    program, _ = lowering.VECTOR_ROWS.lower(NORM, 1, SMALL)
    assert check_layer(NORM, 1, program, SMALL, seed=0).mismatched == 0
    return program


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corrupted_program_is_caught(name: str) -> None:
    program = sound()
    corrupted = CORRUPTIONS[name](program)
    assert corrupted != program
    assert check_layer(NORM, 1, corrupted, SMALL, seed=0).mismatched > 0
    operands = as_floats(operands_of(NORM, 1, seed=0))
    _, registers = register.run(corrupted, SMALL, operands)
    assert verdict_of(NORM, operands, {"ofmap": registers["ofmap"]}).mismatched > 0


@pytest.mark.parametrize("kind", [Fill, Vector, Spill])
def test_no_kind_of_step_could_do_without_its_waits(kind: type[Step]) -> None:
    program, _ = lowering.VECTOR_ROWS.lower(NORM, 1, SMALL)
    assert_waits_matter(program, SMALL, kind)


@rule("T93")
def test_two_maps_come_only_for_the_stages_that_read_them() -> None:
    """Five stages read x, x, dy, both and both, where rows do not stay; else each comes once."""
    for rows, times in (("read_again", 4), ("kept", 1)):
        hardware = machine(8, 8, word_elements=4).with_overrides([f"mapping.rows={rows}", "hbm.burst=4 B"])
        program, _ = lowering.VECTOR_ROWS.lower(LayerNormGradient("g", 16, 12), 1, hardware)
        moved = {name: sum(each.hbm_bytes for each in fills(program, name)) for name in ("ifmap", "other")}
        assert moved == {"ifmap": min(times, 3) * 16 * 12 * 4, "other": times * 16 * 12 * 4}


def test_a_gradient_of_other_rows_is_caught() -> None:
    layer = LayerNormGradient("g", 18, 40)
    program, _ = lowering.VECTOR_ROWS.lower(layer, 1, SMALL)
    for name in ("ifmap", "other"):
        corrupted = change(program, Fill, lambda f: edit_part(f, next_rows), of=name)
        assert check_layer(layer, 1, corrupted, SMALL, seed=0).mismatched > 0


MASKED = Softmax("s", 18, 40, queries=10, window=4)


@pytest.mark.parametrize(
    ("name", "change_of"),
    [("keys", lambda part: shift_items(part, 1)), ("last_key", next_rows), ("first_key", next_rows)],
)
def test_a_mask_of_other_rows_or_keys_is_caught(name: str, change_of: Callable[[Part], Part]) -> None:
    hardware = machine(8, 8, word_elements=4)
    program, _ = lowered(MASKED, 1, hardware, LOWERING)
    assert check_layer(MASKED, 1, program, hardware, seed=0).mismatched == 0
    corrupted = change(program, Fill, lambda f: edit_part(f, change_of), of=name)
    assert check_layer(MASKED, 1, corrupted, hardware, seed=0).mismatched > 0


@rule("T93")
def test_each_number_that_is_kept_has_a_stage() -> None:
    hardware = machine(8, 8, word_elements=4, alus=8, vector_unit={"scalar_words": 3})
    program, _ = lowered(TopK("k", 12, 32, 3), 1, hardware, LOWERING)
    done = [each.operation for each in program.vectors if each.operation not in ("maximum", "add")]
    assert [*dict.fromkeys(done)] == ["next_largest", "kept_sum", "reciprocal_sum", "kept_scaled"]
    # A comparison, a choice, and a multiplication.
    assert {step.beat(4, hardware).work for step in program.vectors if step.operation == "kept_scaled"} == {3 * 4}


@rule("T93")
def test_a_mask_takes_a_comparison_and_a_choice_in_each_stage() -> None:
    """Of 4 rows to a word in 8 lanes, by 8 ALUs: exp takes 7; with a window, two comparisons, their conjunction and a
    choice.
    """
    hardware = machine(8, 8, word_elements=4, alus=8, vector_unit={"scalar_words": 3})
    for layer, more in ((Softmax("s", 8, 32, queries=8), 2), (Softmax("s", 8, 32, queries=8, window=3), 4)):
        program, _ = lowered(layer, 1, hardware, LOWERING)
        work = {step.operation: step.beat(4, hardware).work for step in program.vectors}
        assert work["seen_exp_scaled"] == 4 * (more + 2 + 7)
        pairs = {step.operation: len(step.operands) // 2 - 1 for step in program.vectors}
        assert work["seen_exp_sum"] == 4 * (pairs["seen_exp_sum"] * (more + 9) - 1)


# ---- who lowers what, and what is told


@pytest.mark.parametrize("name", known())
def test_whatever_a_run_asks_for_they_have_one_way(name: str) -> None:
    work = Workload("net", 2, (Softmax("softmax", 3), Relu("relu", 3, 4, 4)))
    assert [job.lowering for job in resolve(work, machine(), name).each] == [LOWERING, "vector_ops"]


def test_lowerings_of_single_places_refuse_them_and_theirs_refuses_those() -> None:
    with pytest.raises(UnsuitableError, match="softmax is lowered by vector_rows, not by vector_ops"):
        lowered(Softmax("s", 3), 2, machine(), "vector_ops")
    with pytest.raises(UnsuitableError, match="relu is lowered by vector_ops, not by vector_rows"):
        lowered(Relu("r", 3, 4, 4), 2, machine(), LOWERING)
    with pytest.raises(CapacityError, match=r"layer s: the smallest tiling needs \d+ words"):
        lowered(Softmax("s", 3), 2, machine(capacity_words=2), LOWERING)


@rule("T91")
def test_few_long_rows_are_shared_by_lanes() -> None:
    """8 rows, 4 to a word, in 2 of 32 lanes would have 100 words: each lane has a part of the channels of 4 or of 2."""
    wide = machine(32, 8, word_elements=4)
    for channels, share in ((100, "4 shares of 25 channels"), (101, "8 shares of 12 or 13 channels")):
        layer = Softmax("s", channels, 8)
        program, told = lowering.VECTOR_ROWS.lower(layer, 1, wide)
        assert told.aspects["folds"] == f"rows in {share}, which meet by way of HBM"
        assert {step.tensor.name for step in spills(program)} == {"exchanged_0", "exchanged_1", "ofmap"}
        assert program.words < 100
        swapped = change(program, Spill, lambda s: edit_part(s, lambda part: part._replace(base=part.base + 1)), 1)
        assert check_layer(layer, 1, swapped, wide, seed=0).mismatched > 0


@rule("T90")
def test_rows_that_fill_all_lanes_and_words_stay_whole() -> None:
    told = lowering.VECTOR_ROWS.lower(Softmax("s", 40, 128), 1, machine(32, 8, word_elements=4))[1]
    assert told.aspects["folds"] == "none: a lane has all channels of its rows"


@rule("T92")
@pytest.mark.parametrize(
    ("machine", "layer", "most"),
    [
        ("tpu_v2", Softmax("s", 32_003, 8), 61_600), ("tpu_v6e", Softmax("s", 32_003, 8), 4_800),
        ("tpu_v2", Softmax("s", 2049, 16), 8_700), ("tpu_v2_core", RmsNorm("r", 768, 128), 3_300),
    ],
    ids=["tpu_v2 prime", "tpu_v6e prime", "three divides", "as many as lanes"],
)  # fmt: skip
def test_no_size_falls_off_a_cliff(machine: str, layer: RowOp, most: int) -> None:
    """They took 1,017,194, 194,003, 162,511 and 13,143 cycles while shares had to divide the channels."""
    assert prepared(layer, 1, load_hardware(machine), LOWERING).timing.cycles <= most


@rule("T92")
def test_of_two_ways_that_are_near_the_faster_is_taken() -> None:
    """Rows are dealt out by estimates, and a simulation chooses between the first two."""
    layer, hardware = LayerNorm("n", 768, 20), load_hardware("tpu_v2_core")
    drafts = lowering.ways(layer, 1, hardware)
    assert len(drafts) == 2
    estimates = [each.estimate() for each in drafts]
    assert estimates[0] <= estimates[1] <= estimates[0] * (1 + lowering.NEAR)
    timed = [agreed_timing(each.lower()[0], hardware).cycles for each in drafts]
    assert prepared(layer, 1, hardware, LOWERING).timing.cycles == min(timed)


@rule("T94")
def test_a_norm_is_kept_once() -> None:
    program, told = lowering.VECTOR_ROWS.lower(NORM, 1, SMALL)
    assert (program.word_fill, told.choices["kept"], told.choices["slots"]) == (3, True, 4)


@rule("T94")
def test_rows_are_kept_where_they_fit() -> None:
    """A row of 50 in words: kept twice, kept once, or read from HBM for each of three stages."""
    fills = {}
    for words in (400, 160, 60):
        small = machine(8, 8, word_elements=4, capacity_words=words)
        program, told = lowering.VECTOR_ROWS.lower(Softmax("s", 50, 70), 1, small)
        fills[words] = sum(step.hbm_bytes for step in program.rows if isinstance(step, Fill))
        assert ("kept" in told.aspects["order"]) == (words > 60)
    assert fills[400] == fills[160]
    assert 2.5 * fills[160] < fills[60] < 3.5 * fills[160]
    again = machine(8, 8, word_elements=4, capacity_words=400).with_overrides(["mapping.rows=read_again"])
    program, _ = lowering.VECTOR_ROWS.lower(Softmax("s", 50, 70), 1, again)
    assert len([step for step in program.rows if isinstance(step, Fill)]) == 3 * 3 * 4


def test_a_network_has_them_among_its_layers() -> None:
    work = Workload("net", 3, (Softmax("softmax", 30), ReduceMean("mean", 12, 20), NORM))
    result = simulate(work, SMALL, engine="both")
    assert [layer.lowering for layer in result.layers] == [LOWERING] * 3
    assert result.correct
    assert [layer.outputs_checked for layer in result.layers] == [90, 20, 720]


@pytest.mark.parametrize(
    ("layer", "units"), [(SumExp("e", 6, 40), 3), (SumSquares("s", 32, 3), 1)], ids=["rows", "shares of rows"]
)
def test_a_number_that_is_given_for_a_row_is_that_of_the_row(layer: RowOp, units: int) -> None:
    """Lanes have 16 rows at a time, and the numbers of the next ones before they are done with these."""
    hardware = machine(8, 8, word_elements=2)
    program, _ = lowered(layer, 1, hardware, LOWERING)
    given = [step for step in program.rows if isinstance(step, Fill) and step.tensor.name == "about"]
    assert len(given) == units
    assert check_layer(layer, 1, program, hardware, seed=0).mismatched == 0
    wrong = replace(given[-1], parts=(of_other_rows(given[-1].parts[0]),))
    steps = tuple(wrong if step is given[-1] else step for step in program.rows)
    assert check_layer(layer, 1, replace(program, rows=steps), hardware, seed=0).mismatched > 0


def of_other_rows(part: Part) -> Part:
    (lane,) = part.lane
    return part._replace(lane=(lane._replace(coordinates=tuple(at - 1 for at in lane.coordinates)),))
