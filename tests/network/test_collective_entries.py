"""Files that are one chip's share of a network: what chips exchange is an entry, and readers name it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpusim import Workload, load_workload
from tpusim.base.errors import InputError
from tpusim.network.workload import CollectiveLayer, Source
from tpusim.network.workload_file import open_workload

FILE = """
name: share
share_of: {data: 2, tensor: 4}
layers:
  - {name: weights, op: collective, inputs: [input], does: all_gather, over: [data], elements: 512}
  - {name: up, op: gemm, inputs: [input, weights], m: 8, n: 32, k: 16}
  - {name: act, op: relu, inputs: [up], channels: 32, images: 8}
  - {name: down, op: gemm, inputs: [act], m: 8, n: 16, k: 32}
  - {name: sum, op: collective, inputs: [down], does: all_reduce, over: [tensor], elements: 128}
  - {name: half, op: collective, inputs: [sum], does: reduce_scatter, over: [tensor], elements: 128}
  - {name: last, op: relu, inputs: [half], channels: 4, images: 8}
"""


def loaded(folder: Path, text: str = FILE) -> Workload:
    (folder / "share.yaml").write_text(text)
    return load_workload(folder / "share.yaml", batch=1)


def test_collectives_stand_between_layers(tmp_path: Path) -> None:
    work = loaded(tmp_path)
    assert [layer.name for layer in work.layers] == ["up", "act", "down", "last"]
    assert work.mesh == (("data", 2), ("tensor", 4))
    assert work.collectives == (
        CollectiveLayer("weights", "all_gather", 512, ("data",), (), ("up",), weights=True),
        CollectiveLayer("sum", "all_reduce", 128, ("tensor",), ("down",), ("half",)),
        CollectiveLayer("half", "reduce_scatter", 128, ("tensor",), ("sum",), ("last",)),
    )
    assert work.sources()["up"] == (Source(("input",)), Source(("weights",)))
    assert work.sources()["last"] == (Source(("half",)),)


def test_layers_of_the_array_alone(tmp_path: Path) -> None:
    some = loaded(tmp_path).with_ops("array")
    assert some.sources()["down"][0].names == ("up",)
    assert [(each.name, each.reads, each.read_by) for each in some.collectives] == [
        ("weights", (), ("up",)), ("sum", ("down",), ("half",)), ("half", ("sum",), ())
    ]  # fmt: skip


def test_copies_of_a_block_have_collectives_of_their_own(tmp_path: Path) -> None:
    text = """
name: share
share_of: {tensor: 4}
layers:
  - block: layer
    count: 3
    layers:
      - {name: fc, op: gemm, inputs: [input], m: 8, n: 16, k: 16}
      - {name: sum, op: collective, inputs: [fc], does: all_reduce, over: [tensor], elements: 128}
"""
    work = loaded(tmp_path, text)
    assert [(each.name, each.reads, each.read_by) for each in work.collectives] == [
        ("sum_1", ("fc_1",), ("fc_2",)), ("sum_2", ("fc_2",), ("fc_3",)), ("sum_3", ("fc_3",), ())
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("over: [tensor], elements: 128}\n  - {name: half", "over: [tenser], elements: 128}\n  - {name: half",
         "no axis \"tenser\" of sum; did you mean tensor? there is data, tensor"),
        ("share_of: {data: 2, tensor: 4}\n", "", "a file says under share_of: how many chips an axis has"),
        ("share_of: {data: 2, tensor: 4}", "share_of: {data: 2, tensor: 4}\nmesh: {data: 2}",
         "the file is one chip's share already; leave the mesh out"),
        ("does: all_reduce", "does: allreduce", "all_reduce"),
        ("over: [data]", "over: data", "names no axes of the mesh; write a list of names, such as [tensor]"),
        ("share_of: {data: 2,", "share_of: {data: 0,", "0"),
        ("name: half,", "name: act,", "the name \"act\" is taken"),
    ],
)  # fmt: skip
def test_a_faulty_share_is_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in FILE
    with pytest.raises(InputError) as caught:
        loaded(tmp_path, FILE.replace(old, new))
    assert says in str(caught.value)


def test_a_share_is_parted_no_further(tmp_path: Path) -> None:
    (tmp_path / "share.yaml").write_text(FILE)
    with pytest.raises(InputError, match="the file is one chip's share already"):
        load_workload(tmp_path / "share.yaml", batch=2, mesh={"data": 2})
    assert open_workload(tmp_path / "share.yaml").data["share_of"] == {"data": 2, "tensor": 4}
