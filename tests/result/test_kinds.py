"""Layers of a kind: a result tells of each as if it were the only one, and works out what they share once."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import LETTERS, cases
from tpusim import Result, load_hardware, load_workload, simulate
from tpusim.report.page import run as page
from tpusim.result.load import parse_result
from tpusim.result.records import LayerResult, total_of

NAMES = st.text(LETTERS.replace("\0", ""), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def result() -> Result:
    return simulate(load_workload("tiny", batch=2), load_hardware("tiny_4x4", "mapping.search=estimate"), check=False)


def plain(layer: LayerResult) -> dict[str, Any]:
    """A layer as JSON has it, from its fields alone."""
    held = asdict(layer)
    return {name: held[name] for name in held if held[name] or name not in ("own", "riders", "phase")}


@settings(deadline=None, max_examples=cases(1 / 4))
@given(data=st.data())
def test_json_is_that_of_layers_one_by_one(result: Result, data: st.DataObject) -> None:
    """Whatever names they have, and read, and whatever figures differ."""
    layers = [
        replace(
            data.draw(st.sampled_from(result.layers)).called(
                data.draw(NAMES), tuple(data.draw(st.lists(NAMES, max_size=2))),
                tuple(data.draw(st.lists(NAMES, max_size=2))), data.draw(st.sampled_from(["", "forward", "update"])),
            ),
            outputs_mismatched=data.draw(st.integers(0, 1)),
            stall_cycles={"starved": data.draw(st.integers(0, 1))},
        )
        for _ in range(data.draw(st.integers(1, 9)))
    ]  # fmt: skip
    changed = replace(result, layers=tuple(layers))
    text = changed.to_json()
    assert json.dumps({**json.loads(text)}, indent=2) == text
    assert [json.dumps(each) for each in json.loads(text)["layers"]] == [json.dumps(plain(each)) for each in layers]
    for layer, first in zip(layers, changed.kinds, strict=True):
        assert first.called(layer.name, layer.inputs, layer.riders, layer.phase) == layer
    apart = [replace(each, units={unit: {**of} for unit, of in each.units.items()}) for each in layers]
    assert total_of(tuple(layers), 1.0) == total_of(tuple(apart), 1.0), (
        "shared accounts are added as often as they come"
    )


def test_layers_of_a_kind_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of many heads makes few figures; what is read back shares them, and its page has a row for each layer."""
    run = simulate(load_workload("vit_b16", batch=1), load_hardware("tpu_v2"), check=False)
    count = len({id(each) for each in run.kinds})
    assert count == len({id(each.units) for each in run.layers}) < len(run.layers) / 20
    again = parse_result(run.to_json())
    assert again == run
    assert len({id(each.units) for each in again.layers}) == count
    rows, one = list[str](), page._layer

    def watched(layer: LayerResult, *rest: Any) -> dict[str, Any]:
        rows.append(layer.name)
        return one(layer, *rest)

    monkeypatch.setattr(page, "_layer", watched)
    shown = page.run_data(again)["layers"]
    assert len(rows) == count
    assert [(each["name"], each["reads"]) for each in shown] == [
        (each.name, ", ".join(each.inputs)) for each in run.layers
    ]
    expected = [one(layer, again.total.cycles, page.states.parts_in([again.total])) for layer in again.layers]
    assert shown == expected
