"""Traces in files: Perfetto's own format, read by the perfetto package, Chrome's JSON, and VCD, read by pyvcd."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackDescriptor, TrackEvent
from vcd.reader import TokenKind, tokenize

from tests.covering import few
from tests.invoked import tpusim
from tests.strategies import machine
from tpusim.api import trace as action
from tpusim.flow.jobs import resolve
from tpusim.flow.recordings import trace
from tpusim.machines.lowered import LaneCycle
from tpusim.machines.tpu import event
from tpusim.machines.tpu.description import load_hardware
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST
from tpusim.machines.tpu.observation.drawing import COUNTERS, OF_AN_ARRAY, TRACKS, TimelineDrawing, windows
from tpusim.machines.tpu.observation.timeline import Timeline, Track, unwatched
from tpusim.machines.tpu.program.transfers import Transfer
from tpusim.machines.tpu.sections import MOST_ARRAYS
from tpusim.network.ops.array_op import Gemm
from tpusim.network.workload_file import load_workload
from tpusim.report.trace.lanes import vcd
from tpusim.result.vocabulary.states import ACCESSES

TINY = ("--hardware", "tiny_4x4", "--batch", "2", "--set", "mapping.search=estimate")
UNITS = ("systolic_array", "preload", "vector_unit", "hbm", "port")


@pytest.fixture(autouse=True)
def in_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@dataclass
class Read:
    """A Perfetto trace as its parser sees it: by track (begin, end, name, arguments), by counter (time, value)."""

    root: str = ""
    slices: dict[str, list[tuple[int, int, str, dict[str, Any]]]] = field(default_factory=lambda: defaultdict(list))
    values: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    units: dict[str, str] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)

    def sums(self, track: str, first: int = 0, stop: int = sys.maxsize) -> dict[str, int]:
        """Time by name, of the slices that begin in [first, stop)."""
        found: dict[str, int] = defaultdict(int)
        for begin, end, name, _ in self.slices[track]:
            if first <= begin < stop:
                found[name] += end - begin
        return found


def read(file: str | Path) -> Read:
    """Fails when a packet is not as the format demands, or when slices of a track overlap."""
    found = Read()
    tracks: dict[int, TrackDescriptor] = {}
    events: dict[int, str] = {}
    keys: dict[int, str] = {}
    open_: dict[int, tuple[int, str, dict[str, Any]]] = {}
    for number, packet in enumerate(_packets(file)):
        assert packet.trusted_packet_sequence_id
        cleared = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        assert packet.sequence_flags == (TracePacket.SEQ_NEEDS_INCREMENTAL_STATE if number else cleared)
        for entry in packet.interned_data.event_names:
            assert events.setdefault(entry.iid, entry.name) == entry.name
        for key in packet.interned_data.debug_annotation_names:
            assert keys.setdefault(key.iid, key.name) == key.name
        if packet.HasField("track_descriptor"):
            _see_track(found, tracks, packet.track_descriptor)
        if packet.HasField("track_event"):
            assert packet.HasField("timestamp")
            _see_event(found, tracks[packet.track_event.track_uuid], packet, events, keys, open_)
    assert not open_
    return found


def _packets(file: str | Path) -> Iterator[TracePacket]:
    parsed = Trace()
    parsed.ParseFromString(Path(file).read_bytes())
    yield from parsed.packet


def _see_track(found: Read, tracks: dict[int, TrackDescriptor], descriptor: TrackDescriptor) -> None:
    assert descriptor.uuid not in tracks
    assert descriptor.HasField("parent_uuid") == bool(tracks)
    if tracks:
        assert descriptor.parent_uuid in tracks
        found.order.append(descriptor.name)
    else:
        found.root = descriptor.name
    tracks[descriptor.uuid] = descriptor
    if descriptor.HasField("counter"):
        found.units[descriptor.name] = descriptor.counter.unit_name


def _see_event(
    found: Read,
    track: TrackDescriptor,
    packet: TracePacket,
    events: dict[int, str],
    keys: dict[int, str],
    open_: dict[int, tuple[int, str, dict[str, Any]]],
) -> None:
    event_, time = packet.track_event, packet.timestamp
    if event_.type == TrackEvent.TYPE_COUNTER:
        assert track.HasField("counter")
        found.values[track.name].append((time, event_.double_counter_value))
    elif event_.type == TrackEvent.TYPE_SLICE_BEGIN:
        assert track.uuid not in open_, f"slices of {track.name} overlap"
        arguments = {keys[a.name_iid]: getattr(a, a.WhichOneof("value")) for a in event_.debug_annotations}
        open_[track.uuid] = time, events[event_.name_iid], arguments
    else:
        assert event_.type == TrackEvent.TYPE_SLICE_END
        begin, name, arguments = open_.pop(track.uuid)
        assert begin < time
        known = found.slices[track.name]
        assert not known or known[-1][1] <= begin, f"slices of {track.name} overlap"
        known.append((begin, time, name, arguments))


def read_chrome(file: str | Path) -> Read:
    """Fails when an event is not as the Trace Event Format demands, or when slices of a thread overlap."""
    whole = json.loads(Path(file).read_text(encoding="utf-8"))
    assert set(whole) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert whole["displayTimeUnit"] == "ns"
    found, threads, sorted_ = Read(), dict[int, str](), dict[int, int]()
    for event_ in whole["traceEvents"]:
        keys = {"X": {"tid", "ts", "dur"}, "C": {"ts"}, "M": {"tid"} & set(event_)}[event_["ph"]]
        assert set(event_) == {"ph", "name", "pid", "args"} | keys
        assert event_["pid"] == 1
        assert all(type(event_[key]) is int and event_[key] >= 0 for key in keys)
        name, told = event_["name"], event_["args"]
        match event_["ph"], name:
            case "M", "process_name":
                assert not found.root
                found.root = told["name"]
            case "M", "thread_name":
                assert event_["tid"] not in threads
                threads[event_["tid"]] = told["name"]
            case "M", "thread_sort_index":
                sorted_[event_["tid"]] = told["sort_index"]
            case "C", _:
                ((found.units[name], value),) = told.items()
                found.values[name].append((event_["ts"], value))
            case "X", _:
                known = found.slices[threads[event_["tid"]]]
                assert event_["dur"] > 0
                assert not known or known[-1][1] <= event_["ts"], "slices overlap"
                known.append((event_["ts"], event_["ts"] + event_["dur"], name, told))
    assert set(sorted_) == set(threads)
    found.order = [*(threads[each] for each in sorted(threads, key=lambda each: sorted_[each])), *found.units]
    assert {*found.order, found.root} == set(whole["otherData"])
    return found


def account(found: Read, unit: str, first: int, stop: int) -> dict[str, int]:
    """What the result would say of a unit in cycles [first, stop)."""
    sums = found.sums(unit, first, stop)
    return {**sums, "idle": stop - first - sum(sums.values())}


def reported(split: dict[str, int]) -> dict[str, int]:
    return {name: cycles for name, cycles in split.items() if cycles or name == "idle"}


# ---- Perfetto


@pytest.mark.parametrize(("layer", "batch"), few(1, [("layer1.0.conv1", "1"), ("conv1", "1"), ("layer1.0.conv2", "8")]))
def test_a_layer_of_resnet50_adds_up_to_what_is_reported(layer: str, batch: str) -> None:
    """1 x 1, 7 x 7 of stride 2, and 3 x 3, on the machine of the paper."""
    selected = ("resnet50", "--layers", layer, "--batch", batch, "--set", "mapping.search=estimate")
    assert tpusim("trace", *selected, "-o", "run.perfetto-trace").exit_code == 0
    assert tpusim("run", *selected, "--no-check", "--json", "run.json").exit_code == 0
    found, result = read("run.perfetto-trace"), json.loads(Path("run.json").read_text())["layers"][0]
    absent = ("port_", "hbm_channel_", "scratch_memory")  # Its port is shared, and its memory a pipe, the only one.
    others = {f"{name}_{array}" for name in OF_AN_ARRAY for array in range(1, MOST_ARRAYS)}
    tracks = [name for name in TRACKS if not name.startswith(absent) and name not in {"vector", *others}]
    assert found.order == ["layer", *tracks, *COUNTERS]
    told = {"cycles": result["cycles"], "reads": ", ".join(result["inputs"])}
    assert found.slices["layer"] == [(0, result["cycles"], layer, told)]
    assert set(result["units"]) == set(UNITS)
    for unit, split in result["units"].items():
        assert account(found, unit, 0, result["cycles"]) == reported(split), unit
    assert len(found.slices["stream"]) == len(found.slices["drain"]) == result["passes"]


@pytest.fixture
def tiny() -> tuple[Read, list[dict[str, Any]]]:
    """All layers of `tiny` in one trace, and their results."""
    assert tpusim("trace", "tiny", *TINY, "-o", "tiny.pftrace").exit_code == 0
    assert tpusim("run", "tiny", *TINY, "--json", "tiny.json").exit_code == 0
    return read("tiny.pftrace"), json.loads(Path("tiny.json").read_text())["layers"]


def test_layers_follow_one_another_on_one_axis(tiny: tuple[Read, list[dict[str, Any]]]) -> None:
    found, layers = tiny
    at = 0
    for (begin, end, name, _), layer in zip(found.slices["layer"], layers, strict=True):
        assert (begin, end - begin, name) == (at, layer["cycles"], layer["name"])
        for unit, split in layer["units"].items():
            assert account(found, unit, at, end) == reported(split), (name, unit)
        at = end
    assert "tiny, batch 2, on tiny_4x4" in found.root
    assert "1 ns here is 1 cycle (1.429 ns at 700 MHz)" in found.root


def test_slices_tell_of_their_step(tiny: tuple[Read, list[dict[str, Any]]]) -> None:
    """two_passes: K = 8 on 4 rows, 16 rows of input in words of 2."""
    found, layers = tiny
    start = found.slices["layer"][2][0]
    passes = [arguments for begin, _, _, arguments in found.slices["stream"] if begin >= start]
    shape = {"rows": 4, "cols": 4, "words": 8}
    assert passes == [{"pass": 0, **shape, "accumulate": "no"}, {"pass": 1, **shape, "accumulate": "yes"}]
    loads = [arguments["pass"] for begin, _, name, arguments in found.slices["preload"] if begin >= start]
    assert sorted(set(loads)) == [0, 1]
    moved = [each for track in ("dma_0", "dma_1") for each in found.slices[track] if each[0] >= start]
    bytes_ = defaultdict(int)
    for _, _, name, arguments in moved:
        bytes_[name == "ofmap spill"] += arguments["bytes"]
    assert bytes_ == {False: layers[2]["hbm_read_bytes"], True: layers[2]["hbm_write_bytes"]}
    assert {name for _, _, name, _ in moved} == {"ifmap fill", "filter fill", "ofmap spill"}


def test_from_and_to_cut_the_trace(tiny: tuple[Read, list[dict[str, Any]]]) -> None:
    """The same slices, cut at both ends; a part that ends in the second layer has nothing of the third."""
    whole, layers = tiny
    first, stop = 21, layers[0]["cycles"] + 25
    span = ("--from", str(first), "--to", str(stop - 1))
    assert tpusim("trace", "tiny", *TINY, *span, "-o", "part.pftrace").exit_code == 0
    part = read("part.pftrace")
    assert [name for _, _, name, _ in part.slices["layer"]] == ["fig10", "fig11"]
    for track in ("layer", *TRACKS):
        seen = (each for each in whole.slices[track] if each[1] > first and each[0] < stop)
        cut = [(max(begin, first), min(end, stop), *rest) for begin, end, *rest in seen]
        assert part.slices[track] == cut, track
    for counter in COUNTERS:
        times = [time for time, _ in part.values[counter]]
        assert (times[0], times[-1]) == (first, stop)


PAIR = """name: pair
layers:
  - {name: one, op: conv2d, in_channels: 4, in_height: 6, in_width: 6, out_channels: 8, kernel: 3, padding: 1}
  - {name: relu, op: relu}
  - {name: two, op: conv2d, out_channels: 4, kernel: 3, inputs: [relu]}
"""


@pytest.mark.parametrize(
    "asked",
    [
        ("tiny", *TINY),
        ("tiny", *TINY, "--from", "21", "--to", "150"),
        ("pair.yaml", *TINY, "--set", "sequencer.between_layers=stay"),
        ("tiny", "--hardware", "v100"),
    ],
    ids=["layers", "part", "chain", "gpu"],
)
def test_a_chrome_trace_says_what_the_perfetto_trace_says(asked: tuple[str, ...]) -> None:
    """Track by track: slices with their arguments, values of counters; only the unit of time has another name."""
    Path("pair.yaml").write_text(PAIR)
    for file in ("run.pftrace", "run.json"):
        assert tpusim("trace", *asked, "-o", file).exit_code == 0
    expected, found = read("run.pftrace"), read_chrome("run.json")
    assert found.root == expected.root.replace(": 1 ns here", ": 1 us here")
    assert found.order == expected.order
    assert found.slices.keys() == expected.slices.keys()
    for track, slices in expected.slices.items():
        assert found.slices[track] == slices, track
    assert found.slices["layer"]
    assert (found.values, found.units) == (expected.values, expected.units)


def test_counters_add_up(tiny: tuple[Read, list[dict[str, Any]]]) -> None:
    """Over a layer: bytes of HBM, cycles of the port; and no share beyond 100 %."""
    found, layers = tiny
    assert found.units == {name: unit for name, (unit, _) in COUNTERS.items()}
    for (begin, end, *_), layer in zip(found.slices["layer"], layers, strict=True):
        total = {name: _integral(values, begin, end) for name, values in found.values.items()}
        moved = layer["hbm_read_bytes"] + layer["hbm_write_bytes"]
        assert total["HBM bandwidth"] / 0.7 == pytest.approx(moved)
        port = layer["units"]["port"]
        assert total["port occupancy"] / 100 == pytest.approx(layer["cycles"] - port["idle"])
        busy = layer["units"]["systolic_array"]["busy"]
        assert total["PE occupancy"] / 100 == pytest.approx(busy)
    assert all(0 <= value <= 100 for name in COUNTERS if "occup" in name for _, value in found.values[name])
    assert all(values[-1][1] == 0 for values in found.values.values())


def _integral(values: list[tuple[int, float]], begin: int, end: int) -> float:
    times = [time for time, _ in values if begin <= time < end]
    heights = [value for time, value in values if begin <= time < end]
    return float(np.dot(np.diff([*times, end]), heights))


def test_counters_of_a_pass_by_hand() -> None:
    """4 x 4 x 4 on 4 x 4 PEs, docs/timing.md section 7: transfers of 64 B in 0, 1 and 24, elements in 13 to 16."""
    hardware = machine(4, 4, word_elements=2)
    program = CHANNEL_FIRST.lower(Gemm("gemm", 4, 4, 4), 1, hardware)[0]
    timeline = event.record(program, hardware).timeline()
    found = TimelineDrawing(timeline.cycles, program, timeline, hardware).counters(windows(0, 30, 4))
    bandwidth = [32, 0, 0, 0, 0, 0, 16, 0]
    assert found["HBM bandwidth"][1].tolist() == bandwidth
    assert found["PE occupancy"][1].tolist() == [0, 0, 0, 75, 25, 0, 0, 0]
    assert found["port occupancy"][1].tolist() == [0, 50, 100, 25, 25, 50, 50, 0]
    assert found["port occupancy"][0].tolist() == [0, 4, 8, 12, 16, 20, 24, 28]


def test_of_part_of_the_array_part_is_occupied() -> None:
    """3 of 4 rows and 2 of 4 columns; with two arrays, the last frame has a word for one of them only."""
    for arrays, share in ((1, 6 / 16), (2, 6 / 16 * 3 / 4)):
        hardware = machine(4, 4, word_elements=2, array={"count": arrays})
        program = CHANNEL_FIRST.lower(Gemm("gemm", 6, 2, 3), 1, hardware)[0]
        timeline = event.record(program, hardware).timeline()
        busy = timeline.tracks["systolic_array"].sums()["busy"]
        drawing = TimelineDrawing(timeline.cycles, program, timeline, hardware)
        (mean,) = drawing.counters(windows(0, timeline.cycles, timeline.cycles))["PE occupancy"][1]
        assert mean / 100 * timeline.cycles == pytest.approx(busy * share, rel=1e-5)


@pytest.mark.parametrize(("lowering", "count"), [("channel_first", 5), ("indirect", 6)])
def test_each_of_separate_ports_has_a_track(lowering: str, count: int) -> None:
    """And their occupancy is the mean of theirs; of pointers only where there are any."""
    separate = ("tiny", *TINY, "--layers", "fig11", "--set", "vector_memory.ports=separate", "--lowering", lowering)
    assert tpusim("trace", *separate, "-o", "run.pftrace").exit_code == 0
    assert tpusim("run", *separate, "--no-check", "--json", "run.json").exit_code == 0
    found, result = read("run.pftrace"), json.loads(Path("run.json").read_text())["layers"][0]
    ports = [unit for unit in result["units"] if unit.startswith("port_")]
    assert len(ports) == count
    assert [name for name in found.order if name.startswith("port_")] == ports
    owned = 0
    for port in ports:
        assert account(found, port, 0, result["cycles"]) == reported(result["units"][port])
        owned += result["cycles"] - result["units"][port]["idle"]
    mean = _integral(found.values["port occupancy"], 0, result["cycles"]) / 100
    assert mean == pytest.approx(owned / len(ports), rel=1e-5)


def test_the_same_run_gives_the_same_bytes() -> None:
    for name in ("one.pftrace", "two.pftrace"):
        assert tpusim("trace", "tiny", *TINY, "--out", name).exit_code == 0
    assert Path("one.pftrace").read_bytes() == Path("two.pftrace").read_bytes()


def test_names_that_people_may_give() -> None:
    """Layers of one name, or of strange ones, stay apart."""
    layer = "{name: 'größe $end \\n', op: gemm, m: 4, n: 4, k: 4}"
    Path("odd.yaml").write_text(f"name: 'odd'\nlayers: [{layer.replace('größe', 'a')}, {layer}]\n")
    assert tpusim("trace", "odd.yaml", *TINY, "-o", "odd.pftrace").exit_code == 0
    assert tpusim("trace", "odd.yaml", *TINY, "-o", "odd.json").exit_code == 0
    assert read_chrome("odd.json").slices["layer"] == read("odd.pftrace").slices["layer"]
    first, second = (name for _, _, name, _ in read("odd.pftrace").slices["layer"])
    assert (first, second) == ("a $end \\n", "größe $end \\n")


@pytest.mark.parametrize(
    ("limit", "file", "found"),
    [
        ("MOST_SLICES", "tiny.pftrace", "slices"),
        ("MOST_JSON_SLICES", "tiny.json", "slices"),
        ("MOST_TIMELINE_CYCLES", "tiny.pftrace", "cycles"),
    ],
)
def test_too_much_is_refused_before_a_file_is_written(
    limit: str, file: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(action, limit, 100)
    result = tpusim("trace", "tiny", *TINY, "-o", file)
    assert result.exit_code == 2
    (count,) = re.findall(rf"holds 100 {found}, and up to layer \w+ there are (\d+);", result.stderr)
    assert int(count) > 100
    assert "use --layers, or --from and --to" in result.stderr
    assert not list(Path().iterdir())
    assert tpusim("trace", "tiny", *TINY, "-o", file, "--to", "40").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--from", "100000"], "--from 100000: the 3 layers have"),
        (["--from", "100000", "--layers", "fig10"], "--from 100000: the layer has"),
        (["--lowering", "row_first"], "unknown lowering"),
        (["--set", "vector_memory.capacity=16 B"], "layer fig10"),
    ],
)
def test_bad_input_leaves_no_timeline(arguments: list[str], says: str) -> None:
    result = tpusim("trace", "tiny", *TINY, *arguments, "-o", "tiny.pftrace")
    assert result.exit_code == 2, result.output
    assert says in result.stderr
    assert not list(Path().iterdir())


def test_an_interrupted_timeline_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(event, "record", interrupted)
    result = tpusim("trace", "tiny", *TINY, "-o", "tiny.pftrace")
    assert (result.exit_code, result.stderr) == (130, "Interrupted; no file was written.\n")
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("hidden", "suffix", "library"), [("perfetto", "perfetto-trace", "perfetto"), ("vcd", "vcd", "pyvcd")]
)
def test_a_missing_library_is_told_with_the_command(
    hidden: str, suffix: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [name for name in sys.modules if name.startswith(f"{hidden}.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, hidden, None)
    shown = tpusim("trace", "tiny", *TINY, "--layers", "fig10", "-o", f"run.{suffix}")
    assert shown.exit_code == 2
    assert shown.stderr.startswith(f"Error: a .{suffix} file needs {library}, which cannot be imported (")
    assert shown.stderr.endswith(f"): {sys.executable} -m pip install {library}\n")
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("hidden", "files"), few(1, [(["numba"], ["run.pftrace"]), (["vcd", "perfetto"], ["run.txt", "run.json"])])
)
def test_a_timeline_needs_no_numba_and_a_text_or_json_none_of_the_extras(hidden: list[str], files: list[str]) -> None:
    code = f"""
import sys
sys.modules.update(dict.fromkeys({hidden}))
from tpusim.cli.app import main
for sys.argv[-1] in {files}:
    main()
"""
    words = [sys.executable, "-c", code, "trace", "tiny", *TINY, "--layers", "fig10", "-o", "named above"]
    shown = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert shown.returncode == 0, shown.stderr
    assert all(Path(file).stat().st_size for file in files)


@pytest.mark.skipif(shutil.which("trace_processor_shell") is None, reason="no trace_processor_shell on the PATH")
def test_the_trace_processor_finds_the_same_sums(tiny: tuple[Read, list[dict[str, Any]]]) -> None:
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

    config = TraceProcessorConfig(bin_path=shutil.which("trace_processor_shell"))
    query = """
        select track.name as track, slice.name as name, sum(slice.dur) as cycles
        from slice join track on slice.track_id = track.id group by 1, 2
    """
    with TraceProcessor(trace="tiny.pftrace", config=config) as processor:
        sums = {(row.track, row.name): row.cycles for row in processor.query(query)}
        problems = processor.query("select sum(value) as n from stats where severity = 'error'")
        assert [row.n for row in problems] == [0]
    found, _ = tiny
    assert sums == {(track, name): n for track in ("layer", *TRACKS) for name, n in found.sums(track).items()}


# ---- VCD


def replayed(data: bytes) -> Iterator[tuple[int, dict[str, str | int]]]:
    """The value of every variable in every cycle of the file; the last time ends it."""
    names: dict[str, str] = {}
    values: dict[str, str | int] = {}
    time = None
    scope = ""
    for token in tokenize(io.BytesIO(data)):
        match token.kind:
            case TokenKind.TIMESCALE:
                assert str(token.timescale) == "1 ns"
            case TokenKind.SCOPE:
                scope = token.scope.ident
            case TokenKind.VAR:
                names[token.var.id_code] = f"{scope}.{token.var.reference}"
            case TokenKind.CHANGE_TIME:
                for cycle in range(token.time_change if time is None else time, token.time_change):
                    yield cycle, dict(values)
                time = token.time_change
            case TokenKind.CHANGE_STRING:
                values[names[token.string_change.id_code]] = token.string_change.value
            case TokenKind.CHANGE_VECTOR:
                values[names[token.vector_change.id_code]] = token.vector_change.value


def expected(cycles: list[LaneCycle]) -> list[tuple[int, dict[str, str | int]]]:
    return [
        (
            cycle.number,
            {
                **{f"port.lane_{lane}": ACCESSES[letter].word for lane, letter in enumerate(cycle.ports)},
                "array.pes": cycle.working,
                "array.weights": cycle.moving,
            },
        )
        for cycle in cycles
    ]


@pytest.mark.parametrize(("arguments", "first", "stop"), [((), 0, 1000), (("--from", "20", "--to", "49"), 20, 50)])
def test_a_vcd_says_what_the_register_engine_did(arguments: tuple[str, ...], first: int, stop: int) -> None:
    assert tpusim("trace", "tiny", *TINY, "--layers", "two_passes", *arguments, "-o", "run.vcd").exit_code == 0
    jobs = resolve(load_workload("tiny", batch=2), load_hardware("tiny_4x4")).picked("two_passes")
    cycles = list(trace(jobs)[1](0, unwatched))[first:stop]
    assert list(replayed(Path("run.vcd").read_bytes())) == expected(cycles)


def test_a_vcd_of_many_lanes_and_strange_names() -> None:
    """Lanes sort as they are counted; a name cannot end the comment."""
    cycles = [LaneCycle(7, "R" * 100, 1, 0), LaneCycle(8, "W" + "R" * 99, 1, 2)]
    text = vcd(cycles, "a\n$end größe").decode()
    assert "lane_00 " in text
    assert "lane_99 " in text
    comment = next(token for token in tokenize(io.BytesIO(text.encode())) if token.kind is TokenKind.COMMENT)
    assert comment.comment.startswith("a _end gr??e: 1 ns here is 1 cycle.")
    assert [cycle for cycle, _ in replayed(text.encode())] == [7, 8]


def test_a_vcd_is_for_small_machines() -> None:
    result = tpusim("trace", "alexnet", "--layers", "conv5", "-o", "run.vcd")
    assert result.exit_code == 2
    assert "of 128 lanes a VCD holds 31,250 cycles, not" in result.stderr
    assert "use --from and --to" in result.stderr
    assert not list(Path().iterdir())


@pytest.mark.parametrize("between", ["overlap", "stay"])
def test_layers_that_overlap_are_seen_to(between: str) -> None:
    """Their shares of the time are those of a run, and what each begins with comes while the one ahead is at work."""
    Path("pair.yaml").write_text(PAIR)
    asked = ("pair.yaml", *TINY, "--set", f"sequencer.between_layers={between}")
    ran = json.loads(tpusim("run", *asked, "--no-check", "--json", "-").stdout)
    assert tpusim("trace", *asked, "-o", "pair.pftrace").exit_code == 0
    found = read("pair.pftrace")
    layers = {name: (begin, end) for begin, end, name, _ in found.slices["layer"]}
    assert {name: end - begin for name, (begin, end) in layers.items()} == {
        layer["name"]: layer["cycles"] for layer in ran["layers"]
    }
    transfers = [*found.slices["dma_0"], *found.slices["dma_1"]]
    fetched = [begin for begin, _, name, told in transfers if (name, told["layer"]) == ("filter fill", "two")]
    assert min(fetched) < layers["relu"][1]
    for unit in UNITS:
        assert account(found, unit, 0, ran["total"]["cycles"]) == reported(ran["total"]["units"][unit])
    assert max(value for _, value in found.values["words in use"]) > 0
    filled = {told["layer"] for _, _, name, told in transfers if name == "ifmap fill"}
    assert filled == ({"one", "relu", "two"} if between == "overlap" else {"one"})


# ---- counters of a timeline made by hand


def test_a_transfer_is_spread_over_its_busy_cycles_alone() -> None:
    """Also where a pause cuts it in two."""
    hardware = machine(4, 4, word_elements=2)
    program = CHANNEL_FIRST.lower(Gemm("gemm", 4, 4, 4), 1, hardware)[0]
    sizes = {i: s.hbm_bytes for i, s in enumerate(program.rows) if isinstance(s, Transfer)}
    step = next(iter(sizes))
    timeline = event.record(program, hardware).timeline()
    starts, cycles = np.array([0, 2, 20]), np.array([2, 3, 2])
    bus = Track.in_order(("busy", "port_stall"), np.array([0, 1, 0]), starts, cycles, np.full(3, step))
    made = Timeline(timeline.cycles, {**timeline.tracks, "hbm": bus})
    found = TimelineDrawing(made.cycles, program, made, hardware).counters(np.array([0, 2, 20, 21, 22]))[
        "HBM bandwidth"
    ][1]
    assert found.tolist() == [sizes[step] / 4, 0, sizes[step] / 4, sizes[step] / 4]
