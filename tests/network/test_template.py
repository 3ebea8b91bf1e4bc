"""A file that is read once, and resized: the workload is that of the file read again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.network.test_composites import SMALL
from tpusim import Workload
from tpusim.base.errors import InputError
from tpusim.input.document import Document
from tpusim.network import blocks
from tpusim.network.entries import Read, read_layers
from tpusim.network.formats import ModelOptions
from tpusim.network.template import Template
from tpusim.network.workload import with_sizes
from tpusim.network.workload_file import open_workload, workload_of

CHAIN = """
name: chain
inputs: [image, mask]
sizes: {side: 8, wide: side*2, times: 2}
ops: array
layers:
  - {name: a, op: conv2d, inputs: image, in_channels: 3, in_height: side, in_width: side, out_channels: wide, kernel: 3}
  - {name: b, op: relu}
  - {name: c, op: conv2d, out_channels: 4, kernel: 3, biases: true, lowering: explicit}
  - {name: d, op: concat, inputs: [a, b]}
  - {name: e, op: gemm, inputs: mask, m: batch, n: 8, k: 6, count: times}
  - {name: f, op: flatten, inputs: c}
  - {name: g, op: gemm, inputs: f, n: wide, k: 4*(side - 4)*(side - 4)}
"""
LIST = """
name: list
sizes: {side: 8, wide: 2, times: 1}
weights: int8
layers:
  - {name: a, op: conv2d, in_channels: 3, in_height: side, in_width: side, out_channels: 4, kernel: 3, padding: 1}
  - {name: b, op: conv2d, out_channels: wide, kernel: 3}
  - {name: c, op: gemm, m: batch*times, n: 8, k: wide}
"""
BLOCKS = """
name: blocks
inputs: [image, mask]
sizes: {side: 6, wide: 4, times: 2}
layers:
  - {name: stem, op: conv2d, in_channels: 3, in_height: side, in_width: side, out_channels: wide, kernel: 3, padding: 1}
  - block: alike
    count: 4
    layers:
      - {name: conv, op: conv2d, out_channels: wide, kernel: 3, padding: 1, biases: true}
      - {name: relu, op: relu}
      - {name: again, op: add, inputs: [relu, stem]}
      - {name: first, op: add, inputs: [again, relu_1]}
      - {name: heads, op: gemm, inputs: mask, m: batch*side, n: 8, k: 6, count: times}
      - {name: sum, op: add, inputs: [first, input]}
  - block: dense
    count: 3
    layers:
      - {name: grown, op: conv2d, out_channels: wide, kernel: 1, lowering: explicit}
      - {name: both, op: concat, inputs: [input, grown]}
  - block: single
    count: 5
    layers:
      - {name: narrow, op: conv2d, out_channels: wide, kernel: 1}
"""
CACHED = SMALL.replace("count: 3", "count: 2").replace("layers:\n  - block", "caches: int4\nlayers:\n  - block", 1)
SIZES = "context", "tokens", "side", "wide", "times"


def made(read: Callable[[], Workload]) -> Workload | list[str]:
    """The workload, or what is wrong."""
    try:
        return read()
    except InputError as error:
        return [str(each) for each in error.problems]


def document(folder: Path, text: str) -> Document:
    (folder / "net.yaml").write_text(text)
    return open_workload(folder / "net.yaml", ModelOptions())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("template")


@pytest.mark.parametrize("text", [CHAIN, LIST, CACHED, BLOCKS], ids=["chain", "list", "cached", "blocks"])
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_a_file_read_once_is_the_file_read_again(folder: Path, text: str, data: st.DataObject) -> None:
    """Whatever sizes come one after another, sound ones or not."""
    file = document(folder, text)
    once = Template(file, 2)
    assert once.work == workload_of(file, 2)
    names = [name for name in SIZES if f"{name}:" in text.partition("layers:")[0].partition("sizes:")[2]]
    for _ in range(2):
        sizes = data.draw(st.dictionaries(st.sampled_from(names), st.sampled_from([0, 1, 3, 5, 8, 9, 2**17, 2**25])))
        again = made(lambda sizes=sizes: workload_of(with_sizes(file, sizes), 2))  # type: ignore[misc]
        assert made(lambda sizes=sizes: once.at(sizes)) == again  # type: ignore[misc]


@pytest.mark.parametrize("text", [BLOCKS, SMALL, SMALL.replace("count: 3", "count: 12")])
def test_copies_are_what_reading_each_of_them_makes(folder: Path, text: str) -> None:
    file = document(folder, text)
    work = workload_of(file, 2)
    assert replace(work, blocks=()) == workload_of(replace(file, blocks=()), 2)
    for block, said in zip(work.blocks, file.blocks, strict=True):
        assert len(block.copies) == said.times
        assert {len(names) for names in block.copies} == {len(block.copies[0])}
    names = [name for block in work.blocks for copy in block.copies for name in copy]
    assert names == [layer.name for layer in work.layers if layer.name in work.copies]


def test_a_copy_is_read_where_it_reads_more_than_other_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first reads what the stem makes; those of a growing block read ever more channels."""
    seen = list[str]()

    def watched(entry: Mapping[str, Any], *rest: Any) -> Read:
        seen.append(entry["name"])
        return read_layers(entry, *rest)

    monkeypatch.setattr(blocks, "read_layers", watched)
    workload_of(document(folder, BLOCKS), 2)
    assert {"conv_2", "sum_4", "narrow_3", "heads_4"} & {*seen} == set()
    assert {"grown_1", "grown_2", "grown_3", "narrow_1", "stem"} <= {*seen}


def test_entries_that_sizes_do_not_reach_are_not_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    once, seen = Template(document(folder, SMALL), 2), list[str]()
    once.at({"tokens": 1})

    def watched(entry: Mapping[str, Any], *rest: Any) -> Read:
        seen.append(entry["name"])
        return read_layers(entry, *rest)

    monkeypatch.setattr(blocks, "read_layers", watched)
    once.at({"tokens": 1, "context": 13})
    assert seen == ["keys_1", "values_1", "attention_1"]
    seen.clear()
    once.at({"tokens": 1, "context": 13})
    assert seen == []
