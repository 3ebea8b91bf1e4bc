"""The report page: what is on it, and what cannot be."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.pages import AXES, EVIL, grid, page_of, point, points_file, report, with_layers, wrong
from tpusim import load_hardware, load_workload, simulate
from tpusim.base.errors import InputError
from tpusim.base.units import magnitude
from tpusim.cli import app as cli
from tpusim.machines.tpu.description import FORM
from tpusim.report.page.assemble import plain, sweep_data
from tpusim.report.page.run import fields, run_data, sentences
from tpusim.report.tables.sweep import MOST_POINTS, read_points
from tpusim.result.records import Result
from tpusim.result.rules import SHARES
from tpusim.result.vocabulary.figures import COLUMNS
from tpusim.result.vocabulary.states import STATES, all_parts

# ---- what is on the page


def test_the_parts_of_every_bar_add_up(resnet50: Result) -> None:
    data = run_data(resnet50)
    for record in (data["total"], *data["layers"]):
        assert sum(record["states"]) == pytest.approx(record["cycles"], rel=1e-12)
        assert min(record["states"]) >= 0
    pes = data["peaks"]["pes"]
    useful = data["total"]["states"][0]
    assert useful == pytest.approx(resnet50.total.macs / pes)
    assert useful / resnet50.total.cycles == pytest.approx(resnet50.total.pe_utilization)


def test_the_words_say_what_the_figures_say(resnet50: Result) -> None:
    data = run_data(resnet50)
    words = " ".join(plain(sentence, data["layers"]) for sentence in data["sentences"])
    costly = sorted(resnet50.layers, key=lambda layer: -layer.cycles)
    share = 100 * costly[0].cycles / resnet50.total.cycles
    assert f"the costliest: {costly[0].name} ({share:.1f} %)" in words
    states = data["total"]["states"]
    largest = max(range(1, len(states)), key=states.__getitem__)
    lost, share = all_parts(resnet50.total)[largest], states[largest] / resnet50.total.cycles
    assert f"The largest loss is {lost.doing}: {100 * share:.1f} %" in words
    worst = max(range(len(resnet50.layers)), key=lambda i: data["layers"][i]["states"][largest])
    assert f"the largest parts of it in {resnet50.layers[worst].name} (" in words


@pytest.mark.parametrize("cause", ["starved", "blocked", "waiting_weights", "port_stall", "idle"])
def test_the_largest_loss_is_the_largest(tiny: Result, cause: str) -> None:
    """Whatever the cause: one that takes most of the cycles is the one that is told."""
    layer = tiny.layers[0]
    array = {**dict.fromkeys(layer.units["systolic_array"], 0), "busy": 10, cause: layer.cycles - 10}
    made = with_layers(tiny, replace(layer, units={**layer.units, "systolic_array": array}))
    data = run_data(made)
    words = " ".join(plain(sentence, data["layers"]) for sentence in data["sentences"])
    assert f"The largest loss is {STATES[cause].doing}: " in words


def test_every_field_of_the_machine_is_shown_with_its_unit(tiny: Result) -> None:
    memory = {"capacity": "1 MiB", "bandwidth": "1 TB/s", "latency": "20 ns"}
    of_type = {"bytes": 1, "rate": 2, "weights_per_cycle": 8, "result_bytes": 4, "convert_cycles": 3}
    of_type |= {
        "window": "8 MiB",
        "convert_weight_cycles": 7,
        "convert_result_cycles": "19/2",
        "convert_bytes": 2,
        "widen": 1,
        "narrow": 1,
        "rounding": 4,
    }
    slots = {"loads": 3, "stores": 1, "lanes": 128, "register": "32 B", "registers": 8}
    slots |= {"latency": 2, "packed": False, "window": 1024, "bare_window": 128, "turn_window": 384}
    cycles = "lookup", "turn", "body", "sum", "bare", "map", "spread", "turn_body"
    slots |= {f"{name}_cycles": 3 for name in cycles}
    types = {"types": dict.fromkeys(("f32", "bf16", "f16", "int8", "f8"), of_type)}
    types["vector_unit"] = {**tiny.hardware["vector_unit"], "slots": slots}
    shown = dict(
        fields({**tiny.hardware, **types, "generation": "TPU v5e, 2023", "chip_cores": 2, "scratch_memory": memory})
    )
    assert {*FORM.paths} - {"array.size"} <= {*shown}
    bare = {path for path, value in shown.items() if re.fullmatch(r"[\d.]+", value)}
    assert bare == set()
    assert shown["array.rows"] == "4 PEs"
    assert shown["array.count"] == "1 array"


def test_shares_of_the_diagram_are_the_units(resnet50: Result) -> None:
    data, total = run_data(resnet50), resnet50.total
    for key, unit in (("hbm", "hbm"), ("preload", "preload"), ("vector_unit", "vector_unit")):
        ((_, _, share),) = data["diagram"][key]["parts"]
        assert share == total.units[unit]["busy"] / total.cycles
    for key in ("memory", "array"):
        assert sum(share for _, _, share in data["diagram"][key]["parts"]) == pytest.approx(1)


def test_a_machine_with_a_port_for_each_client() -> None:
    """Their shares stand one by one: they are not parts of a whole."""
    hardware = load_hardware("tiny_4x4", ["vector_memory.ports=separate"])
    made = simulate(load_workload("tiny", batch=2), hardware, check=False)
    data, total = run_data(made), made.total
    assert data["diagram"]["memory"]["parts"] == []
    share = 100 * total.units["port_ifmap"]["ifmap"] / total.cycles
    assert f"ifmap reads {share:.1f} %" in data["diagram"]["memory"]["lines"]
    assert ("port of DMA", 1 - made.layers[0].units["port_dma"]["idle"] / made.layers[0].cycles) in data["layers"][0][
        "units"
    ]


@pytest.mark.parametrize(
    ("edit", "state", "says"),
    [
        (lambda layer: layer, "right", "0 wrong"),
        (wrong, "wrong", "3 wrong"),
        (lambda layer: replace(layer, outputs_checked=0), "unchecked", "not checked"),
    ],
)
def test_the_verdict(tiny: Result, edit: Any, state: str, says: str) -> None:
    verdict = run_data(with_layers(tiny, edit(tiny.layers[0])))["verdict"]
    assert (verdict["state"], says in verdict["text"]) == (state, True)
    assert bool(verdict["first"]) is (state == "wrong")


def test_a_run_of_which_a_part_was_checked(tiny: Result) -> None:
    unchecked = replace(tiny.layers[1], outputs_checked=0)
    assert run_data(with_layers(tiny, tiny.layers[0], unchecked))["verdict"]["state"] == "partly"


def test_layers_without_multiplications_are_not_told_to_reach_the_peak(tiny: Result) -> None:
    """Pooling has none, however many bytes there are."""
    idle = replace(tiny.layers[0], macs=0)
    mixed, alone = with_layers(tiny, idle, *tiny.layers[1:]), with_layers(tiny, idle)
    machine = load_hardware("tiny_4x4")
    told = [
        [plain(each, run_data(result)["layers"]) for each in sentences(result, machine)] for result in (mixed, alone)
    ]
    few = "too few operations a byte"
    assert [any(few in each or "HBM bounds no layer" in each for each in texts) for texts in told] == [True, False]
    assert all(few not in each or "of 2 layers with MACs" in each for each in told[0])


# ---- the file


def test_the_same_result_gives_the_same_bytes(tiny: Result, tmp_path: Path) -> None:
    first = page_of(tiny, tmp_path).read_bytes()
    assert page_of(tiny, tmp_path).read_bytes() == first


def test_names_are_never_markup_and_nothing_may_be_fetched(tiny: Result, tmp_path: Path) -> None:
    named = replace(tiny, workload=EVIL, layers=tuple(replace(layer, name=EVIL) for layer in tiny.layers))
    text = page_of(named, tmp_path).read_text()
    assert EVIL not in text
    assert "<img" not in text
    assert text.count("</script>") == 2
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", text)


def test_without_javascript_the_words_are_there(tiny: Result, tmp_path: Path) -> None:
    text = page_of(replace(tiny, workload="a <b> & c"), tmp_path).read_text()
    shown = re.search(r"<noscript>(.*)</noscript>", text, re.DOTALL)
    assert shown is not None
    assert "a <b> & c" in unescape(shown[1])
    assert "0 wrong" in shown[1]
    assert "The array is busy in" in shown[1]


def test_two_thousand_points_stay_under_three_megabytes(tmp_path: Path) -> None:
    rows = grid(range(32, 32 + 112))
    assert len(rows) > 2000
    assert report(str(points_file(tmp_path, rows, AXES))).exit_code == 0
    assert (tmp_path / "report.html").stat().st_size < 3_000_000


def test_where_the_page_goes(tiny: Result, tmp_path: Path) -> None:
    page_of(tiny, tmp_path)
    assert report(str(tmp_path / "run.json"), "-o", str(tmp_path / "new" / "page.html")).exit_code == 0
    assert (tmp_path / "new" / "page.html").read_bytes() == (tmp_path / "report.html").read_bytes()


@pytest.mark.usefixtures("undrawn")
def test_a_sweep_from_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `tpusim sweep` writes is what the page reads."""
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text("workloads: tiny\nhardware: tiny_4x4\nbatch: 2\naxes: {array.size: [2, 4]}\n")
    ran = CliRunner().invoke(cli.app, ["sweep", "small.yaml", "--workers", "1"])
    assert ran.exit_code == 0, ran.output
    data = sweep_data(read_points(Path("results/small/points.csv")))
    assert data["axes"] == [{"key": "array.size", "values": ["2", "4"], "measures": [2, 4]}]
    assert report("results/small").exit_code == 0


# ---- what cannot be shown


def test_neither_a_run_nor_a_sweep(tmp_path: Path) -> None:
    for source in (tmp_path, tmp_path / "nothing", tmp_path / "nothing.json", tmp_path / "nothing.csv"):
        shown = report(str(source))
        assert (shown.exit_code, "no such file" in shown.stderr) == (2, True), shown.output
    assert list(tmp_path.iterdir()) == []


def test_a_directory_with_both_is_asked_about(tiny: Result, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(tiny.to_json())
    points_file(tmp_path, [point(5, a=1)], ("a",))
    shown = report(str(tmp_path))
    assert shown.exit_code == 2
    assert "holds a run and a sweep; give " in shown.stderr
    assert report(str(tmp_path / "points.csv")).exit_code == 0
    assert report(str(tmp_path / "run.json")).exit_code == 0


def test_a_sweep_that_did_not_come_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "sweep.sqlite").touch()
    shown = report(str(tmp_path))
    assert (shown.exit_code, "run `tpusim sweep` to its end" in shown.stderr) == (2, True)


BAD_POINTS = [
    ("", "no column workload, cycles, time_us, error"),
    ("a,b\n1,2\n", "no column workload"),
    ("a,workload,cycles,time_us,error\n", "no points"),
    ("a,workload,cycles,time_us,error\n1,net,5\n", "line 2: 3 cells, not 5"),
    ("a,workload,cycles,time_us,error\n1,net,5,nan,\n", "line 2: time_us is no number above zero"),
    ("a,workload,cycles,time_us,error\n1,net,5,2,\n2,net,,,\n", "line 3: cycles is no number above zero"),
    ("a,workload,cycles,time_us,error\n1,net,5,-2,\n", "line 2: time_us is no number above zero"),
    ("a,a,workload,cycles,time_us,error\n1,1,net,5,2,\n", "no column may come twice"),
    ("a,workload,cycles,time_us,error\n" + "1,net,5,2,\n" * (MOST_POINTS + 1), "more than 20,000 points"),
]


@pytest.mark.parametrize(("text", "says"), BAD_POINTS, ids=lambda value: value[:40])
def test_points_that_are_none(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "points.csv").write_text(text)
    shown = report(str(tmp_path))
    assert (shown.exit_code, says in shown.stderr) == (2, True), shown.stderr
    assert not (tmp_path / "report.html").exists()


def changed(result: Result, **fields: Any) -> str:
    return json.dumps({**result.to_dict(), "seal": "", **fields})


def test_a_result_that_lacks_what_the_page_needs(tiny: Result, tmp_path: Path) -> None:
    layers, total = tiny.to_dict()["layers"], tiny.to_dict()["total"]

    def array_alone(record: dict[str, Any]) -> dict[str, Any]:
        return {**record, "units": {"systolic_array": record["units"]["systolic_array"]}}

    texts = {
        "units has no preload": changed(tiny, layers=[*map(array_alone, layers)], total=array_alone(total)),
        "hardware.clock": changed(tiny, hardware={**tiny.hardware, "clock": "fast"}),
        "not a finite number": changed(tiny, layers=[{**layers[0], "tflops": float("nan")}, *layers[1:]]),
    }
    for says, text in texts.items():
        (tmp_path / "run.json").write_text(text)
        shown = report(str(tmp_path))
        assert (shown.exit_code, says in shown.stderr) == (2, True), shown.output
        assert "run.json" in shown.stderr or str(tmp_path) in shown.stderr
    assert not (tmp_path / "report.html").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_that_cannot_be_written(tiny: Result, tmp_path: Path) -> None:
    page_of(tiny, tmp_path)
    tmp_path.chmod(0o500)
    shown = report(str(tmp_path))
    tmp_path.chmod(0o700)
    assert (shown.exit_code, "cannot be written" in shown.stderr) == (2, True)


def test_a_page_is_not_written_over_a_directory(tiny: Result, tmp_path: Path) -> None:
    page_of(tiny, tmp_path)
    (tmp_path / "folder").mkdir()
    shown = report(str(tmp_path), "-o", str(tmp_path / "folder"))
    assert (shown.exit_code, "cannot be written" in shown.stderr) == (2, True)


# ---- points of a sweep


@pytest.mark.parametrize(
    ("text", "measure"),
    [("8", 8), ("0.5", 0.5), ("100 GB/s", 1e11), ("256 KiB", 262144), ("700 MHz", 7e8), ("1 ns", 1000), ("auto", None)],
)
def test_what_an_axis_measures(text: str, measure: float | None) -> None:
    assert magnitude(text) == measure


def test_axes_are_in_order_and_words_stay_as_they_came(tmp_path: Path) -> None:
    rows = [point(i + 1, a=a, b=b) for i, (a, b) in enumerate([("1 TB/s", "rows"), ("5 GB/s", 1), ("1 TB/s", 2)])]
    points_file(tmp_path, rows, ("a", "b"))
    a, b = sweep_data(read_points(tmp_path / "points.csv"))["axes"]
    assert a == {"key": "a", "values": ["5 GB/s", "1 TB/s"], "measures": [5e9, 1e12]}
    assert b == {"key": "b", "values": ["rows", "1", "2"], "measures": None}


def test_a_batch_may_be_an_axis_and_columns_may_be_new(tmp_path: Path) -> None:
    rows = [point(10 / n, batch=n) for n in (1, 2, 4)]
    points_file(tmp_path, rows, ("batch",))
    text = (tmp_path / "points.csv").read_text().splitlines()
    extended = [text[0] + ",area_mm2,note", *(f"{line},{i},x" for i, line in enumerate(text[1:], 3))]
    (tmp_path / "points.csv").write_text("\n".join(extended) + "\n")
    data = sweep_data(read_points(tmp_path / "points.csv"))
    assert [axis["key"] for axis in data["axes"]] == ["batch"]
    assert "area_mm2" in [figure["key"] for figure in data["figures"]]
    assert data["points"]["area_mm2"] == (3, 4, 5)


def test_every_column_has_a_name_a_unit_and_the_direction_of_the_sweep(tmp_path: Path) -> None:
    row = point(10, a=1) | dict.fromkeys(COLUMNS, 3_000_000) | dict.fromkeys(COLUMNS.keys() & {*SHARES}, 0.5)
    data = sweep_data(read_points(points_file(tmp_path, [row], ("a",)) / "points.csv"))
    figures = {figure["key"]: figure for figure in data["figures"]}
    assert set(figures) == set(COLUMNS)
    assert not [figure["label"] for figure in figures.values() if "_" in figure["label"]]
    assert {key: figure["better"] for key, figure in figures.items()} == {
        key: figure.better for key, figure in COLUMNS.items()
    }
    assert [figures[key]["unit"] for key in ("sram_bytes", "hbm_bytes_per_s", "starved_cycles", "peak_bytes")] == [
        "MiB", "MB/s", "cycles", "MiB"]  # fmt: skip


def test_the_front_that_the_sweep_asked_for(tmp_path: Path) -> None:
    folder = points_file(tmp_path, [point(time, a=time) for time in (1, 2, 3)], ("a",))
    lines = (folder / "points.csv").read_text().splitlines()
    marked = (f"{line},{mark}" for line, mark in zip(lines, ("pareto", True, False, True), strict=True))
    (folder / "points.csv").write_text("\n".join(marked))
    data = sweep_data(read_points(folder / "points.csv"))
    assert data["front"] == [0, 2]
    assert "pareto" not in [figure["key"] for figure in data["figures"]]


def test_the_fastest_point_is_named(tmp_path: Path) -> None:
    rows = [point(time, a=a) for a, time in ((1, 900.0), (2, 300.0), (4, 600.0))]
    rows.append(point(1, error="too small", a=8))
    data = sweep_data(read_points(points_file(tmp_path, rows, ("a",)) / "points.csv"))
    assert data["sentences"] == [
        ["net is fastest with a = 2: 300 us, 33.3 TFLOPS, PE utilisation 50.0 %; the slowest of its 3 points takes "
         "900 us, 3.00 times as long."]
    ]  # fmt: skip
    assert data["failed"] == [3]


def test_a_sweep_names_its_machine_and_calls_no_step_of_tokens_the_fastest(tmp_path: Path) -> None:
    """The step of one sequence takes the least time, and makes the fewest tokens a second."""
    setup = "tpu_v6e, phase decode"
    rows = [point(100.0 * a, a=a, tokens_per_s=100.0 + a, setup=setup) for a in (1, 2)]
    folder = points_file(tmp_path, rows, ("a",))
    data = sweep_data(read_points(folder / "points.csv"))
    assert data["subtitle"] == f"2 points over a (2 values), on {setup}; timing alone, values not checked"
    (least,), (most,) = data["sentences"]
    assert least.startswith("net takes the least time for a step with a = 1: 100 us")
    assert most == "net with the most tokens a second: 102, with a = 2."


def test_input_errors_are_input_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_points(tmp_path)
