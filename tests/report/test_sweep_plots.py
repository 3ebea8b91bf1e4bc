"""The pictures of a sweep: which there are, and that they say what the rows say."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.colors import to_rgb

from tests.report import unlaid
from tpusim.machines.tpu.lowering.registry import LOWERINGS
from tpusim.report.plots.compared import lowerings_figure, machines_figure
from tpusim.report.plots.figure import STYLE, Picture, axis_label, rows_of, scale_of
from tpusim.report.plots.sweep import _TONES_OF_CELLS, file_names, plots
from tpusim.report.shown import Table, text_of
from tpusim.report.style import SERIES
from tpusim.report.tables.sweep import _SHOWN, best, compared, comparison
from tpusim.result.vocabulary.states import ARRAY, LAUNCHING, STATES
from tpusim.study.sweep.points import Sweep, load_sweep

HEAD = "name: s\nhardware: tiny_4x4\nbatch: 2\n"
NAMES = ("net", "$a$/_b<i>")


def assert_apart(boxes: list[Any]) -> None:
    """No two of these boxes have a common point."""
    assert [(one, other) for one, other in combinations(boxes, 2) if one.overlaps(other)] == []


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two networks, the second with a name that is hard on files and pictures."""
    monkeypatch.chdir(tmp_path)
    for index, name in enumerate(NAMES):
        Path(f"{index}.yaml").write_text(f"name: '{name}'\nlayers:\n  - {{name: x, op: gemm, m: batch, n: 3, k: 4}}\n")


def spec(axes: str, rest: str = "", workloads: str = "[0.yaml]") -> Sweep:
    Path("s.yaml").write_text(f"{HEAD}workloads: {workloads}\naxes: {{{axes}}}\n{rest}\n")
    return load_sweep("s.yaml")


def rows(sweep: Sweep, failed: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    """A row a point with made-up figures, each different; the last two are on the front."""
    made = []
    for index, point in enumerate(sweep.points):
        error = "does not fit" if index in failed else None
        figures = {
            "tflops": 1.25 + index,
            "pe_utilization": 0.01 * index,
            "port_idle_ratio": 0.5,
            "time_us": 9e3 - index,
        }
        figures |= {"pes": 16 + index, "cycles": 5, "pareto": index >= len(sweep.points) - 2 and not error}
        names = {"workload": point.jobs.work.name, "batch": point.jobs.work.batch, "error": error}
        made.append({**(figures if not error else dict.fromkeys(figures)), **names, **dict(point.settings)})
    return made


def drawn(sweep: Sweep, made: list[dict[str, Any]]) -> dict[str, Picture]:
    """The pictures by name; each is drawn when its texts are read."""
    return {picture.name: picture for picture in plots(sweep, made)}


def texts(picture: Picture) -> list[str]:
    return words(unlaid.svg(picture))


def words(drawing: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]+)</text>", drawing)


def test_one_axis_gives_curves_with_units() -> None:
    sweep = spec("hbm.bandwidth: [100 GB/s, 700 GB/s, 300 GB/s]")
    both = dict(file for picture in plots(sweep, rows(sweep)) for file in picture.files())
    made = {name.removesuffix(".svg"): words(each.decode()) for name, each in both.items() if name.endswith(".svg")}
    assert {*made} == {"throughput", "port_idle"}
    assert {*both} == {f"{name}.{kind}" for name in made for kind in ("png", "svg")}
    assert all(contents.startswith(b"\x89PNG") for name, contents in both.items() if name.endswith(".png"))
    assert {"HBM bandwidth (GB/s)", "TFLOPS", "PE utilisation (%)", "100", "300", "700"} <= {*made["throughput"]}
    assert {"ports unused (%)", "s: net, batch 2, tiny_4x4"} <= {*made["port_idle"]}


def test_several_workloads_are_told_apart_and_any_name_can_be_drawn() -> None:
    sweep = spec("array.size: [2, 4]", workloads="[0.yaml, 1.yaml]")
    found = texts(drawn(sweep, rows(sweep))["throughput"])
    assert "net" in found
    assert "$a$/_b&lt;i&gt;" in found


def test_curves_on_one_another_are_all_seen() -> None:
    """Four networks of the same figures: the last one hid the others."""
    for index in range(4):
        Path(f"{index}.yaml").write_text(f"name: n{index}\nlayers:\n  - {{name: x, op: gemm, m: 2, n: 3, k: 4}}\n")
    sweep = spec("array.size: [2, 4, 8, 16]", workloads="[0.yaml, 1.yaml, 2.yaml, 3.yaml]")
    made = [{**row, "tflops": 1.0 + row["array.size"] / 8, "pe_utilization": 0.5} for row in rows(sweep)]
    with unlaid.anywhere():
        (picture,) = (each for each in plots(sweep, made) if each.name == "throughput")
        figure = picture.draw()
        figure.legends[0].remove()
        figure.canvas.draw()
        dots = np.asarray(figure.canvas.buffer_rgba())[..., :3].reshape(-1, 3)  # type: ignore[attr-defined]
    for tone, _ in SERIES[:4]:
        wanted = [round(255 * part) for part in to_rgb(tone)]
        assert (abs(dots - np.array(wanted)).max(axis=1) < 8).sum() > 100, tone


def test_axes_that_move_together_are_one_curve() -> None:
    sweep = spec("array.size: [2, 4], batch: [1, 8]", "combine: zip")
    made = drawn(sweep, rows(sweep))
    assert {*made} == {"throughput", "port_idle"}
    assert {"array size (PEs a side)", "batch"} <= {*texts(made["throughput"])}


def test_two_axes_give_heat_maps_with_the_numbers() -> None:
    sweep = spec("array.size: [2, 4], batch: [1, 8]")
    made = drawn(sweep, rows(sweep, failed=(0,)))
    assert {*made} == {"utilization_net", "tflops_net"}
    found = texts(made["tflops_net"])
    assert {"2.25", "3.25", "4.25"} <= {*found}
    assert "1.25" not in found


def test_names_stand_upright_below_columns_that_are_narrower() -> None:
    names = ("channel_first", "channel_last", "explicit", "implicit_gemm", "indirect", "auto")
    lowerings = f"lowering: [{', '.join(names)}]"
    assert {*names} <= {*upright(spec(f"{lowerings}, batch: [1, 8]"))}
    assert not {*names, "1", "8"} & {*upright(spec(f"batch: [1, 8], {lowerings}"))}


def upright(sweep: Sweep) -> list[str]:
    (picture,) = (each for each in plots(sweep, rows(sweep)) if each.name == "tflops_net")
    with rc_context(STYLE):
        plot = picture.draw().axes[0]
    return [each.get_text() for each in plot.get_xticklabels() if each.get_rotation() == 90]


def test_three_axes_give_a_panel_each() -> None:
    sweep = spec("array.size: [2, 4], batch: [1, 8], clock: [1 GHz, 700 MHz]")
    made = drawn(sweep, rows(sweep, failed=(1,)))
    assert {*made} == {"axes_net"}
    assert {"array size (PEs a side)", "batch", "clock", "700 MHz"} <= {*texts(made["axes_net"])}
    # The title begins at the left of the figure.
    figure = made["axes_net"].draw()
    assert 0 <= figure.get_window_extent().x0 <= title_of(figure).get_window_extent().x0 < 20


def title_of(figure: Any) -> Any:
    return figure.findobj(lambda each: getattr(each, "get_text", str)() == figure.get_suptitle())[0]


def test_axes_of_one_value_each_have_a_panel() -> None:
    sweep = spec("array.size: [2], hbm.bandwidth: [100 GB/s], vector_memory.word_elements: [4]")
    assert "array size (PEs a side)" in texts(drawn(sweep, rows(sweep))["axes_net"])


def test_lowerings_over_two_more_axes_give_a_map_of_the_fastest() -> None:
    sweep = spec("array.size: [2, 4], batch: [1, 8], lowering: [channel_first, explicit, auto]")
    made = rows(sweep)
    cycles = iter((10, 8, 1, 10, 40, 1, 10, 5, 1, 10, 5, 1))
    for row in made:
        row["cycles"] = next(cycles)
    made[9]["error"] = made[10]["error"] = made[7]["error"] = "does not fit"
    pictures = drawn(sweep, made)
    assert {*pictures} == {"axes_net", "winners_net"}
    found = texts(pictures["winners_net"])
    assert {"1.25", "0.25", "-", "array size (PEs a side)", "batch", "explicit"} <= {*found}
    assert "auto" not in found
    assert "how many times as fast as channel_first" in " ".join(found)
    assert {*drawn(sweep, [row for row in made if row["lowering"] != "explicit"])} == {"axes_net"}


def test_a_third_axis_of_a_map_has_a_panel_a_value() -> None:
    sweep = spec("array.size: [2, 4], batch: [1, 8], clock: [1 GHz, 700 MHz], lowering: [channel_first, explicit]")
    found = texts(drawn(sweep, rows(sweep))["winners_net"])
    assert {"clock: 700 MHz", "clock: 1 GHz", "1.00"} <= {*found}


@pytest.mark.parametrize(
    "goals",
    [
        pytest.param("[time_us, pes]", marks=pytest.mark.long),
        "{tflops: maximize, pes: maximize, port_idle_ratio: minimize}",
    ],
)
def test_the_front_is_numbered_and_its_settings_stand_beside(goals: str) -> None:
    sweep = spec("array.size: [2, 4, 8], batch: [1, 8]", f"pareto: {goals}")
    found = texts(drawn(sweep, rows(sweep, failed=(0,)))["pareto_net"])
    assert any(text.startswith("Pareto front") for text in found)
    beside = {tuple(text.split()[:2]) for text in found}
    assert ("1", "8") in beside or ("1", "1") in beside
    assert any(text.split() == ["size", "8"] for text in found), found


def three_goals() -> tuple[Any, list[dict[str, Any]]]:
    """Return the figure of a front of three goals, and its points: six of eight are on it, and of these two lie close
    to each other.
    """
    sweep = spec("array.size: [2, 4, 8, 16], batch: [1, 8]", "pareto: [cycles, pes, time_us]")
    made = rows(sweep)
    for row, cycles, pes, time in zip(
        made,
        (1e6, 5e6, 2e6, 3e6, 9e6, 9e6, 5.4e6, 8e6),
        (40, 12, 60, 52, 70, 80, 14, 90),
        (9, 8, 5, 4, 9, 9, 7, 3),
        strict=True,
    ):
        row |= {"cycles": int(cycles), "pes": pes, "time_us": float(time), "pareto": cycles < 9e6}
    with rc_context(STYLE):
        return drawn(sweep, made)["pareto_net"].draw(), made


def test_of_three_goals_the_front_of_two_is_a_line() -> None:
    figure, made = three_goals()
    plot = figure.axes[0]
    (line,) = (each for each in plot.get_lines() if each.get_label() == "front of cycles and PEs alone")
    assert line.get_drawstyle() == "steps-post"
    goals = [(row["cycles"], row["pes"]) for row in made]
    unbeaten = [one for one in goals if not any(o != one and o[0] <= one[0] and o[1] <= one[1] for o in goals)]
    assert [*zip(*line.get_data(), strict=True)] == [(cycles / 1e6, pes) for cycles, pes in sorted(unbeaten)]
    assert {"cycles (million), less is better", "PEs, less is better"} == {plot.get_xlabel(), plot.get_ylabel()}
    assert figure.axes[1].get_ylabel() == "time (us), less is better"


def test_numbers_of_a_front_stand_on_nothing() -> None:
    figure, made = three_goals()
    plot = figure.axes[0]
    numbers = {each.get_text(): each.get_window_extent() for each in plot.texts if each.get_text()}
    assert [*numbers] == [str(number) for number in range(1, 1 + sum(row["pareto"] for row in made))]
    assert_apart([*numbers.values()])
    for x, y in plot.transData.transform([(row["cycles"] / 1e6, row["pes"]) for row in made]):
        assert not any(box.x0 < x < box.x1 and box.y0 < y < box.y1 for box in numbers.values())


@pytest.mark.parametrize(("axes", "name"), [
    ("array.size: [2, 4]", "goals"),
    ("array.size: [2, 4], batch: [1, 8]", "cycles_net"),
    ("array.size: [2, 4], batch: [1, 8], clock: [1 GHz, 700 MHz]", "axes_net"),
])  # fmt: skip
def test_pictures_draw_the_goals_of_the_sweep(axes: str, name: str) -> None:
    sweep = spec(axes, "pareto: [cycles, pes]")
    made = [{**row, "cycles": 3_000_000 + index} for index, row in enumerate(rows(sweep))]
    pictures = drawn(sweep, made)
    found = " ".join(texts(pictures[name]))
    assert "cycles (million)" in found
    assert "TFLOPS" not in found
    assert pictures[name].caption.startswith("Cycles")
    if name == "axes_net":
        assert "PEs, less is better" in found
        first = unlaid.figure(pictures[name]).axes[0]
        best = next(each for each in first.get_lines() if each.get_label() == "the best at each value")
        # Less is better, so the best is the least.
        least = [min(row["cycles"] for row in made if row["array.size"] == size) / 1e6 for size in (2, 4)]
        assert [*best.get_ydata()] == least
        assert first.get_ylim()[0] == 0


def test_a_sweep_of_tokens_draws_tokens_a_second() -> None:
    for axes, name in (("array.size: [2, 4]", "throughput"), ("array.size: [2, 4], batch: [1, 8]", "tokens_per_s_net")):
        sweep = spec(axes)
        made = [{**row, "tokens_per_s": 100.0 + index} for index, row in enumerate(rows(sweep))]
        found = " ".join(texts(drawn(sweep, made)[name]))
        assert "tokens a second" in found
        assert "TFLOPS" not in found


@pytest.mark.parametrize(("axes", "name"), [
    pytest.param("array.size: [2, 4]", "throughput", marks=pytest.mark.long),
    ("array.size: [2, 4], batch: [1, 8]", "tflops_net"),
    pytest.param("array.size: [2, 4], batch: [1, 8], clock: [1 GHz, 700 MHz]", "axes_net", marks=pytest.mark.long),
])  # fmt: skip
def test_points_of_which_some_make_no_tokens_are_drawn_by_tflops(axes: str, name: str) -> None:
    sweep = spec(axes)
    made = [{**row, "tokens_per_s": None if index % 2 else 100.0} for index, row in enumerate(rows(sweep))]
    pictures = drawn(sweep, made)
    assert all(texts(each) for each in pictures.values())
    assert "TFLOPS" in " ".join(texts(pictures[name]))


@pytest.mark.parametrize(("axes", "name"), [
    ("array.size: [2, 4, 8]", "throughput"),
    ("array.size: [2, 4, 8], batch: [1, 8], clock: [1 GHz, 700 MHz]", "axes_net"),
])  # fmt: skip
def test_failed_points_are_crosses(axes: str, name: str) -> None:
    sweep = spec(axes)
    lost = tuple(index for index, point in enumerate(sweep.points) if dict(point.settings)["array.size"] == 4)
    picture = drawn(sweep, rows(sweep, failed=lost))[name]
    assert "failed: see points.csv" in texts(picture)
    assert "cross" in picture.caption
    plot = unlaid.figure(picture).axes[0]
    (crosses,) = (each for each in plot.get_lines() if each.get_marker() == "x")
    assert [*crosses.get_xdata()] == [4]


def test_without_failed_points_no_cross_is_explained() -> None:
    sweep = spec("array.size: [2, 4, 8]")
    assert "failed: see points.csv" not in texts(drawn(sweep, rows(sweep))["throughput"])


def test_fields_that_move_together_are_all_named_beside_the_front() -> None:
    sweep = spec("'array.rows, array.cols': [2, 4, 8], batch: [1, 8]", "pareto: [time_us, pes]")
    found = texts(drawn(sweep, rows(sweep))["pareto_net"])
    assert any(text.split() == ["rows,", "cols", "8"] for text in found), found


def test_nothing_is_drawn_where_all_failed() -> None:
    sweep = spec("array.size: [2, 4]", "pareto: [time_us, pes]")
    assert drawn(sweep, rows(sweep, failed=(0, 1))) == {}


def test_the_same_rows_give_the_same_picture() -> None:
    sweep = spec("batch: [1, 8]", "pareto: [time_us, pes]")
    once, again = (unlaid.svg(picture) for picture in [*plots(sweep, rows(sweep))][:1] * 2)
    assert once == again


@pytest.mark.long
def test_the_same_rows_give_the_same_of_every_picture() -> None:
    sweep = spec("batch: [1, 8]", "pareto: [time_us, pes]")
    for once, again in zip(plots(sweep, rows(sweep)), plots(sweep, rows(sweep)), strict=True):
        assert once.contents("svg") == again.contents("svg")


def test_file_names_are_safe_and_different() -> None:
    names = file_names(["a/b", "a b", "A_B", "..", "", "x" * 300, "vgg16", "/etc/passwd", "日本"])
    assert len({name.casefold() for name in names.values()}) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,70}", name) for name in names.values())
    assert names["vgg16"] == "vgg16"


def test_where_values_stand() -> None:
    assert scale_of("array.size", [64, 128, 512]).kind == "log"
    assert scale_of("array.size", [64, 96, 128]).kind == "linear"
    assert scale_of("mapping.multi_tile", [1, "auto", "rows"]).places == {1: 0, "auto": 1, "rows": 2}
    assert scale_of("hbm.latency", ["1 us", "100 ns"]).places == {"1 us": 10**6, "100 ns": 10**5}
    assert scale_of("hbm.latency", ["1 us", "100 ns"]).label == "HBM latency"
    assert rows_of("array.size", [9, 3, 5]).places == {3: 0, 5: 1, 9: 2}
    assert axis_label("layers.conv1.out_channels, batch") == "out channels of conv1, batch"


def test_of_many_values_only_as_many_are_written_as_have_room() -> None:
    places, shown = scale_of("batch", range(1, 1001)).ticks()
    assert 5 < len(places) == len(shown) < 15
    assert shown[0] == "1"


# ---- a sweep over lowerings


def lowering_rows(sweep: Sweep, times: dict[tuple[str, str], float | None]) -> list[dict[str, Any]]:
    """A row a point; what takes no time failed. Half of the cycles are busy, a quarter starved, the rest idle."""
    made = []
    for point in sweep.points:
        time = times[point.jobs.work.name, point.jobs.lowering]
        cycles = int(1000 * (time or 0))
        states = {f"{state.key}_cycles": 0 for state in ARRAY}
        states |= {"busy_cycles": cycles // 2, "starved_cycles": cycles // 4}
        states["idle_cycles"] = cycles - cycles // 2 - cycles // 4
        names = {"workload": point.jobs.work.name, "batch": 2, "error": None if time else "does not fit"}
        made.append({"cycles": cycles, "time_us": time, **states, **names, "lowering": point.jobs.lowering})
    return made


def test_a_sweep_over_lowerings_is_a_group_of_bars_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOWERINGS, "mine", LOWERINGS["channel_first"])
    sweep = spec("lowering: [mine, channel_first, auto]", workloads="[0.yaml, 1.yaml]")
    first, second = NAMES
    times = {(first, "mine"): None, (first, "channel_first"): 4.0, (first, "auto"): 3.12}
    times |= {(second, "mine"): 14.5, (second, "channel_first"): 8.0, (second, "auto"): 8.0}
    made = lowering_rows(sweep, times)
    pictures = drawn(sweep, made)
    assert {*pictures} == {"lowerings"}
    found = texts(pictures["lowerings"])
    # What failed on a network is not what others are measured by.
    assert "time relative to channel_first" in found
    assert {"0.78", "1.00", "1.81"} <= {*found}
    told = {state.legend for state in ARRAY} & {*found}
    assert told == {STATES[key].legend for key in ("busy", "starved", "idle")}
    assert "failed: see points.csv" in found
    assert [found.count(name) for name in ("mine", "channel_first", "auto")] == [2, 2, 2]
    assert {"net", "$a$/_b&lt;i&gt;"} <= {*found}
    (table,), (legend,) = compared(made, "lowering")
    assert isinstance(table, Table)
    cells = [[column.cell(row) for row in table.rows] for column in table.columns]
    assert cells == [[*NAMES], ["4.00", "8.00"], ["-", "1.81"], ["0.78", "1.00"]]
    assert text_of(legend) == "channel_first: its time. The others: times as long. -: failed."


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.long), 4])
def test_the_legend_of_few_networks_is_within_the_picture(count: int) -> None:
    sweep = spec("lowering: [channel_first, explicit, auto]", workloads="[0.yaml]")
    made = lowering_rows(sweep, {(NAMES[0], point.jobs.lowering): 0.5 * len(ARRAY) for point in sweep.points})
    every = {f"{state.key}_cycles": 500 for state in ARRAY}
    rows_ = [{**row, **every, "workload": f"net{number}"} for number in range(count) for row in made]
    with rc_context(rc=STYLE):
        figure = lowerings_figure("s", comparison(rows_, "lowering"))
        figure.draw_without_rendering()
        box, (legend,) = figure.bbox, figure.legends
        assert len(legend.get_texts()) == len(ARRAY)
        left, _, right, _ = legend.get_window_extent().extents
    assert box.x0 <= left < right <= box.x1


def test_where_no_lowering_did_all_networks_some_are_not_measured() -> None:
    sweep = spec("lowering: [channel_first, auto]", workloads="[0.yaml, 1.yaml]")
    first, second = NAMES
    times = {(first, "channel_first"): None, (first, "auto"): 3.0}
    times |= {(second, "channel_first"): 8.0, (second, "auto"): None}
    made = lowering_rows(sweep, times)
    assert texts(drawn(sweep, made)["lowerings"]).count("1.00") == 1
    found = comparison(made, "lowering")
    assert found.times[second, "channel_first"] == 1
    assert (first, "auto") not in found.times


# ---- a sweep over machines


def machine_sweep(machines: str, workloads: str = "[0.yaml, 1.yaml]") -> Sweep:
    Path("s.yaml").write_text(f"name: s\nbatch: 2\nworkloads: {workloads}\naxes: {{hardware: {machines}}}\n")
    return load_sweep("s.yaml")


def machine_rows(sweep: Sweep, failed: int, launches: tuple[int, ...] = (0, 500)) -> list[dict[str, Any]]:
    """Return a row a point: of 1,000 cycles half are busy, a fifth of all is useful, 400 starved, the rest idle.

    `launches` are cycles of the machines; the array is not starved for longer.
    """
    made = []
    for index, point in enumerate(sweep.points):
        states = {f"{state.key}_cycles": 0 for state in ARRAY}
        states |= {"busy_cycles": 500, "starved_cycles": 400, "idle_cycles": 100}
        launched = launches[[*sweep.axes["hardware"]].index(point.jobs.hardware.name) % len(launches)]
        figures = {
            "cycles": 1000,
            "launch_cycles": launched,
            "time_us": 1000.0 / (index + 1),
            "pe_utilization": 0.2,
            **states,
        }
        names = {"workload": point.jobs.work.name, "batch": 2, "error": "no room" if index == failed else None}
        made.append({**(dict.fromkeys(figures) if index == failed else figures), **names, **dict(point.settings)})
    return made


def test_a_sweep_over_machines_is_two_plots_a_network() -> None:
    sweep = machine_sweep("[tiny_4x4, tpu_v6e]")
    made = machine_rows(sweep, failed=1)
    pictures = drawn(sweep, made)
    assert {*pictures} == {"machines"}
    found = texts(pictures["machines"])
    told = (STATES["useful"], STATES["unused"], LAUNCHING, STATES["starved"], STATES["idle"])
    assert {state.legend for state in (*ARRAY, *told)} & {*found} == {state.legend for state in told}
    assert {"net", "$a$/_b&lt;i&gt;", "time (us)", "cycles (%)", "failed: see points.csv"} <= {*found}
    assert found.count("tpu_v6e") == found.count("tiny_4x4") == 2
    table, notice = compared(made, "hardware")[0]
    assert isinstance(table, Table)
    assert [[column.cell(row) for row in table.rows] for column in table.columns] == [
        [*NAMES], ["1.00", "-"], ["0.33", "0.25"],
    ]  # fmt: skip
    assert text_of(notice) == "-: failed."


def test_the_parts_of_a_machine_add_up_and_launches_are_starved_cycles() -> None:
    sweep = machine_sweep("[tiny_4x4, tpu_v6e]", "[0.yaml]")
    with rc_context(rc=STYLE):
        figure = machines_figure("s", machine_rows(sweep, -1, (0, 150)))
    _, below = figure.axes
    heights = {str(bars.get_label()): [patch.get_height() for patch in bars] for bars in below.containers}
    shares = {key: pytest.approx(each) for key, each in {
        STATES["useful"].legend: [20, 20], STATES["unused"].legend: [30, 30], LAUNCHING.legend: [0, 15],
        STATES["starved"].legend: [40, 25], STATES["idle"].legend: [10, 10],
    }.items()}  # fmt: skip
    assert {key: each for key, each in heights.items() if any(each)} == shares


@pytest.mark.parametrize("count", [1, *(pytest.param(count, marks=pytest.mark.long) for count in (2, 3, 5, 8))])
def test_the_legend_of_machines_is_within_the_picture(count: int) -> None:
    sweep = machine_sweep("[tpu_v2_core, tpu_v3_core, tpu_v4_core, tpu_v5e, tpu_v5p_core, tpu_v6e, tpu_v7x_core]")
    made = machine_rows(sweep, failed=0)[:7]
    every = {f"{state.key}_cycles": 100 for state in ARRAY}
    made = [{**row, **(every if not row["error"] else {}), "workload": f"net{n}"} for n in range(count) for row in made]
    with rc_context(rc=STYLE):
        figure = machines_figure("s", made)
        figure.draw_without_rendering()
        box, (legend,) = figure.bbox, figure.legends
        left, _, right, _ = legend.get_window_extent().extents
    assert len(figure.axes) == 2 * count
    assert box.x0 <= left < right <= box.x1


def test_columns_go_one_by_one_as_a_terminal_narrows() -> None:
    rows = [{"workload": "net", "error": None, **dict.fromkeys(_SHOWN, 1.0)}]
    table: Any = best(rows, [])[0][0]
    every = [len(table.fitting(room)) for room in range(60)]
    gone: list[str] = []
    for room in reversed(range(60)):
        heads = [each.header.split("\n")[0] for each in table.fitting(room)]
        gone += [head for head in ("cycles", "time", "TF/s", "PE", "map", "ports") if head not in [*heads, *gone]]
    assert gone == ["ports", "map", "TF/s", "cycles", "PE"]
    assert {*every} == set(range(5, 11))


@pytest.mark.parametrize(("points", "says"), [(16, ["10 of 16 points; points.csv has all."]), (10, [])])
def test_points_that_are_not_shown_are_told(points: int, says: list[str]) -> None:
    figures = dict.fromkeys(_SHOWN, 1.0)
    rows = [{"workload": "net", "clock": number, "error": None, **figures} for number in range(points)]
    (table, *sentences), _ = best(rows, ["clock"])
    assert [each for each in sentences if each] == says
    assert len(table.rows) == 10  # type: ignore[union-attr]


def test_a_cross_stands_above_the_values_and_below_the_title() -> None:
    """At the foot it stood among them."""
    sweep = spec("array.size: [2, 4, 8]")
    with rc_context(STYLE):
        figure = drawn(sweep, rows(sweep, failed=(1,)))["throughput"].draw()
        figure.draw_without_rendering()
        plot = figure.axes[0]
        (cross,) = (line for line in plot.get_lines() if line.get_marker() == "x")
        (place,) = plot.get_xaxis_transform().transform(cross.get_xydata())
        frame, title = plot.get_window_extent(), plot.title
    assert place[1] > frame.y1
    extents = [text.get_window_extent() for text in (title, plot._left_title) if text.get_text()]
    assert all(place[1] + 3 < extent.y0 for extent in extents)
    assert extents


def test_black_numbers_are_read_on_every_tone_of_a_map() -> None:
    """Maps begin at zero: values that are alike were white on black."""
    darkest = _TONES_OF_CELLS(1.0)[:3]
    assert min(darkest) > 0.45
    assert _TONES_OF_CELLS(0.0)[:3] == (1.0, 1.0, 1.0)
