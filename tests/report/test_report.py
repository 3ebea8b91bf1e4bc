"""Plots, tables and reading results back, on results made by hand."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from matplotlib import rc_context
from rich.console import Console
from typer.testing import CliRunner

from tests.checks import ESTIMATE
from tests.covering import few
from tests.report import unlaid
from tpusim import simulate
from tpusim.base.errors import InputError
from tpusim.cli import app as cli
from tpusim.machines.tpu.description import load_hardware
from tpusim.network.ops.array_op import Conv2d, Gemm
from tpusim.network.workload_file import load_workload
from tpusim.report import text as texts
from tpusim.report.plots import figure, run
from tpusim.report.plots.figure import Picture
from tpusim.report.plots.run import plots
from tpusim.report.shown import text_of
from tpusim.report.tables import run as tables
from tpusim.report.tables.sentences import first_wrong, outcome, totals, verdict, word_notice
from tpusim.result.load import parse_result, read_result
from tpusim.result.records import (
    Blocking,
    LayerResult,
    Mismatch,
    Residency,
    Result,
    VectorMemoryUse,
    WordRange,
    total_of,
)
from tpusim.result.vocabulary.figures import BYTES, TIMES
from tpusim.result.vocabulary.states import STATES, parts_in

PES, CLOCK_MHZ, MACS = 128 * 128, 700, 16_384_000


def layer(name: str, *, busy: int = 1000, starved: int = 300, port_stall: int = 40, word_fill: int = 8) -> LayerResult:
    """A layer whose array was busy, starved, stalled at the port, and idle for 60 cycles."""
    array = {
        "busy": busy,
        "starved": starved,
        "blocked": 0,
        "waiting_weights": 0,
        "port_stall": port_stall,
        "idle": 60,
    }
    cycles = sum(array.values())
    return LayerResult(
        name=name,
        op="conv2d",
        macs=MACS,
        passes=9,
        multi_tile=1,
        cycles=cycles,
        time_us=cycles / CLOCK_MHZ,
        ideal_cycles=MACS // PES,
        pe_utilization=MACS / PES / cycles,
        mapping_efficiency=1.0,
        tflops=2 * MACS / (cycles / CLOCK_MHZ) / 1e6,
        stall_cycles={"starved": starved, "blocked": 0, "waiting_weights": 0, "port_stall": port_stall},
        hbm_read_bytes=2_500_000,
        hbm_write_bytes=800_000,
        vector_memory=VectorMemoryUse(5000, 4000, 0.6, 2**20, 2**19),
        outputs=1234,
        outputs_checked=1234,
        outputs_mismatched=0,
        units={"systolic_array": array},
        blocking=Blocking(14, 14, 8, 1, 1, 1, "block_major", word_fill, 1),
        lowering="channel_first",
    )


def result(*layers: LayerResult) -> Result:
    """A run of these layers."""
    return Result(
        tpusim="0.1.0",
        hardware=load_hardware("tpu_v2").to_dict(),
        workload="net",
        batch=8,
        lowering="channel_first",
        engine="event",
        seed=0,
        total=total_of(layers, 0.5),
        layers=layers,
    )


def wrong(each: LayerResult) -> LayerResult:
    """The same layer with three wrong outputs."""
    first = Mismatch((1, 2, 3, 4), ("channel", "row", "col", "image"), 7.0, 9.0)
    return replace(each, outputs_mismatched=3, first_mismatch=first)


def files(of: Result) -> dict[str, bytes]:
    """Every picture of a result, by file name."""
    return {name: contents for picture in plots(of) for name, contents in picture.files()}


def svg(of: Result, name: str) -> str:
    """One of the pictures of a result."""
    return unlaid.svg(picture_of(of, name))


def picture_of(of: Result, name: str) -> Picture:
    (picture,) = (each for each in plots(of) if each.name == name)
    return picture


def shown(of: Result, width: int | None) -> list[str]:
    """The lines of the layer table."""
    console = Console(width=width or 1000)
    with console.capture() as captured:
        console.print(tables.layer_table(of.layers, {"conv1": "56x56x64>64 3x3"}).drawn(width))
    return [line.rstrip() for line in captured.get().splitlines()]


def legend_of(*layers: LayerResult) -> str:
    """What the columns of the layer table hold, in one line."""
    return " ".join(text_of(tables.layer_table(layers, {}).legend()).split())


@cache
def names_of(network: str) -> list[str]:
    return [each.name for each in load_workload(network).layers]


@pytest.mark.parametrize(
    "names", [pytest.param(["only"], marks=pytest.mark.long), names_of("densenet121")[-4:]], ids=len
)
def test_plots_are_pictures_with_labelled_axes(names: list[str]) -> None:
    of = result(*map(layer, names))
    assert [each.name for each in plots(of)] == ["pe_utilization", "cycle_breakdown", "roofline"]
    pictures = dict(picture_of(of, "pe_utilization").files())
    assert [*pictures] == ["pe_utilization.png", "pe_utilization.svg"]
    assert pictures["pe_utilization.png"].startswith(b"\x89PNG")
    assert len(pictures["pe_utilization.png"]) > 5000
    with unlaid.anywhere():
        assert picture_of(of, "pe_utilization").contents("pdf").startswith(b"%PDF")
    utilization, breakdown = pictures["pe_utilization.svg"].decode(), svg(of, "cycle_breakdown")
    assert "operations a byte of HBM traffic" in svg(of, "roofline")
    for text in ("PE utilisation (%)", "network: 71.4 %", "layer", names[-1][-20:]):
        assert text in utilization
    for text in (
        "cycles",
        "share of cycles (%)",
        "useful",
        "busy, PEs unused",
        "starved: HBM data late",
        "idle",
        "NETWORK",
    ):
        assert text in breakdown


def test_more_than_every_pe_could_do_is_drawn_and_told() -> None:
    """1,000 cycles of multiplications in 560, for 500 of which the array is busy: not all of them are done."""
    fewer = result(layer("tiles", busy=500, starved=0, port_stall=0))
    drawn = svg(fewer, "pe_utilization")
    assert re.search(r">175<", drawn)
    assert "network: 178.6 %" in drawn
    assert "22.9 TFLOPS" in svg(fewer, "roofline")
    told = text_of(totals(fewer.total))
    assert (
        "PE utilisation 179 %, as some multiplications are not done by the array; busy 89.3 %, PEs unused 0 %" in told
    )
    assert "PE counts multiplications that need not be done" in legend_of(*fewer.layers)
    assert "not all multiplications" not in text_of(totals(result(layer("taps")).total))


@pytest.mark.parametrize(("layers", "told"), [(64, "layer"), (65, "layer (one name in 2)")])
def test_names_of_layers_are_left_out_where_there_are_too_many_to_read(layers: int, told: str) -> None:
    picture = next(
        each for each in plots(result(*(layer(f"c{at}") for at in range(layers)))) if each.name == "pe_utilization"
    )
    (axes,) = picture.draw().axes
    assert axes.get_xlabel() == told


def test_a_thousand_layers_are_drawn() -> None:
    """As areas, whose states keep their tones and hatches; the network stands beside them, wide enough to be seen."""
    of = result(*(layer(f"conv{number}", starved=300 + number % 7) for number in range(1000)))
    for name in ("pe_utilization", "roofline"):
        unlaid.figure(picture_of(of, name))
    breakdown = svg(of, "cycle_breakdown")
    for text in ("layer (one name in 16)", "conv992", "NETWORK", STATES["starved"].look.light, "url(#"):
        assert text in breakdown
    assert len(breakdown) < 2_500_000


def test_areas_and_bars_show_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The height at the middle of each layer, in every state."""
    of = result(layer("a"), layer("b", starved=900), layer("c", busy=10))
    with rc_context(rc=figure.STYLE):
        bars = plots(of)[1].draw().axes
        monkeypatch.setattr(figure, "MOST_BARS", 0)
        areas = plots(of)[1].draw().axes
    for barred, filled in zip(bars, areas, strict=True):
        containers = [each for each in barred.containers if len(each) == 3]
        assert len(containers) == len(filled.collections) == len(parts_in(of.layers))
        for container, area in zip(containers, filled.collections, strict=True):
            (path,) = area.get_paths()
            for bar in filter(lambda bar: bar.get_height(), container):
                middle, low, tall = bar.get_x() + bar.get_width() / 2, bar.get_y(), bar.get_height()
                within = [path.contains_point((middle, low + part * tall)) for part in (-0.1, 0.1, 0.9, 1.1)]
                assert within == [False, True, True, False]
        assert filled.get_ylim()[0] == 0


def test_utilisation_and_what_the_mapping_allows_stand_where_they_are() -> None:
    """In percent; beside the last layer there is as much room as beside the first, or the network stands there."""
    of = result(layer("a"), replace(layer("b"), mapping_efficiency=0.25))
    with rc_context(rc=figure.STYLE):
        used, split = (each.draw().axes[0] for each in plots(of)[:2])
    assert [bar.get_height() for bar in used.patches] == pytest.approx(
        [100 * each.pe_utilization for each in of.layers]
    )
    (bounds,) = (each for each in used.collections if each.get_label() == "mapping efficiency")
    assert [line[0][1] for line in bounds.get_segments()] == [100, 25]  # type: ignore[attr-defined]
    low, high = used.get_xlim()
    assert (low, high) == pytest.approx((-0.8, 1 + 0.8))
    assert split.get_xlim()[1] > 2


def test_an_outcome_stays_until_its_readers_are_done_or_another_takes_its_place() -> None:
    """Each layer takes 2 us; b's outcome begins where a's stood, c's beside them."""
    near, beside = WordRange(0, 8, 4), WordRange(8, 8, 4)
    stays = (
        Residency(WordRange(20, 2, 4), near, ("b", "d")), Residency(WordRange(20, 0, 4), near, ("c",)),
        Residency(WordRange(20, 1, 4), beside, ("d",)), Residency(WordRange(20, 1, 4)),
    )  # fmt: skip
    every = tuple(replace(layer(name), residency=each) for name, each in zip("abcd", stays, strict=True))
    one = every[0].time_us
    found = {(each.name or f"own of {round(each.since / one)}"): (each.since, each.until) for each in run._held(every)}
    assert found == {
        "a": (0, one), "b": (one, pytest.approx(3 * one)), "c": (2 * one, pytest.approx(4 * one)),
        **{f"own of {at}": (pytest.approx(at * one), pytest.approx((at + 1) * one)) for at in (0, 2, 3)},
    }  # fmt: skip


def test_the_same_result_gives_the_same_pictures() -> None:
    of = result(layer("conv1"))
    with unlaid.anywhere():
        once, again = ([*picture.files()] for picture in [picture_of(of, "pe_utilization")] * 2)
    assert once == again


@pytest.mark.long
def test_the_same_result_gives_the_same_of_every_picture() -> None:
    of = result(layer("conv1"))
    assert files(of) == files(of)


def test_plots_take_names_as_they_are() -> None:
    picture = svg(result(layer("a$b$_^"), layer("[red]<&>")), "pe_utilization")
    assert "a$b$_^" in picture
    assert "[red]&lt;&amp;&gt;" in picture


def test_a_result_survives_json() -> None:
    for of in (result(layer("conv1"), layer("fc")), result(wrong(layer("conv1")))):
        assert parse_result(of.to_json()) == of


def test_a_result_is_found_in_its_directory(tmp_path: Path) -> None:
    of = result(layer("conv1"))
    (tmp_path / "run.json").write_text(of.to_json())
    assert read_result(tmp_path) == read_result(tmp_path / "run.json") == of


def test_a_key_of_a_later_version_is_ignored() -> None:
    of = result(layer("conv1"))
    assert parse_result(json.dumps({**of.to_dict(), "energy": 1})) == of


def changed(*path: Any, to: Any = None) -> str:
    """The JSON of a result in which the value at `path` is `to`, or is missing."""
    data = json.loads(result(layer("conv1"), layer("fc")).to_json())
    *above, last = path
    inner: Any = data
    for key in above:
        inner = inner[key]
    if to is None:
        del inner[last]
    else:
        inner[last] = to
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", 'no "tpusim" key'),
        ('{"name": "x"}', 'no "tpusim" key'),
        ('{"tpusim": "0.1.0"}', "has no hardware, workload"),
        (changed("total", "cycles"), "total has no cycles"),
        (changed("layers", 1, "macs"), "layers[1] has no macs"),
        (changed("layers", 0, "macs", to="many"), "layers[0].macs is not a whole number"),
        (changed("layers", 0, "macs", to=True), "layers[0].macs is not a whole number"),
        (changed("layers", to={"a": 1}), "layers is not a list"),
        (changed("layers", 0, to=3), "layers[0] is not a mapping"),
        (changed("layers", 0, "cycles", to=1.0), "layers[0].cycles is not a whole number"),
        (changed("layers", 0, "name", to=3), "layers[0].name is not text"),
        (changed("total", "time_us", to="long"), "total.time_us is not a number"),
        (changed("total", "vector_memory", to=[]), "total.vector_memory is not a mapping"),
        (changed("layers", to=[]), "no layers"),
        (changed("layers", 0, "units", to={}), "do not add up"),
        (changed("layers", 0, "units", "systolic_array", "idle", to=61), "do not add up"),
        (changed("layers", 0, "stall_cycles", "starved"), "stall_cycles must hold"),
    ],
)
def test_what_is_not_a_result_is_refused(text: str, says: str) -> None:
    with pytest.raises(InputError) as error:
        parse_result(text)
    assert says in str(error.value)


def test_a_missing_or_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path, says in (
        ("nothing.json", "no such file"),
        ("binary", "not UTF-8"),
        ("", "run.json: no such file"),
    ):
        with pytest.raises(InputError, match=says) as error:
            read_result(tmp_path / path)
        assert str(tmp_path / path) in str(error.value)


def test_the_table_has_every_column_when_there_is_room() -> None:
    lines = shown(result(layer("conv1")), None)
    assert lines[-1].split() == (
        [
            "conv1",
            "56x56x64>64",
            "3x3",
            "9",
            "1",
            "1,400",
            "2.00",
            "100",
            "16.4",
            "71.4",
            "0",
            "21.4",
            "0",
            "0",
            "2.9",
            "4.3",
            "2.50",
            "0.80",
            "60.0",
            "ok",
        ]
    )


@pytest.mark.parametrize("width", few(4, [30, 40, 60, 80, 100, 120, 200]))
def test_the_table_fits_its_width(width: int) -> None:
    lines = shown(result(*map(layer, names_of("densenet121")[:20])), width)
    assert max(map(len, lines)) <= width
    assert len(lines) <= 4 + 20
    assert any("1,400" in line for line in lines)


def test_resnet50_keeps_every_column_in_132_characters() -> None:
    work = load_workload("resnet50")
    shapes = {each.name: each.text for each in work.layers}
    layers = [layer(each.name, busy=700_000) for each in work.layers]
    table = tables.layer_table(layers, shapes)
    assert len(table.drawn(132).columns) == len(table.columns)


@pytest.mark.parametrize("width", few(4, [30, 60, 80, 100, 120, 200, None]))
def test_the_legend_explains_the_columns_that_are_shown_and_no_others(width: int | None) -> None:
    layers = [layer(name, busy=1000 + 50 * place) for place, name in enumerate(names_of("densenet121")[:20])]
    shapes = {each.name: "56x56x64>64 3x3" for each in layers}
    table = tables.layer_table(layers, shapes)
    heads = [str(column.header).split("\n") for column in table.drawn(width).columns]
    units = {"%", "us", "MB"}
    named = {" ".join(word for word in words if word not in units) for words in heads} - {"layer"}
    legend = text_of(table.legend(), width)
    assert {*re.findall(r"(?:^|\. )([\w/]+(?: unused)?):", " ".join(legend.split()))} == named
    assert max(map(len, legend.splitlines())) <= min(width or 79, 79)


def test_the_legend_says_how_to_read_shapes_and_checks() -> None:
    legend = legend_of(layer("a"), replace(layer("b"), op="gemm"))
    assert "shape: conv2d rows x columns x channels > output channels, kernel, /stride, d dilation" in legend
    assert "gemm m x k > n, g products side by side, w bits of weights in HBM." in legend
    assert "gemm" not in legend_of(layer("a"))
    assert "out: the check of the outputs: ok, how many are wrong, or - where there was none." in legend
    assert "TF/s: 10^12 operations a second, two a MAC." in legend


def test_what_the_array_does_adds_up_on_the_screen() -> None:
    """To rounding: seven figures of a decimal each; in the table, and in the totals."""
    net = simulate(load_workload("alexnet", batch=1), load_hardware("tpu_v2", ESTIMATE), check=False)
    columns = tables.layer_table(net.layers, {}).columns
    heads = [column.header.split("\n")[0] for column in columns]
    first, last = heads.index("PE"), heads.index("idle")
    assert heads[first : last + 1] == ["PE", "part", "starv", "block", "wait", "port", "idle"]
    for each in net.layers:
        assert sum(float(column.cell(each)) for column in columns[first : last + 1]) == pytest.approx(100, abs=0.36)
    (line,) = re.findall(r"Of the cycles: (.*); together 100 %", text_of(totals(net.total)))
    shares = re.findall(r"([\d.]+) %", line)
    assert len(shares) == 7
    assert sum(map(float, shares)) == pytest.approx(100, abs=0.36)
    assert max(map(len, text_of(totals(net.total), 80).splitlines())) <= 80


def test_columns_that_add_up_go_together() -> None:
    layers = [layer(name) for name in names_of("densenet121")[:5]]
    # Each of them takes five characters and more: what is amiss at one width is so at three beside one another.
    for width in range(20, 140, 3):
        heads = [str(column.header).split("\n")[0] for column in tables.layer_table(layers, {}).drawn(width).columns]
        assert len({"part", "starv", "block", "wait", "port", "idle"} & {*heads}) in (0, 6)


def test_a_long_name_keeps_its_end() -> None:
    lines = shown(result(layer("features.denseblock1.denselayer2.conv1")), 100)
    assert lines[-1].startswith("…")
    assert ".denselayer2.conv1 " in lines[-1]


def test_names_are_not_markup() -> None:
    assert shown(result(layer("[red]x[/red]")), 100)[-1].startswith("[red]x[/red]")


def test_the_check_of_a_layer_in_a_word() -> None:
    unchecked = replace(layer("c"), outputs_checked=0)
    assert [outcome(each) for each in (layer("a"), wrong(layer("b")), unchecked)] == [
        "ok",
        "3 wrong",
        "-",
    ]


def test_the_verdict() -> None:
    right = result(layer("a"), layer("b"))
    assert verdict(right) == ("Every output checked: 2,468 of 2,468 elements equal the reference, 0 wrong.")
    assert first_wrong(right) == ""
    bad = result(layer("a"), wrong(layer("b")))
    assert verdict(bad) == ("Every output checked: 2,465 of 2,468 elements equal the reference, 3 wrong.")
    assert first_wrong(bad) == (
        "layer b: 3 of 1,234 outputs are wrong; the first: ofmap[channel=1, row=2, col=3, image=4] is 9, expected 7"
    )
    none = result(replace(layer("a"), outputs_checked=0))
    assert verdict(none) == "Outputs not checked (--no-check)."


def test_totals_carry_units() -> None:
    text = text_of(totals(result(layer("a"), layer("b")).total))
    for part in (
        "2,800 cycles = 4 us at 700 MHz",
        "32.77 MMAC in 18 passes",
        "16.38 TFLOPS",
        "PE utilisation 71.4 %",
        "starved 21.4 %",
        "HBM read 5.00 MB, written 1.60 MB",
        "peak 1.00 MiB",
        "simulated in 0.50 s",
    ):
        assert part in text


def test_partly_used_words_are_noticed() -> None:
    assert word_notice(result(layer("a"))) == ""
    notice = word_notice(result(layer("a"), layer("b", word_fill=2)))
    assert "2 of 8 elements hold anything, in 1 of 2 layers" in notice
    assert "4 times the space" in notice


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(0, "0"), (0.00001, "0.0"), (0.05, "5.0"), (0.999, "99.9"), (0.9996, "100"), (1, "100")],
)
def test_percent_is_short_and_tells_nothing_from_little(ratio: float, text: str) -> None:
    assert texts.percent(ratio) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.123, "0.12"), (9.994, "9.99"), (9.996, "10.0"), (99.96, "100"), (12345, "12,345")],
)
def test_three_digits(value: float, text: str) -> None:
    assert texts.three_digits(value) == text


def test_shapes_in_short() -> None:
    conv = Conv2d(
        "c",
        in_channels=64,
        in_height=56,
        in_width=28,
        out_channels=128,
        kernel=(3, 1),
        stride=(2, 2),
        groups=2,
    )
    assert conv.text == "56x28x64>128 3x1/2 g2"
    assert replace(conv, stride=(1, 2), dilation=(2, 2)).text == "56x28x64>128 3x1/1x2 d2 g2"
    assert Gemm("g", m=8, n=1000, k=512).text == "8x512>1000"


def edited(**changes: Any) -> str:
    """The JSON of a run whose one layer says something else, without a seal."""
    data = json.loads(result(layer("a")).to_json()) | {"seal": ""}
    data["layers"][0] |= changes
    return json.dumps(data)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"time_us": 0.0}, "layer a: cycles and time_us must be above zero"),
        ({"macs": -5, "tflops": -1.0}, "layers[0].macs must not be below zero"),
        ({"macs": 10**400}, "layers[0].macs is not a finite number below 1e+30"),
        ({"tflops": float("nan")}, "layers[0].tflops is not a finite number"),
        ({"name": "half \ud800"}, "not JSON ("),
        ({"units": {**layer("a").units, "hbm": {"busy": 0, "idle": 0}}}, "layer a: units.hbm must hold cycles"),
        ({"units": {**layer("a").units, "hbm": {}}}, "layer a: units.hbm must hold cycles"),
        (
            {"units": {**layer("a").units, "hbm": {"busy": 1}}},
            "layer a: units.hbm must hold cycles, idle ones among them",
        ),
        (
            {"units": {**layer("a").units, "hbm": {"busy": -5, "idle": 9}}},
            "units.hbm.busy must not be below zero",
        ),
    ],
)
def test_figures_that_cannot_be(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as error:
        parse_result(edited(**changes))
    assert says in str(error.value)


def test_names_of_whole_characters_are_read() -> None:
    assert parse_result(edited(name="\U0001f600")).layers[0].name == "\U0001f600"
    assert "\\ud83d" in edited(name="\U0001f600")


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({"macs": 0, "tflops": 0.0, "ideal_cycles": 0, "pe_utilization": 0.0}, []),
        ({"hbm_read_bytes": 0, "hbm_write_bytes": 0}, ["pe_utilization"]),
    ],
)
def test_there_is_no_picture_without_a_layer_on_it(changes: dict[str, Any], left: list[str]) -> None:
    machine = load_hardware("tpu_v2").to_dict()
    pictures = plots(replace(result(replace(layer("a"), **changes)), hardware=machine))
    assert [picture.name for picture in pictures] == [*left, "cycle_breakdown"]


def test_a_machine_that_is_none_is_told_before_anything_is_drawn(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(replace(result(layer("a")), hardware={"name": "x"}).to_json())
    shown = CliRunner().invoke(cli.app, ["plot", str(file)])
    assert (shown.exit_code, shown.stderr) == (2, f"Error: {file}: hardware.clock: Field required\n")
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(("us", "text"), [(300.0, "300 us"), (692.8485714, "692.85 us"), (3558.83, "3.56 ms")])
def test_a_quantity_has_two_decimals_or_none(us: float, text: str) -> None:
    assert texts.quantity(us, TIMES) == text


@pytest.mark.parametrize(("values", "unit"), [
    ([1.05e9, 0.03e9, 0.01e9, 0.03e9], "MB"),
    ([1.05e9, 0.9e9, 0.01e9], "GB"),
    ([3e12, 1e6, 1e6], "GB"),
    ([0.03e9, None, 0], "MB"),
    ([12.0, 0.0], "B"),
    ([], "B"),
])  # fmt: skip
def test_a_column_is_in_the_unit_in_which_most_of_it_can_be_read(values: list[float | None], unit: str) -> None:
    assert texts.column_scale(values, BYTES)[0] == unit
