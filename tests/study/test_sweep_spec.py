"""What a sweep may vary, and that every mistake in its file is told before anything runs."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests import ROOT
from tests.checks import ESTIMATE
from tpusim import load_hardware, load_workload, simulate
from tpusim.base.errors import InputError
from tpusim.cli import app as cli
from tpusim.network.ops.array_op import Conv2d, Gemm
from tpusim.network.ops.elementwise import Add
from tpusim.network.ops.pool2d import Pool2d
from tpusim.study.sweep.axes import Axis, Constraint
from tpusim.study.sweep.points import Sweep, load_sweep

NET = """
name: net
layers:
  - {name: one, op: conv2d, in_channels: 8, in_height: 9, in_width: 9, out_channels: 6, kernel: 3, padding: 1}
  - {name: layer1.0.two, op: conv2d, in_channels: 6, in_height: 9, in_width: 9, out_channels: 4, kernel: 3}
  - {name: fc, op: gemm, m: batch, n: 7, k: 9}
"""
OTHER = """
name: other
layers:
  - {name: one, op: conv2d, in_channels: 8, in_height: 5, in_width: 5, out_channels: 6, kernel: 3}
"""


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with two networks."""
    monkeypatch.chdir(tmp_path)
    Path("net.yaml").write_text(NET)
    Path("other.yaml").write_text(OTHER)
    return tmp_path


def spec(axes: str, rest: str = "", workloads: str = "[net.yaml]") -> Sweep:
    text = f"name: s\nworkloads: {workloads}\nhardware: tiny_4x4\nbatch: 2\n{rest}\naxes:\n"
    Path("s.yaml").write_text(text + "".join(f"  {line}\n" for line in axes.strip().splitlines()))
    return load_sweep("s.yaml")


def told(axes: str, rest: str = "", workloads: str = "[net.yaml]") -> str:
    with pytest.raises(InputError) as error:
        spec(axes, rest, workloads)
    return str(error.value)


def test_a_count_may_vary() -> None:
    names = [[layer.name for layer in point.jobs.work.layers] for point in spec("layers.fc.count: [1, 3]").points]
    assert names == [["one", "layer1.0.two", "fc"], ["one", "layer1.0.two", "fc_1", "fc_2", "fc_3"]]


def told_of(text: str) -> str:
    Path("s.yaml").write_text(text)
    with pytest.raises(InputError) as error:
        load_sweep("s.yaml")
    return str(error.value)


def layer(sweep: Sweep, point: int, index: int) -> Any:
    return sweep.points[point].jobs.work.layers[index]


def test_a_field_of_a_layer() -> None:
    sweep = spec("layers.one.out_channels: [3, 5, 3]\nlayers.one.kernel: [1, [3, 1]]")
    plain = load_workload("net.yaml", batch=2)
    assert sweep.size == len(sweep.points) == 4
    made = [point.jobs.work.layers[0] for point in sweep.points]
    assert all(isinstance(conv, Conv2d) for conv in made)
    assert [(conv.out_channels, conv.kernel) for conv in made if isinstance(conv, Conv2d)] == [
        (3, (1, 1)), (3, (3, 1)), (5, (1, 1)), (5, (3, 1)),
    ]  # fmt: skip
    assert all(point.jobs.work.layers[1:] == plain.layers[1:] for point in sweep.points)
    assert sweep.points[1].settings == (("layers.one.out_channels", 3), ("layers.one.kernel", "[3, 1]"))


def test_a_point_is_what_the_same_change_in_the_file_gives() -> None:
    sweep = spec("layers.layer1.0.two.stride: [2]\nbatch: [4]\narray.size: [8]")
    Path("net.yaml").write_text(NET.replace("out_channels: 4, kernel: 3", "out_channels: 4, kernel: 3, stride: 2"))
    (point,) = sweep.points
    assert point.jobs.work == load_workload("net.yaml", batch=4)
    assert point.jobs.hardware == load_hardware("tiny_4x4", ["array.size=8"])


def test_fields_of_ops_of_the_vector_unit() -> None:
    ops = "- {name: p, op: pool2d, kind: max, channels: 4, in_height: 4, in_width: 4, kernel: 2}\n"
    ops += "  - {name: a, op: add, channels: 4, height: 4, width: 4}\n"
    Path("ops.yaml").write_text(f"name: ops\nlayers:\n  {ops}")
    axes = "layers.p.kind: [average]\nlayers.*.channels: [8]\nlayers.a.other: [channel]\nlayers.a.width: [3]"
    pool, added = spec(axes, workloads="[ops.yaml]").points[0].jobs.work.layers
    assert isinstance(pool, Pool2d)
    assert (pool.kind, pool.channels) == ("average", 8)
    assert isinstance(added, Add)
    assert (added.channels, added.width, added.other) == (8, 3, "channel")


def test_several_fields_that_move_together() -> None:
    sweep = spec("layers.one.out_channels, layers.layer1.0.two.in_channels: [6, 12]")
    assert [(layer(sweep, i, 0).out_channels, layer(sweep, i, 1).in_channels) for i in (0, 1)] == [(6, 6), (12, 12)]


def test_a_glob_means_every_layer_it_matches_but_a_name_comes_first() -> None:
    sweep = spec("layers.[ol]*.kernel: [1, 2]")
    assert [(layer(sweep, i, 0).kernel, layer(sweep, i, 1).kernel) for i in (0, 1)] == [((1, 1),) * 2, ((2, 2),) * 2]
    Path("net.yaml").write_text(NET.replace("name: fc", "name: '*'"))
    assert [layer(spec("layers.*.n: [3]"), 0, index) for index in (2,)] == [Gemm("*", 2, 3, 9)]


def test_rows_of_a_product_may_be_the_batch() -> None:
    sweep = spec("layers.fc.m: [batch, 5]\nbatch: [2, 3]")
    assert [layer(sweep, i, 2).m for i in range(4)] == [2, 3, 5, 5]


def test_what_is_wrong_with_a_layer_alone_may_be_right_with_another_axis() -> None:
    sweep = spec("layers.one.kernel: [11, 13]\nlayers.one.padding: [1, 2]", "combine: zip")
    assert [layer(sweep, i, 0).kernel for i in (0, 1)] == [(11, 11), (13, 13)]


def test_ranges_lists_and_powers() -> None:
    axes = "layers.one.padding: {range: [0, 2]}\nbatch: {range: [1, 10, 4]}\narray.size: {powers_of_two: [2, 8]}"
    sweep = spec(axes)
    assert sweep.size == 27
    assert [dict(point.settings)["batch"] for point in sweep.points[:9:3]] == [1, 5, 9]


@pytest.mark.parametrize(
    ("values", "numeric"),
    [(range(3), True), ((1, 2.5), True), ((0.5,), True), ((1, "2 GHz"), False), (((3, 3),), False)],
)
def test_points_are_compared_by_numbers_alone(values: Any, numeric: bool) -> None:
    assert Axis("a", ("a",), values).numeric == numeric


def test_machines_are_those_that_overrides_give() -> None:
    """Sections are built apart and put together; nothing may be lost where one field depends on another."""
    sweep = spec(
        """
array.size: [2, 4, 16]
array.count: [1, 2]
vector_unit.pack_cycles: [0, 3]
vector_memory.word_elements: [1, 4]
vector_memory.capacity: [1 KiB, 4 KiB]
hbm.latency: [10 ns, 1 us]
clock: [100 MHz, 1 GHz]
mapping.multi_tile: [auto, 1, rows]
"""
    )
    assert len(sweep.points) == 576
    for point in random.Random(0).sample(sweep.points, 40):
        assert point.jobs.hardware == load_hardware("tiny_4x4", dict(point.settings)), point.settings


def machines(axis: str, more: str = "") -> str:
    return f"workloads: [net.yaml]\nbatch: 2\n{more}axes:\n  hardware: {axis}\n"


def test_machines_are_an_axis_and_other_axes_change_each_of_them() -> None:
    Path("own.yaml").write_text((ROOT / "configs/tiny_4x4.yaml").read_text().replace("tiny_4x4", "mine"))
    Path("s.yaml").write_text(machines("[tpu_v2, own.yaml, tpu_v2_core, tpu_v2]") + "  array.size: [8, 16]\n")
    sweep = load_sweep("s.yaml")
    assert [[value for _, value in point.settings] for point in sweep.points] == [
        [name, size] for name in ("tpu_v2", "mine", "tpu_v2_core") for size in (8, 16)
    ]
    for point in sweep.points:
        given = {"mine": "own.yaml"}.get(point.jobs.hardware.name, point.jobs.hardware.name)
        settings = dict(point.settings)
        assert point.jobs.hardware == load_hardware(given, {"array.size": settings["array.size"]})
        assert point.jobs.hardware.name == settings["hardware"]


def test_machines_move_with_another_axis_and_obey_conditions() -> None:
    Path("s.yaml").write_text(machines("[tpu_v2, tiny_4x4]", "combine: zip\n") + "  batch: [2, 4]\n")
    made = [(point.jobs.hardware.name, point.jobs.work.batch) for point in load_sweep("s.yaml").points]
    assert made == [("tpu_v2", 2), ("tiny_4x4", 4)]
    Path("s.yaml").write_text(machines("[tpu_v2, tiny_4x4]", "where: array.rows > 4\n"))
    assert [point.jobs.hardware.name for point in load_sweep("s.yaml").points] == ["tpu_v2"]


def test_lowerings_of_an_axis_of_gpus_are_those_of_gpus() -> None:
    Path("s.yaml").write_text(machines("[v100, t4]", "lowering: block_channel_first\n"))
    assert [point.jobs.hardware.name for point in load_sweep("s.yaml").points] == ["v100", "t4"]
    assert "channel_first" in told_of(machines("[tpu_v2]", "lowering: block_channel_first\n"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (machines("[tpu_v2]", "hardware: tpu_v2\n"),
         "s.yaml:3: hardware: the axis hardware names the machine of each point; leave this line or that axis out"),
        (machines("[tpu_v2, tpu_v22]"), "tpu_v22: no shipped hardware and no file of that name; did you mean tpu_v2"),
        (machines("[tpu_v2, v100]"), "machines of one axis are of one family; tpu_v2 is a tpu, v100 is a gpu"),
        (machines("tpu_v2"), 'axes.hardware: "tpu_v2" is no axis; list shipped names or paths of machines'),
        (machines("[]"), "is no axis; list shipped names or paths of machines"),
        (machines("[128]"), "is no axis; list shipped names or paths of machines"),
        (machines("[tpu_v2, copy.yaml]"), 'another machine is called "tpu_v2", too; give each file a name of its own'),
        (machines("[tpu_v2]", "where: hardware == 3\n"), "'hardware' is no number"),
        (machines("[tpu_v2, tiny_4x4]") + "  array.size: [0, 4]\n", "(at hardware=tpu_v2, array.size=0)"),
        (machines("[tpu_v2]").replace("hardware:", "hardware, array.size:"), "make hardware an axis of its own"),
        (machines("[tpu_v2]").replace("hardware:", "hardwaer:"), "did you mean hardware?"),
    ],
    ids=lambda value: str(value)[-30:],
)  # fmt: skip
def test_mistakes_of_an_axis_of_machines(text: str, says: str) -> None:
    Path("copy.yaml").write_text((ROOT / "configs/tpu_v2.yaml").read_text())
    assert says in told_of(text)


MISTAKES = [
    ("layers.one.kernel: [3]\nlayers.*e.kernel: [1]", 'the axis "layers.one.kernel" sets kernel of one of net already'),
    ("layers.one.out_chanels: [3]", "did you mean out_channels?"),
    ("layers.ones.kernel: [3]", 'net has no layer "ones"; did you mean one? it has one, layer1.0.two, fc'),
    ("layers.kernel: [3]", "write layers.NAME.FIELD"),
    ("layers.one.name: [a, b]", "is no field of a layer"),
    ("layers.fc.kernel: [3]", 'layer "fc" of net: unknown key "kernel"; allowed for gemm'),
    ("layers.one.kernel: [3, 0]", "0 is out of range"),
    ("layers.one.kernel: [3, many]", '"many" is not a size'),
    ("layers.one.groups: [2, 3]", "groups 3 does not divide in_channels 8"),
    ("layers.one.kernel: [[3, 1, 1]]", "not a list of numbers, quantities and pairs"),
    ("array.size, batch, array.size: [2]", "names array.size twice"),
    ("array.size, batch: [2]\nbatch: [1]", 'the axis "array.size, batch" sets batch already'),
    ("workloads: [alexnet]", "workloads are no axis"),
    ("name: [a, b]", 'no field "name"'),
    ("batch: []", "an empty list is no axis"),
    ("batch: [yes]", "not a list of numbers"),
    ("batch: [70000]", "70000 is out of range"),
    ("batch: [0]", "0 is out of range"),
    ("batch: {range: [1, 9, 0]}", "the last included"),
    ("batch: {range: [1, 1000]}\narray.size: {range: [1, 1000000]}", "1,000,000,000 points"),
    ("array.size: {range: [1, 1099511627776]}", "1,099,511,627,776 points"),
    ("vector_memory.capacity: [4 B, 1 KiB]\nvector_memory.word_elements: [1, 4]", "(at vector_memory.capacity=4 B"),
    ("array.size: [2, four, 0]", "four"),
]  # fmt: skip


@pytest.mark.parametrize(("axes", "says"), MISTAKES, ids=lambda value: str(value)[:40])
def test_mistakes(axes: str, says: str) -> None:
    message = told(axes)
    assert says in message
    assert message.startswith("s.yaml:")


def test_all_mistakes_of_a_file_at_once_with_their_lines() -> None:
    message = told("array.sise: [2]\nbatch: []", "where: lane > 1\nmode: hunt\npareto: [time_ms, pes]")
    assert [line.split(": ")[0] for line in message.splitlines()] == [f"s.yaml:{n}" for n in (5, 6, 7, 9, 10)]
    assert "did you mean lanes" in message
    assert "did you mean time_us" in message


def test_values_that_no_machine_has_are_all_told() -> None:
    message = told("array.size: [2, four, 0]\nbatch: [0, 1]")
    assert all(each in message for each in ('"four"', "0 is out of range"))
    assert message.count("four") == 1


def test_a_layer_that_one_of_two_workloads_lacks() -> None:
    assert 'other has no layer "fc"' in told("layers.fc.n: [1, 2]", workloads="[net.yaml, other.yaml]")
    assert spec("layers.one.kernel: [1, 2]", workloads="[net.yaml, other.yaml]").size == 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hbm.bandwidth >= 100 GiB", "compares bytes/s with bytes"),
        ("vector_memory.capacity * lanes == 700 MHz", "compares bytes with Hz"),
        ("mapping.loop_order == 3", "is no single number; a condition compares numbers: clock, array.rows, "),
        (
            "lowering == explicit",
            "'lowering' is no number; leave out of its list what is not wanted, as a condition compares numbers: clock",
        ),
        ("lanse == 4", "no field 'lanse'; did you mean lanes? a condition compares numbers: clock, "),
        ("array.size == 4", "is no single number"),
        ("mapping.multi_tile > 2", "cannot be worked out"),
        ("lanes / (pes - pes) > 1", "cannot be worked out"),
        ("lanes > 4 and lanes < 4", "none of the 3 combinations"),
        ("(" * 300 + "1" + ")" * 300 + " == 1", "is not a condition"),
        ("lanes > 4 or lanes", "is not a condition"),
        ("not lanes", "is not a condition"),
        ("1 == " * 400 + "1", "at most 1000 characters"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_conditions_that_cannot_hold(text: str, says: str) -> None:
    assert says in told("mapping.multi_tile: [1, 2, auto]", f"where: {json.dumps(text)}")


def test_units_that_go_together_are_no_mistake() -> None:
    for text in ("hbm.bandwidth / clock >= 100", "2 * vector_memory.capacity + 1 KiB < 1 GiB", "hbm.latency > -1 ns"):
        Constraint.parse(text)


def test_nothing_is_made_for_a_sweep_without_points() -> None:
    Path("s.yaml").write_text("workloads: [net.yaml]\naxes: {array.size: [2, 4]}\nwhere: lanes > 100\n")
    shown: Result = CliRunner().invoke(cli.app, ["sweep", "s.yaml"])
    assert shown.exit_code == 2
    assert "s.yaml:3: where: none of the 2 combinations of the axes' values satisfies lanes > 100" in shown.stderr
    assert not Path("results").exists()


SEARCH = "mode: search\nsearch: {objectives: [time_us, pes], budget: 3}"
SEARCH_MISTAKES = [
    ("mode: search", "a search needs both parts"),
    (SEARCH.replace("mode: search\n", ""), "add mode: search"),
    (SEARCH.replace("budget: 3", "budgets: 3"), "did you mean budget?"),
    (SEARCH.replace("budget: 3", "budget: 0"), "out of range"),
    (SEARCH.replace("budget: 3", "budget: 3, seed: -1"), "out of range"),
    (SEARCH.replace("pes", "pess"), "did you mean pes?"),
    (SEARCH.replace("[time_us, pes]", "[]"), "give 1 to 3"),
    (SEARCH.replace("[time_us, pes]", "[macs]"), "write {macs: minimize} or maximize"),
    (SEARCH.replace("[time_us, pes]", "{pes: down}"), "write minimize or maximize"),
    (SEARCH.replace("[time_us, pes]", "[hbm.bandwidth]"), "no column"),
    (SEARCH.replace("budget: 3", "budget: 8"), "8 is enough for all 8 points; leave mode and search out"),
    (f"{SEARCH}\ncombine: zip", "leave combine out"),
    (f"{SEARCH}\nwhere: lanes > 100", "none of the 8 combinations"),
    ("pareto: [time_us]", "give 2 to 3"),
    ("pareto: time_us", "is no list of columns"),
]


@pytest.mark.parametrize(("rest", "says"), SEARCH_MISTAKES, ids=lambda value: str(value)[:50])
def test_mistakes_of_a_search_and_of_a_front(rest: str, says: str) -> None:
    assert says in told("array.rows: [1, 2, 3, 4]\nbatch: [1, 2]", rest)


@pytest.mark.parametrize("name", ["../up", "a/b", "a\\\\b", "..", ".hidden", "", " ", "x" * 81, "two\\nlines", "a\\0b"])
def test_a_name_that_is_no_directory_of_its_own(name: str) -> None:
    assert "s.yaml:1: name: " in told_of(f'name: "{name}"\nworkloads: [net.yaml]\naxes: {{batch: [1]}}\n')


@pytest.mark.parametrize("part", ["name: 3", "name: [a]", "name:", "hardware:", "hardware: [tpu_v2]"])
def test_names_are_text(part: str) -> None:
    assert re.search(
        "is not text|is not a name|is no machine", told_of(f"{part}\nworkloads: [net.yaml]\naxes: {{batch: [1]}}\n")
    )


def test_workloads_are_told_apart_by_name() -> None:
    Path("copy.yaml").write_text(NET.replace("k: 9", "k: 8"))
    assert 'workloads[1]: another workload is called "net", too' in told(
        "batch: [1]", workloads="[net.yaml, copy.yaml]"
    )
    assert len(spec("batch: [1]", workloads="[net.yaml, net.yaml, other.yaml]").points) == 2


def test_a_search_may_have_more_points_than_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpusim.study.sweep.points._DRAWN", 100)
    sides = "array.rows: {range: [1, 4000]}\narray.cols: {range: [1, 4000]}"
    sweep = spec(sides, SEARCH)
    assert sweep.size == 16_000_000
    assert sweep.points == ()
    assert "none of the 100 drawn of 16,000,000 combinations" in told(sides, f"{SEARCH}\nwhere: pes > 1000000000")


def test_a_search_leaves_combinations_out_but_not_values_that_never_work() -> None:
    axes = "vector_memory.capacity: [4 B, 1 KiB]\nvector_memory.word_elements: [1, 4]"
    rest = SEARCH.replace("budget: 3", "budget: 2")
    assert spec(axes, rest).size == 4
    assert "four" in told(f"{axes}\narray.size: [4, four]", rest)


def test_it_says_how_many_points_there_are() -> None:
    assert spec("array.size: [2, 4]\nbatch: [1, 2, 3]").summary == "s: 6 points"
    assert spec("array.size: [2, 4]", "where: lanes == 2").summary == "s: 1 point, of 2 before where"
    searching = spec("array.rows: [1, 2, 3, 4]", SEARCH).summary
    assert searching == "s: a search for least time_us and least pes, 3 of 4 combinations"


def test_the_shipped_sweeps_show_what_the_paper_claims() -> None:
    """Fig. 16 on VGG16: utilisation about halves from arrays of 128 to 256; at words of 8 half the ports are unused."""
    sizes = {dict(point.settings)["array.size"]: point for point in load_sweep("array_size").points}
    words = {dict(point.settings)["vector_memory.word_elements"]: point for point in load_sweep("word_size").points}
    # Blocks that simulation chooses would take most of the time.
    totals = [
        simulate(each.jobs.work, each.jobs.hardware.with_overrides(ESTIMATE), check=False).total
        for each in (sizes[128], sizes[256], words[8])
    ]
    assert 0.4 < totals[1].pe_utilization / totals[0].pe_utilization < 0.6
    assert totals[2].vector_memory.port_idle_ratio > 0.5
    assert {point.jobs.work.name for point in (*sizes.values(), *words.values())} == {"vgg16"}


EXAMPLES = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/sweeps.md").read_text(), re.S)


@pytest.mark.parametrize("batches", ["[4]", pytest.param("[1, 4, 16]", marks=pytest.mark.long)])
def test_the_examples_in_the_documentation_are_sound(batches: str) -> None:
    """The layers of a language model are made for each batch, which takes seconds."""
    assert "batch: [1, 4, 16]" in EXAMPLES[1]
    sizes = []
    for text in EXAMPLES:
        Path("s.yaml").write_text(text.replace("batch: [1, 4, 16]", f"batch: {batches}"))
        sweep = load_sweep("s.yaml")
        sizes.append((sweep.size, len(sweep.points), sweep.search is not None))
    of_server = 2 * len(batches.split(","))
    assert sizes == [(36, 12, False), (of_server, of_server, False), (1125, 0, True)]


GRAPH = """name: graph
ops: array
layers:
  - {name: one, op: conv2d, in_channels: 2, in_height: 6, in_width: 6, out_channels: 3, kernel: 3}
  - {name: relu, op: relu}
  - {name: two, op: conv2d, inputs: [relu], out_channels: 4, kernel: 1}
"""


def test_a_field_of_a_graph_gives_sizes_to_what_comes_behind(desk: Path) -> None:
    Path("graph.yaml").write_text(GRAPH)
    sweep = spec("layers.one.out_channels: [3, 5]", workloads="graph.yaml")
    assert [[each.in_channels for each in point.jobs.work.layers] for point in sweep.points] == [[2, 3], [2, 5]]
    assert sweep.points[1].jobs.work.inputs() == {"one": ("input",), "two": ("one",)}


def test_a_glob_means_no_entries_that_take_no_time(desk: Path) -> None:
    Path("graph.yaml").write_text(f"{GRAPH}  - {{name: owner, op: concat, inputs: [two, relu]}}\n")
    sweep = spec("layers.o*.kernel: [1, 3]", workloads="graph.yaml")
    assert [layer(sweep, i, 0).kernel for i in (0, 1)] == [(1, 1), (3, 3)]
    assert 'graph has no layer "owner"; did you mean one? it has one, relu, two' in told(
        "layers.owner.kernel: [1]", workloads="graph.yaml"
    )


def test_which_ops_are_timed_may_be_said(desk: Path) -> None:
    Path("graph.yaml").write_text(GRAPH)
    sweep = spec("layers.one.out_channels: [3, 5]", "ops: all\n", workloads="graph.yaml")
    assert [each.op for each in sweep.points[0].jobs.work.layers] == ["conv2d", "relu", "conv2d"]
    assert layer(sweep, 1, 1).channels == 5
    said = told("layers.one.out_channels: [3, 5]", "ops: vector\n", workloads="graph.yaml")
    assert "unknown ops 'vector'" in said


def test_sizes_of_a_graph_that_do_not_fit_are_told(desk: Path) -> None:
    Path("graph.yaml").write_text(GRAPH.replace("inputs: [relu]", "inputs: [relu], in_channels: 3"))
    said = told("layers.one.out_channels: [3, 5]", workloads="graph.yaml")
    assert 'layer "two" of graph: reads 5x4x4 (channels x rows x columns) from relu' in said
