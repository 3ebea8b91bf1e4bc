"""The report page in a headless browser, where there is one: what a reader sees and does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.browser import LAYOUT, WIDTHS, chromium, opened
from tests.pages import AXES, EVIL, LONG, grid, page_of, point, points_file, report, with_layers, wrong
from tpusim.report.page.run import fields, run_data
from tpusim.report.tables.sweep import GOALS
from tpusim.result.records import Result


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def run_page(resnet50: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_of(resnet50, tmp_path_factory.mktemp("resnet50"))


@pytest.fixture(scope="module")
def odd_page(resnet50: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with wrong outputs, hostile and long names, no MACs, no traffic."""
    layers = list(resnet50.layers)
    layers[0] = wrong(replace(layers[0], name=EVIL))
    layers[1] = replace(layers[1], name=LONG)
    use = layers[2].energy_use
    idle = {"macs": 0, "pe_utilization": 0.0, "ideal_cycles": 0, "tflops": 0.0}
    layers[2] = replace(layers[2], **idle, energy_use=use and replace(use, tops_per_watt=0.0))
    layers[3] = replace(layers[3], hbm_read_bytes=0, hbm_write_bytes=0)
    return page_of(with_layers(replace(resnet50, workload=LONG + EVIL), *layers), tmp_path_factory.mktemp("odd"))


@pytest.fixture(scope="module")
def sweep_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = points_file(tmp_path_factory.mktemp("sweep"), grid(range(32, 320, 32)), AXES)
    assert report(str(folder)).exit_code == 0
    return folder / "report.html"


def first_cells(shown: Any, column: int) -> list[str]:
    """A column of the big table, rows as they stand; from 0."""
    return [str(text) for text in shown.texts(f".table tbody tr:not([hidden]) > :nth-child({column + 1})")]


def test_the_network_is_to_be_seen(browser: Any, run_page: Path) -> None:
    with opened(browser, run_page) as shown:
        picture = shown.page.locator("img.picture")
        assert picture.evaluate("each => each.complete && each.naturalWidth > 400")


def numbers(texts: list[str]) -> list[float]:
    return [float(text.replace(",", "")) for text in texts]


def test_the_table_holds_the_result(browser: Any, run_page: Path, resnet50: Result) -> None:
    with opened(browser, run_page) as shown:
        assert first_cells(shown, 0) == [layer.name for layer in resnet50.layers]
        assert numbers(first_cells(shown, 3)) == [layer.cycles for layer in resnet50.layers]
        assert shown.texts(".verdict.unchecked strong") == ["Outputs not checked (--no-check)."]
        assert f"{resnet50.total.cycles:,} cycles at 700 MHz" in shown.page.locator(".tiles").inner_text()
        machine_table = shown.texts(".pairs tr")
        assert all(f"{path}\t{value}" in machine_table for path, value in fields(resnet50.hardware))


def test_it_sorts(browser: Any, run_page: Path, resnet50: Result) -> None:
    with opened(browser, run_page) as shown:
        head = shown.page.locator(".table thead th").nth(3)
        cycles = sorted((layer.cycles for layer in resnet50.layers), reverse=True)
        for expected, order in ((cycles, "descending"), (cycles[::-1], "ascending")):
            head.get_by_role("button").click()
            assert numbers(first_cells(shown, 3)) == expected
            assert head.get_attribute("aria-sort") == order
        shown.page.locator(".table thead button").first.press("Enter")
        assert first_cells(shown, 0)[0] == "conv1"
        assert head.get_attribute("aria-sort") is None


def test_it_filters(browser: Any, run_page: Path, resnet50: Result) -> None:
    with opened(browser, run_page) as shown:
        shown.page.locator("input[type=search]").fill("LAYER1 .conv2")
        wanted = [layer.name for layer in resnet50.layers if "layer1" in layer.name and ".conv2" in layer.name]
        assert first_cells(shown, 0) == wanted
        assert shown.texts(".count") == [f"{len(wanted)} of 54 layers"]
        shown.page.locator("input[type=search]").fill("nothing of that name")
        assert first_cells(shown, 0) == []


def test_rows_and_marks_are_linked(browser: Any, run_page: Path, resnet50: Result) -> None:
    with opened(browser, run_page) as shown:
        shown.page.locator("#layers tr[data-item='5']").hover()
        hot = shown.run("[...document.querySelectorAll('svg .hot')].map((mark) => mark.dataset.item)")
        assert set(hot) == {"5"}
        assert len(hot) >= 4
        shown.page.locator("input[type=search]").fill("fc")
        shown.page.locator("figure .mark[data-item='7']").first.hover()
        assert resnet50.layers[7].name in shown.page.locator("#tip").inner_text()
        shown.page.locator("figure .mark[data-item='7']").first.click()
        row = shown.page.locator("#layers tr[data-item='7']")
        assert shown.run("document.activeElement.dataset.item") == "7"
        assert "picked" in (row.get_attribute("class") or "")
        assert shown.run("(row) => row.getBoundingClientRect().top", row.element_handle()) > 0
        assert shown.texts(".details h3") == [resnet50.layers[7].name]
        assert f"{resnet50.layers[7].cycles:,} cycles" in shown.page.locator(".details").inner_text()


def test_the_keyboard_is_enough(browser: Any, run_page: Path, resnet50: Result) -> None:
    with opened(browser, run_page) as shown:
        keyboard = shown.page.keyboard
        shown.page.locator("input[type=search]").focus()
        for _ in range(25):
            keyboard.press("Tab")
            if shown.run("document.activeElement.matches('tbody tr')"):
                break
        assert shown.run("document.activeElement.dataset.item") == "0"
        for key in ("ArrowDown", "ArrowDown", "ArrowUp", "Enter"):
            keyboard.press(key)
        assert shown.texts(".details h3") == [resnet50.layers[1].name]
        keyboard.press("End")
        assert shown.run("document.activeElement.dataset.item") == "53"
        chart = shown.page.get_by_role("img", name="PE utilisation")
        chart.focus()
        keyboard.press("ArrowRight")
        keyboard.press("ArrowRight")
        assert resnet50.layers[1].name in shown.page.locator("#tip").inner_text()
        keyboard.press("Escape")
        assert shown.page.locator("#tip").is_hidden()


def test_colours_follow_the_system_and_the_button(browser: Any, run_page: Path) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    seen = []
    for scheme in ("light", "dark"):
        with opened(browser, run_page, color_scheme=scheme) as shown:
            seen.append(shown.run(paper))
            shown.page.locator(".theme").click()
            seen.append(shown.run(paper))
    assert seen[0] == seen[3] != seen[1] == seen[2]


def test_layers_may_be_of_equal_width(browser: Any, run_page: Path) -> None:
    widths = "[...document.querySelectorAll('figure .mark .hit')].slice(-54).map((hit) => hit.width.baseVal.value)"
    with opened(browser, run_page) as shown:
        assert max(shown.run(widths)) > 5 * min(shown.run(widths))
        shown.page.get_by_label("the same for all").check()
        assert max(shown.run(widths)) == pytest.approx(min(shown.run(widths)))
        assert shown.run(LAYOUT)["wrong"] == []


def test_every_layer_is_on_the_roofline_and_under_it(browser: Any, run_page: Path, resnet50: Result) -> None:
    with opened(browser, run_page) as shown:
        assert shown.count("path.dot") == 54
        peaks = run_data(resnet50)["peaks"]
        for layer in run_data(resnet50)["layers"]:
            roof = min(peaks["tflops"], layer["flop_per_byte"] * peaks["hbm_bytes_per_s"] / 1e12)
            assert layer["tflops"] <= roof * 1.0001


def test_it_prints_in_light_colours(browser: Any, run_page: Path) -> None:
    with opened(browser, run_page, color_scheme="dark") as shown:
        shown.page.emulate_media(media="print")
        assert shown.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert shown.page.locator(".theme").is_hidden()
        shown.page.emulate_media(media="screen")


def test_what_a_hostile_run_shows(browser: Any, odd_page: Path) -> None:
    with opened(browser, odd_page) as shown:
        assert shown.count("img:not(.picture)") == 0
        assert "3 wrong" in shown.texts(".verdict.wrong")[0]
        assert f"layer {EVIL}: 3 of" in shown.texts(".verdict.wrong")[0]
        assert first_cells(shown, 0)[0] == EVIL
        assert shown.texts("#layers tr.wrong th") == [EVIL]
        assert shown.count("path.dot") == 52
        assert "2 without MACs or traffic left out" in shown.page.locator("main").inner_text()
        shown.page.get_by_label("only wrong layers").check()
        assert first_cells(shown, 0) == [EVIL]


def test_a_right_run_says_so(browser: Any, tiny: Result, tmp_path: Path) -> None:
    one = with_layers(tiny, tiny.layers[0])
    with opened(browser, page_of(one, tmp_path)) as shown:
        (verdict,) = shown.texts(".verdict.right")
        assert "elements equal the reference, 0 wrong." in verdict
        assert shown.run(LAYOUT)["wrong"] == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["run_page", "odd_page", "sweep_page"])
def test_no_text_is_cut_or_covered(browser: Any, name: str, width: int, request: pytest.FixtureRequest) -> None:
    with opened(browser, request.getfixturevalue(name), width) as shown:
        found = shown.run(LAYOUT)
        assert found["wrong"] == []
        assert found["texts"] > 100


def test_text_that_is_cut_or_covered_would_be_found(browser: Any, run_page: Path) -> None:
    spoil = (
        "document.querySelector('h1').style.marginBottom = '-24px'",
        "document.querySelector('h1').style.cssText = 'white-space: nowrap; width: 3000px'",
        "document.querySelector('.plot text').setAttribute('x', -300)",
        "document.querySelector('.subtitle').style.cssText = 'width: 40px; overflow: hidden; white-space: nowrap'",
        "document.querySelectorAll('.plot text').forEach((text) => text.setAttribute('y', 30))",
    )
    for script in spoil:
        with opened(browser, run_page) as shown:
            shown.run(script)
            assert shown.run(LAYOUT)["wrong"] != [], script


def test_a_sweep_sorts_filters_and_lists_what_failed(browser: Any, sweep_page: Path) -> None:
    rows = grid(range(32, 320, 32))
    finished = [row for row in rows if not row["error"]]
    with opened(browser, sweep_page) as shown:
        assert shown.texts(".verdict.wrong strong") == [
            f"{len(rows) - len(finished)} of {len(rows)} points failed; see below"
        ]
        assert shown.count("section:last-of-type .pairs tr") == len(rows) - len(finished)
        fastest = sorted(range(len(rows)), key=lambda i: (rows[i].get("time_us", float("inf")), i))
        assert numbers(first_cells(shown, 0)) == [i + 1 for i in fastest[: len(finished)]]
        shown.page.locator(".table thead button").nth(1).click()
        sizes = numbers(first_cells(shown, 1))
        assert sizes == sorted(sizes)
        shown.page.locator("input[type=search]").fill("700 GB/s rows")
        assert {*first_cells(shown, 2)} == {"700 GB/s"}
        assert {*first_cells(shown, 3)} == {"rows"}


def choose(shown: Any, wanted: str, other: str = "-1 time_us") -> None:
    """Choose what a sweep without goals is looked at for."""
    for label, code in (("Wanted", wanted), ("and", other)):
        shown.page.get_by_label(label, exact=True).select_option(code)


def dominated(one: dict[str, Any], others: list[dict[str, Any]], x: str, y: str) -> bool:
    return any(o[x] <= one[x] and o[y] <= one[y] and (o[x] < one[x] or o[y] < one[y]) for o in others)


@pytest.mark.parametrize("column", ["array.size", "hbm_read_bytes"])
def test_the_pareto_front_is_what_no_point_dominates(browser: Any, sweep_page: Path, column: str) -> None:
    rows = [{**row, "item": i} for i, row in enumerate(grid(range(32, 320, 32)))]
    mine = [row for row in rows if row["workload"] == "b" and not row["error"]]
    front = {row["item"] for row in mine if not dominated(row, mine, column, "time_us")}
    with opened(browser, sweep_page) as shown:
        shown.page.get_by_label("Workload").select_option("b")
        assert shown.count("path.on-front[data-item]") == 0
        choose(shown, f"-1 {column}")
        marks = shown.page.locator("path.on-front[data-item]").all()
        drawn = [int(mark.get_attribute("data-item")) for mark in marks]
        assert {*drawn} == front
        assert len(drawn) == len(front)
        shown.page.get_by_label("only the Pareto front above").check()
        assert {int(n) - 1 for n in numbers(first_cells(shown, 0))} == front


@pytest.mark.parametrize("goals", ["most pes; least time_us", "least time_us; most pes; least a"])
def test_the_page_opens_on_the_goals_of_the_sweep(browser: Any, tmp_path: Path, goals: str) -> None:
    """And lists its front, which with three goals has points that are not on the line."""
    rows = [point(9.0, a=1, b=1, pes=1), point(5.0, a=1, b=2, pes=2), point(6.0, a=2, b=2, pes=4)]
    file = points_file(tmp_path, rows, ("a", "b")) / "points.csv"
    marks = (f"pareto,{GOALS}", f"True,{goals}", f"True,{goals}", f"False,{goals}")
    lines = zip(file.read_text().splitlines(), marks, strict=True)
    file.write_text("\n".join(f"{line},{mark}" for line, mark in lines))
    assert report(str(tmp_path)).exit_code == 0
    codes = [f"{-1 if goal.startswith('least') else 1} {goal.split()[1]}" for goal in goals.split("; ")]
    with opened(browser, tmp_path / "report.html") as shown:
        for label, code in zip(("Wanted", "and"), codes, strict=False):
            box = shown.page.get_by_label(label, exact=True)
            assert box.input_value() == code
            # What may be chosen: few columns, those of the sweep first.
            options = [each.get_attribute("value") for each in box.locator("option").all()]
            assert options[: len(codes)] == codes
            assert len(options) <= 12
        drawn = {mark.get_attribute("data-item") for mark in shown.page.locator("path.on-front[data-item]").all()}
        assert drawn == {"1", "2"}
        shown.page.get_by_label("only the front that the sweep asked for").check()
        assert sorted(numbers(first_cells(shown, 0))) == [1, 2]


def test_a_sweep_without_goals_opens_on_none(browser: Any, sweep_page: Path) -> None:
    with opened(browser, sweep_page) as shown:
        assert shown.page.get_by_label("Wanted").input_value() == ""
        assert "The sweep set no goals" in shown.page.locator("main").inner_text()
        shown.page.get_by_label("only the Pareto front above").check()
        assert len(first_cells(shown, 0)) > 0


def test_failed_points_are_crosses_where_they_failed(browser: Any, tmp_path: Path) -> None:
    rows = [point(5.0, a=1, b=1), point(1, error="too small", a=2, b=1), point(4.0, a=4, b=1), point(3.0, a=4, b=2)]
    assert report(str(points_file(tmp_path, rows, ("a", "b")))).exit_code == 0
    with opened(browser, tmp_path / "report.html") as shown:
        assert shown.page.get_by_role("img", name="Over one axis").locator("path.lost").count() == 1
        assert "A cross at the foot: points failed there." in shown.page.locator("main").inner_text()


def test_equals_are_on_the_front_together(browser: Any, tmp_path: Path) -> None:
    """The same in both columns: both; the same in one and worse in the other: no."""
    rows = [point(time, a=a, b=b) for a, time, b in ((1, 10.0, 1), (2, 5.0, 1), (3, 5.0, 1), (2, 5.0, 2), (4, 6.0, 1))]
    assert report(str(points_file(tmp_path, rows, ("a", "b")))).exit_code == 0
    with opened(browser, tmp_path / "report.html") as shown:
        choose(shown, "-1 a")
        marks = shown.page.locator("path.on-front[data-item]").all()
        assert sorted(int(mark.get_attribute("data-item")) for mark in marks) == [0, 1, 3]


def test_charts_of_a_sweep_show_the_figure_that_is_chosen(browser: Any, sweep_page: Path) -> None:
    rows = grid(range(32, 320, 32))
    with opened(browser, sweep_page) as shown:
        heat = shown.page.get_by_role("img", name="Over two axes")
        assert heat.locator("g.mark").count() == 9 * 3
        for key, best in (("time_us", min), ("tflops", max)):
            shown.page.get_by_label("Figure").select_option(key)
            items = [int(mark.get_attribute("data-item")) for mark in heat.locator("g.mark").all()]
            for item in items:
                same = [
                    row
                    for row in rows
                    if all(row[a] == rows[item][a] for a in ("array.size", "hbm.bandwidth", "workload"))
                ]
                assert rows[item][key] == best(row[key] for row in same if not row["error"])
        curves = shown.page.get_by_role("img", name="Over one axis")
        assert curves.locator("path.curve").count() == 2
        shown.page.get_by_label("A line for each").select_option("hbm.bandwidth")
        assert curves.locator("path.curve").count() == 3
        shown.page.get_by_label("Across").first.select_option("hbm.bandwidth")
        assert shown.page.get_by_label("A line for each").input_value() == "workload"


def test_a_point_of_a_sweep_is_linked_to_its_row(browser: Any, sweep_page: Path) -> None:
    with opened(browser, sweep_page) as shown:
        choose(shown, "-1 hbm_read_bytes")
        mark = shown.page.locator("path.on-front[data-item]").last
        item = mark.get_attribute("data-item")
        mark.click()
        assert shown.run("document.activeElement.dataset.item") == item
        assert shown.count(f"#points tr.picked[data-item='{item}']") == 1


def test_many_points_are_shown_by_and_by(browser: Any, tmp_path: Path) -> None:
    rows = [point(float(n), a=n) for n in range(1, 1301)]
    assert report(str(points_file(tmp_path, rows, ("a",)))).exit_code == 0
    with opened(browser, tmp_path / "report.html") as shown:
        assert numbers(first_cells(shown, 0)) == [*range(1, 501)]
        assert shown.texts(".count") == ["1,300 of 1,300 points"]
        shown.page.get_by_role("button", name="The first 500 of 1,300 are shown. Show more").click()
        assert numbers(first_cells(shown, 0)) == [*range(1, 1001)]
        shown.page.locator("input[type=search]").fill("1300")
        assert numbers(first_cells(shown, 0)) == [1300]
        shown.page.locator("path.point[data-item='1250']").first.dispatch_event("click")
        assert shown.run("document.activeElement.dataset.item") == "1250"
        assert shown.count("#points tr[aria-current]") == 1


@pytest.mark.parametrize(
    ("rows", "axes"),
    [
        ([point(1, error="too small", a=1), point(1, error="too small", a=2)], ("a",)),
        ([point(5, a=1)], ("a",)),
        ([point(5)], ()),
        ([point(5 / n, a=n) for n in (1, 2, 4)], ("a",)),
        ([point(5 / n, a=n, b=n) for n in (1, 2, 4)], ("a", "b")),
        ([point(n % 7 + 1, a=n, b=EVIL if n % 2 else "ok") for n in range(1, 41)], ("a", "b")),
    ],
    ids=["all failed", "one point", "no axis", "one axis", "zipped", "many values"],
)
def test_sweeps_of_every_kind(browser: Any, rows: list[dict[str, Any]], axes: tuple[str, ...], tmp_path: Path) -> None:
    """On a narrow screen, which cuts texts first; a sweep on wide ones is above."""
    assert report(str(points_file(tmp_path, rows, axes))).exit_code == 0
    with opened(browser, tmp_path / "report.html", min(WIDTHS)) as shown:
        assert shown.run(LAYOUT)["wrong"] == []
        assert shown.count("img") == 0
        assert shown.count("#points tbody tr") == sum(not row["error"] for row in rows)
