"""scripts/laws: a larger size, a larger batch and more machine cost no more than they may."""

from __future__ import annotations

import runpy

import pytest

from tests import ROOT
from tests.rules import rule
from tpusim import load_hardware
from tpusim.flow.lowerings import prepared
from tpusim.machines.tpu.lowering.registry import LOWERINGS
from tpusim.network.ops import OPS
from tpusim.network.ops.array_op import ArrayOp
from tpusim.network.ops.op import OFMAP

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "laws"))
AUTO = SCRIPT["AUTO"]
QUICK = "tiny_4x4", "tpu_v2", "tpu_v2_core", "tpu_v5e"
FAMILIES = (
    ("conv2d", "conv1d", "gemm"), ("conv_transpose2d", "conv2d_input_gradient", "conv2d_filter_gradient"),
    ("pool2d", "pool2d_gradient", "pool2d_choice"), ("scale_shift", "add", "transpose"),
    ("softmax", "layer_norm", "channel_sum"),
)  # fmt: skip


@rule("T155")
@pytest.mark.parametrize("ops", FAMILIES, ids=lambda ops: ops[0])
def test_laws_hold_for_some_of_each_kind(ops: tuple[str, ...]) -> None:
    """By every lowering but those that time all others, on few machines; an op of the vector unit has one."""
    for op in ops:
        count = 2 if issubclass(OPS[op], ArrayOp) else 1
        pairs = [*SCRIPT["measured"](op, count, 11, QUICK, tuple(LOWERINGS), most=200)]
        assert len(pairs) == count
        assert [pair for pair in pairs if pair.broken] == []


@pytest.mark.long
@pytest.mark.parametrize("op", OPS)
def test_few_pairs_of_any_op_break_a_law_and_none_by_far(op: str) -> None:
    """Those that do are named in docs/timing.md."""
    pairs = [*SCRIPT["measured"](op, 12, 12)]
    assert all(pair.times <= 2 for pair in pairs)
    assert sum(pair.broken for pair in pairs) <= 1


@pytest.mark.parametrize("op", OPS)
def test_any_op_is_drawn_with_the_sizes_that_it_has(op: str) -> None:
    """And may be made of other sizes."""
    chance = SCRIPT["random"].Random(op)
    for _ in range(3):
        drawn = SCRIPT["DRAWS"].get(op, SCRIPT["_plain"])(op, chance)
        layer, larger = (
            drawn.made({name: size + more for name, size in drawn.sizes.items()}) for more in (0, SCRIPT["APART"])
        )
        assert layer.op == larger.op == op
        assert layer.shapes(2)[OFMAP] != larger.shapes(2)[OFMAP]


@pytest.mark.parametrize(
    ("machine", "op", "sizes", "batch"),
    [
        # Pixels of a batch of 8 lie some power of two apart in HBM, and portions of them in few channels of the DRAM.
        ("tpu_v2_core_hbm", "copy", {"height": 79, "width": 5, "channels": 434}, 7),
        ("tpu_v2_core_hbm", "scale_shift", {"height": 25, "width": 24, "channels": 445}, 3),
        pytest.param("tpu_v2_hbm", "relu", {"height": 14, "width": 14, "channels": 1024}, 7, marks=pytest.mark.long),
    ],
)
def test_an_image_more_takes_no_leap_where_pixels_crowd_a_dram(
    machine: str, op: str, sizes: dict[str, int], batch: int
) -> None:
    layer, hardware = OPS[op](op, **sizes), load_hardware(machine)
    more, one, own = (prepared(layer, images, hardware, "vector_ops").timing.cycles for images in (batch + 1, 1, batch))
    assert more <= SCRIPT["MOST"]["batch"] * (own + one)


def test_ports_of_their_own_take_no_longer_for_a_short_layer_on_a_dram() -> None:
    """Its estimate was as much as its best of two runs took, by chance, so no other block was timed: 304 for 265."""
    layer, own = OPS["clip"]("op", height=6, width=10, channels=25), load_hardware("tpu_v2_hbm")
    machines = own, SCRIPT["richer"]("tpu_v2_hbm")["separate ports"]
    poorer, richer = (prepared(layer, 1, each, "vector_ops").timing.cycles for each in machines)
    assert richer <= SCRIPT["MOST"]["more"] * poorer


def test_a_pair_is_the_same_whatever_else_is_drawn() -> None:
    one, two = ([*SCRIPT["measured"]("relu", count, 5, ("tiny_4x4",), most=200)] for count in (1, 2))
    assert len(two) == 2
    assert two[:1] == one


def test_richer_machines_have_more() -> None:
    base, machines = load_hardware("tpu_v2"), SCRIPT["richer"]("tpu_v2")
    assert machines["twice the capacity"].capacity_words == 2 * base.capacity_words
    assert machines["half the latency"].hbm.latency_ps == base.hbm.latency_ps // 2
    assert machines["twice the bandwidth"].hbm.bandwidth_bytes_per_s == 2 * base.hbm.bandwidth_bytes_per_s
    assert machines["eight times the arrays"].array.count == 8
    assert "separate ports" in machines
    assert "twice the ports of banks" in SCRIPT["richer"]("tpu_v2_banked")
    # A DRAM has times and buses of its own.
    assert SCRIPT["richer"]("tpu_v2_hbm").keys() == machines.keys() - {"half the latency", "twice the bandwidth"}


def test_what_breaks_a_law_is_counted_and_listed(capsys: pytest.CaptureFixture[str]) -> None:
    own = "softmax", SCRIPT["SIZE"], "tpu_v2", "vector_rows", "8x1021", 1, "channels 1021"
    SCRIPT["report"]([SCRIPT["Pair"](*own, cycles, 100) for cycles in (100, 260)])
    told = capsys.readouterr().out
    assert "1 of 2 (50.00%) break their law" in told
    assert "2.600 size (channels 1021): 260 for 100; tpu_v2, vector_rows, batch 1: softmax 8x1021" in told
