"""What a training step sends to the memory of the host until the way back."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest

from tests.covering import covering
from tpusim import Gemm, Training, Workload, load_hardware, load_workload, training_step
from tpusim.api.asked import asked_for, model_options
from tpusim.base.errors import InputError
from tpusim.flow.hbm_need import UNPADDED, hbm_need
from tpusim.flow.jobs import resolve
from tpusim.network.offload import offloaded
from tpusim.network.ops import OPS
from tpusim.network.ops.op import OFMAP
from tpusim.network.workload import BACKWARD, FORWARD, OFFLOAD, RELOAD, CollectiveLayer

SMALL: dict[str, int] = {"context": 64, "layers": 2, "width": 256, "heads": 8, "kv_heads": 4, "head": 32, "inner": 512,
                         "vocabulary": 640}  # fmt: skip
CHAIN = """
name: chain
training: {batch_norm: [conv]}
layers:
  - {name: conv, op: conv2d, in_channels: 2, in_height: 4, in_width: 4, out_channels: 3, kernel: 2}
  - {name: relu, op: relu}
  - {name: flat, op: flatten}
  - {name: fc, op: gemm, n: 3}
"""


@pytest.fixture
def network(tmp_path: Path) -> Workload:
    path = tmp_path / "chain.yaml"
    path.write_text(CHAIN)
    return load_workload(path, 2, ops="all")


def step(mesh: dict[str, int], batch: int = 8, **more: Any) -> Workload:
    asked = model_options(training=True, dims=SMALL | more.pop("dims", {}), mesh=mesh, **more)
    return asked_for("llama3_8b", "tpu_v5e", batch, None, asked).work


def ways(work: Workload, op: str) -> dict[str, int]:
    return {each.name: each.elements for each in work.collectives if each.op == op}


def sound(plain: Workload, away: Workload) -> None:
    """Besides what goes and comes back both are alike; each way has an end, and comes in order."""
    phases, held = dict(plain.phases), {each.name: each for each in away.collectives}
    back = {name: each.reads[0] for name, each in held.items() if each.op == RELOAD}
    sent = {name: held[out].reads[0] for name, out in back.items()}
    assert {*back.values()} == {each.name for each in away.collectives if each.op == OFFLOAD}
    made = {layer.name: prod(layer.shapes(away.batch)[OFMAP]) for layer in away.layers}
    made |= {name: each.outcome(dict(away.mesh)) for name, each in held.items()}
    for name, value in sent.items():
        assert made[value] == held[name].elements == held[back[name]].elements
        assert held[name].over == held[back[name]].over == ("host",)

    def as_was(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sent.get(name, name) for name in names)

    assert away.layers == plain.layers
    for (name, before), (_, after) in zip(plain.edges, away.edges, strict=True):
        assert tuple(each._replace(names=as_was(each.names)) for each in after) == before
        read = {one for each in after for one in each.names}
        assert not read & ({*back} if phases[name] == FORWARD else {*sent.values()})
    others = [each for each in away.collectives if each.op not in (OFFLOAD, RELOAD)]
    assert [each._replace(reads=as_was(each.reads), read_by=()) for each in others] == [
        each._replace(read_by=()) for each in plain.collectives
    ]
    order = {name: at for at, name in enumerate(held)}
    for each in away.collectives:
        assert all(order[name] < order[each.name] for name in each.reads if name in order)
        readers = {name for name, of in away.edges if any(each.name in source.names for source in of)}
        readers |= {other.name for other in away.collectives if each.name in other.reads}
        assert {*each.read_by} == readers


def test_the_map_and_what_normalises_it_go_together(network: Workload) -> None:
    plain, away = training_step(network), training_step(network, replace(network.training, offload=("conv",)))  # type: ignore[type-var]
    sound(plain, away)
    sent = {name.removesuffix(".offload") for name in ways(away, OFFLOAD)}
    assert "conv" in sent
    assert all(name.startswith("conv") for name in sent)
    assert "relu" not in sent


@pytest.mark.parametrize(
    ("keep", "mesh"),
    covering(
        1,
        ["all", "none", ["feed_forward_sum*", "attention_sum*"]],
        [{}, {"data": 4}, {"fsdp": 2, "tensor": 2}, {"tensor": 4}],
    ),
)
def test_of_any_share_what_the_way_back_reads_may_go(mesh: dict[str, int], keep: Any) -> None:
    plain = step(mesh, keep=keep)
    if keep == "none":
        with pytest.raises(InputError, match="no output of these layers is kept for the way back"):
            offloaded(plain, ("gate_*",))
        return
    for wanted in (["feed_forward_sum*"], "all"):
        away = step(mesh, keep=keep, offload=wanted)
        sound(plain, away)
        assert {name.partition(".")[0] for name in ways(away, OFFLOAD)} >= {"feed_forward_sum_1", "feed_forward_sum_2"}


def test_a_value_that_is_exchanged_first_goes_as_its_readers_have_it() -> None:
    """Of a product whose sums chips add up, or gather, the way back reads the whole: that goes, and comes back once."""
    gelu: Any = OPS["gelu"]
    layers = Gemm("one", m=8, n=6, k=5), gelu("two", 6, 1, 1), Gemm("back", m=8, n=6, k=6), Gemm("late", m=8, n=6, k=12)
    plain = Workload(
        "net", 8, layers, mesh=(("tensor", 2),),
        phases=(("one", FORWARD), ("two", FORWARD), ("back", BACKWARD), ("late", BACKWARD)),
        edges={"one": ["x"], "two": ["sum"], "back": ["sum"], "late": ["again"]},  # type: ignore[arg-type]
        collectives=(
            CollectiveLayer("sum", "all_reduce", 8 * 6, ("tensor",), ("one",), ("two", "back", "again")),
            CollectiveLayer("again", "all_gather", 8 * 12, ("tensor",), ("sum",), ("late",)),
        ),
    )  # fmt: skip
    away = offloaded(plain, ("one",))
    sound(plain, away)
    assert [each.name for each in away.collectives] == ["sum", "sum.offload", "sum.reload", "again"]
    assert away.collectives[2].read_by == ("back", "again")
    assert away.collectives[0].read_by == ("two", "sum.offload")


def test_hbm_has_room_for_more_where_values_go_to_the_host() -> None:
    machine = load_hardware("tpu_v5e")
    # The values of two blocks are there at once.
    kept, away = (
        hbm_need(step({"data": 2}, 128, offload=wanted, dims={"layers": 6}), machine, UNPADDED)
        for wanted in ("none", "all")
    )
    assert (kept.weights, kept.ends) == (away.weights, away.ends)
    assert 2 * away.between < kept.between


def test_no_op_is_fused_to_what_is_sent_away(network: Workload) -> None:
    """Without it the relu would ride on the product, and nobody would have the sums that go to the host."""
    machine = load_hardware("tpu_v5e")
    plain = resolve(training_step(network), machine).work
    sent = {"conv", "relu"}
    away = resolve(training_step(network, replace(network.training, offload=tuple(sent))), machine).work  # type: ignore[type-var]
    for each in away.collectives:
        carried = {rider for _, riders in away.riders for rider in riders}
        assert not {*each.reads} & carried
        assert all(name in {*(layer.name for layer in away.layers), *ways(away, OFFLOAD)} for name in each.reads)
    assert len(away.layers) >= len(plain.layers)


def test_names_are_checked_as_those_of_keep(network: Workload) -> None:
    with pytest.raises(InputError, match='no layer is named "cnov"'):
        training_step(network, Training(offload=("cnov",)))
    with pytest.raises(InputError, match="offload"):
        Training(offload="some")
