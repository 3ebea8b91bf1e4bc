"""What a machine family must offer is enough: a toy that the package has never seen runs through everything."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
from typer.testing import CliRunner, Result

from tests.machines.toy import family as toy
from tpusim import load_hardware, load_workload, simulate
from tpusim.base.errors import CapacityError, InputError
from tpusim.cli import app as cli
from tpusim.machines import family
from tpusim.report.tables.sentences import own_text
from tpusim.result.load import parse_result, read_result

MACHINE = """\
name: abacus
family: toy
clock: 1 GHz
macs: 16
memory: 1 MiB
bandwidth: 8 GB/s
"""
SWEEP = """\
workloads: tiny
hardware: abacus.yaml
batch: 2
axes:
  macs: [8, 16, 32]
  lowering: all
where: macs * memory >= 16 MiB
pareto: [time_us, pes]
"""


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(family.FAMILIES, "toy", toy.FAMILY)
    Path("abacus.yaml").write_text(MACHINE)
    Path("swept.yaml").write_text(SWEEP)


def asked(*words: str) -> Result:
    return CliRunner().invoke(cli.app, [*words], env={"COLUMNS": "160"})


def told(*words: str) -> str:
    result = asked(*words)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*words: str) -> str:
    result = asked(*words)
    assert result.exit_code == 2, result.output
    return result.output


def ran(*words: str) -> Result:
    return told("run", "tiny", "--batch", "2", "--hardware", "abacus.yaml", *words)


def test_it_runs_and_its_values_are_checked() -> None:
    said = ran("--out", "out")
    result = read_result(Path("out"))
    assert "tiny, batch 2, on abacus: plain lowering, event engine, seed 0; peak 32.00 GFLOPS" in said
    assert "Every output checked" in said
    assert result.correct
    # fig10: 9 x 2 pixels by 4 channels by 4 kernels; 72 + 16 elements in, 72 out.
    first = result.layers[0]
    assert first.cycles == 288 // 16 + 1 + 160 // 8
    assert first.units["worker"] == {"busy": 19, "waiting_bytes": 19, "idle": 1}
    assert first.stall_cycles == {"waiting_bytes": 19}
    assert result.total.cycles == sum(layer.cycles for layer in result.layers)


def test_the_table_has_its_columns_and_none_of_a_tpus() -> None:
    said = ran()
    for head in ("waiting", "halves", "manner", "touched"):
        assert head in said
    for head in ("ports", "unused\n", "taps stacked", " passes", "Mapping efficiency", "vector memory"):
        assert head not in said


def test_the_json_comes_back_and_has_nothing_of_a_tpu() -> None:
    result = simulate(load_workload("tiny", batch=2), load_hardware("abacus.yaml"))
    written = json.loads(result.to_json())
    assert written["hardware"] == {
        "name": "abacus", "family": "toy", "clock": "1 GHz", "macs": 16, "memory": "1 MiB", "bandwidth": "8 GB/s",
    }  # fmt: skip
    layer = written["layers"][0]
    assert [key for key, value in layer.items() if value is None][:4] == [
        "passes", "multi_tile", "mapping_efficiency", "vector_memory",
    ]  # fmt: skip
    assert layer["own"] == {"halves": 1, "manner": "plain", "touched_bytes": 160, "rounds": 1}
    assert parse_result(result.to_json()).layers == result.layers


def test_a_result_of_a_tpu_has_nothing_of_it() -> None:
    result = simulate(load_workload("tiny", batch=2), load_hardware("tiny_4x4"))
    assert '"own"' not in result.to_json()
    assert "family" not in result.to_dict()["hardware"]


def test_its_second_interpreter_is_held_against_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "all engines, in agreement" in ran("--engine", "both")
    monkeypatch.setattr(toy, "SLOW", {"fig11"})
    answer = asked("run", "tiny", "--hardware", "abacus.yaml", "--engine", "both")
    assert answer.exit_code == 1
    assert "layer fig11: the engines disagree: cycles is" in answer.output


def test_a_wrong_output_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy, "WRONG", {"fig11"})
    answer = asked("run", "tiny", "--hardware", "abacus.yaml")
    assert answer.exit_code == 1
    assert "layer fig11: 1 of " in answer.output


def test_auto_takes_the_fastest_of_its_lowerings() -> None:
    ran("--lowering", "auto", "--out", "out")
    assert {layer.lowering for layer in read_result(Path("out")).layers} == {"plain"}


@pytest.mark.parametrize("numbers", ["f32", "bf16", "int8"])
def test_values_are_of_every_type(numbers: str) -> None:
    assert "Every output checked" in ran("--dtype", numbers)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "tiny", "--hardware", "abacus.yaml", "--lowering", "channel_first"],
         "unknown lowering 'channel_first' for a toy; there is plain, slow, auto"),
        (["run", "tiny", "--hardware", "abacus.yaml", "--lowering", "slow"], "slow takes no products"),
        (["run", "tiny", "--hardware", "abacus.yaml", "--sums", "array"], "sums array: abacus is a toy"),
        (["run", "tiny", "--hardware", "abacus.yaml", "--set", "array.rows=4"], 'no field "array.rows"'),
        (["trace", "tiny", "--hardware", "abacus.yaml", "--out", "a.vcd"],
         "a toy, and a trace of it is a timeline; write it with --out FILE.perfetto-trace or --out FILE.json"),
        (["trace", "tiny", "--hardware", "abacus.yaml", "--out", "a.pftrace", "--from", "999"], "there are 343 cycles"),
        (["explain", "tiny", "--layer", "fig10", "--hardware", "abacus.yaml", "--out", "a.png"],
         "abacus is a toy, and tpusim explain --out is of TPUs alone"),
        (["area", "--hardware", "abacus.yaml"], "abacus is a toy, and tpusim area is of TPUs alone"),
    ],
)  # fmt: skip
def test_what_it_does_not_offer_is_refused_in_a_sentence(words: list[str], says: str) -> None:
    assert says in " ".join(refused(*words).split())


def test_an_engine_that_it_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy.ToyFamily, "engines", ("event",))
    assert "abacus is a toy, whose time is kept by event" in refused(
        "run", "tiny", "--hardware", "abacus.yaml", "--engine", "register"
    )


@pytest.mark.parametrize(("machine", "kind"), [("abacus.yaml", "abacus is a toy"), ("v100", "v100 is a GPU")])
def test_families_without_rules_in_simpy_say_which_engines_they_have(machine: str, kind: str) -> None:
    """With `both`, those agree that there are."""
    said = refused("run", "tiny", "--hardware", machine, "--engine", "simpy")
    assert f"engine simpy: {kind}, whose time is kept by event, register, both" in said


def test_an_unknown_family_is_refused_at_its_line() -> None:
    Path("other.yaml").write_text(MACHINE.replace("toy", "toi"))
    said = refused("run", "tiny", "--hardware", "other.yaml")
    assert "other.yaml:2: family: no machine family 'toi'; did you mean toy?" in said


def test_a_family_without_a_value_is_refused() -> None:
    Path("other.yaml").write_text(MACHINE.replace("toy", ""))
    said = refused("run", "tiny", "--hardware", "other.yaml")
    assert "other.yaml:2: family: no value; write one of" in said
    assert "or leave family out, for a TPU" in said


@pytest.mark.parametrize(("clock", "says"), [("1530 MHz", "1530 MHz"), ("1500 Hz", "1.5 kHz"), ("1 Hz", "1 Hz")])
def test_clocks_are_told_without_exponents(clock: str, says: str) -> None:
    assert f" at {says};" in ran("--no-check", "--set", f"clock={clock}")


def test_a_tpu_may_say_that_it_is_one() -> None:
    text = (Path(family.__file__).parents[2] / "configs" / "tiny_4x4.yaml").read_text()
    Path("mine.yaml").write_text(f"family: tpu\n{text}")
    assert load_hardware("mine.yaml", ["name=tiny_4x4"]) == load_hardware("tiny_4x4")


def test_what_does_not_fit_names_the_layer() -> None:
    with pytest.raises(CapacityError, match="layer fig10: its operands do not fit"):
        simulate(load_workload("tiny", batch=2), load_hardware("abacus.yaml", ["memory=16 B"]))


def test_what_needs_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy.ToyFamily, "planned", lambda *_: family.Need(10**15, 0))
    with pytest.raises(InputError, match=r"needs about 1,000,000\.0 GB of memory"):
        simulate(load_workload("tiny", batch=2), load_hardware("abacus.yaml"))


@pytest.mark.usefixtures("undrawn")
def test_it_is_swept_and_reported() -> None:
    said = told("sweep", "swept.yaml", "--workers", "1", "--format", "svg")
    assert "Pareto front" in said
    rows = list(csv.DictReader(Path("results/swept/points.csv").read_text().splitlines()))
    # 8 PEs are left out by the condition; `all` means what every layer can be asked for.
    assert [(row["macs"], row["lowering"]) for row in rows] == [
        (n, way) for n in ("16", "32") for way in ("plain", "auto")
    ]
    assert all(row["passes"] == row["starved_cycles"] == row["area"] == "" for row in rows)
    assert {row["sram_bytes"] for row in rows} == {f"{2**20}"}
    told("report", "results/swept")
    assert Path("results/swept/report.html").exists()


def test_runs_of_it_are_drawn_compared_and_reported() -> None:
    ran("--out", "a")
    ran("--out", "b", "--set", "macs=8")
    told("plot", "a", "--format", "svg")
    told("report", "a")
    page = Path("a/report.html").read_text()
    assert "The worker is busy in" in page
    assert "waiting bytes" in page
    told("run", "tiny", "--out", "tpu", "--no-check")
    assert "macs" in told("compare", "a", "b")
    assert "family" in told("compare", "tpu", "a")


def test_it_is_explained() -> None:
    said = told(
        "explain", "tiny", "--layer", "fig10", "--batch", "2", "--hardware", "abacus.yaml", "--json", "why.json"
    )
    # 20 cycles for the bytes and 19 for the products, of which one is no work, become 20 and 10, or 10 and 19.
    assert "With twice the bandwidth, it takes 29 cycles: 1.34 times as fast." in " ".join(said.split())
    assert "Not tried: what nobody can build" in said
    found = json.loads(Path("why.json").read_text())
    gains = {each["with"]: (each["cycles"], each["that_is"]) for each in found["gains"]}
    assert gains["twice the bandwidth"] == (29, "bandwidth=16 GB/s")
    assert gains["twice the MACs"] == (30, "macs=32")
    assert {each["lowering"]: each["cycles"] for each in found["lowerings"]} == {"plain": 39, "slow": 57}


def test_its_trace_adds_up() -> None:
    told("trace", "tiny", "--batch", "2", "--hardware", "abacus.yaml", "--from", "10", "--out", "all.perfetto-trace")
    spent, open_, names = Counter[str](), dict[int, tuple[int, str]](), dict[int, str]()
    for packet in Trace.FromString(Path("all.perfetto-trace").read_bytes()).packet:
        names |= {each.iid: each.name for each in packet.interned_data.event_names}
        event = packet.track_event
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            open_[event.track_uuid] = packet.timestamp, names[event.name_iid]
        elif event.type == TrackEvent.TYPE_SLICE_END:
            begun, name = open_.pop(event.track_uuid)
            spent[name] += packet.timestamp - begun
    # The first ten cycles, in which it waits, are not shown.
    assert spent == {"waiting_bytes": 62 - 10, "busy": 71, "idle": 3, "fig10": 29, "fig11": 36, "two_passes": 61}


def test_it_is_shown_in_a_notebook_and_as_a_frame() -> None:
    result = simulate(load_workload("tiny", batch=2), load_hardware("abacus.yaml"))
    assert "abacus" in result._repr_html_()
    pytest.importorskip("pandas")
    frame = result.to_frame()
    assert list(frame["own.touched_bytes"]) == [layer.own["touched_bytes"] for layer in result.layers]


def test_its_own_figures_have_units() -> None:
    assert own_text("touched_bytes", 2_000_000) == "2.00 MB"
    assert own_text("rounds", 12_000) == "12,000"
    assert own_text("manner", "slow") == "slow"
