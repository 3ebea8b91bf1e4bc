"""The vocabulary names all that results hold, and whoever shows it has its words from there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from itertools import combinations

import pytest

from tests import ROOT
from tests.strategies import conv
from tpusim import load_hardware, load_workload, simulate
from tpusim.machines.family import FAMILIES, family_named
from tpusim.machines.tpu import definition
from tpusim.network.workload import Workload
from tpusim.report.shown import figure_column
from tpusim.report.style import HATCHES, hatches, tones
from tpusim.result.records import STALL_CAUSES, DramUse, EnergyUse, LayerResult, Total, VectorMemoryUse
from tpusim.result.vocabulary.fields import FIELDS, field_of
from tpusim.result.vocabulary.figures import COLUMNS, FIGURES, LESS, MORE, OWN, Figure, value_of
from tpusim.result.vocabulary.states import (
    ACCESSES,
    ARRAY,
    CLIENTS,
    ELSEWHERE,
    ENERGIES,
    PHASES,
    STATES,
    UNITS,
    State,
    all_parts,
    state_of,
)
from tpusim.study.explain.bottleneck import Phases
from tpusim.study.sweep.axes import OF_THE_RUN

GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
SWEEPS = (ROOT / "docs" / "sweeps.md").read_text()
ASSETS = ROOT / "tpusim" / "report" / "page" / "assets"
PARTS = tuple(STATES[key] for key in ("useful", "unused", *STALL_CAUSES, "idle"))
SM_STATES = ("load_wait", "stage", "epilogue", "dram_wait", "move", "launch")
NO_FIGURES = {
    "name", "op", "stall_cycles", "vector_memory", "units", "blocking", "first_mismatch", "outputs", "outputs_checked",
    "outputs_mismatched", "intermediates_checked", "intermediates_mismatched", "wall_seconds", "ifmap_bytes",
    "multi_tile", "lowering", "dram", "energy_use", "technology", "parts", "counts",
    "error_share", "inputs", "own", "hidden_cycles", "apart", "hbm_saved_bytes",
    "residency", "riders", "phase",
}  # fmt: skip


def test_every_state_and_client_that_a_run_reports_is_described() -> None:
    total = simulate(load_workload("tiny", batch=2), load_hardware("tiny_4x4"), check=False).total
    assert {*total.units} == {*UNITS, "port"}
    assert tuple(total.units["systolic_array"]) == tuple(state.key for state in ARRAY)
    assert {*CLIENTS} == {*definition.CLIENTS}
    assert {*total.units["port"]} == {*CLIENTS} - {"pointer", "vector"}
    pointed = simulate(load_workload("tiny", batch=2), load_hardware("tiny_4x4"), lowering="indirect", check=False)
    assert {*pointed.total.units["port"]} == {*CLIENTS} - {"vector"}
    depthwise = Workload("depthwise", 2, (conv(4, 5, 4, 3, groups=4),))
    alone = simulate(depthwise, load_hardware("tiny_4x4"), lowering="vector", check=False)
    assert {*alone.total.units["port"]} == {*CLIENTS} - {"pointer"}
    assert {*all_parts(alone.total)} == {*PARTS}
    assert {field.name for field in fields(Phases)} <= {*PHASES}


def test_every_figure_of_a_result_is_described_and_read() -> None:
    held = {
        field.name for record in (LayerResult, Total, VectorMemoryUse, DramUse, EnergyUse) for field in fields(record)
    }
    assert held - NO_FIGURES == {*FIGURES} - {f"{state.key}_cycles" for state in ARRAY}
    result = simulate(load_workload("tiny", batch=2), load_hardware("tiny_4x4"), check=False)
    for record in (result.total, *result.layers):
        assert {key: type(value_of(record, key)) for key in FIGURES} == {
            key: each.kind for key, each in FIGURES.items()
        }
        assert value_of(record, "starved_cycles") == record.stall_cycles["starved"]
        assert value_of(record, "peak_bytes") == record.vector_memory.peak_bytes


def test_every_field_that_can_be_set_has_a_name() -> None:
    paths = {path for name in FAMILIES for path in family_named(name).paths()}
    assert {*paths, *OF_THE_RUN, "hardware"} - {"name"} == {*FIELDS}
    assert [field_of("array.count").shown(number) for number in (1, 4)] == ["1 array", "4 arrays"]
    assert field_of("layers.conv1.1.out_channels").title == "out channels of conv1.1"


def test_a_figure_knows_its_units() -> None:
    time, ratio, count = FIGURES["time_us"], FIGURES["pe_utilization"], FIGURES["cycles"]
    assert (time.title, 2500.0 / time.usual[1], time.style) == ("time (ms)", 2.5, "three")
    assert (ratio.title, 0.25 / ratio.usual[1], ratio.style) == ("PE utilisation (%)", 25, "percent")
    assert (count.title, 7 / count.usual[1], count.style) == ("cycles", 7, "count")
    assert all(figure.usual[0] == figure.unit for figure in COLUMNS.values() if figure.unit)


@pytest.mark.parametrize("figure", COLUMNS.values(), ids=COLUMNS)
def test_every_column_of_a_table_has_a_head(figure: Figure) -> None:
    """A goal of a sweep may be any of them."""
    column = figure_column(figure, lambda row: row, figure.usual)
    assert re.match(r"\w", column.header)
    assert re.match(r"\w", column.legend)


SM = tuple(map(state_of, ("useful", "unused", *SM_STATES, "idle")))


def grey(tone: str) -> float:
    red, green, blue = (int(tone[at : at + 2], 16) for at in (1, 3, 5))
    return (0.299 * red + 0.587 * green + 0.114 * blue) / 255


@pytest.mark.parametrize(
    "together",
    [ARRAY, PARTS, SM, tuple(CLIENTS.values()), tuple(ENERGIES.values())],
    ids=["array", "parts", "sm", "clients", "energies"],
)
def test_what_stands_together_is_told_apart_on_grey_paper(together: Sequence[State]) -> None:
    for one, other in combinations((state.look for state in together), 2):
        assert one.hatch != other.hatch or abs(grey(one.light) - grey(other.light)) > 0.15
        assert one.hatch != other.hatch or abs(grey(one.dark) - grey(other.dark)) > 0.15


def test_every_look_can_be_drawn() -> None:
    everything = (*STATES.values(), *CLIENTS.values(), *ENERGIES.values())
    assert {state.look.hatch for state in everything} | {""} == {*HATCHES}
    for name, css in tones().items():
        assert all(f"--{state.key}: {getattr(state.look, name)};" in css for state in everything)
    assert {*hatches()} == {state.key for state in everything if state.look.hatch}
    assert ACCESSES["R"].tone == CLIENTS["ifmap"].look.light


def test_the_page_has_no_tones_and_hatches_of_its_own() -> None:
    drawn = [state.look for state in (*STATES.values(), *CLIENTS.values())]
    own = {tone for look in drawn for tone in (look.light, look.dark)} | {lines for _, lines in hatches().values()}
    for file in ASSETS.iterdir():
        assert not [one for one in own if one in file.read_text()], file.name


def test_idle_has_one_meaning() -> None:
    """It is said of units that have nothing to do; ports are free or taken, used or unused."""
    others = [each for each in COLUMNS.values() if each.key != "idle_cycles"]
    words = [word for each in others for word in (each.label, each.head, each.meaning)]
    words += [each.label for each in CLIENTS.values()]
    words += [word for each in ACCESSES.values() for word in (each.word, each.meaning)]
    assert not [word for word in words if "idle" in word]
    manual = "".join((ROOT / "docs" / name).read_text() for name in ("glossary.md", "sweeps.md", "timing.md"))
    assert not re.findall(r"idle port|ports? (?:is |are )?idle|idle lane", manual)
    for source in (ROOT / "tpusim").rglob("*.py"):
        assert not re.findall(r"\bports? (?:is |are )?idle|idle lane", source.read_text()), source


# ---- the manual


def row_of(state: State, of: str = "") -> str:
    name = state.label if state.label == state.key else f"{state.label} ({state.key})"
    return f"| {name}{of} | {state.meaning} |"


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_the_glossary_has_every_state(state: State) -> None:
    assert row_of(state) in GLOSSARY


@pytest.mark.parametrize("state", ELSEWHERE.values(), ids=ELSEWHERE)
def test_the_glossary_has_what_is_said_otherwise_of_other_machines(state: State) -> None:
    assert row_of(state, ", of other machines than TPUs") in GLOSSARY


@pytest.mark.parametrize("lowering", ["channel_last", "block_channel_first", "explicit"])
def test_what_a_gpu_tells_is_described(lowering: str) -> None:
    result = simulate(load_workload("resnet18"), load_hardware("v100"), lowering=lowering, check=False)
    assert {key for layer in result.layers for key in layer.own} <= {*OWN}
    assert {key for layer in result.layers for key in layer.units["sms"]} <= {"busy", *SM_STATES, "idle"}


@pytest.mark.parametrize("key", ["pe_utilization", "mapping_efficiency"])
def test_the_glossary_has_the_ratios(key: str) -> None:
    assert f"| {key} | {FIGURES[key].meaning} |" in GLOSSARY


def column_row(figure: Figure) -> str:
    meaning = f"{figure.label}: {figure.meaning}" if figure.meaning else figure.label
    unit = "ratio" if figure.style == "percent" else figure.units[-1][0]
    better = {LESS: "lower", MORE: "higher"}.get(figure.better, "")
    return f"| `{figure.key}` | {meaning} | {unit} | {better} |"


def test_the_manual_of_sweeps_lists_the_columns() -> None:
    shown = re.findall(r"^\| `.*\|.*\|.*\|.*\|$", SWEEPS, re.MULTILINE)
    assert shown == [column_row(figure) for figure in COLUMNS.values()]
