"""What Python and notebooks make of a result, and what `import tpusim` offers them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path

import pandas
import pytest
from typer.testing import CliRunner

import tpusim
from tests import ROOT
from tests.pages import EVIL, with_layers, wrong
from tpusim.base.errors import InputError
from tpusim.cli import app as cli
from tpusim.result.notebook import MOST_LAYERS
from tpusim.result.records import Blocking, DramUse, EnergyUse, LayerResult, Result, VectorMemoryUse, total_of
from tpusim.result.vocabulary.figures import FIGURES, in_frame


@pytest.fixture(scope="module")
def result() -> Result:
    return tpusim.simulate(tpusim.load_workload("tiny", batch=2), tpusim.load_hardware("tiny_4x4"))


def in_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_everything_offered_is_there_and_nothing_is_imported_for_it() -> None:
    assert (
        in_python("import sys, tpusim; print([n for n in sys.modules if n.startswith(('numpy', 'pydantic'))])") == "[]"
    )
    assert {"Workload", "Conv2d", "Gemm", "Hardware", "Result"} <= {*dir(tpusim)}
    assert all(getattr(tpusim, name) for name in dir(tpusim))


def test_a_network_made_in_python() -> None:
    work = tpusim.Workload("mine", 2, (tpusim.Conv2d("c", 4, 4, 4, 4, (3, 3)), tpusim.Gemm("fc", 2, 4, 4)))
    result = tpusim.simulate(work, tpusim.load_hardware("tiny_4x4"))
    assert isinstance(result, tpusim.Result)
    assert (result.checked, result.correct) == (True, True)


def test_a_run_that_checked_nothing_is_not_called_correct() -> None:
    work, hardware = tpusim.load_workload("tiny"), tpusim.load_hardware("tiny_4x4")
    result = tpusim.simulate(work, hardware, check=False)
    assert (result.checked, result.correct) == (False, None)
    told = json.loads(result.to_json())
    assert [*told][-4:] == ["layers", "checked", "correct", "by_op"]
    assert (told["checked"], told["correct"]) == (False, None)
    # A wrong output is wrong, and some right ones are not all.
    first, *others = tpusim.simulate(work, hardware).layers
    for mismatched in (0, 1):
        some = replace(first, outputs_checked=1, outputs_mismatched=mismatched), *others
        part = replace(result, layers=some, total=total_of(some, 0.0))
        assert (part.checked, part.correct) == (False, not mismatched)


# ---- the frame


def test_a_frame_has_a_row_a_layer_and_a_column_a_field(result: Result) -> None:
    frame = result.to_frame()
    assert list(frame["name"]) == [layer.name for layer in result.layers]
    assert list(frame.columns)[:5] == ["workload", "batch", "position", "name", "op"]
    assert {*map(in_frame, FIGURES), "multi_tile", "outputs_mismatched", "blocking.rows", "units.port.dma"} <= {
        *frame.columns
    }
    first, row = result.layers[0], frame.iloc[0]
    assert row["starved_cycles"] == first.stall_cycles["starved"]
    assert row["reads"] == first.vector_memory.reads
    assert row["vector_memory.ifmap_bytes"] == first.vector_memory.ifmap_bytes
    assert row["units.systolic_array.busy"] == first.units["systolic_array"]["busy"]
    assert frame["cycles"].sum() == result.total.cycles
    # Flat, and each field once.
    assert not [name for name in frame.columns if frame[name].map(lambda each: isinstance(each, dict | list)).any()]
    held = sum(len(each) for each in (first.stall_cycles, *first.units.values()))
    # The stalls, the busy and the idle cycles of the array go by names of their own, too.
    held += len(("busy", "idle"))
    assert first.energy_use is not None
    held += len((*first.energy_use.parts, *first.energy_use.counts)) - len(("parts", "counts"))
    inner = sum(len(fields(record)) for record in (VectorMemoryUse, Blocking, DramUse, EnergyUse))
    own = len(fields(LayerResult)) - len(("stalls", "memory", "units", "blocking", "dram", "energy", "own"))
    assert len(frame.columns) == 3 + own + inner + held


@pytest.mark.usefixtures("undrawn")
def test_a_frame_has_the_columns_of_a_sweep(result: Result, tmp_path: Path) -> None:
    spec = tmp_path / "s.yaml"
    spec.write_text("name: s\nworkloads: [tiny]\nhardware: tiny_4x4\nbatch: 2\naxes: {clock: [700 MHz]}\n")
    assert CliRunner().invoke(cli.app, ["sweep", str(spec), "--out", str(tmp_path), "--workers", "1"]).exit_code == 0
    swept = pandas.read_csv(tmp_path / "layers.csv").drop(columns="clock")
    frame = result.to_frame()[[*map(in_frame, swept.columns)]]
    pandas.testing.assert_frame_equal(frame.set_axis(swept.columns, axis=1), swept, check_dtype=False)


def test_without_pandas_the_message_says_what_to_install(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"Result.to_frame\(\) needs pandas, .*: \S+ -m pip install pandas$"):
        result.to_frame()


# ---- the table of a notebook


class Cells(HTMLParser):
    """The rows of a table, and every tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Sequence[object]) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows:
            self.rows[-1][-1] += data


def test_a_notebook_shows_a_row_a_layer_and_the_total(result: Result) -> None:
    shown = Cells(result._repr_html_())
    assert [row[0] for row in shown.rows] == ["layer", *(layer.name for layer in result.layers), "total of 3"]
    assert shown.rows[-1][3] == f"{result.total.cycles:,}"
    assert {row[2] for row in shown.rows[1:]} == {"all equal"}
    for row in shown.rows[1:]:
        assert sum(map(float, row[5:])) == pytest.approx(100, abs=0.21)
    assert len({len(row) for row in shown.rows}) == 1


def test_printed_it_is_a_line(result: Result) -> None:
    assert str(result) == repr(result)
    assert str(result).startswith(f"<Result of tiny, batch 2, on tiny_4x4: 3 layers, {result.total.cycles:,} cycles, ")
    assert len(str(result)) < 160


def test_names_are_escaped_and_wrong_outputs_told(result: Result) -> None:
    layer = replace(wrong(result.layers[0]), name=EVIL)
    shown = Cells(replace(with_layers(result, layer), workload=EVIL)._repr_html_())
    assert shown.tags == {"table", "caption", "tr", "td", "th"}
    assert shown.rows[1][0] == EVIL
    assert shown.rows[1][2] == "3 wrong"


def test_a_long_network_shows_what_takes_longest(result: Result) -> None:
    many = with_layers(result, *(result.layers * 20))
    shown = Cells(many._repr_html_())
    assert len(shown.rows) == 1 + MOST_LAYERS + 2
    assert shown.rows[-2][0] == "40 shorter layers"
    cycles = [int(row[3].replace(",", "")) for row in shown.rows[1:]]
    assert sum(cycles[:-1]) == cycles[-1] == many.total.cycles
    *times, total = (float(row[4].replace(",", "")) for row in shown.rows[1:])
    assert sum(times) == pytest.approx(total, abs=0.051 * len(times))
    assert times[-1] == pytest.approx(sum(sorted(layer.time_us for layer in many.layers)[:40]), abs=0.051)
    assert {row[0] for row in shown.rows[1:-2]} == {max(result.layers, key=lambda layer: layer.cycles).name}
