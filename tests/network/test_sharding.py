"""One chip's share of a network: layers of the file with smaller sizes, and what chips exchange."""

from __future__ import annotations

from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

import pytest

from tests.covering import covering
from tpusim import Workload, load_workload
from tpusim.api.asked import asked_for, model_options
from tpusim.base.errors import InputError
from tpusim.network.ops.op import OFMAP
from tpusim.network.sharding import combined
from tpusim.network.workload import CollectiveLayer
from tpusim.study.sweep.points import load_sweep

SMALL: dict[str, int] = {"context": 64, "layers": 1, "width": 256, "heads": 8, "kv_heads": 4, "head": 32, "inner": 512,
                         "vocabulary": 640}  # fmt: skip


def step(name: str, batch: int, mesh: dict[str, int], dims: dict[str, int] | None = None, **more: Any) -> Workload:
    asked = model_options(training=True, dims=SMALL if dims is None else dims, mesh=mesh, **more)
    return asked_for(name, "tpu_v5e", batch, None, asked).work


def of(work: Workload, op: str) -> list[CollectiveLayer]:
    return [each for each in work.collectives if each.op == op]


def updated(work: Workload) -> dict[str, int]:
    """Elements of the weights of products, by the layers that update them."""
    named = (layer for layer in work.layers if layer.name.endswith(".filter.update"))
    return {layer.name: prod(layer.shapes(work.batch)[OFMAP]) for layer in named}


# ---- tensor: heads, the feed-forward part and the outputs (Shoeybi et al. 2019, section 3)


def test_an_eighth_of_llama_70b_is_what_its_authors_part() -> None:
    share = load_workload("llama3_70b", batch=8, phase="decode", mesh={"tensor": 8}, dims={"layers": 2})
    text = {layer.name: layer.text for layer in share.layers}
    assert [text[f"{name}_2"] for name in ("query", "key", "value", "projection", "gate", "up", "down")] == [
        "8x8192>1024", "8x8192>128", "8x8192>128", "8x1024>8192", "8x8192>3584", "8x8192>3584", "8x3584>8192",
    ]  # fmt: skip
    assert text["attention_2.scores"] == "8x128>4096 g8"
    assert text["logits"] == "8x8192>16032"
    assert text["embedding"] == load_workload("llama3_70b", batch=8, phase="decode").layers[0].text


@pytest.mark.parametrize(
    ("name", "ends"), [("llama3_8b", ("projection", "down")), ("gpt2_small", ("projection", "feed_forward_down"))]
)
def test_partial_sums_of_two_products_a_block_are_added_up(name: str, ends: tuple[str, str]) -> None:
    share = load_workload(name, batch=4, mesh={"tensor": 4}, dims={"context": 64, "layers": 2})
    assert [each.reads for each in share.collectives] == [(f"{end}_{copy}",) for copy in (1, 2) for end in ends]
    width = dict(share.sizes)["width"]
    assert {(each.op, each.elements, each.over) for each in share.collectives} == {
        ("all_reduce", 4 * 64 * width, ("tensor",))
    }
    for each in share.collectives:
        (reader,) = each.read_by
        assert each.name in share.inputs()[reader]
        assert each.reads[0] not in share.inputs()[reader]


def test_on_the_way_back_gradients_of_what_all_chips_have_are_added_up() -> None:
    share = step("llama3_8b", 4, {"tensor": 4})
    back = [each.reads for each in of(share, "all_reduce")]
    # Of the last product's input, and of what normalizations hand to the products of a block: f of Megatron.
    assert back == [
        ("projection_1",), ("down_1",), ("logits.dx",), ("feed_forward_norm_1.dy",), ("attention_norm_1.dy",),
    ]  # fmt: skip
    # A loss is of whole rows.
    (loss,) = of(share, "all_gather")
    assert loss.elements == 4 * 64 * SMALL["vocabulary"]
    assert {*loss.read_by} == {"logits.loss", "logits.loss.dx"}
    shapes = {layer.name: layer.shapes(share.batch) for layer in share.layers}
    assert shapes["logits.loss"]["ifmap"][0] == SMALL["vocabulary"]
    assert shapes["logits"][OFMAP][0] == SMALL["vocabulary"] // 4


# ---- data and fsdp (Rajbhandari et al. 2020, stage 3)


def test_gradients_of_all_weights_are_added_up_once() -> None:
    share = step("llama3_8b", 4, {"data": 4})
    weights = sum(prod(layer.shapes(1)[OFMAP]) for layer in share.layers if layer.name.endswith(".update"))
    assert sum(each.elements for each in share.collectives) == weights
    assert {each.op for each in share.collectives} == {"all_reduce"}


def test_parted_weights_are_gathered_for_each_reader_and_updated_in_part() -> None:
    whole, share = (step("llama3_8b", 8, mesh, keep="none") for mesh in ({"data": 4}, {"fsdp": 4}))
    sizes = {name: updated(work) for name, work in (("whole", whole), ("share", share))}
    assert {name: 4 * size for name, size in sizes["share"].items()} == sizes["whole"]
    assert {each.reads[0]: each.elements for each in of(share, "reduce_scatter") if "embedding" not in each.name} == {
        name.replace(".filter.update", ".dw"): size for name, size in sizes["whole"].items()
    }
    # Forward, once more on the way back, and for the gradient of the input.
    readers = Counter(reader.split(".")[0] for each in share.collectives if each.weights for reader in each.read_by)
    assert readers["gate_1"] == 3
    assert all(not each.reads and len(each.read_by) == 1 for each in share.collectives if each.weights)


def test_axes_work_together() -> None:
    share = step("llama3_8b", 8, {"data": 2, "fsdp": 2, "tensor": 2})
    chain = [each for each in share.collectives if each.name.startswith("gate_1.dw")]
    assert [(each.op, each.over) for each in chain] == [("reduce_scatter", ("fsdp",)), ("all_reduce", ("data",))]
    assert chain[1].reads == (chain[0].name,)
    assert chain[0].elements == 2 * chain[1].elements == SMALL["width"] * SMALL["inner"] // 2
    assert share.batch == 2
    assert share.mesh == (("data", 2), ("fsdp", 2), ("tensor", 2))


def test_statistics_of_a_batch_normalization_are_those_of_a_chips_images() -> None:
    share = step("resnet18", 8, {"data": 4}, dims={})
    assert all(each.read_by and all(reader.endswith((".velocity", ".update")) for reader in each.read_by)
               for each in share.collectives)  # fmt: skip
    assert sum("norm" in each.name for each in share.collectives) == 2 * 20


# ---- experts (Lepikhin et al. 2020)


def test_rows_go_to_the_chips_of_their_experts_and_come_back() -> None:
    share = load_workload("mixtral_8x7b", batch=8, phase="decode", mesh={"expert": 4}, dims={"layers": 1})
    there, back = of(share, "all_to_all")
    rows, top = 2, 2
    assert there.elements == back.elements == rows * top * 4096
    assert there.reads == ("feed_forward_norm_1",)
    assert back.reads == ("experts_1.down_1", "experts_1.down_2")
    # Rows of all chips: 8 rows of two experts each, over eight experts.
    assert {layer.text for layer in share.layers if layer.name.startswith("experts_1.gate")} == {"2x4096>14336"}


# ---- convolutions


@pytest.mark.parametrize(
    ("name", "mesh"),
    covering(
        1, ["resnet50", "bert_base", "vgg16"], [{"data": 2}, {"fsdp": 2}, {"tensor": 4}, {"data": 2, "tensor": 2}]
    ),
)
def test_shipped_networks_are_shared_whole(name: str, mesh: dict[str, int]) -> None:
    """A chip of several has its part of all products, but for layers that all chips do alike."""
    whole, share = (load_workload(name, batch=4, mesh=each, ops="all") for each in ({}, mesh))
    macs, own = (sum(layer.macs(work.batch) for layer in work.layers) for work in (whole, share))
    assert macs / own == pytest.approx(prod(mesh.values()), rel=0.15)
    if "tensor" in mesh:
        assert {*of(share, "all_reduce"), *of(share, "reduce_scatter")}


def test_a_sum_that_waits_is_added_up_once_behind_the_addition() -> None:
    share = load_workload("resnet50", batch=4, mesh={"tensor": 4}, ops="all")
    (end,) = (each for each in share.collectives if each.reads == ("layer1.0.add",))
    assert end.op == "all_reduce"
    assert not any(each.reads[0].startswith(("layer1.0.conv3", "layer1.0.downsample")) for each in share.collectives)


def test_an_addition_that_chips_part_takes_parts_of_whole_sums(tmp_path: Path) -> None:
    path = tmp_path / "parted_sum.yaml"
    path.write_text(
        "name: parted_sum\nlayers:\n"
        "  - {name: a, op: gemm, m: batch, k: 8, n: 8, shard: {k: tensor}}\n"
        "  - {name: b, op: gemm, m: batch, inputs: [input], k: 8, n: 8, shard: {k: tensor}}\n"
        "  - {name: sum, op: add, inputs: [a, b], shard: {channels: tensor}}\n"
    )
    share = load_workload(path, batch=4, mesh={"tensor": 4})
    assert [(each.op, each.reads) for each in share.collectives] == [
        ("reduce_scatter", ("a",)), ("reduce_scatter", ("b",))
    ]  # fmt: skip


# ---- what is refused


@pytest.mark.parametrize(
    ("name", "batch", "mesh", "says"),
    [
        ("llama3_70b", 8, {"tensor": 3}, r"heads 64 is not parted evenly by 3 chips along tensor; take one of 1, 2, 4"),
        ("llama3_8b", 8, {"tensr": 2}, r"nothing is parted along tensr; did you mean tensor\?"),
        ("llama3_8b", 8, {"heads": 2}, r"nothing is parted along heads"),
        ("llama3_8b", 8, {"data": 3}, r"not parted evenly by 3 chips along data; give a multiple of 3"),
        ("resnet50", 8, {"tensor": 128}, r"layer1.0.conv1.*out_channels 64 is not parted evenly by 128"),
        ("mixtral_8x7b", 9, {"expert": 3}, r"experts 8 is not parted evenly by 3"),
        ("alexnet", 8, {"tensor": 2}, r"nothing is parted along tensor; there is data, fsdp, stage"),
    ],
)
def test_what_a_mesh_does_not_part_is_refused(name: str, batch: int, mesh: dict[str, int], says: str) -> None:
    with pytest.raises(InputError, match=says):
        load_workload(name, batch=batch, mesh=mesh)


def test_products_that_a_chip_lacks_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "both.yaml"
    path.write_text(
        "name: both\nlayers:\n  - {name: a, op: gemm, m: batch, k: 8, n: 8, shard: {n: tensor, k: tensor}}\n"
    )
    with pytest.raises(InputError, match=r"layer a: its filter is parted twice along tensor"):
        load_workload(path, mesh={"tensor": 2})


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        (
            "sizes: {seq: 64, width: 32}\nshard: {seq: tensor}\nlayers:\n"
            "  - {name: q, op: gemm, m: batch*seq, k: 32, n: width}\n"
            "  - {name: k, op: gemm, inputs: [input], m: batch*seq, k: 32, n: width}\n"
            "  - {name: v, op: gemm, inputs: [input], m: batch*seq, k: 32, n: width}\n"
            "  - {name: mix, op: attention, inputs: [q, k, v], heads: 4, head: 8, queries: seq, keys: seq, "
            f"flash: {flash}}}\n",
            r"layer mix\.\w+: (both its inputs and its outputs are|its ifmap is) parted (twice )?along tensor",
        )
        for flash in ("false", "true")
    ]
    + [
        (
            "sizes: {rows: 16}\nshard: {rows: tensor}\nlayers:\n"
            "  - {name: map, op: conv2d, in_channels: 4, in_height: rows, in_width: 8, out_channels: 4, "
            "kernel: 3, padding: 1}\n",
            r"layer map: conv2d takes \w+ that other chips along tensor have",
        ),
        (
            "sizes: {rows: 16}\nshard: {rows: tensor}\nlayers:\n"
            "  - {name: up, op: conv_transpose2d, in_channels: 4, in_height: rows, in_width: 8, out_channels: 4, "
            "kernel: 4, stride: 2, padding: 1}\n",
            r"layer up: conv_transpose2d takes \w+ that other chips",
        ),
        (
            "sizes: {cols: 16}\nshard: {cols: tensor}\nlayers:\n"
            "  - {name: map, op: conv2d, in_channels: 4, in_height: 8, in_width: cols, out_channels: 4, kernel: 1}\n"
            "  - {name: around, op: pad, padding: 1}\n",
            r"layer around: pad takes \w+ that other chips",
        ),
        (
            "layers:\n"
            "  - {name: map, op: conv2d, in_channels: 4, in_height: 8, in_width: 8, out_channels: 16, kernel: 1, "
            "shard: {out_channels: tensor}}\n"
            "  - {name: mix, op: channel_shuffle, groups: 2, channels: 16, shard: {channels: tensor}}\n",
            r"layer mix: channel_shuffle takes \w+ that other chips",
        ),
        (
            "sizes: {length: 16}\nshard: {length: tensor}\nlayers:\n"
            "  - {name: line, op: conv1d, in_channels: 4, in_length: length, out_channels: 4, kernel: 3, padding: 1}\n",
            r"layer line: conv1d takes \w+ that other chips",
        ),
        (
            "sizes: {cols: 16}\nshard: {cols: tensor}\nlayers:\n"
            "  - {name: map, op: conv2d, in_channels: 4, in_height: 8, in_width: cols, out_channels: 4, kernel: 1}\n"
            "  - {name: most, op: pool2d, kind: max, kernel: 3, stride: 2, padding: 1}\n",
            r"layer most: pool2d takes \w+ that other chips",
        ),
        (
            "layers:\n"
            "  - {name: map, op: conv2d, in_channels: 4, in_height: 8, in_width: 8, out_channels: 16, kernel: 1, "
            "shard: {out_channels: tensor}}\n"
            "  - {name: near, op: lrn, size: 5, alpha: 1.0e-4, beta: 0.75, bias: 1.0}\n",
            r"layer near: lrn takes \w+ that other chips",
        ),
    ],
)  # fmt: skip
def test_elements_that_a_chip_lacks_are_refused(tmp_path: Path, layers: str, says: str) -> None:
    path = tmp_path / "lacking.yaml"
    path.write_text(f"name: lacking\n{layers}")
    with pytest.raises(InputError, match=says):
        load_workload(path, batch=4, mesh={"tensor": 2}, ops="all")


def test_rows_of_pixels_are_parted_where_windows_stand_apart(tmp_path: Path) -> None:
    path = tmp_path / "apart.yaml"
    path.write_text(
        "name: apart\nsizes: {rows: 16}\nshard: {rows: tensor}\nlayers:\n"
        "  - {name: map, op: conv2d, in_channels: 4, in_height: rows, in_width: 8, out_channels: 4, kernel: 2, "
        "stride: 2}\n"
    )
    share = load_workload(path, batch=4, mesh={"tensor": 2})
    assert not share.collectives
    assert share.layers[0].shapes(4)["ofmap"] == (4, 4, 4, 4)


def test_a_sweep_is_of_one_chip(tmp_path: Path) -> None:
    path = tmp_path / "shared.yaml"
    path.write_text("name: a\nmesh: {data: 2}\nlayers:\n  - {name: a, op: gemm, m: batch, k: 8, n: 8}\n")
    with pytest.raises(InputError, match=r"chips of a mesh share .*shared.yaml, and a point of a sweep is one chip"):
        load_sweep({"workloads": str(path), "hardware": "tpu_v6e", "axes": {"batch": [2, 4]}})


def test_a_mesh_of_one_chip_changes_nothing() -> None:
    alone, same = (load_workload("tiny", batch=2, mesh=mesh) for mesh in (None, {"data": 1}))
    assert alone.layers == same.layers
    assert not same.collectives


# ---- collectives joined


def test_gradients_of_a_network_are_added_up_together() -> None:
    share = step("llama3_8b", 4, {"data": 4})
    elements = sum(each.elements for each in share.collectives)
    (one,) = combined(share, elements, 256).collectives
    assert one.elements == elements
    assert {*one.reads} == {name for each in share.collectives for name in each.reads}
    assert {*one.read_by} == {name for each in share.collectives for name in each.read_by}
    inputs = combined(share, elements, 256).inputs()
    assert all(one.name in inputs[reader] for reader in one.read_by)
    assert combined(share, 1, 256) is share


@pytest.mark.parametrize("operands", [1, 2, 3])
def test_no_more_are_joined_than_a_compiler_does(operands: int) -> None:
    share = step("llama3_8b", 4, {"data": 2, "tensor": 2})
    most = 200_000
    made = combined(share, most, operands).collectives
    assert sum(each.elements for each in made) == sum(each.elements for each in share.collectives)
    for each in made:
        assert len(each.reads) <= max(operands, 1) or "dscale" in each.name
        assert each.elements <= most or len(each.reads) == 1
    # What layers wait for in the middle of a step stays alone.
    assert {each.name for each in made if not each.read_by[0].endswith(("update", "velocity"))} == {
        each.name for each in share.collectives if not each.read_by[0].endswith(("update", "velocity"))
    }


PRODUCTS = """name: net
sizes: {{seq: 16, inner: 64}}
{above}
layers:
  - {{name: up, op: gemm, m: batch*seq, k: 32, n: inner, shard: {own}}}
  - {{name: down, op: gemm, n: 32}}
"""


@pytest.mark.parametrize(
    ("above", "own", "says"),
    [
        ("mesh: tensor", "{n: tensor}", r"net.yaml:3: mesh: \"tensor\" is no mesh; write each axis with its chips"),
        ("mesh: [tensor, 2]", "{n: tensor}", "net.yaml:3: mesh: .* is no mesh"),
        ("mesh: {tensor: 0}", "{n: tensor}", "net.yaml:3: mesh.tensor: 0 is out of range"),
        ("mesh: {tensor: -2}", "{n: tensor}", "net.yaml:3: mesh.tensor: -2 is out of range"),
        ("mesh: {tensor: 2.0}", "{n: tensor}", "net.yaml:3: mesh.tensor: 2.0 is not a whole number; write 2"),
        ("mesh: {tensor: yes}", "{n: tensor}", "net.yaml:3: mesh.tensor: true is a truth value"),
        ("mesh: {tensor: inner}", "{n: tensor}", "net.yaml:3: mesh.tensor: .* is not a number"),
        ("mesh: {tensor: 100000000000000000000}", "{n: tensor}", "net.yaml:3: mesh.tensor: .* is out of range"),
        ("mesh: {host: 4}", "{n: host}", "net.yaml:3: mesh.host: .* names no axis; write another word"),
        ("shard: {iner: tensor}", "{n: tensor}", r"net.yaml:3: shard.iner: .*did you mean inner\? its sizes: seq"),
        ("shard: {inner: []}", "{n: tensor}", "net.yaml:3: shard.inner: .* names no axis of a mesh"),
        ("shard: {inner: 2}", "{n: tensor}", "net.yaml:3: shard.inner: 2 names no axis of a mesh"),
        ("shard: {inner: [tensor, tensor]}", "{n: tensor}", "net.yaml:3: shard.inner: .* names an axis twice"),
        ("shard: {inner: seq}", "{n: tensor}", "net.yaml:3: shard.inner: seq is a size, and no axis"),
        ("source: here", "{n: seq}", r"net.yaml:5: layers\[0\].shard: seq is a size, and no axis"),
        ("source: here", "{n: batch}", r"net.yaml:5: layers\[0\].shard: batch is a size, and no axis"),
    ],
)
def test_a_faulty_mesh_or_shard_is_refused_also_beside_a_slice(tmp_path: Path, above: str, own: str, says: str) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(PRODUCTS.format(above=above, own=own))
    with pytest.raises(InputError, match=says):
        load_workload(path)
    with pytest.raises(InputError, match=says):
        # Chips of a slice part the batch where no mesh is given, not where a faulty one is.
        asked_for(path, None, None, None, model_options(), slice="v6e_2x2")


@pytest.mark.parametrize("mesh", [{"tensor": 10**20}, {"tensor": 0}, {"tensor": 2.0}, {"host": 8}, {3: 4}])
def test_a_faulty_mesh_of_a_run_is_refused_by_its_option(mesh: Any) -> None:
    with pytest.raises(InputError, match="--mesh"):
        load_workload("gpt2_small", mesh=mesh)


def test_what_fits_is_told_at_once_however_many_chips_part_it() -> None:
    with pytest.raises(InputError, match="heads 12 is not parted evenly by 1,048,576 chips along tensor; take one of"):
        load_workload("gpt2_small", mesh={"tensor": 2**20})


@pytest.mark.parametrize("above", ["shard: {seq: tensor}", "shard: {batch: tensor}"])
def test_outputs_of_which_chips_have_blocks_along_a_diagonal_are_refused(tmp_path: Path, above: str) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(PRODUCTS.format(above=above, own="{n: tensor}"))
    with pytest.raises(InputError, match="parted twice along tensor, so that no chip has some of it"):
        load_workload(path, mesh={"tensor": 2})


# ---- maps side by side, and those from outside

_MAPS = """name: net
layers:
  - {{name: a, op: conv2d, in_channels: 8, in_height: 4, in_width: 4, out_channels: 8, kernel: 1{a}}}
  - {{name: b, op: conv2d, inputs: [input], out_channels: 8, kernel: 1{b}}}
  - {{name: both, op: concat, inputs: [{reads}]}}
  - {{name: end, op: {end}}}
"""
_CHANNELS = ", shard: {out_channels: tensor}"
_END = "conv2d, out_channels: 8, kernel: 1"


@pytest.mark.parametrize("end", [_END, "relu"])
@pytest.mark.parametrize("reads", ["a, b", "b, a", "a, input", "input, a"])
def test_a_parted_map_beside_one_that_all_chips_have_is_refused(tmp_path: Path, reads: str, end: str) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(_MAPS.format(a=_CHANNELS, b="", reads=reads, end=end))
    with pytest.raises(InputError, match=r"layer end: it reads a, .* along tensor has a part, beside (b|input), which"):
        load_workload(path, mesh={"tensor": 2})


def test_maps_side_by_side_that_are_parted_alike_need_one_sum(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(_MAPS.format(a=_CHANNELS, b=_CHANNELS, reads="a, b", end=_END))
    (made,) = load_workload(path, mesh={"tensor": 2}).collectives
    assert (made.op, made.reads) == ("all_reduce", ("end",))
    path.write_text(_MAPS.format(a="", b="", reads="a, input", end=_END))
    assert not load_workload(path, mesh={"data": 2}).collectives


@pytest.mark.parametrize(
    ("name", "mesh"),
    [("gpt2_small", {"tensor": 4, "data": 2}), ("gpt2_small", {"fsdp": 8}), ("bert_base", {"tensor": 4}),
     ("llama3_8b", {"data": 8}), ("mixtral_8x7b", {"expert": 8})],
)  # fmt: skip
def test_ops_of_the_array_alone_are_shared(name: str, mesh: dict[str, int]) -> None:
    dims = {} if name == "bert_base" else {"layers": 2}
    share = load_workload(name, batch=8, mesh=mesh, dims=dims, ops="array")
    made = {each.name for each in share.collectives} | {each.name for each in share.layers}
    assert {each for made in share.collectives for each in (*made.reads, *made.read_by)} <= made


# ---- what a chip cannot make of its part alone

_ROWS_PARTED = ", shard: {in_height: tensor}"


@pytest.mark.parametrize(
    ("first", "then", "says"),
    [
        (_ROWS_PARTED, "relu", "layer first: conv2d takes rows that other chips along tensor have"),
        (_CHANNELS, "lrn, size: 3", "layer then: lrn takes channels that other chips along tensor have"),
        (_CHANNELS, "channel_shuffle, groups: 2", "layer then: channel_shuffle takes channels"),
        (_CHANNELS, "slice, axis: channels, start: 1, stop: 3", "layer then: slice takes channels"),
        ("", "pool2d, kind: max, kernel: 3, stride: 1, shard: {in_width: tensor}", "layer then: pool2d takes columns"),
        ("", "pad, padding: 1, shard: {width: tensor}", "layer then: pad takes columns"),
        ("", "conv_transpose2d, out_channels: 8, kernel: 3, shard: {in_height: tensor}", "conv_transpose2d takes rows"),
        (_CHANNELS, "relu, shard: {channels: tensor}", "layer then: its ifmap is parted twice along tensor"),
        (
            "", "conv2d, out_channels: 8, groups: 4, kernel: 1, shard: {groups: tensor}",
            "layer then: its filter gets larger the more chips there are along tensor",
        ),
    ],
)  # fmt: skip
def test_what_a_chip_does_not_make_of_its_part_is_refused(tmp_path: Path, first: str, then: str, says: str) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(f"""name: net
layers:
  - {{name: first, op: conv2d, inputs: [input], in_channels: 8, in_height: 8, in_width: 8, out_channels: 8, kernel: 3,
      padding: 1{first}}}
  - {{name: then, op: {then}}}
""")
    with pytest.raises(InputError, match=says):
        load_workload(path, mesh={"tensor": 2})


@pytest.mark.parametrize(
    "then",
    ["pool2d, kind: max, kernel: 2, stride: 2, shard: {in_height: tensor}", "upsample, shard: {height: tensor}",
     "conv2d, out_channels: 8, kernel: 1, shard: {in_height: tensor}",
     "conv2d, out_channels: 8, kernel: 2, stride: 2, shard: {in_height: tensor}"],
)  # fmt: skip
def test_rows_that_chips_part_without_an_exchange(tmp_path: Path, then: str) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(f"""name: net
layers:
  - {{name: first, op: relu, inputs: [input], channels: 8, height: 8, width: 8}}
  - {{name: then, op: {then}}}
""")
    assert not load_workload(path, mesh={"tensor": 2}).collectives


@pytest.mark.parametrize(
    ("name", "mesh"),
    covering(
        1, ["densenet121", "dcn_res5", "googlenet", "unet", "yolov2", "dcgan", "vit_b16"], [{"data": 4}, {"fsdp": 4}]
    ),
)
def test_every_network_is_shared_by_its_batch(name: str, mesh: dict[str, int]) -> None:
    share = load_workload(name, batch=8, mesh=mesh)
    assert share.batch == 2
    assert bool(share.collectives) == ("fsdp" in mesh)
