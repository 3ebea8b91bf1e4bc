"""Attention of random heads, lengths, windows and masks on random machines: both engines, and every output."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.strategies import machines
from tpusim import Workload, simulate
from tpusim.machines.tpu.description import Hardware
from tpusim.network.composites import Attention
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


@settings(relaxed, max_examples=60)
@given(entry=attentions(), batch=st.integers(1, 2), hardware=machines())
def test_random_attention_on_random_machines(entry: Attention, batch: int, hardware: Hardware) -> None:
    agrees(entry, batch, hardware)


@pytest.mark.long
@settings(relaxed, max_examples=500)
@given(entry=attentions(), batch=st.integers(1, 3), hardware=machines())
def test_many_attentions_on_random_machines(entry: Attention, batch: int, hardware: Hardware) -> None:
    agrees(entry, batch, hardware)
