"""HBM of one chip's share of a network: collectives, gathered weights, what goes to the host, by hand and by counting;
and the mesh that fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import cases
from tpusim import Gemm, Workload, load_hardware
from tpusim.base.errors import CapacityError, InputError
from tpusim.flow.hbm_need import fitting_mesh, hbm_need, held_in_hbm
from tpusim.network.mesh import Mesh
from tpusim.network.ops import OPS
from tpusim.network.ops.elementwise import Add
from tpusim.network.ops.op import OFMAP, Op
from tpusim.network.workload import UPDATE, CollectiveLayer, Source

TINY = load_hardware("tiny_4x4")
"""Its elements have 4 bytes, and its maps no padding."""
ROWS = 8
MESH = ("fsdp", 4), ("tensor", 2)


def product(name: str, k: int, n: int) -> Gemm:
    return Gemm(name, m=ROWS, n=n, k=k)


def row(width: int) -> int:
    """Bytes of a map of so many channels."""
    return 4 * ROWS * width


def share(
    *layers: Op, collectives: tuple[CollectiveLayer, ...], phases: tuple[tuple[str, str], ...] = (), **reads: Any
) -> Workload:
    return Workload("net", ROWS, layers, edges=reads, mesh=MESH, collectives=collectives, phases=phases)  # type: ignore[arg-type]


def exchange(name: str, op: str, width: int, reads: str, read_by: str = "", axis: str = "tensor") -> CollectiveLayer:
    return CollectiveLayer(name, op, ROWS * width, (axis,), (reads,), (read_by,) if read_by else ())


def gather(name: str, elements: int, *read_by: str, of: str = "") -> CollectiveLayer:
    return CollectiveLayer(name, "all_gather", elements, ("fsdp",), (), read_by, weights=True, of=of)


def test_what_an_all_reduce_makes_counts_from_when_it_may_begin() -> None:
    """8 x 6 twice while they are exchanged; only what comes of it while `two` makes 8 x 7."""
    work = share(
        product("one", 5, 6), product("two", 6, 7), product("three", 7, 3),
        one=["x"], two=["sum"], three=["two"], collectives=(exchange("sum", "all_reduce", 6, "one", "two"),),
    )  # fmt: skip
    need = hbm_need(work, TINY)
    assert need.weights == 4 * (30 + 42 + 21)
    assert need.ends == row(5 + 3)
    assert (need.between, need.at, need.gathered) == (row(6 + 7), "two", 0)
    wide = replace(work, layers=(product("one", 5, 6), product("two", 6, 2), product("three", 2, 3)))
    assert (hbm_need(wide, TINY).between, hbm_need(wide, TINY).at) == (row(6 + 6), "sum")


def test_a_chain_of_collectives_leads_to_what_it_reads() -> None:
    """8 x 8 scattered over two chips is 8 x 4, and gathered again 8 x 8; `other` runs beside what came."""
    work = share(
        product("one", 5, 8), product("other", 5, 20), product("two", 8, 20), Add("end", 20, 1, 1),
        one=["x"], other=["x"], two=["gathered"], end=["two", "other"],
        collectives=(
            exchange("scattered", "reduce_scatter", 8, "one", "gathered"),
            exchange("gathered", "all_gather", 8, "scattered", "two"),
        ),
    )  # fmt: skip
    need = hbm_need(work, TINY)
    # Beside `other` there is what came last and nothing else: both collectives began as soon as `one` was done.
    assert (need.between, need.at) == (row(20 + 8 + 20), "two")
    assert need.ends == row(5 + 20)
    alone = work.with_layers(lambda layer: layer.name == "one")
    # Scattered beside the operand; then gathered beside the part: 8 + 4 both.
    assert (hbm_need(alone, TINY).between, hbm_need(alone, TINY).at) == (row(8 + 4), "scattered")


def test_an_outcome_that_nobody_reads_is_an_output_and_an_operand_is_none() -> None:
    work = share(product("one", 5, 6), one=["x"], collectives=(exchange("sum", "all_reduce", 6, "one"),))
    need = hbm_need(work, TINY)
    assert (need.ends, need.between) == (row(5 + 6), row(6))


def test_a_collective_of_what_rides_reads_what_carries_it() -> None:
    read = exchange("sum", "all_reduce", 6, "relu", "two")
    plain = share(
        product("one", 5, 6), product("two", 6, 7), one=["x"], two=["sum"], collectives=(read._replace(reads=("one",)),)
    )
    rides = replace(plain, riders=(("one", ("relu",)),), collectives=(read,))
    assert hbm_need(rides, TINY) == hbm_need(plain, TINY)


def test_of_gathered_weights_a_chip_keeps_its_part_and_two_at_most_are_whole() -> None:
    """Five products of 8 x 8 over four chips: a quarter of each, and two whole ones."""
    names = [f"fc{at}" for at in range(5)]
    reads = {name: [before, f"{name}.gather"] for before, name in zip(["x", *names], names, strict=False)}
    gathers = tuple(gather(f"{name}.gather", 64, name) for name in names)
    need = hbm_need(share(*(product(name, 8, 8) for name in names), collectives=gathers, **reads), TINY)
    assert need.weights == 5 * 4 * 64 // 4
    assert need.gathered == 2 * 4 * 64
    assert need.between == row(16)
    assert need.total == need.weights + need.gathered + need.between + need.ends == sum(need.parts.values())


def test_gathers_of_one_part_keep_it_once_and_what_updates_replace_is_that_part() -> None:
    """`fc` forward and backward gather the same weights, of which the update has the part of a chip."""
    weighted_sum: Any = OPS["weighted_sum"]
    update = weighted_sum("fc.update", 16, 1, 1, images=1, factor=1.0, other_factor=-0.1)
    work = share(
        product("fc", 8, 8), product("fc.dx", 8, 8), update,
        **{"fc": ["x", "ahead"], "fc.dx": ["fc", "back"], "fc.update": ["fc.filter", "gradient"]},
        collectives=(
            gather("ahead", 64, "fc", of="fc.filter"),
            gather("back", 64, "fc.dx", of="fc.filter"),
        ),
        phases=(("fc", "forward"), ("fc.dx", "backward"), ("fc.update", UPDATE)),
    )  # fmt: skip
    need = hbm_need(work, TINY)
    # The gradient comes from outside here, and counts as an update's operand does.
    assert need.weights == 4 * (16 + 16)
    assert need.gathered == 2 * 4 * 64


def test_narrow_weights_are_gathered_narrow() -> None:
    layer = Gemm("fc", m=ROWS, n=8, k=8, stored="int8")
    work = share(layer, fc=["x", "gather"], collectives=(gather("gather", 64, "fc"),))
    need = hbm_need(work, TINY)
    assert (need.weights, need.gathered) == (16, 64)


def test_what_is_offloaded_is_not_there_until_the_way_back() -> None:
    """`one` is 8 x 50 and read at both ends; between them `wide` makes 8 x 90."""
    layers = product("one", 5, 50), product("two", 50, 2), product("wide", 2, 90), product("last", 90, 2)
    reads = {"one": ["x"], "two": ["one"], "wide": ["two"], "last": ["wide"], "end": ["last", "one"]}
    phases = (*((layer.name, "forward") for layer in layers), ("end", "backward"))
    plain = share(*layers, product("end", 2, 50), **reads, collectives=(), phases=phases)
    kept = hbm_need(plain, TINY)
    assert (kept.between, kept.at) == (row(50 + 2 + 90), "wide")
    away = hbm_need(
        replace(
            plain, edges=(*plain.edges[:-1], ("end", (Source(("last",)), Source(("one.reload",))))),
            collectives=(
                CollectiveLayer("one.offload", "offload", ROWS * 50, ("host",), ("one",), ("one.reload",)),
                CollectiveLayer("one.reload", "reload", ROWS * 50, ("host",), ("one.offload",), ("end",)),
            ),
        ), TINY,
    )  # fmt: skip
    assert (away.between, away.at) == (row(2 + 90), "wide")


class Counted(NamedTuple):
    """What a step holds: bytes of maps, and of gathered weights."""

    maps: int
    gathered: int


def counted(work: Workload) -> dict[str, Counted]:
    """What is there while each step runs, by walking through the steps one by one."""
    reads = {name: [one for source in of for one in source.names] for name, of in work.edges}
    reads |= {each.name: [*each.reads] for each in work.collectives}
    sizes = {layer.name: 4 * ROWS * layer.shapes(ROWS)[OFMAP][0] for layer in work.layers}
    of_weights = [each.name for each in work.collectives if each.weights]
    back = [each.name for each in work.collectives if each.op == "reload"]
    for each in work.collectives:
        parts = 2 if each.op == "reduce_scatter" else 1
        sizes[each.name] = 0 if each.op == "offload" else 4 * each.elements // parts
    done, held = list[str](), dict[str, Counted]()

    def readers(name: str) -> set[str]:
        return {reader for reader, read in reads.items() if name in read}

    def final(name: str) -> set[str]:
        """The layers that read a value, by way of collectives, too."""
        found = readers(name)
        return {one for each in found for one in (final(each) if each not in layers else {each})}

    def may_begin(each: CollectiveLayer) -> bool:
        window = of_weights if each.weights else back if each.op == "reload" else []
        ahead = window[: max(0, window.index(each.name) - 1)] if window else []
        made = all(name in done for name in each.reads if name in sizes)
        if each.op == "reload" and not {*forward} <= {*done}:
            return False
        return made and all(final(name) <= {*done} for name in ahead)

    def run(name: str) -> None:
        there = {one for one in (*done, name) if not readers(one) <= {*done}}
        there = {one for one in there if readers(one)} | ({name} & ends_not)
        maps = sum(sizes[one] for one in there if one not in of_weights)
        held[name] = Counted(maps, sum(sizes[one] for one in there if one in of_weights))
        done.append(name)

    layers = [layer.name for layer in work.layers]
    forward = [name for name, phase in work.phases if phase == "forward"]
    ends_not = {name for name in sizes if readers(name)}

    def begun(next_layer: str) -> Iterator[str]:
        for each in work.collectives:
            if each.name not in done:
                needed = next_layer in final(each.name) and (each.weights or each.op == "reload")
                if may_begin(each) or needed:
                    yield each.name

    for layer in layers:
        for name in begun(layer):
            run(name)
        run(layer)
    for name in begun(""):
        run(name)
    assert {*done} == {*sizes}
    return held


@st.composite
def shares(draw: st.DrawFn) -> Workload:
    """Products and sums of maps, some of which go through collectives, or to the host and back."""
    widths, reads = {"x": 4}, dict[str, list[Source]]()
    layers, collectives = list[Op](), list[CollectiveLayer]()
    for at in range(draw(st.integers(1, 9))):
        name, read = f"layer{at}", draw(st.sampled_from([*widths]))
        alike = [one for one, width in widths.items() if width == widths[read] and one != read]
        if alike and draw(st.booleans()):
            layers.append(Add(name, widths[read], 1, 1))
            reads[name], width = [Source((read,)), Source((draw(st.sampled_from(alike)),))], widths[read]
        else:
            width = draw(st.sampled_from([2, 4, 8]))
            layers.append(product(name, widths[read], width))
            reads[name] = [Source((read,))]
            if draw(st.booleans()):
                reads[name].append(Source((f"{name}.gather",)))
                collectives.append(gather(f"{name}.gather", widths[read] * width, name))
        widths[name] = width
        made = name
        ops = draw(st.lists(st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "permute"]), max_size=2))
        for number, op in enumerate([*ops, *["host"] * draw(st.booleans())]):
            behind = f"{made}.{number}"
            if op == "host":
                collectives.append(CollectiveLayer(f"{behind}.out", "offload", ROWS * width, ("host",), (made,), ()))
                collectives.append(CollectiveLayer(behind, "reload", ROWS * width, ("host",), (f"{behind}.out",), ()))
            else:
                if op == "all_gather":
                    width *= 2
                collectives.append(exchange(behind, op, width, made))
                width //= 2 if op == "reduce_scatter" and width > 1 else 1
                if op == "reduce_scatter" and collectives[-1].elements == ROWS:
                    collectives[-1] = collectives[-1]._replace(op="all_reduce")
            widths[behind] = width
            made = behind
    turn = draw(st.integers(0, len(layers)))
    phases = tuple((layer.name, "forward" if at < turn else "backward") for at, layer in enumerate(layers))
    return Workload(
        "net", ROWS, layers, edges=tuple((name, tuple(of)) for name, of in reads.items()), phases=phases, mesh=MESH,
        collectives=tuple(_read_by_someone(collectives, reads)),
    )  # fmt: skip


def _read_by_someone(collectives: list[CollectiveLayer], reads: dict[str, list[Source]]) -> Iterator[CollectiveLayer]:
    """Those that come back from the host for nobody are none."""
    read = {one for of in reads.values() for source in of for one in source.names}
    kept: list[CollectiveLayer] = []
    for each in reversed(collectives):
        wanted = each.name in read or any(each.name in other.reads for other in kept)
        if wanted or each.op not in ("reload", "offload"):
            kept.append(each)
    yield from reversed(kept)


@settings(max_examples=cases(usual=50))
@given(shares())
def test_the_most_is_what_walking_through_the_steps_counts(work: Workload) -> None:
    need, held = hbm_need(work, TINY), counted(work)
    most = max(sum(each) for each in held.values())
    assert need.between + need.gathered == most
    assert held[need.at] == (need.between, need.gathered)


# ---- networks that do not fit


def parted(mesh: Mesh) -> Workload:
    """A product of 64 x 64 shared by `fsdp` and `tensor`."""
    sizes = {"data": 1, "fsdp": 1, "tensor": 1} | {**mesh}
    if 64 % sizes["tensor"] or sizes["tensor"] > 4:
        raise InputError("tensor does not part it")
    layers = [product(f"fc{at}", 64 // sizes["tensor"], 64) for at in range(8)]
    names = [layer.name for layer in layers]
    edges = {name: [before] for before, name in zip(["x", *names], names, strict=False)}
    gathers: list[CollectiveLayer] = []
    if sizes["fsdp"] > 1:
        edges = {name: [*of, f"{name}.gather"] for name, of in edges.items()}
        gathers = [gather(f"{name}.gather", 64 * 64 // sizes["tensor"], name) for name in names]
    return Workload("net", ROWS, layers, edges=edges, mesh=tuple(mesh.items()), collectives=tuple(gathers))  # type: ignore[arg-type]


def machine_of(size: int) -> Any:
    return load_hardware("tiny_4x4", {"hbm.capacity": f"{size} B"})


@pytest.mark.parametrize("training", [True, False])
def test_the_mesh_that_fits_is_named_and_fits(training: bool) -> None:
    asked: Mesh = {"data": 8}
    first: Mesh = {"fsdp": 8} if training else {"data": 4, "tensor": 2}
    need = hbm_need(parted(first), TINY).total
    assert need < hbm_need(parted(asked), TINY).total
    machine = machine_of(need)
    found = fitting_mesh(parted, machine, asked, 8, training)
    assert found == first
    with pytest.raises(CapacityError) as error:
        held_in_hbm(parted(asked), machine, lambda: fitting_mesh(parted, machine, asked, 8, training))
    says = str(error.value)
    assert "B of HBM in each chip of data=8, at batch 8" in says
    assert says.endswith("; --mesh fsdp=8 fits" if training else "; --mesh data=4,tensor=2 fits")


def test_meshes_that_do_not_part_the_network_are_passed_over() -> None:
    """`tensor` = 8 is none here; less than what two gathers and the parts take fits nothing."""
    asked: Mesh = {"fsdp": 8}
    both = hbm_need(parted({"fsdp": 2, "tensor": 4}), TINY).total
    assert fitting_mesh(parted, machine_of(both), asked, 8, training=True) == {"fsdp": 2, "tensor": 4}
    assert fitting_mesh(parted, machine_of(both - 1), asked, 8, training=True) is None
    with pytest.raises(CapacityError, match="no mesh of as many chips fits; "):
        held_in_hbm(parted(asked), machine_of(both - 1), lambda: None)


def test_stages_and_experts_stay_as_they_were_asked_for() -> None:
    asked: Mesh = {"stage": 2, "data": 4}
    assert fitting_mesh(parted, TINY, asked, 8, training=True) == {"stage": 2, "fsdp": 4}
