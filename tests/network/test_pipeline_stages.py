"""Stages of a pipeline: which blocks each has, what goes from one to another, and sums over microbatches."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from math import prod
from typing import Any

import pytest

from tests.covering import covering
from tpusim import Workload, load_hardware, load_workload
from tpusim.api.asked import asked_for, model_options
from tpusim.base.errors import InputError
from tpusim.flow.hbm_need import UNPADDED, hbm_need
from tpusim.flow.jobs import resolve
from tpusim.network.ops.op import OFMAP
from tpusim.network.pipeline_stages import microbatches_of, of_stage
from tpusim.network.workload import ACCUMULATE, BACKWARD, FORWARD, UPDATE

SMALL: dict[str, int] = {"context": 64, "layers": 8, "width": 256, "heads": 8, "kv_heads": 4, "head": 32, "inner": 512,
                         "vocabulary": 640}  # fmt: skip
WIDTH, ROWS = 256, 64


def step(mesh: dict[str, int], batch: int = 16, training: bool = True, **more: Any) -> Workload:
    asked = model_options(training=training, dims={**SMALL, **more.pop("dims", {})}, mesh=mesh, **more)
    return asked_for("llama3_8b", "tpu_v5e", batch, None, asked).work


def sends(work: Workload) -> list[tuple[int, int]]:
    return [(each.axis, each.to) for each in work.collectives if each.over == ("stage",)]


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_each_stage_has_equally_many_blocks_and_the_ends_have_the_rest(stages: int) -> None:
    work = step({"stage": stages}, training=False)
    number, each_has = dict(work.stages), 8 // stages
    assert {number[f"gate_{at + 1}"] for at in range(8)} == {*range(stages)}
    assert all(number[f"{name}_{at + 1}"] == at // each_has for at in range(8) for name in ("gate", "query", "down"))
    assert (number["embedding"], number["logits"]) == (0, stages - 1)
    # The residual map alone goes on, from each stage to the next.
    assert sends(work) == [(at, at + 1) for at in range(stages - 1)]
    assert {each.elements for each in work.collectives} == {work.batch * ROWS * WIDTH}


@pytest.mark.parametrize("parts", [1, 2, 8])
def test_the_loss_is_the_mean_over_all_microbatches_of_all_chips(parts: int) -> None:
    def factors(work: Workload) -> list[float]:
        layers: list[Any] = [layer for layer in work.layers if layer.op == "cross_entropy_gradient"]
        return [layer.factor for layer in layers]

    dims = {"layers": 2}
    whole = factors(step({}, dims=dims))
    assert factors(step({"stage": 2, "data": 2}, microbatches=parts, dims=dims)) == pytest.approx(whole)


@pytest.mark.parametrize(
    ("mesh", "keep"),
    covering(1, [{"stage": 4}, {"stage": 2, "fsdp": 2, "tensor": 2}, {"stage": 2, "data": 2}], ["none", "all"]),
)
def test_of_a_training_step_one_map_goes_on_and_one_gradient_comes_back(mesh: dict[str, int], keep: str) -> None:
    work, last = step(mesh, keep=keep, dims={"layers": 4}), mesh["stage"] - 1
    number, phases = dict(work.stages), dict(work.phases)
    assert Counter(sends(work)) == Counter(
        [*((at, at + 1) for at in range(last)), *((at + 1, at) for at in range(last))]
    )
    # Whatever a layer does on the way back, it does where it is.
    for name, stage in number.items():
        copy = re.search(r"_(\d+)", name)
        own = (int(copy[1]) - 1) * mesh["stage"] // 4 if copy else last * (not name.startswith("embedding"))
        moved = name.endswith(".dy") and phases[name] == BACKWARD and stage == own + 1
        assert moved or stage == own
    crossed = {each.name for each in work.collectives if each.over == ("stage",)}
    made = {layer.name: number[layer.name] for layer in work.layers}
    for each in work.collectives:
        if each.name not in crossed and each.reads:
            # Chains of collectives stay in a stage.
            assert len({made[name] for name in each.reads if name in made}) <= 1
            made[each.name] = next(made[name] for name in each.reads if name in made)
        elif each.name in crossed:
            assert made[each.reads[0]] == each.axis
            made[each.name] = each.to
    for name, sources in work.edges:
        for one in (one for source in sources for one in source.names if one in made):
            assert made[one] == number[name], f"{name} reads {one}"


@pytest.mark.parametrize("axis", ["data", "fsdp"])
def test_gradients_are_added_up_where_a_chip_keeps_least(axis: str) -> None:
    """Behind a reduce-scatter, ahead of an all-reduce; and updates read the sums."""
    work = step({"stage": 2, axis: 2}, dims={"layers": 2})
    assert work.microbatches == 8
    phases, shapes = dict(work.phases), {layer.name: layer.shapes(work.batch) for layer in work.layers}
    sums = [name for name, phase in work.phases if phase == ACCUMULATE]
    weights = {name for name in phases if name.endswith(".update")}
    assert len(sums) == len(weights)
    held, sources = {each.name: each for each in work.collectives}, work.sources()
    for name in sums:
        first, so_far = (source.names[0] for source in sources[name])
        assert so_far == f"{first}.so_far"
        assert phases.get(first, BACKWARD) == BACKWARD
        if first in held:
            assert held[first].op == "reduce_scatter"
            assert 2 * prod(shapes[name][OFMAP]) == held[first].elements
        else:
            assert shapes[name][OFMAP] == shapes[first][OFMAP]
    for each in held.values():
        if each.op == "all_reduce":
            assert {*each.reads} <= {*sums}
    for name in weights:
        (gradient,) = sources[name.replace(".update", ".velocity")][1].names
        assert gradient in sums or held[gradient].op == "all_reduce"


def test_the_way_there_is_that_of_the_network_and_no_layer_is_lost() -> None:
    dims = {"layers": 4}
    whole, work = step({"data": 1}, batch=1, dims=dims), step({"stage": 4}, dims=dims)
    phases = dict(work.phases)
    kept = [layer for layer in work.layers if phases[layer.name] != ACCUMULATE]
    # The loss of a microbatch is a part of the mean.
    assert [layer for layer in kept if ".loss" not in layer.name] == [
        layer for layer in whole.layers if ".loss" not in layer.name
    ]
    assert [layer.shapes(1) for layer in kept] == [layer.shapes(1) for layer in whole.layers]
    one = step({"stage": 4}, batch=1, dims=dims)
    assert (one.microbatches, [*one.layers]) == (1, [*whole.layers])
    assert not [name for name, phase in one.phases if phase == ACCUMULATE]


def test_microbatches_are_as_many_as_part_the_batch_up_to_four_a_stage() -> None:
    assert [microbatches_of(batch, 4, None) for batch in (1, 6, 7, 8, 16, 48, 96)] == [1, 6, 7, 8, 16, 16, 16]
    assert microbatches_of(48, 4, 24) == 24
    work = step({"stage": 2, "fsdp": 2}, batch=24, microbatches=3)
    assert (work.microbatches, work.batch) == (3, 4)


@pytest.mark.parametrize(("mesh", "more", "says"), [
    ({"stage": 3}, {}, "--mesh stage=3: 3 stages cannot have equally many of 8 blocks; take 1, 2, 4, 8"),
    ({"stage": 2}, {"microbatches": 5}, "--microbatches 5: the batch of a chip, 16, is not parted evenly; take 1"),
    ({"data": 2}, {"microbatches": 4}, "--microbatches 4: only a pipeline has microbatches; add stage to --mesh"),
    ({"stage": 2, "data": 3}, {}, "batch 16: it is not parted evenly by 3 chips along data"),
    ({"stage": 2}, {"microbatches": 0}, "microbatches: 0 parts no batch; write a whole number from 1 on"),
])  # fmt: skip
def test_what_does_not_go_is_refused_by_name(mesh: dict[str, int], more: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as error:
        step(mesh, training=False, **more)
    assert says in str(error.value)


@pytest.mark.parametrize("name", ["resnet50", "vgg16"])
def test_a_network_without_blocks_has_no_stages(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} names no blocks that stages could have"):
        load_workload(name, 8, mesh={"stage": 2})


# ---- memory


def test_a_stage_holds_a_microbatch_for_each_stage_from_it_on() -> None:
    """Between equal stages what the way back reads of one more microbatch is the difference."""
    machine = load_hardware("tpu_v5e")
    work = step({"stage": 4}, batch=64, microbatches=16, dims={"layers": 4})
    kept = defaultdict[int, int](int)
    phases, number = dict(work.phases), dict(work.stages)
    sizes = {layer.name: 2 * prod(layer.shapes(work.batch)[OFMAP]) for layer in work.layers}
    sizes |= {each.name: 2 * each.elements for each in work.collectives}
    read_by = defaultdict[str, set[str]](set)
    for name, of in work.edges:
        for source in of:
            for value in source.names:
                read_by[value].add(name)
    for value, size in sizes.items():
        readers = read_by[value]
        behind = {number[name] for name in readers if phases[name] not in (FORWARD, UPDATE)}
        if phases.get(value, FORWARD) == FORWARD and ".dy" not in value and behind:
            kept[min(behind)] += size
    needs = [hbm_need(of_stage(work, at), machine, UNPADDED) for at in range(4)]
    totals = [need.total + 3 * kept[at] - at * kept[at] for at, need in enumerate(needs)]
    assert kept[1] == kept[2]
    found = hbm_need(work, machine, UNPADDED)
    assert found.total == max(totals)
    assert found.weights == needs[totals.index(max(totals))].weights


def test_sums_over_microbatches_take_as_much_as_gradients() -> None:
    """Of a stage of the middle: weights, velocities and sums of gradients, each 2 bytes; and tables of angles."""
    machine = load_hardware("tpu_v5e")
    works = (
        resolve(step({"stage": 4}, 8 * parts, microbatches=parts, dims={"layers": 4}), machine).work for parts in (1, 2)
    )
    needs = [hbm_need(of_stage(work, 1), machine, UNPADDED) for work in works]
    a_block = 2 * WIDTH * 256 + 2 * WIDTH * 128 + 3 * WIDTH * 512 + 2 * WIDTH
    assert needs[1].weights - needs[0].weights == 2 * a_block
