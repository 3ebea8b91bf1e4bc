"""Blocks given from outside: kept by every lowering that has blocks; test_agreement runs them in both engines."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.covering import few
from tests.strategies import GENERAL, blocks, cases, conv, fills, layers, machine, machines
from tests.study.small_sweep import NET, QUICK, sweep
from tpusim.base.errors import CapacityError, InputError
from tpusim.cli import app as cli
from tpusim.machines.tpu import event
from tpusim.machines.tpu.cut.dense import Dense
from tpusim.machines.tpu.cut.plan import Plan
from tpusim.machines.tpu.cut.reduction import TapGroups
from tpusim.machines.tpu.description import Hardware, load_hardware
from tpusim.machines.tpu.lowering.convolution import plan_of
from tpusim.machines.tpu.lowering.registry import LOWERINGS, lowered
from tpusim.machines.tpu.sections import BlockSizes
from tpusim.network.ops.array_op import Conv2d, Gemm

LAYER = conv(200, 14, 300, 3, padding=1)
CUTS = {
    "channel_first": TapGroups,
    "by taps": lambda shape, hardware: Dense(shape, hardware, "channel_first"),
    "by channels": lambda shape, hardware: Dense(shape, hardware, "channel_last"),
}


def with_block(hardware: Hardware, **sizes: int) -> Hardware:
    return hardware.with_overrides({f"mapping.block.{name}": value for name, value in sizes.items()})


def told(name: str, layer: Conv2d | Gemm = LAYER, batch: int = 32, **sizes: int) -> tuple[Any, ...]:
    """The rows, cols and images of a block on the paper's machine, and how many column folds it keeps."""
    machines = {True: "tpu_v2_banked", False: "tpu_v2"}
    hardware = with_block(load_hardware(machines[name == "banked"]), **sizes)
    _, explanation = lowered(layer, batch, hardware, "channel_last" if name == "banked" else name)
    blocking = explanation.blocking
    return blocking.rows, blocking.cols, blocking.images, explanation.choices["kept_folds"]


@pytest.mark.parametrize("name", few(4, [*GENERAL, "banked"]))
def test_every_lowering_keeps_what_is_given(name: str) -> None:
    assert told(name, rows=3, cols=5, images=16, out_channels=256) == (3, 5, 16, 2)
    assert told(name, rows=3, cols=14)[:2] == (3, 14)
    assert told(name, cols=3)[1] == 3
    assert told(name, images=8)[2] == 8


@pytest.mark.parametrize("name", [*GENERAL, "banked"])
def test_more_than_there_is_means_all(name: str) -> None:
    layer = conv(20, 8, 30, 3)
    assert told(name, layer, 16, rows=9, cols=99, images=17, out_channels=31) == (6, 6, 16, 1)


@pytest.mark.parametrize("name", [*GENERAL])
def test_the_rows_of_a_product_are_its_images(name: str) -> None:
    assert told(name, Gemm("product", 512, 200, 300), images=64)[2] == 64


@settings(max_examples=cases(1 / 6), deadline=None, suppress_health_check=list(HealthCheck))
@given(layer=layers(), batch=st.integers(1, 20), hardware=machines(), sizes=blocks(), cut=st.sampled_from([*CUTS]))
def test_no_block_holds_more_than_is_given(
    layer: Conv2d | Gemm, batch: int, hardware: Hardware, sizes: BlockSizes, cut: str
) -> None:
    """And as much, where the layer has so much and it comes in whole words."""
    hardware = hardware.model_copy(update={"mapping": hardware.mapping.model_copy(update={"block": sizes})})
    try:
        plan = plan_of(CUTS[cut], layer, batch, hardware)
    except CapacityError:
        assume(False)
    wanted, (block, *_) = sizes.given, plan.blocks
    row, col, share = plan.shape.row, plan.shape.col, plan.word_fill // plan.shape.strips
    assert len(block.rows) == min(wanted.get("rows", len(block.rows)), row.extent)
    assert len(block.cols) == min(wanted.get("cols", len(block.cols)), col.extent)
    groups = -(-plan.shape.images // share)
    assert len(block.groups) == min(-(-wanted.get("images", len(block.groups) * share) // share), groups)
    assert_portions_are_whole(plan, wanted)


def assert_portions_are_whole(plan: Plan, wanted: dict[str, int]) -> None:
    """The column folds kept together hold all the output channels given; chunks have no more channels and taps."""
    shape, folds, kept = plan.shape, plan.col_folds, plan.tiling.kept_folds
    if "out_channels" in wanted:
        size = min(wanted["out_channels"], shape.out_channels)
        ends = [folds[min(at + kept, len(folds)) - 1].stop for at in range(0, len(folds), kept)]
        assert ends == [*range(size, shape.out_channels, size), shape.out_channels]
    for chunk in plan.chunks:
        channels = {c for each in chunk.passes for run in each.runs for c in run.channels}
        alone = len(chunk.passes) == 1
        assert alone or len(chunk.taps) <= wanted.get("taps", shape.taps)
        if isinstance(plan.cut, TapGroups):
            assert len(channels) <= wanted.get("in_channels", shape.channels)
            assert len(chunk.taps) <= wanted.get("taps", shape.taps)
        assert alone or len(channels) <= wanted.get("in_channels", shape.channels)


def plan(layer: Conv2d | Gemm, **sizes: int) -> Plan:
    return plan_of(TapGroups, layer, 8, with_block(load_hardware("tpu_v2_core"), **sizes))


def test_a_filter_row_at_a_time() -> None:
    """As Google's compiler does for 5x5: two taps stacked, three passes a filter row, a chunk each."""
    found = plan(conv(64, 28, 128, 5, padding=2), taps=5)
    assert [sorted(chunk.taps) for chunk in found.chunks] == [[(i, j) for j in range(5)] for i in range(5)]
    assert [len(chunk.passes) for chunk in found.chunks] == [3] * 5


def test_taps_that_end_within_a_filter_row_end_a_pass() -> None:
    found = plan(Conv2d("wide", 48, 28, 28, 128, (1, 9), (1, 1), (0, 4), (1, 1), 1), taps=5)
    assert [len(chunk.taps) for chunk in found.chunks] == [5, 4]
    assert [each.rows // 48 for each in found.passes] == [2, 2, 1, 2, 2]


def test_channels_at_a_time() -> None:
    """200 of 500 are two row folds of 128 and 72; 100 of 128 leave rows of the array empty."""
    found = plan(conv(500, 14, 128, 3, padding=1), in_channels=200)
    assert [{each.rows for each in chunk.passes} for chunk in found.chunks] == [{128, 72}, {128, 72}, {100}]
    found = plan(conv(64, 14, 128, 3, padding=1), in_channels=40, taps=9)
    assert [{each.rows for each in chunk.passes} for chunk in found.chunks] == [{80, 40}, {48, 24}]


def test_fewer_output_channels_than_the_array_has_columns() -> None:
    assert [*map(len, plan(conv(64, 14, 128, 3, padding=1), out_channels=50).col_folds)] == [50, 50, 28]
    assert [*map(len, plan(conv(64, 14, 500, 3, padding=1), out_channels=200).col_folds)] == [128, 72, 128, 72, 100]


def test_weights_stay_where_blocks_of_the_same_channels_follow_one_another() -> None:
    """Under filter_major, all blocks of the map for two column folds of four, then for the other two."""
    layer, sizes = conv(128, 28, 512, 3, padding=1), {"rows": 7, "cols": 28, "out_channels": 256}
    hardware = with_block(load_hardware("tpu_v2"), **sizes).with_overrides(["mapping.loop_order=filter_major"])
    found = plan_of(TapGroups, layer, 8, hardware)
    assert [(stage.block, stage.fold) for stage in islice(found.stages, 4)] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    program, _ = LOWERINGS["channel_first"].lower(layer, 8, hardware)
    moved = {name: sum(step.hbm_bytes for step in fills(program, name)) for name in ("filter", "ifmap")}
    # Halos come again with each block: 8 + 9 + 9 + 8 rows for 28.
    assert moved == {"filter": 9 * 128 * 512 * 4, "ifmap": 2 * 34 * 28 * 128 * 8 * 4}


@pytest.mark.parametrize("name", [*GENERAL, "banked"])
def test_what_does_not_fit_says_what_is_needed_and_allowed(name: str) -> None:
    sizes = {"rows": 28, "cols": 28, "images": 8}
    machines = {"banked": ("tpu_v2_banked", ["vector_memory.capacity=4 KiB"])}
    changes = machines.get(name, ("tpu_v2", ["vector_memory.capacity=16 KiB"]))
    hardware, lowering = with_block(load_hardware(*changes), **sizes), "channel_last" if name == "banked" else name
    with pytest.raises(CapacityError) as caught:
        lowered(conv(64, 28, 64, 3, padding=1), 8, hardware, lowering)
    message = str(caught.value)
    assert "layer conv" in message
    assert "the block that mapping.block gives (rows 28, cols 28, images 8) needs" in message
    assert "set vector_memory.capacity to at least" in message
    assert message.endswith("or give a smaller block")


@pytest.mark.parametrize("name", ["taps", "in_channels"])
def test_banks_hold_all_of_a_block(name: str) -> None:
    hardware = with_block(load_hardware("tpu_v2_banked"), **{name: 2})
    with pytest.raises(CapacityError, match=f"mapping.block.{name}.*banks hold what all taps and channels") as caught:
        lowered(LAYER, 8, hardware, "channel_last")
    assert "write auto" in str(caught.value)


def test_one_size_of_a_block() -> None:
    with pytest.raises(InputError, match="rows=3: block_m gives the size of a block, too: 40 words"):
        load_hardware("tpu_v2", ["mapping.block_m=40", "mapping.block.rows=3"])
    assert load_hardware("tpu_v2", ["mapping.block_m=40", "mapping.block.out_channels=3"]).mapping.block_m == 40


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "block: {rows: 8, colz: 9}",
            'mapping.block.colz: unknown key "colz"; did you mean cols? allowed in mapping.block',
        ),
        ("block: {rows: many}", 'mapping.block.rows: "many" is not allowed; write auto or a whole number'),
        ("block: 7", "mapping.block: 7 is not a section; write block: with the keys rows, cols, images"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path: Path, text: str, message: str) -> None:
    base = load_hardware("tiny_4x4").to_dict()
    path = tmp_path / "mine.yaml"
    lines = [f"{key}: {base[key]}" for key in ("clock", "array", "vector_memory", "vector_unit", "hbm")]
    path.write_text("\n".join([*lines, "mapping:", f"  {text}"]).replace("'", ""))
    with pytest.raises(InputError) as caught:
        load_hardware(path)
    assert f"mine.yaml:7: {message}" in str(caught.value)


def test_a_section_cannot_be_set_as_a_whole() -> None:
    with pytest.raises(InputError, match=r"set one of its fields: mapping.block.rows, mapping.block.cols, "):
        load_hardware("tpu_v2", ["mapping.block=8"])


@pytest.mark.usefixtures("undrawn")
def test_blocks_are_axes_of_sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As are conditions on them; every point is what a run gives."""
    monkeypatch.chdir(tmp_path)
    Path("net.yaml").write_text(NET)
    Path("quick.yaml").write_text(QUICK)
    spec = """
name: blocks
workloads: [net.yaml]
hardware: quick.yaml
batch: 2
axes: {mapping.block.rows: [1, 2, 7], mapping.block.cols: [3, 7]}
where: mapping.block.rows <= mapping.block.cols
"""
    Path("blocks.yaml").write_text(spec)
    shown = sweep("blocks.yaml")
    assert shown.exit_code == 0, shown.output
    found = [line.split(",") for line in (Path("results") / "blocks" / "points.csv").read_text().splitlines()]
    at = [found[0].index(f"mapping.block.{name}") for name in ("rows", "cols")]
    assert [tuple(int(row[each]) for each in at) for row in found[1:]] == [(1, 3), (1, 7), (2, 3), (2, 7), (7, 7)]
    assert len({row[found[0].index("cycles")] for row in found[1:]}) > 2


def test_explain_says_what_is_given() -> None:
    arguments = ["explain", "tiny", "--layer", "two_passes", "--hardware", "tiny_4x4", "--batch", "4"]
    arguments += ["--set", "mapping.search=estimate"]
    changes = ["--set", "mapping.block.images=2"]
    free, forced = (CliRunner().invoke(cli.app, [*arguments, *more]) for more in ([], changes))
    assert "given:" not in free.stdout
    assert "2 rows of input; 8 blocks for all 16; given: images 2" in " ".join(forced.stdout.split())


def test_a_given_block_is_the_one_of_the_search_if_it_is_that() -> None:
    """To give what the search takes changes no cycle."""
    hardware = machine(8, 4, capacity_words=400)
    layer = conv(12, 9, 9, 3, padding=1)
    program, found = LOWERINGS["channel_first"].lower(layer, 4, hardware)
    sizes = {"rows": found.blocking.rows, "cols": found.blocking.cols, "images": found.blocking.images}
    again, _ = LOWERINGS["channel_first"].lower(layer, 4, with_block(hardware, **sizes))
    assert event.run(program, hardware) == event.run(again, hardware)
