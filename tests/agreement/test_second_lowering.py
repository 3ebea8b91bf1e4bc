"""A lowering that the package does not know, defined here alone, goes the whole way through it.

It takes the taps in reverse and orders K channel-last, so that neighbouring array rows hold neighbouring taps of one
channel. Nothing is stacked by a rule: every pass fetches, for each of its rows, the channel that the row needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.agreement.engines import agree
from tests.agreement.test_agreement import short, suppose
from tests.strategies import cases, conv, machine, machines, small_layers
from tests.written import by_hand
from tpusim import simulate
from tpusim.base.errors import CapacityError
from tpusim.cli import app as cli
from tpusim.machines.tpu import event
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.registry import LOWERINGS
from tpusim.machines.tpu.program.addresses import AddressPattern, AddressTable, Counter, Counters, Feed, LaneGroup
from tpusim.machines.tpu.program.program import Buffer, ExplainedProgram, Explanation, Program
from tpusim.machines.tpu.program.steps import Preload, Step, Stream
from tpusim.machines.tpu.program.tensors import Tensor
from tpusim.machines.tpu.program.transfers import Along, Fill, Part, Spill
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.result.records import Blocking

NAME = "reversed_taps"


class Reversed:
    """One layer, whole in the vector memories; ifmap and weights of two passes at a time."""

    def __init__(self, layer: Op, batch: int, hardware: Hardware, tables: bool = False) -> None:
        self.conv, self.images = layer.convolution(batch)
        self.hardware, self.tables = hardware, tables
        self.word = hardware.vector_memory.word_elements
        self.groups = -(-self.images // self.word)
        self.share = -(-self.images // self.groups)
        shapes = self.conv.tensors(self.images)
        self.ifmap, self.ofmap = Tensor("ifmap", shapes.ifmap, True), Tensor("ofmap", shapes.ofmap, True)
        outs, height, width, channels = shapes.filter
        self.filter = Tensor("filter", (outs, height * width * channels))
        self.channels, self.taps = channels, [(i, j) for i in range(height) for j in range(width)][::-1]
        self.map_words = shapes.ifmap[1] * shapes.ifmap[2] * self.groups
        self.out_words = shapes.ofmap[1] * shapes.ofmap[2] * self.groups
        self.weight_words = -(-min(hardware.array.rows, channels * len(self.taps)) // self.word)
        self.steps: list[Step] = []

    def lowered(self) -> ExplainedProgram:
        folds = [*self.folds()]
        for columns, group in folds:
            self.fold(columns, group)
        passes = sum(isinstance(step, Stream) for step in self.steps)
        program = Program((self.ifmap, self.filter, self.ofmap), self.buffers(), tuple(self.steps), self.share)
        if program.words > self.hardware.capacity_words:
            raise CapacityError("too small for a whole layer; set vector_memory.capacity to more")
        rows, cols = self.ofmap.shape[1:3]
        blocking = Blocking(rows, cols, self.images, 1, passes // len(folds), len(folds), "block_major", self.share, 1)
        return program, Explanation(1, blocking, {"passes": passes}, {"taps": "in reverse, channel-last"})

    def folds(self) -> Iterator[tuple[range, int]]:
        outs, cols = self.ofmap.shape[0] // self.conv.groups, self.hardware.array.cols
        for group in range(self.conv.groups):
            for at in range(0, outs, cols):
                yield range(group * outs + at, group * outs + min(at + cols, outs)), group

    def buffers(self) -> tuple[Buffer, ...]:
        lanes = self.hardware.lanes
        sizes = {"ifmap": 2 * self.map_words, "filter": 2 * self.weight_words, "ofmap": 2 * self.out_words}
        starts = np.cumsum([0, *sizes.values()]).tolist()
        return tuple(Buffer(name, at, size, lanes) for (name, size), at in zip(sizes.items(), starts, strict=False))

    def add(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    def last(self, kind: type[Step], back: int) -> tuple[int, ...]:
        """The index of the step of a kind that is so many before the next."""
        return tuple([index for index, step in enumerate(self.steps) if isinstance(step, kind)][-back:][:1])

    def fold(self, columns: range, group: int) -> None:
        """All passes of a column fold, K in the order channel, reversed tap."""
        order = [(channel, tap) for channel in range(self.channels) for tap in self.taps]
        rows = self.hardware.array.rows
        number = sum(isinstance(step, Spill) for step in self.steps)
        result = self.buffers()[2].base + number % 2 * self.out_words
        freed = self.last(Spill, 2) if number > 1 else ()
        for at in range(0, len(order), rows):
            self.one_pass(order[at : at + rows], columns, group, result, at > 0, freed)
        pixels = (Along(1, range(self.ofmap.shape[1])), Along(2, range(self.ofmap.shape[2])), *self.in_words())
        part = Part(result, (0,), (Along(0, columns),), pixels, self.share)
        self.add(Spill(self.last(Stream, 1), self.ofmap, (part,), self.bytes(part)))

    def in_words(self) -> tuple[Along, Along]:
        return Along(3, range(0, self.groups * self.share, self.share)), Along(3, range(self.share))

    def bytes(self, part: Part) -> int:
        return part.words * part.lanes * part.per_word * self.hardware.vector_memory.element_bytes

    def one_pass(
        self, rows: list[tuple[int, tuple[int, int]]], columns: range, group: int, result: int, more: bool,
        freed: tuple[int, ...],
    ) -> None:  # fmt: skip
        number = sum(isinstance(step, Stream) for step in self.steps) % 2
        used = sum(isinstance(step, Stream) for step in self.steps) > 1
        base, weights = number * self.map_words, self.buffers()[1].base + number * self.weight_words
        channels = tuple(group * self.channels + channel for channel, _ in rows)
        pixels = (Along(1, range(self.ifmap.shape[1])), Along(2, range(self.ifmap.shape[2])), *self.in_words())
        part = Part(base, (0,), (Along(0, channels),), pixels, self.share)
        ifmap = self.add(Fill(self.last(Stream, 2) if used else (), self.ifmap, (part,), self.bytes(part)))
        width = self.conv.kernel[1]
        ks = tuple((i * width + j) * self.channels + channel for channel, (i, j) in rows)
        part = Part(weights, (0,), (Along(0, columns),), (Along(1, ks),), self.word)
        filled = self.add(Fill(self.last(Preload, 2) if used else (), self.filter, (part,), self.bytes(part)))
        preload = self.add(Preload((filled,), weights, -(-len(rows) // self.word), len(rows), len(columns)))
        feed = Feed(tuple(LaneGroup(lane, 1, self.pattern(base, tap)) for lane, (_, tap) in enumerate(rows)))
        self.add(Stream((ifmap, *freed), preload, feed, result, self.out_words, len(rows), len(columns), more))

    def pattern(self, base: int, tap: tuple[int, int]) -> AddressPattern:
        (height, width), layer = self.ifmap.shape[1:3], self.conv
        rows, cols = self.ofmap.shape[1:3]
        starts = [t * d - before for t, d, (before, _) in zip(tap, layer.dilation, layer.pads, strict=True)]
        counters = Counters(
            base,
            (
                Counter(rows, starts[0], layer.stride[0], height, width * self.groups),
                Counter(cols, starts[1], layer.stride[1], width, self.groups),
                Counter(self.groups, 0, 1, self.groups, 1),
            ),
        )
        return as_table(counters) if self.tables else counters


def as_table(pattern: Counters) -> AddressTable:
    """The same addresses, one by one."""
    addresses = []
    for counts in np.ndindex(*(counter.length for counter in pattern.counters)):
        pairs = [*zip(pattern.counters, counts, strict=True)]
        inside = all(count in counter.inside for counter, count in pairs)
        addresses.append(pattern.base + sum(c.offset(count) for c, count in pairs) if inside else -1)
    return AddressTable(tuple(addresses))


def lower(layer: Op, batch: int, hardware: Hardware) -> ExplainedProgram:
    return Reversed(layer, batch, hardware).lowered()


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a new lowering needs: a line in the registry."""
    monkeypatch.setitem(LOWERINGS, NAME, by_hand(NAME, lower))


@settings(max_examples=cases(2 / 5), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    layer=small_layers(),
    batch=st.integers(1, 9),
    hardware=machines(8, st.sampled_from([1, 2, 3, 4, 8])),
    tables=st.booleans(),
)
def test_it_runs_in_both_engines_to_the_cycle(layer: Op, batch: int, hardware: Hardware, tables: bool) -> None:
    """Also with a table of addresses for every pattern: the same accesses, the same cycles, the same values."""
    suppose(layer.macs(batch) / hardware.pes < 400)
    suppose(hardware.array.rows > 1)
    memory = hardware.vector_memory.model_copy(update={"capacity_bytes": 2**24})
    hardware = hardware.model_copy(update={"vector_memory": memory})
    program = Reversed(layer, batch, hardware, tables).lowered()[0]
    timing = short(program, hardware)
    if tables:
        assert timing == event.run(Reversed(layer, batch, hardware).lowered()[0], hardware)
    agree(layer, batch, program, hardware, timing=timing)


def test_it_is_checked_like_any_other(registered: None) -> None:
    layer, hardware = conv(5, 6, 7, 3, stride=2, padding=1), machine(8, 4, capacity_words=400)
    for engine in ("event", "both"):
        result = simulate(Workload("net", 3, (layer,)), hardware, lowering=NAME, engine=engine)
        assert result.total.outputs_checked == result.total.outputs == layer.outputs(3)
        assert result.correct
        assert result.lowering == NAME
    assert result.layers[0].passes == -(-5 * 9 // 8) * 2


WORKLOAD = """\
name: net
layers: [{name: conv1, op: conv2d, in_channels: 3, in_height: 6, in_width: 6, out_channels: 5, kernel: 3, padding: 1}]
"""
SWEEP = f"""\
name: clocks
lowering: {NAME}
workloads: net.yaml
hardware: tiny_4x4
batch: 2
axes: {{clock: [1 GHz, 2 GHz]}}
"""


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("run net.yaml --out out", "reversed_taps lowering"),
        ("run net.yaml --engine both", "0 wrong"),
        ("explain net.yaml", "in reverse, channel-last"),
        ("trace net.yaml --to 30", "lane"),
        ("trace net.yaml -o net.perfetto-trace", "net.perfetto-trace"),
    ],
)
def test_every_command_takes_it(
    command: str, says: str, registered: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.yaml").write_text(WORKLOAD)
    options = ["--lowering", NAME, "--hardware", "tiny_4x4", "--batch", "2", "--set", "mapping.search=estimate"]
    done = CliRunner().invoke(cli.app, [*command.split(), *options])
    assert done.exit_code == 0, done.output
    assert says in done.output
    if "--out" in command:
        page = CliRunner().invoke(cli.app, ["report", "out"])
        assert page.exit_code == 0, page.output
        assert NAME in Path("out/report.html").read_text()


@pytest.mark.usefixtures("undrawn")
def test_a_sweep_takes_it(registered: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.yaml").write_text(WORKLOAD)
    Path("clocks.yaml").write_text(SWEEP)
    done = CliRunner().invoke(cli.app, ["sweep", "clocks.yaml", "--workers", "1", "--out", "swept"])
    assert done.exit_code == 0, done.output
    rows = Path("swept/points.csv").read_text().splitlines()
    run = CliRunner().invoke(
        cli.app,
        f"run net.yaml --lowering {NAME} --hardware tiny_4x4 --batch 2 --set clock=1GHz --json run.json".split(),
    )
    assert run.exit_code == 0, run.output
    assert str(json.loads(Path("run.json").read_text())["total"]["cycles"]) in rows[1].split(",")


@pytest.mark.parametrize("command", ["run tiny", "trace tiny --layers fig10", "explain tiny --layer fig10", "validate"])
def test_an_unknown_one_is_refused_with_what_there_is(command: str, registered: None) -> None:
    done = CliRunner().invoke(cli.app, [*command.split(), "--lowering", "reversed_tap"])
    assert done.exit_code == 2
    assert "did you mean reversed_taps?" in done.output
