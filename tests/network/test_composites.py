"""Entries that stand for several layers, caches, blocks of layers and phases: what they become, and what is refused."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checks import ESTIMATE
from tests.covering import few
from tests.strategies import cases
from tpusim import Workload, load_hardware, simulate
from tpusim.base.errors import InputError
from tpusim.flow.hbm_need import hbm_need
from tpusim.network.composites import Attention, Experts
from tpusim.network.formats import ModelOptions
from tpusim.network.ops.array_op import Gemm
from tpusim.network.ops.op import OFMAP
from tpusim.network.ops.rows import Softmax
from tpusim.network.workload import Source
from tpusim.network.workload_file import open_workload, workload_of

SMALL = """
name: small
sizes: {context: 12, tokens: context}
phases: {prefill: {tokens: context}, decode: {tokens: 1}}
layers:
  - block: blocks
    count: 3
    layers:
      - {name: norm, op: rms_norm, channels: 16, images: batch*tokens}
      - {name: query, op: gemm, n: 16}
      - {name: key, op: gemm, inputs: [norm], n: 8}
      - {name: value, op: gemm, inputs: [norm], n: 8}
      - {name: keys, op: cache, inputs: [key], channels: 8, tokens: context}
      - {name: values, op: cache, inputs: [value], channels: 8, tokens: context}
      - {name: attention, op: attention, inputs: [query, keys, values], heads: 4, kv_heads: 2, head: 4, queries: tokens,
         keys: context, blocks: 2, soft_cap: 30, window: 5}
      - {name: sum, op: add, inputs: [attention, input]}
      - {name: weights, op: gemm, n: 4}
      - {name: experts, op: experts, inputs: [sum, weights], rows: batch*tokens, channels: 16, inner: 12,
         experts: 4, top: 2, spread: skewed}
  - {name: last, op: gemm, n: 7}
"""
READ = [Source((name,)) for name in ("q", "k", "v")]


def small(tmp_path: Path, phase: str | None = None, text: str = SMALL) -> Workload:
    path = tmp_path / "small.yaml"
    path.write_text(text)
    return workload_of(open_workload(path, ModelOptions(phase=phase)), 2)


@pytest.mark.parametrize(("phase", "context"), few(1, [("decode", 12), ("prefill", 5), ("prefill", 12)]))
def test_every_output_of_a_network_of_tokens_is_right_in_both_engines(tmp_path: Path, phase: str, context: int) -> None:
    work = small(tmp_path, phase, SMALL.replace("context: 12", f"context: {context}").replace("window: 5", "window: 3"))
    one = work.with_layers(lambda layer: "_1" in layer.name)
    result = simulate(one, load_hardware("tiny_4x4", ESTIMATE), engine="both")
    assert result.correct
    assert result.total.outputs_checked == sum(prod(each.shapes(2)[OFMAP]) for each in one.layers)


def test_a_block_reads_what_the_block_before_makes(tmp_path: Path) -> None:
    work = small(tmp_path, "decode")
    reads = work.inputs()
    assert reads["norm_1"] == ("input",)
    assert reads["norm_2"] == ("experts_1.sum",)
    assert reads["sum_3"] == ("attention_3.values", "experts_2.sum")
    assert reads["last"] == ("experts_3.sum",)
    assert reads["attention_2.scores"] == ("query_2", "key_2")


def test_a_phase_gives_sizes_their_values(tmp_path: Path) -> None:
    assert dict(small(tmp_path).sizes) == dict(small(tmp_path, "prefill").sizes) == {"context": 12, "tokens": 12}
    assert dict(small(tmp_path, "decode").sizes) == {"context": 12, "tokens": 1}


def test_caches_take_room_in_hbm_from_step_to_step(tmp_path: Path) -> None:
    machine = load_hardware("tiny_4x4", ESTIMATE)
    assert hbm_need(small(tmp_path, "decode"), machine).caches == 3 * 2 * 2 * 12 * 8 * machine.element_bytes


@settings(max_examples=cases(usual=50))
@given(
    shared=st.integers(1, 3), kv_heads=st.integers(1, 3), queries=st.integers(1, 9), before=st.integers(0, 9),
    window=st.integers(0, 12), blocks=st.integers(1, 4),
)  # fmt: skip
def test_a_block_of_queries_reads_just_the_keys_that_it_sees(
    shared: int, kv_heads: int, queries: int, before: int, window: int, blocks: int
) -> None:
    """Counted pair by pair, of a query and a key that it sees."""
    entry = Attention("a", shared * kv_heads, 4, queries, kv_heads, queries + before, window=window, blocks=blocks)
    layers = [part.layer for part in entry.parts(READ, 2)]
    scores = [layer for layer in layers if isinstance(layer, Gemm) and ".scores" in layer.name]
    first = 0
    for layer in scores:
        asking = layer.m // shared
        sees = [
            {key for key in range(before + query + 1) if not window or key > before + query - window}
            for query in range(first, first + asking)
        ]
        assert layer.n == len(set.union(*sees))
        first += asking
    assert first == queries
    assert all(layer.groups == 2 * kv_heads for layer in scores)


def test_a_prefill_of_many_tokens_computes_little_more_than_half_of_all_scores() -> None:
    entry = Attention("a", heads=32, kv_heads=8, head=128, queries=4096)
    macs = sum(part.layer.macs(1) for part in entry.parts(READ, 1))
    assert macs <= 0.56 * 2 * 32 * 128 * 4096**2


def test_only_blocks_of_several_queries_are_masked() -> None:
    made = [part.layer for part in Attention("a", 4, 8, queries=1, keys=9).parts(READ, 1)]
    assert [each.queries for each in made if isinstance(each, Softmax)] == [0]
    made = [part.layer for part in Attention("a", 4, 8, queries=4, causal=False, blocks=1).parts(READ, 1)]
    assert [each.queries for each in made if isinstance(each, Softmax)] == [0]


@settings(max_examples=cases(usual=50))
@given(rows=st.integers(1, 40), experts=st.integers(1, 9), top=st.integers(1, 4), skewed=st.booleans())
def test_every_row_takes_its_experts(rows: int, experts: int, top: int, skewed: bool) -> None:
    top = min(top, experts)
    entry = Experts("e", rows, 8, 8, experts, top, spread="skewed" if skewed else "balanced")
    assert sum(entry.taken) == rows * top
    assert max(entry.taken) <= rows
    taken = [layer.m for part in entry.parts(READ[:2], 1) if ".down" in (layer := part.layer).name]
    assert taken == [each for each in entry.taken if each]
    assert sum(part.ends for part in entry.parts(READ[:2], 1)) == 1


def test_skewed_experts_are_chosen_by_their_odds() -> None:
    """The first of many draws without replacement falls on expert i with odds 1 / i."""
    taken = Experts("e", 20_000, 8, 8, 4, 1, spread="skewed").taken
    total = 1 + 1 / 2 + 1 / 3 + 1 / 4
    for number, rows in enumerate(taken, 1):
        assert rows == pytest.approx(20_000 / number / total, rel=0.05)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("count: 3", "count: batch", '"batch" is no number of blocks'),
        ("block: blocks", "block: blocks\n    times: 3", 'unknown key "times" of a block'),
        ("block: blocks", "block:", "a block has a name; an empty value is not a name; write some text"),
        ("block: blocks", "block: 4", "a block has a name; 4 is not text; put it in quotes"),
        ("heads: 4, kv", "heads: 5, kv", "5 heads cannot share 2 evenly"),
        ("inputs: [query, keys, values]", "inputs: [query, keys]", "attention reads 3 inputs: queries, keys, values"),
        ("inputs: [query, keys, values]", "inputs: [key, keys, values]", "elements of key_1 as queries"),
        ("tokens: context}\n      - {name: values", "tokens: 1}\n      - {name: values", "holds 16 elements, and 192"),
        ("top: 2", "top: 5", "a row cannot take 5 of 4 experts"),
        ("spread: skewed", "spread: [1, 2, 3]", "3 numbers that add up to 6"),
        ("spread: skewed", "spread: odd", '"odd" spreads no rows'),
        ("decode: {tokens: 1}", "decode: {token: 1}", 'there is no size "token"; did you mean tokens'),
        ("op: attention,", "op: sdpa,", "write op: attention, with inputs"),
        ("window: 5", "window: 5, causal: false", "only a causal attention has a window"),
    ],
)
def test_what_is_wrong_is_told_at_its_line(tmp_path: Path, before: str, after: str, says: str) -> None:
    assert before in SMALL
    with pytest.raises(InputError) as caught:
        small(tmp_path, text=SMALL.replace(before, after))
    assert says in str(caught.value)
    assert "small.yaml:" in str(caught.value)


def test_fewer_keys_than_queries_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    with pytest.raises(InputError, match="1 key cannot hold those of the 3 queries; write 3 at least"):
        workload_of(open_workload(path, ModelOptions({"context": 1, "tokens": 3})), 1)


def test_an_unknown_phase_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match='there is no phase "decoding"; did you mean decode'):
        small(tmp_path, "decoding")
    with pytest.raises(InputError, match="the workload has no phases"):
        workload_of(open_workload("tiny", ModelOptions(phase="decode")), 1)


@pytest.mark.parametrize(
    ("inside", "says"),
    [
        ("{name: a, op: relu, channels: 4, height: 4, width: 4, inputs: [[a]]}", "names no layers"),
        ("{name: a, op: relu, channels: 4, height: 4, width: 4, inputs: [{a: b}]}", "names no layers"),
        ("{block: f, layers: [{name: a, op: relu, channels: 4, height: 4, width: 4}]}", "stands in no other block"),
        ("{name: input, op: relu, channels: 4, height: 4, width: 4}", "input is what a block reads"),
        ("5", "a block has layers, each with a name"),
    ],
)
def test_what_a_block_cannot_hold_is_told(inside: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(f"name: net\nlayers:\n  - {{block: e, count: 2, layers: [{inside}]}}\n")
    with pytest.raises(InputError, match=f"net.yaml:3: .*{says}"):
        workload_of(open_workload(str(path), ModelOptions()), 1)


def test_a_fault_in_a_block_is_placed_in_the_block(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        small(tmp_path, text=SMALL.replace("{name: query, op: gemm, n: 16}", "{name: query, op: gemm, n: 0}"))
    line = next(at for at, text in enumerate(SMALL.splitlines(), 1) if "name: query," in text)
    assert [problem.line for problem in caught.value.problems] == [line]
