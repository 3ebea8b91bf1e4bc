"""The step of a network that several chips share: what waits for what, its record, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.flow.shared_networks import gathered, shared_products
from tpusim import Gemm, Workload, load_hardware, simulate
from tpusim.base.errors import InputError
from tpusim.flow.chip_steps.network import items_of
from tpusim.flow.engines import ENGINES
from tpusim.flow.jobs import resolve
from tpusim.flow.simulation import run
from tpusim.machines.tpu.slices.slice import load_slice, slices_of
from tpusim.machines.tpu.slices.summary import Question, timed_collective
from tpusim.network.ops.elementwise import Add, Relu
from tpusim.network.workload import CollectiveLayer, Source
from tpusim.result.load import parse_result
from tpusim.result.records import CollectiveResult, Result, StepResult
from tpusim.result.rules import broken

MACHINE = load_hardware("tpu_v6e")


def step_of(work: Workload, place: object = "v6e_8", machine: object = MACHINE) -> tuple[StepResult, Result]:
    result = simulate(work, machine, check=False, slice=place)  # type: ignore[arg-type]
    assert result.step is not None
    return result.step, result


def collectives(step: StepResult) -> dict[str, CollectiveResult]:
    return {each.name: each for each in step.collectives}


def test_collectives_take_what_they_take_alone() -> None:
    step, result = step_of(shared_products())
    place = load_slice("v6e_8")
    for each in step.collectives:
        asked = Question(place, each.op, each.bytes, each.axes, mesh="data=2,tensor=4", element_bytes=2)
        alone = timed_collective(asked)
        assert (each.cycles, each.algorithm) == (alone.cycles, alone.algorithm)
        assert 0 < each.hbm_cycles < each.cycles
    assert step.cycles > result.total.cycles
    assert sum(step.parts.values()) == step.cycles
    assert (step.chips, dict(step.mesh)) == (8, {"data": 2, "tensor": 4})
    assert step.seconds == pytest.approx(step.cycles / MACHINE.clock_hz)
    assert step.items_per_second == pytest.approx(2 * 256 / step.seconds)
    assert step.items_per_second_chip * 8 == pytest.approx(step.items_per_second)


def test_hbm_is_busy_for_bytes_read_and_written() -> None:
    """A permute reads its operand once and writes what comes once."""
    size = 2**20
    work = Workload("pair", 8, [Gemm("a", m=8, n=64, k=64)], edges={"a": ["input"]}, mesh=(("data", 8),),
                    collectives=(CollectiveLayer("p", "permute", size // 2, ("data",), ("a",), ()),))  # fmt: skip
    step, _ = step_of(work)
    expected = 2 * size / MACHINE.hbm_bytes_per_s * MACHINE.clock_hz
    assert step.collectives[0].hbm_cycles == pytest.approx(expected, rel=0.01)


def test_readers_wait_and_makers_are_done() -> None:
    work = shared_products()
    step, result = step_of(work)
    found, ends = collectives(step), {}
    # Layers run one behind another, so that the reader of the last gather ends with all its time behind it.
    now = 0
    for layer in result.layers:
        now += layer.cycles
        ends[layer.name] = now
    for each in work.collectives:
        assert found[each.name].start >= max((ends[name] for name in each.reads), default=0)
    assert step.cycles >= found["gather_5"].end + sum(layer.cycles for layer in result.layers[-2:])


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_weights_are_gathered_so_far_ahead(ahead: int) -> None:
    """The gather of a layer begins when all are read but for those of `ahead` layers in front of it."""
    step, result = step_of(gathered(8), load_slice("v6e_8", f"interconnect.overlap.ahead={ahead}"))
    ends, now = [], 0
    gathers = step.collectives
    for each, layer in zip(gathers, result.layers, strict=True):
        now = max(now, each.end) + layer.cycles
        ends.append(now)
    for number, each in enumerate(gathers):
        ready = [gathers[number - 1].end] if number else []
        ready += [ends[number - 1 - ahead]] if number > ahead else []
        assert each.start == max([0, *ready])


def test_a_rider_reads_and_is_read_through_its_bearer() -> None:
    """A relu rides on the product that makes its operand: a collective of its outcome waits for that product."""
    layers = [Gemm("up", m=256, n=512, k=512), Relu("act", channels=512), Gemm("down", m=256, n=512, k=512)]
    edges = {"up": ["input"], "act": ["up"], "down": ["act.all_gather"]}
    gather = CollectiveLayer("act.all_gather", "all_gather", 256 * 512, ("data",), ("act",), ("down",))
    step, result = step_of(Workload("mlp", 256, layers, edges=edges, mesh=(("data", 8),), collectives=(gather,)))
    assert [each.name for each in result.layers] == ["up", "down"]
    assert step.collectives[0].start == result.layers[0].cycles
    assert step.cycles == result.total.cycles + step.collectives[0].cycles


@pytest.mark.parametrize("reads", [["up.all_reduce", "input"], ["input", "up.all_reduce"], ["up.all_reduce", "side"]])
def test_nothing_is_fused_across_a_collective(reads: list[str]) -> None:
    """An addition of what chips have summed rides on no layer that is done before."""
    layers = [Gemm("side", m=256, n=512, k=512), Gemm("up", m=256, n=512, k=512), Add("sum", channels=512)]
    edges = {"side": ["input"], "up": ["input"], "sum": reads}
    reduce = CollectiveLayer("up.all_reduce", "all_reduce", 256 * 512, ("data",), ("up",), ("sum",))
    work = Workload("mlp", 256, layers, edges=edges, mesh=(("data", 8),), collectives=(reduce,))
    step, result = step_of(work)
    assert [each.name for each in result.layers] == ["side", "up", "sum"]
    assert step.collectives[0].exposed_cycles == step.collectives[0].cycles


def test_what_a_collective_reads_is_made() -> None:
    """A relu does not ride on a product whose sums other chips get, too."""
    layers = [Gemm("up", m=256, n=512, k=512), Relu("act", channels=512)]
    more = CollectiveLayer("up.all_reduce", "all_reduce", 256 * 512, ("data",), ("up",), ())
    edges = {"up": ["input"], "act": ["up"]}
    alone = resolve(Workload("mlp", 256, layers, edges=edges), MACHINE)
    shared = resolve(Workload("mlp", 256, layers, edges=edges, mesh=(("data", 8),), collectives=(more,)), MACHINE)
    assert [len(jobs.each) for jobs in (alone, shared)] == [1, 2]


def test_overlap_none_takes_one_after_another() -> None:
    work = shared_products()
    beside, result = step_of(work)
    none, _ = step_of(work, load_slice("v6e_8", "overlap=none"))
    assert none.cycles == result.total.cycles + sum(each.cycles for each in none.collectives) > beside.cycles
    assert none.slice == "v6e_8 with overlap=none"
    assert none.parts["shared_hbm"] == 0


def test_some_layers_have_the_collectives_between_them() -> None:
    jobs = resolve(shared_products(), MACHINE).picked("*_3")
    step = run(jobs, check=False, slice="v6e_8").step
    assert step is not None
    assert [each.name for each in step.collectives] == ["down_2.all_reduce", "gather_3", "down_3.all_reduce"]


def test_all_engines_of_a_run_agree() -> None:
    tiny = load_hardware("tiny_4x4")
    edges = {"a": [Source(("input",)), Source(("g",))], "b": ["a.all_reduce"]}
    layers = [Gemm("a", m=8, n=8, k=8), Gemm("b", m=8, n=8, k=8)]
    made = (CollectiveLayer("g", "all_gather", 64, ("data",), (), ("a",), True),
            CollectiveLayer("a.all_reduce", "all_reduce", 64, ("data",), ("a",), ("b",)))  # fmt: skip
    work = Workload("two", 8, layers, edges=edges, mesh=(("data", 4),), collectives=made)
    first, *others = (simulate(work, tiny, engine=each, slice="v6e_2x2").step for each in ENGINES)
    assert first is not None
    assert others == [first] * (len(ENGINES) - 1)


def test_what_is_made_is_counted() -> None:
    plain = Workload("net", 4, [Gemm("a", m=4, n=8, k=8)])
    mesh = (("data", 2), ("fsdp", 3), ("expert", 5), ("tensor", 7))
    assert items_of(replace(plain, mesh=mesh)) == ("images", 4 * 2 * 3 * 5)
    assert items_of(replace(plain, mesh=mesh, sizes=(("context", 9), ("tokens", 8)))) == ("tokens", 4 * 30 * 8)


# ---- the record


def test_a_step_comes_back_from_its_json() -> None:
    _, result = step_of(shared_products())
    assert parse_result(result.to_json()) == result
    alone = simulate(replace(shared_products(), mesh=(), collectives=(), edges=()), MACHINE, check=False)
    assert alone.step is None
    assert "step" not in json.loads(alone.to_json())


@pytest.mark.parametrize(("told", "edited"), [('"data": 2', '"data": 8'), ('"v6e_8"', '"v6e_9"'), ('"tensor"', '"x"')])
def test_a_step_that_was_edited_is_refused(told: str, edited: str) -> None:
    _, result = step_of(shared_products())
    text = result.to_json()
    assert told in text
    with pytest.raises(InputError, match="its seal is of another machine"):
        parse_result(text.replace(told, edited))


Change = Callable[[StepResult], StepResult]


def first_with(**fields: object) -> Change:
    return lambda step: replace(
        step,
        collectives=(replace(step.collectives[0], **fields), *step.collectives[1:]),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda step: replace(step, cycles=step.cycles + 1), "step: cycles are"),
        (lambda step: replace(step, seconds=2 * step.seconds), "step.seconds"),
        (lambda step: replace(step, items_per_second=2 * step.items_per_second), "step.items_per_second_chip"),
        (lambda step: replace(step, parts={**step.parts, "hbm": step.parts["hbm"] + 1}), "cycles of its layers"),
        (lambda step: replace(step, parts={**step.parts, "dcn": 1}), "cycles of its waiting"),
        (first_with(end=3), "start and end make it"),
        (first_with(exposed_cycles=10**9), "exposed_cycles is"),
        (first_with(hbm_cycles=10**9), "hbm_cycles is"),
        (first_with(start=10**9, end=10**9), "end is"),
    ],
)
def test_a_step_that_does_not_add_up_is_told(change: Change, says: str) -> None:
    step, result = step_of(shared_products())
    assert not [*broken(result)]
    assert any(says in each for each in broken(replace(result, step=change(step))))


# ---- what is refused


@pytest.mark.parametrize(
    ("place", "machine", "says"),
    [
        (None, "tpu_v6e", r"8 chips share products, .* name a slice, such as v6e_2x4"),
        (None, "tpu_v5p", r"such as v5p_2x2x2"),
        (
            "v6e_2x2",
            "tpu_v6e",
            r"8 chips, and v6e_2x2 has 4; write sizes whose product is 4, or name a slice such as v6e",
        ),
        ("v4_2x2x2", "tpu_v4_core", r"one of the 2 cores of a chip, and slices are of chips; take tpu_v4"),
        ("v66e_8", "tpu_v6e", r"no such slice; did you mean v6e"),
        ("v6e_8", "h100", r"h100 is a GPU, .* of TPUs alone"),
    ],
)
def test_what_does_not_fit_is_refused(place: str | None, machine: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        simulate(shared_products(), load_hardware(machine), check=False, slice=place)


def test_a_slice_of_one_chip_s_network_is_refused() -> None:
    with pytest.raises(InputError, match="loaded for one chip; load it for a mesh"):
        simulate(Workload("one", 4, [Gemm("a", m=4, n=8, k=8)]), MACHINE, slice="v6e_8")


@pytest.mark.parametrize(
    ("chips", "machine", "names"),
    [
        (256, "tpu_v6e", ["v6e_16x16"]),
        (512, "tpu_v5e", ["v5e_16x16 --set slice.slices=2"]),
        (64, "tpu_v4", ["v4_4x4x4", "v4_1x8x8"]),
        (6, "tpu_v6e", []),
    ],
)
def test_slices_of_so_many_chips(chips: int, machine: str, names: list[str]) -> None:
    found = slices_of(chips, machine)
    assert found[: len(names)] == names
    assert len(found) <= 3
    for name in found:
        place, _, more = name.partition(" --set slice.")
        assert load_slice(place, [more] if more else []).chips == chips


# ---- layers that overlap


def of_three(collective: CollectiveLayer, reads: str) -> Workload:
    layers = [Gemm(name, m=16, n=16, k=16) for name in ("first", "second", "third")]
    edges = {"first": ["input"], "second": [reads], "third": ["second"]}
    return Workload("three", 16, layers, edges=edges, mesh=(("data", 4),), collectives=(collective,))


def test_layers_do_not_overlap_across_a_collective() -> None:
    machine = load_hardware("tiny_4x4", ["sequencer.between_layers=overlap", "mapping.search=estimate"])
    summed = CollectiveLayer("sum", "all_reduce", 256, ("data",), ("first",), ("second",))
    result = simulate(of_three(summed, "sum"), machine, check=False, slice="v6e_2x2")
    assert [each.apart for each in result.layers] == ["", "it waits for other chips", ""]
    # Weights are gathered beside the layer ahead, which hides them.
    gathered = CollectiveLayer("weights", "all_gather", 256, ("data",), (), ("second",), True)
    result = simulate(of_three(gathered, "first"), machine, check=False, slice="v6e_2x2")
    assert [each.apart for each in result.layers] == ["", "", ""]


def test_what_a_collective_reads_goes_to_hbm() -> None:
    """Although a layer reads it on chip."""
    machine = load_hardware("tiny_4x4", ["sequencer.between_layers=stay", "mapping.search=estimate"])
    alone = CollectiveLayer("other", "all_reduce", 256, ("data",), ("third",), ())
    read = CollectiveLayer("other", "all_reduce", 256, ("data",), ("first",), ())
    written = [simulate(of_three(each, "first"), machine, check=False, slice="v6e_2x2").layers[0].hbm_write_bytes
               for each in (alone, read)]  # fmt: skip
    assert written[0] < written[1]
