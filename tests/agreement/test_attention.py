"""Attention of random heads, lengths, windows and masks on random machines: both engines, and every output; as layers
one after another, and as one op whose scores stay on chip.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checks import ESTIMATE
from tests.covering import covering
from tests.rules import rule
from tests.strategies import cases, machine, machines
from tpusim import Workload, load_hardware, simulate
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.registry import lowered
from tpusim.machines.tpu.program.operations import OPERATIONS
from tpusim.machines.tpu.program.steps import Stream, Vector
from tpusim.network.composites import Attention
from tpusim.network.ops.array_op import Gemm
from tpusim.network.ops.flash_attention import FlashAttention, FlashAttentionGradient
from tpusim.network.ops.rows import Softmax, SoftmaxGradient
from tpusim.network.workload import Source

READ = [Source((name,)) for name in Attention.reads]
ENOUGH = 2**14
"""Words of a lane: what does not fit is refused elsewhere."""


@st.composite
def attentions(draw: st.DrawFn) -> Attention:
    """Few heads and tokens: prompts, tokens behind a cache, several at a time."""
    kv_heads, queries = draw(st.integers(1, 2)), draw(st.integers(1, 6))
    causal = draw(st.booleans())
    return Attention(
        "attention",
        heads=kv_heads * draw(st.integers(1, 3)),
        head=draw(st.integers(1, 6)),
        queries=queries,
        kv_heads=kv_heads,
        keys=queries + draw(st.integers(0, 6)),
        causal=causal,
        window=draw(st.integers(0, 8)) if causal else 0,
        soft_cap=draw(st.sampled_from((0.0, 0.0, 5.0))),
        blocks=draw(st.integers(1, 3)),
    )


def agrees(entry: Attention, batch: int, hardware: Hardware) -> None:
    """Event engine and register engine take as many cycles, and every output of every layer is right."""
    parts = [*entry.parts(READ, batch)]
    edges = {part.layer.name: part.sources for part in parts}
    work = Workload("attention", batch, [part.layer for part in parts], edges=edges)
    words = hardware.vector_memory.word_elements * hardware.vector_memory.element_bytes
    roomy = hardware.having("vector_memory", capacity_bytes=ENOUGH * words)
    result = simulate(work, roomy.having("vector_unit", scalar_words=4), engine="both")
    assert result.correct


relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@settings(relaxed, max_examples=cases(1 / 5))
@given(entry=attentions(), batch=st.integers(1, 2), hardware=machines())
def test_random_attention_on_random_machines(entry: Attention, batch: int, hardware: Hardware) -> None:
    agrees(entry, batch, hardware.with_overrides(ESTIMATE))


@pytest.mark.long
@settings(relaxed, max_examples=500)
@given(entry=attentions(), batch=st.integers(1, 3), hardware=machines())
def test_many_attentions_on_random_machines(entry: Attention, batch: int, hardware: Hardware) -> None:
    agrees(entry, batch, hardware)


# ---- one op, whose scores stay on chip


@st.composite
def flash_attentions(draw: st.DrawFn, tokens: int = 24) -> FlashAttention:
    """Few heads; at most this many tokens, and as many keys before them: they fill no array, one, or several."""
    kv_heads, queries = draw(st.integers(1, 2)), draw(st.integers(1, tokens))
    return FlashAttention(
        "attention",
        heads=kv_heads * draw(st.integers(1, 2)),
        head=draw(st.integers(1, 9)),
        queries=queries,
        kv_heads=kv_heads,
        keys=queries + draw(st.integers(0, tokens)),
        images=draw(st.integers(0, 2)),
        causal=draw(st.booleans()),
    )


def in_one_agrees(layer: FlashAttention, batch: int, hardware: Hardware, block: dict[str, int], weights: str) -> None:
    """Event engine and register engine take as many cycles, and every output is right."""
    memory, rows = hardware.vector_memory, hardware.array.rows
    word = min(memory.word_elements, rows)
    room = {"word_elements": word, "capacity_bytes": ENOUGH * word * memory.element_bytes}
    given = hardware.mapping.block.model_copy(update=block)
    roomy = hardware.having("vector_memory", **room).having("mapping", block=given).having("array", weights=weights)
    result = simulate(Workload("attention", batch, [layer]), roomy, engine="both")
    assert result.correct
    assert result.layers[0].lowering == "flash_attention"


WEIGHTS = st.sampled_from(("shared", "own", "either"))
BLOCKS = st.fixed_dictionaries({}, optional={"images": st.integers(1, 30), "in_channels": st.integers(1, 50)})


@rule("T95", "T97", "T98", "T99", "T100")
@settings(relaxed, max_examples=cases(1 / 5))
@given(layer=flash_attentions(7), batch=st.integers(1, 2), hardware=machines(6), block=BLOCKS, weights=WEIGHTS)
def test_random_attention_in_one_on_random_machines(
    layer: FlashAttention, batch: int, hardware: Hardware, block: dict[str, int], weights: str
) -> None:
    in_one_agrees(layer, batch, hardware, block, weights)


@pytest.mark.long
@settings(relaxed, max_examples=500)
@given(layer=flash_attentions(), batch=st.integers(1, 3), hardware=machines(), block=BLOCKS, weights=WEIGHTS)
def test_many_attentions_in_one_on_random_machines(
    layer: FlashAttention, batch: int, hardware: Hardware, block: dict[str, int], weights: str
) -> None:
    in_one_agrees(layer, batch, hardware, block, weights)


@st.composite
def gradients(draw: st.DrawFn, tokens: int = 24) -> FlashAttentionGradient:
    """Few heads and tokens, which fill no array, one, or several."""
    kv_heads = draw(st.integers(1, 2))
    return FlashAttentionGradient(
        "gradients",
        heads=kv_heads * draw(st.integers(1, 3)),
        head=draw(st.integers(1, 9)),
        queries=draw(st.integers(1, tokens)),
        kv_heads=kv_heads,
        images=draw(st.integers(0, 2)),
        causal=draw(st.booleans()),
    )


@rule("T170", "T171", "T172")
@settings(relaxed, max_examples=cases(1 / 4))
@given(layer=gradients(4), batch=st.integers(1, 2), hardware=machines(5), block=BLOCKS, weights=WEIGHTS)
def test_random_gradients_of_attention_in_one_on_random_machines(
    layer: FlashAttentionGradient, batch: int, hardware: Hardware, block: dict[str, int], weights: str
) -> None:
    in_one_agrees(layer, batch, hardware, block, weights)


@pytest.mark.long
@settings(relaxed, max_examples=500)
@given(layer=gradients(), batch=st.integers(1, 2), hardware=machines(), block=BLOCKS, weights=WEIGHTS)
def test_many_gradients_of_attention_in_one_on_random_machines(
    layer: FlashAttentionGradient, batch: int, hardware: Hardware, block: dict[str, int], weights: str
) -> None:
    in_one_agrees(layer, batch, hardware, block, weights)


@pytest.mark.parametrize(
    ("name", "dtype"), covering(1, ["wide_shares_less", "wide_mul", "wide_seen"], ["f32", "integers"])
)
def test_a_wrong_step_of_gradients_is_seen(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound of the check is close enough that gradients without their mean, a sum or a mask are told."""
    layer = FlashAttentionGradient("gradients", heads=2, head=5, queries=11, kv_heads=1)
    small = machine(4, 4, word_elements=2, capacity_words=ENOUGH, vector_unit={"scalar_words": 4})
    work = Workload("gradients", 1, [layer])
    assert simulate(work, small, dtype=dtype).correct
    wrong = OPERATIONS[name]._replace(values=lambda operands, *_: next(iter(operands)))
    monkeypatch.setitem(OPERATIONS, name, wrong)
    assert not simulate(work, small, dtype=dtype).correct


@rule("T170")
def test_gradients_read_the_scores_that_a_block_sees() -> None:
    """Of 4 blocks of 4 queries: five products, each of the 4 + 8 + 12 + 16 keys that these see."""
    machine_of_4 = machine(4, 4, word_elements=2, capacity_words=ENOUGH, vector_unit={"scalar_words": 4})
    layer = FlashAttentionGradient("gradients", heads=1, head=4, queries=16)
    program, _ = lowered(layer, 1, machine_of_4, "flash_attention")
    streams = [step for step in program.rows if isinstance(step, Stream)]
    # Scores, gradients of shares, by values, and by keys; of the last two, blocks add to sums that there are.
    assert sum(step.words for step in streams if step.cols == 4 and step.rows == 4) == 4 * (2 + 4 + 6 + 8) + 10 * 2
    assert sum(step.operation == "wide_seen" for step in program.rows if isinstance(step, Vector)) == 4


@rule("T172")
def test_gradients_whose_scores_stay_spare_trips_through_hbm() -> None:
    """What goes through HBM are tokens alone: gradients take less than half the time of three layers that store scores,
    and less than a tenth of the bytes.
    """
    hardware = load_hardware("tpu_v6e")
    in_one = FlashAttentionGradient("gradients", heads=4, head=128, queries=1024, causal=False)
    apart = [
        Gemm("scores", 1024, 1024, 128, 4), Softmax("softmax", 1024, 4096), Gemm("values.dw", 1024, 128, 1024, 4),
        Gemm("values.dx", 1024, 1024, 128, 4), SoftmaxGradient("softmax.dx", 1024, 4096),
        Gemm("scores.dw", 128, 1024, 1024, 4), Gemm("scores.dx", 1024, 128, 1024, 4),
    ]  # fmt: skip
    one = simulate(Workload("one", 1, [in_one]), hardware, check=False).total
    every = simulate(Workload("layers", 1, apart), hardware, check=False).total
    assert one.macs == every.macs
    assert one.cycles < every.cycles / 2
    bytes_of = [each.hbm_read_bytes + each.hbm_write_bytes for each in (one, every)]
    assert bytes_of[0] < bytes_of[1] / 5


@rule("T96")
def test_parts_that_no_query_of_a_block_sees_are_not_computed() -> None:
    """Of 4 x 4 pairs of a block and a part on and below the diagonal there are 10: as many products with keys."""
    machine_of_4 = machine(4, 4, word_elements=2, capacity_words=ENOUGH, vector_unit={"scalar_words": 4})
    given = machine_of_4.mapping.block.model_copy(update={"images": 4, "in_channels": 4})
    layer = FlashAttention("attention", heads=1, head=4, queries=16)
    program, told = lowered(layer, 1, machine_of_4.having("mapping", block=given), "flash_attention")
    assert sum(isinstance(step, Stream) and not step.accumulate for step in program.rows) == 10 + 4
    assert sum(step.operation == "wide_seen" for step in program.rows if isinstance(step, Vector)) == 4
    assert "10 are computed" in told.aspects["chunks"]


@rule("T101")
def test_scores_that_stay_spare_trips_through_hbm() -> None:
    """What goes through HBM are queries, keys, values and outputs; and it takes less than half as long."""
    hardware = load_hardware("tpu_v6e")
    layer = FlashAttention("attention", heads=4, head=128, queries=1024, causal=False)
    entry = Attention("attention", heads=4, head=128, queries=1024, causal=False, blocks=1)
    parts = [*entry.parts(READ, 1)]
    in_one = simulate(Workload("one", 1, [layer]), hardware, check=False).total
    apart = simulate(Workload("layers", 1, [part.layer for part in parts]), hardware, check=False).total
    moved = 4 * 4 * 1024 * 128 * 2
    assert moved <= in_one.hbm_read_bytes + in_one.hbm_write_bytes < 1.01 * moved
    assert in_one.macs == apart.macs
    assert in_one.cycles < apart.cycles / 2
