"""What is told of HBM's banks: records, words, explanations, traces; and bad descriptions of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tests.rules import rule
from tests.strategies import conv, dram
from tpusim import load_hardware, simulate
from tpusim.base.errors import InputError
from tpusim.cli import app as cli
from tpusim.machines.tpu import event
from tpusim.machines.tpu.lowering import registry
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST
from tpusim.machines.tpu.program.moves import TransferRuns
from tpusim.machines.tpu.program.transfers import Spill, Transfer
from tpusim.network.workload import Workload
from tpusim.report.tables.sentences import totals
from tpusim.result.load import read_result
from tpusim.result.records import total_of
from tpusim.result.vocabulary.figures import FIGURES, value_of
from tpusim.study.explain.relaxation import Setup, relaxations
from tpusim.study.sweep.points import load_sweep

SMALL = Workload("small", 8, (conv(64, 14, 256, 1),))
BANKS = load_hardware("tpu_v2_hbm")


def told(*words: str) -> Result:
    return CliRunner().invoke(cli.app, [*words])


def test_every_burst_is_a_hit_a_miss_or_a_conflict() -> None:
    result = simulate(SMALL, BANKS, check=False)
    for record in (result.total, *result.layers):
        use = record.dram
        assert use is not None
        assert use.hbm_moved_bytes == 64 * (use.row_hits + use.row_misses + use.row_conflicts)
        assert use.hbm_moved_bytes == record.hbm_read_bytes + record.hbm_write_bytes
        assert use.hbm_overfetch == use.hbm_moved_bytes / use.hbm_wanted_bytes
        assert 0 < use.hbm_reached_bytes_per_s <= BANKS.hbm.device.peak_bytes_per_s  # type: ignore[union-attr]
        assert 1 <= use.channel_imbalance <= 16
        assert use.refreshes == 16 * int(record.time_us / 3.9)
        assert all(value_of(record, key) >= 0 for key in FIGURES)
    assert json.loads(result.to_json())["total"]["dram"]["row_hits"] == result.total.dram.row_hits  # type: ignore[union-attr]


@rule("T134")
def test_what_is_asked_for_is_moved_or_comes_with_what_is() -> None:
    """Two strips a word: a fill asks for the rows that both have twice, 145 bursts of which come once."""
    workload = Workload("halos", 1, (conv(64, 28, 64, 3),))
    result = simulate(workload, BANKS.with_overrides(["mapping.search=estimate"]), check=False)
    for record in (result.total, *result.layers):
        use = record.dram
        assert use is not None
        assert use.hbm_asked_bytes == record.hbm_read_bytes + record.hbm_write_bytes == use.hbm_wanted_bytes
        assert use.hbm_asked_bytes - use.hbm_moved_bytes == 145 * 64
    (line,) = (line for line in totals(result.total).lines if "HBM:" in line)
    said = (
        "550.91 kB read and written in bursts, 9.28 kB of them served by bursts already on their way; 541.63 kB moved"
    )
    assert said in line
    assert "0.983 times the bytes of the elements asked for" in line


@pytest.mark.parametrize(
    ("channels", "outputs", "read", "written", "by_runs"),
    [(5, 5, 7_872, 5_056, 8_000 + 5_440), (33, 9, 59_136, 30_720, 55_232 + 30_720)],
    ids=["neighbours share bursts", "runs lie across bursts"],
)
def test_what_is_read_and_written_of_a_dram_is_what_its_bursts_are(
    channels: int, outputs: int, read: int, written: int, by_runs: int
) -> None:
    """A pipe takes each run in whole bursts; by address runs that lie across bursts touch more, neighbours share."""
    layer = conv(channels, 7, outputs, 3)
    result = simulate(Workload("parts", 1, (layer,)), BANKS, check=False, lowering="explicit")
    program = registry.lowered(layer, 1, BANKS, "explicit")[0]
    moves = TransferRuns(program, BANKS)
    bursts = {False: 0, True: 0}
    for step in (step for step in program.rows if isinstance(step, Transfer)):
        bursts[isinstance(step, Spill)] += 64 * len(moves.bursts(step))
    assert (program.use.hbm_read_bytes + program.use.hbm_write_bytes, bursts) == (by_runs, {False: read, True: written})
    for record in (result.total, *result.layers):
        use = record.dram
        assert use is not None
        assert (record.hbm_read_bytes, record.hbm_write_bytes) == (read, written)
        assert use.hbm_asked_bytes == read + written


def test_a_result_from_before_it_told_what_was_asked_for(tmp_path: Path) -> None:
    """Read, shown, compared and drawn, without it."""
    new, old = tmp_path / "new", tmp_path / "old"
    halos = Workload("halos", 1, (conv(64, 28, 64, 3),))
    result = simulate(halos, BANKS.with_overrides(["mapping.search=estimate"]), check=False)
    for folder in (new, old):
        folder.mkdir()
        kept = json.loads(result.to_json())
        for record in (kept["total"], *kept["layers"]) if folder == old else ():
            del record["dram"]["hbm_asked_bytes"]
        (folder / "run.json").write_text(json.dumps(kept))
    again = read_result(old)
    assert value_of(again.total, "hbm_asked_bytes") is None
    assert total_of(again.layers, 0.0).dram.hbm_asked_bytes is None  # type: ignore[union-attr]
    (line,) = (line for line in totals(again.total).lines if "HBM:" in line)
    assert line.startswith("  HBM: 541.63 kB moved at ")
    page = ("report", old, "--out", tmp_path / "page.html")
    for words in (("compare", old, new), ("compare", new, old, "--json", "-"), page):
        found = told(*map(str, words))
        assert found.exit_code == 0, found.output


def test_a_pipe_has_no_rows() -> None:
    result = simulate(SMALL, load_hardware("tpu_v2"), check=False)
    assert result.total.dram is result.layers[0].dram is None
    assert {value_of(result.total, key) for key in ("row_hits", "hbm_overfetch", "refreshes")} == {0}


def test_tables_tell_of_banks_where_there_are_some() -> None:
    banks, pipe = (told("run", "tiny", "--batch", "2", "--hardware", name).output for name in ("tpu_v2_hbm", "tpu_v2"))
    assert "row hits" in banks
    assert "reached" in banks
    assert "row hits" not in pipe
    assert "reached" not in pipe


def test_tensors_that_a_dram_has_no_room_for() -> None:
    """14 x 14 x 8 x (64 + 256) numbers of feature maps, and 64 x 256 weights: 2,072,576 B."""
    device = BANKS.hbm.device
    assert device is not None

    def cycles(rows: int) -> int:
        small = device.with_overrides({"organisation.rows": rows})
        hbm = BANKS.hbm.model_copy(update={"device": small})
        return simulate(SMALL, BANKS.model_copy(update={"hbm": hbm}), check=False).total.cycles

    assert cycles(rows=4) == cycles(rows=32768)
    with pytest.raises(InputError, match=r"layer conv: its tensors take 2,072,576 B in HBM, and .* has 1,048,576 B"):
        cycles(rows=2)


def test_explain_tries_layouts(tmp_path: Path) -> None:
    """A spill of 128 of 1,024 channels HWCN stays in 2 of 16 channels of the DRAM."""
    path = tmp_path / "net.yaml"
    sizes = "in_channels: 64, in_height: 7, in_width: 7, out_channels: 1024, kernel: 1"
    path.write_text(f"name: net\nlayers: [{{name: conv, op: conv2d, {sizes}}}]\n")
    quick = ("--batch", "4", "--set", "mapping.search=estimate")
    words = ("explain", str(path), "--layer", "conv", *quick, "--hardware", "tpu_v2_hbm")
    text = " ".join(told(*words).output.split())
    assert "Bound by rows and channels of HBM" in text
    assert "times as fast. Of what can be set, the best is feature maps as CHW in HBM: 3.12 times as fast." in text
    assert "HBM latency of one cycle" not in text
    pipe = Setup(SMALL.layers[0], 1, load_hardware("tpu_v2"))
    eased = {each.name: each.change(pipe) for each in relaxations(pipe)}
    layouts = [made for name, made in eased.items() if name.startswith("feature maps as")]
    assert layouts == [None] * len(layouts) != []


def test_a_trace_has_a_track_a_channel() -> None:
    program = CHANNEL_FIRST.lower(SMALL.layers[0], 8, BANKS)[0]  # type: ignore[arg-type]
    recording = event.record(program, BANKS)
    tracks = recording.timeline().tracks
    channels = [track for name, track in tracks.items() if name.startswith("hbm_channel_")]
    assert len(channels) == 16
    assert 0 < sum(map(len, channels)) <= 16 * sum(isinstance(step, Transfer) for step in program.rows)
    for track in channels:
        assert (track.starts[1:] >= track.ends[:-1]).all()
        assert (track.starts < track.ends).all()
        assert track.ends[-1] <= recording.cycles
    assert not any(
        name.startswith("hbm_channel") for name in event.record(program, load_hardware("tpu_v2")).timeline().tracks
    )


def test_the_sweep_of_layouts() -> None:
    sweep = load_sweep("dram_layout")
    assert len(sweep.points) == 3 * 3 * 6
    assert {point.jobs.hardware.hbm.model for point in sweep.points} == {"banks"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hbm.device": "null"}, "--set hbm.device=null: model: banks needs a device; write the name of a shipped one"),
        ({"hbm.device": "hbm3"}, "--set hbm.device=hbm3: hbm3: no shipped DRAM and no file of that name"),
        ({"hbm.burst": "32 B"}, "hbm.burst=32 B: is 32 B, and a burst of hbm2_16ch_700 is 64 B; write 64 B"),
        ({"hbm.mapping": "rochba"}, "does not name every bit once"),
        ({"hbm.model": "bank"}, '"bank" is not allowed; did you mean banks? write pipe or banks'),
        ({"hbm.device": "3"}, "3 is not a device; write the name of a shipped one"),
        ({"hbm.device": "t.csv"}, "a DRAM is a shipped name, see tpusim list, or a .yaml file; a trace"),
        ({"hbm.device.timing.tRP": "9"}, "copy it, change timing.tRP there, and write --set hbm.device=PATH"),
    ],
)  # fmt: skip
def test_bad_descriptions(changes: dict[str, str], says: str) -> None:
    with pytest.raises(InputError) as error:
        load_hardware("tpu_v2_hbm", changes)
    assert says in str(error.value), str(error.value)
    assert len(error.value.problems) == 1


@pytest.mark.parametrize("change", [{"hbm.device": "hbm2_1ch"}, {"hbm.mapping": "rorabgbacoch"}])
def test_a_device_is_no_use_to_a_pipe(change: dict[str, str]) -> None:
    with pytest.raises(InputError, match="changes nothing where HBM is a pipe"):
        load_hardware("tpu_v2", change)
    assert load_hardware("tpu_v2", {**change, "hbm.model": "pipe"}).hbm.dram is None


def test_a_bad_device_is_told_with_its_own_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = BANKS.hbm.device
    assert shipped is not None
    text = json.dumps(shipped.to_dict(), indent=1).replace('"tRP": "14 ns"', '"tRP": "0 cycles"')
    Path("mine.yaml").write_text(text)
    with pytest.raises(
        InputError, match=r"--set hbm.device=mine.yaml: hbm.device: mine.yaml:\d+: timing.tRP|mine.yaml:\d+"
    ):
        load_hardware("tpu_v2_hbm", {"hbm.device": "mine.yaml"})


def test_a_machine_names_its_files_as_they_are_seen_from_its_own_folder(tmp_path: Path) -> None:
    folder = tmp_path / "machines"
    folder.mkdir()
    device, technology = BANKS.hbm.device, BANKS.silicon
    assert device is not None
    (folder / "mine.yaml").write_text(json.dumps({**device.to_dict(), "name": "mine"}))
    (folder / "shop.yaml").write_text(json.dumps({**technology.to_dict(), "name": "shop"}))
    written = {**BANKS.to_dict(), "technology": "shop.yaml"}
    written["hbm"] = {**written["hbm"], "device": "mine.yaml"}
    (folder / "machine.yaml").write_text(json.dumps(written))
    machine = load_hardware(str(folder / "machine.yaml"))
    assert machine.hbm.device is not None
    assert machine.hbm.device.name == "mine"
    assert machine.silicon.name == "shop"


def test_a_machine_holds_its_dram_whole() -> None:
    again = type(BANKS).model_validate(BANKS.to_dict(), context={"from_yaml": True})
    assert again == BANKS
    assert again.hbm.dram == BANKS.hbm.dram
    other = BANKS.with_overrides({"hbm.mapping": "rorabgbacoch"})
    assert other.hbm.dram is not None
    assert other.hbm.dram.mapping == "rorabgbacoch"
    assert dram().name == "small"
