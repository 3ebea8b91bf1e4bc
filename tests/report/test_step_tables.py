"""What is told of a step of several chips: parts, and collectives, those of copies of a layer as one row."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.flow.shared_networks import shared_products
from tests.report import unlaid
from tpusim import load_hardware, simulate
from tpusim.base.errors import InputError
from tpusim.machines.tpu.slices.slice import load_slice
from tpusim.report.page.run import run_page
from tpusim.report.plots.run import plots
from tpusim.report.plots.step import step_pictures
from tpusim.report.tables import step as told
from tpusim.report.tables.compare import runs_compared
from tpusim.report.tables.compared import compared_results
from tpusim.report.tables.step import alike_collectives, parts_table, step_paragraphs, step_sentences
from tpusim.result.load import parse_result
from tpusim.result.records import CollectiveResult, Result, StepResult
from tpusim.result.vocabulary.states import STEP_PARTS


@pytest.fixture(scope="module")
def result() -> Result:
    return simulate(shared_products(), load_hardware("tpu_v6e"), check=False, slice="v6e_8")


def step_of(result: Result) -> StepResult:
    assert result.step is not None
    return result.step


def test_copies_are_one_row(result: Result) -> None:
    step = step_of(result)
    rows = alike_collectives(step)
    assert [(row.first.name, row.many) for row in rows] == [("gather_0", 6), ("down_0.all_reduce", 6)]
    assert sum(row.exposed_cycles for row in rows) == step.exposed_cycles
    assert sum(row.cycles for row in rows) == sum(each.cycles for each in step.collectives)
    # What differs in size, axes or time has a row of its own.
    first = step.collectives[0]
    for other in (replace(first, bytes=1), replace(first, axes=("x",)), replace(first, cycles=1)):
        changed = replace(step, collectives=(*step.collectives, other))
        assert len(alike_collectives(changed)) == 3


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        (["a_1.all_reduce", "a_12.all_reduce", "a_2.b.all_reduce"], 2),
        (["a_1.dx.all_reduce", "a_2.dx.all_reduce"], 1),
        (["layer1.0.conv1", "layer1.1.conv1"], 2),
    ],
)
def test_numbers_at_the_end_of_a_layer_s_name_are_copies(names: list[str], rows: int, result: Result) -> None:
    made = [replace(step_of(result).collectives[0], name=name) for name in names]
    assert len(alike_collectives(replace(step_of(result), collectives=tuple(made)))) == rows


def test_parts_add_up_and_have_words(result: Result) -> None:
    step = step_of(result)
    rows = parts_table(step).rows
    assert sum(cycles for _, cycles in rows) == step.cycles
    assert all(cycles for _, cycles in rows)
    assert [*STEP_PARTS] == [*step.parts]
    assert all(part.meaning for part in STEP_PARTS.values())


def test_sentences_tell_what_is_hidden(result: Result) -> None:
    step = step_of(result)
    text = " ".join(step_sentences(step))
    hidden = 1 - step.exposed_cycles / sum(each.cycles for each in step.collectives)
    assert float(re.search(r"([\d.]+) % is hidden", text)[1]) == pytest.approx(100 * hidden, abs=0.051)  # type: ignore[index]
    alone = replace(step, collectives=())
    assert "hidden" not in " ".join(step_sentences(alone))
    assert len(step_paragraphs(replace(result, step=alone))) == 2
    assert step_paragraphs(replace(result, step=None)) == ()


def test_of_many_the_costliest_are_shown(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told, "MOST_ROWS", 1)
    text = str(step_paragraphs(result)[0])
    assert "Not shown: 6 more" in text


def page_of(result: Result) -> str:
    with unlaid.anywhere():
        return run_page(result).decode()


def test_steps_are_compared(result: Result) -> None:
    slower = simulate(
        shared_products(), load_hardware("tpu_v6e"), check=False, slice=load_slice("v6e_8", "overlap=none")
    )
    answer = runs_compared(compared_results(result, slower), ["a", "b"], "change")
    held, steps = json.loads(answer.to_json()), (step_of(result), step_of(slower))
    assert held["step"]["cycles"] == [each.cycles for each in steps]
    assert held["step"]["exposed_cycles"] == [each.exposed_cycles for each in steps]
    assert held["step"]["ratio"] == steps[1].cycles / steps[0].cycles
    assert held["changes"] == [{"name": "slice", "before": "v6e_8", "after": "v6e_8 with overlap=none"}]


def test_hidden_and_exposed_make_a_collective() -> None:
    each = CollectiveResult("a", "all_reduce", 8, ("x",), "ring", 10, 2, 5, 15, 4)
    assert each.hidden_cycles == 6


def test_a_step_is_drawn(result: Result) -> None:
    """Its parts and collectives, and when all of it runs; a run of one chip has no such picture."""
    parts, timeline = step_pictures(result)
    drawn = unlaid.svg(parts)
    for part, cycles in step_of(result).parts.items():
        assert (f">{STEP_PARTS[part].label}<" in drawn) == bool(cycles), part
    for row in alike_collectives(step_of(result)):
        assert f">{row.first.name} x {row.many}<" in drawn
    shown = unlaid.svg(timeline)
    for text in ("layers", "all gather", "all reduce"):
        assert f">{text}<" in shown, text
    # Names stand in layers that are long enough.
    wide = step_of(result).cycles // 12
    edges = {"layer_starts": tuple(range(0, 12 * wide, wide)), "layer_ends": tuple(range(wide, 13 * wide, wide))}
    _, long = step_pictures(replace(result, step=replace(step_of(result), **edges)))
    named = unlaid.svg(long)
    assert all(f">{layer.name}<" in named for layer in result.layers)
    assert "all of it" in timeline.caption
    assert {"step_parts", "step_timeline"} <= {each.name for each in plots(result)}
    assert not [*step_pictures(replace(result, step=None))]


def test_of_many_layers_those_in_the_middle_are_drawn() -> None:
    long = simulate(shared_products(60), load_hardware("tpu_v6e"), check=False, slice="v6e_8")
    _, timeline = step_pictures(long)
    found = re.search(r"layers ([\d,]+) to ([\d,]+) of 120, in its middle", timeline.caption)
    assert found is not None
    first, last = map(int, found.groups())
    assert last - first == 39
    step, middle = step_of(long), step_of(long).cycles // 2
    assert step.layer_starts[first - 1] < middle < step.layer_ends[last - 1]


def test_layers_of_a_step_run_one_after_another(result: Result) -> None:
    step = step_of(result)
    spans = [*zip(step.layer_starts, step.layer_ends, strict=True)]
    assert len(spans) == len(result.layers)
    late = sum(end - start - layer.cycles for (start, end), layer in zip(spans, result.layers, strict=True))
    assert late == step.parts["shared_hbm"]
    assert all(start >= end for (_, end), (start, _) in pairwise(spans))
    by_name = {layer.name: span for layer, span in zip(result.layers, spans, strict=True)}
    for number in range(6):
        gather = next(each for each in step.collectives if each.name == f"gather_{number}")
        assert by_name[f"up_{number}"][0] >= gather.end


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"layer_starts": ()}, "and there are 12 layers"),
        ({"layer_starts": (0,) * 12}, "and the one ahead of it until"),
        ({"layer_ends": (10**9,) * 12}, "the one ahead of it until"),
    ],
)
def test_changed_times_of_layers_are_seen(result: Result, change: dict[str, tuple[int, ...]], says: str) -> None:
    changed = replace(result, step=replace(step_of(result), **change))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=says):
        parse_result(changed.to_json())


def test_the_page_tells_of_the_step_with_pictures_and_collectives(result: Result) -> None:
    page = page_of(result)
    assert "A step of 8 chips, data 2, tensor 4, on v6e_8" in page
    told = json.loads(page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0])["step"]
    assert [each["caption"] for each in told["pictures"]] == [each.caption for each in step_pictures(result)]
    assert [row[0] for row in told["rows"]] == ["gather_0", "down_0.all_reduce"]
    assert len(told["heads"]) == len(told["rows"][0])
    assert told["legend"]
    assert '"step":null' in page_of(replace(result, step=None, layers=result.layers[:1]))
