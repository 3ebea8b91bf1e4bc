"""A whole tensor, looked at in float32 first, gets the verdict that float64 alone gives it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.strategies import cases, conv, layers, vector_ops
from tpusim import load_hardware, simulate
from tpusim.flow import verify
from tpusim.flow.numbers import numbers_of
from tpusim.flow.verify import Expectation, Screening, verdict_of
from tpusim.network.ops.array_op import Conv1d, Gemm
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.numerics.equality import agreement
from tpusim.reference.rounding import screen

F32 = numbers_of("f32", "any")
BATCH = 3
LONG = [
    conv(6, 9, 7, 3), conv(40, 9, 4, 1), Gemm("fc", m=8, n=8, k=300), Conv1d("line", 12, 30, 8, 9, 2, 4, 1, 2)
]  # fmt: skip


def expectation_of(layer: Op) -> Expectation:
    return Expectation(layer, "ofmap", F32.operands(layer, BATCH, 1), F32)


def all_of(layer: Op) -> tuple[range, ...]:
    return tuple(map(range, layer.shapes(BATCH)["ofmap"]))


@settings(max_examples=cases(usual=25), deadline=None, suppress_health_check=list(HealthCheck))
@given(layer=st.one_of(st.sampled_from(LONG), layers(), vector_ops(12, 4)), data=st.data())
def test_the_verdict_is_that_of_float64(layer: Op, data: st.DataObject) -> None:
    """Of outputs that are off by about their bound, or lost."""
    expectation = expectation_of(layer)
    expected = expectation.of(all_of(layer))
    off = data.draw(st.sampled_from([0, 0.3, 0.99, 1.01, 2]))
    written = expected["value"].astype(np.float32)
    some = np.random.default_rng(data.draw(st.integers(0, 99))).random(written.shape) < data.draw(
        st.sampled_from([0.01, 1])
    )
    written[some] = (expected["value"] + off * expected["bound"])[some].astype(np.float32)
    if data.draw(st.booleans()):
        written[some.nonzero()[0][:1]] = data.draw(st.sampled_from([np.nan, np.inf]))
    right, _ = agreement(written, expected)
    verdict = verdict_of(layer, expectation.operands, {"ofmap": written}, F32)
    assert (verdict.checked, verdict.mismatched) == (written.size, written.size - np.count_nonzero(right))
    if verdict.mismatched:
        at = tuple(map(int, np.unravel_index(int(right.argmin()), right.shape)))
        assert verdict.first is not None
        assert verdict.first.index == layer.element_name(at)[1]
        assert verdict.first.expected == pytest.approx(expected["value"][at], rel=1e-9)


@pytest.mark.parametrize("layer", LONG, ids=str)
def test_float32_settles_sums_of_many_products(layer: Op) -> None:
    """Otherwise all that is said of it here is of float64."""
    expectation, box = expectation_of(layer), all_of(layer)
    written = expectation.of(box)["value"].astype(np.float32)
    screening = Screening(expectation, written)
    assert screening.settles(box)
    assert screening.share is None
    written[1, 0, 0, 1] += 0.1
    assert not screening.settles(box)
    verdict = verdict_of(layer, expectation.operands, {"ofmap": written}, F32)
    assert 0 < (verdict.error_share or 0) < 1


def test_it_is_not_asked_for_what_it_does_not_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short sums leave no room between the roundings of the one and those of the other."""
    layer, asked = conv(1, 2, 9, 2), []
    monkeypatch.setattr("tpusim.flow.verify.screen", lambda *each: asked.append(each) or screen(*each))
    monkeypatch.setattr(verify, "MOST_ELEMENTS", 40)
    expectation = expectation_of(layer)
    written = expectation.of(all_of(layer))["value"].astype(np.float32)
    assert verdict_of(layer, expectation.operands, {"ofmap": written}, F32).mismatched == 0
    assert len(asked) == 1


@pytest.mark.parametrize(("dtype", "in_float32"), [("f32", True), ("bf16", True), ("integers", False)])
def test_real_numbers_are_looked_at_in_float32_first(
    dtype: str, in_float32: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn ones as those of a network; whole numbers are exact in float32, and compared as they are written."""
    asked: list[Op] = []
    monkeypatch.setattr("tpusim.flow.verify.screen", lambda layer, *rest: asked.append(layer) or screen(layer, *rest))
    result = simulate(Workload("net", 2, (LONG[0],)), load_hardware("tpu_v2"), dtype=dtype)
    assert result.correct
    assert result.layers[0].outputs_checked == result.layers[0].outputs
    assert bool(asked) == in_float32


@pytest.mark.parametrize(("most", "number"), [(1, 5 * 4 * 3), (7, 5 * 4 * 2), (60, 5), (1000, 1)])
def test_boxes_are_all_of_it_once(most: int, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each as large as it may be."""
    monkeypatch.setattr(verify, "MOST_ELEMENTS", most)
    seen = np.zeros((2, 5, 4, 3), int)
    for box in verify.boxes(seen.shape, 3):
        place = seen[tuple(slice(part.start, part.stop) for part in box)]
        assert place[0].size <= max(1, most // 3)
        place += 1
    assert len([*verify.boxes(seen.shape, 3)]) == number
    assert (seen == 1).all()
