"""Energies: by hand on a layer that fits a page, and that parts add up wherever they are told."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.strategies import conv
from tpusim import load_hardware, load_workload, simulate
from tpusim.cli.app import app
from tpusim.machines.tpu.description import Hardware
from tpusim.network.ops.array_op import Gemm
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.report.page.run import run_data
from tpusim.report.shown import text_of
from tpusim.report.tables.sentences import totals
from tpusim.result.records import LayerResult, Result, total_of
from tpusim.result.vocabulary.figures import value_of
from tpusim.result.vocabulary.states import ENERGIES
from tpusim.technology.constants import load_technology

USUAL = load_technology()
TINY = load_hardware("tiny_4x4")


def layer_of(op: Op, machine: Hardware = TINY, lowering: str = "channel_first") -> LayerResult:
    return simulate(Workload("w", 4, (op,)), machine, lowering=lowering, check=False).layers[0]


@pytest.fixture(scope="module")
def tiny() -> Result:
    return simulate(load_workload("tiny", batch=2), TINY, check=False)


def test_a_product_by_hand() -> None:
    """8 x 6 by 6 x 3 on 4 x 4 PEs: two row folds, of four rows and of two, each a pass; words of W elements."""
    layer = layer_of(Gemm("product", m=8, n=3, k=6))
    use, bits = layer.energy_use, 8 * TINY.word_bytes
    assert use is not None
    assert layer.passes == 2
    moves = 3 * (4 * 5 // 2 + 2 * 3 // 2)
    assert use.counts == {
        "pe_operations": 8 * 3 * 6, "weights_loaded": 3 * 6, "vector_products": 0, "vector_sums": 8 * 3,
    }  # fmt: skip
    memory, moved = layer.vector_memory, 8 * (layer.hbm_read_bytes + layer.hbm_write_bytes)
    capacity = TINY.vector_memory.capacity_bytes
    assert use.parts["multiply_adds"] == pytest.approx(8 * 3 * 6 * (1.1 + 0.9))
    assert use.parts["pe_registers"] == pytest.approx((8 * 3 * 6 * 48 + moves * 16) * 8.999e-3)
    assert use.parts["vector_operations"] == pytest.approx(8 * 3 * 0.9)
    assert use.parts["port_reads"] == pytest.approx(memory.reads * USUAL.macro.access("read", capacity, bits))
    assert use.parts["port_writes"] == pytest.approx(memory.writes * USUAL.macro.access("write", capacity, bits))
    assert use.parts["serializers"] == pytest.approx(2 * (memory.reads + memory.writes) * bits * 8.999e-3)
    assert use.parts["hbm_bits"] == pytest.approx(moved * 3.92)
    assert use.parts["hbm_activates"] == 0
    assert use.parts["leakage"] > 0


def test_an_access_by_word_and_capacity() -> None:
    at = USUAL.macro.access
    assert at("read", 256 * 1024, 256) == pytest.approx(86.7138)
    assert at("write", 256 * 1024, 8 * 128) == pytest.approx(546.04)
    assert 54.5535 < at("read", 256 * 1024, 192) < 86.7138
    assert at("read", 64 * 1024, 256) == pytest.approx(86.7138 / 2)
    # Beyond the widest and the narrowest of the macros, a bit takes what it takes there.
    assert at("read", 256 * 1024, 2048) == pytest.approx(2 * 149.971)
    assert at("read", 256 * 1024, 8) == pytest.approx(17.0226 / 2)


def test_leakage_goes_with_time() -> None:
    wide = 128 * USUAL.macro.leakage(256 * 1024, 256)
    assert wide * 1e-12 == pytest.approx(128 * 0.124058)
    slow = load_hardware("tiny_4x4", ["clock=350 MHz", "hbm.latency=92.4 ns"])
    uses = [layer_of(Gemm("product", m=64, n=64, k=64), each) for each in (TINY, slow)]
    (fast_use, slow_use), times = (each.energy_use for each in uses), [each.time_us for each in uses]
    assert slow_use.parts["leakage"] / fast_use.parts["leakage"] == pytest.approx(times[1] / times[0])
    assert slow_use.parts["port_reads"] == fast_use.parts["port_reads"]


def test_multiplications_of_the_vector_unit_are_told_from_sums() -> None:
    use = layer_of(conv(4, 5, 4, 3, groups=4), lowering="vector").energy_use
    assert use is not None
    assert use.counts["pe_operations"] == use.parts["multiply_adds"] == use.counts["weights_loaded"] == 0
    assert use.counts["vector_products"] > use.counts["vector_sums"] > 0
    expected = 3.7 * use.counts["vector_products"] + 0.9 * use.counts["vector_sums"]
    assert use.parts["vector_operations"] == pytest.approx(expected)


def test_activates_where_banks_are_modelled() -> None:
    """What bursts and activates take is counted apart: a row of 2 KB takes twice what one of 1 KB does."""
    layer = layer_of(Gemm("product", m=64, n=64, k=64), load_hardware("tpu_v2_hbm"))
    use, dram = layer.energy_use, layer.dram
    assert use is not None
    assert dram is not None
    assert use.parts["hbm_bits"] == pytest.approx(8 * dram.hbm_moved_bytes * 3.48)
    assert use.parts["hbm_activates"] == pytest.approx((dram.row_misses + dram.row_conflicts) * 2 * 909)


def test_parts_add_up(tiny: Result) -> None:
    for record in (tiny.total, *tiny.layers):
        use = record.energy_use
        assert use is not None
        assert [*use.parts] == [*ENERGIES]
        assert sum(use.parts.values()) == pytest.approx(use.energy)
        assert use.energy_delay == pytest.approx(use.energy * record.time_us / 1e6)
        assert use.tops_per_watt == pytest.approx(2 * record.macs / use.energy)
    assert value_of(tiny.total, "energy") == pytest.approx(sum(value_of(layer, "energy") for layer in tiny.layers))


def test_where_it_is_told(tiny: Result) -> None:
    said = " ".join(text_of(totals(tiny.total)).split())
    assert "Energy, a model in 45nm: " in said
    shown = run_data(tiny)["energy"]
    assert sum(shown["amounts"]) == pytest.approx(shown["whole"])
    assert shown["said"].startswith("Energy, a model in 45nm: ")
    assert "hbm_activates" not in [part["key"] for part in shown["parts"]]


def test_results_of_older_versions_tell_none(tiny: Result) -> None:
    layers = tuple(replace(layer, energy_use=None) for layer in tiny.layers)
    old = replace(tiny, layers=layers, total=total_of(layers, 0.0))
    assert old.total.energy_use is None
    assert value_of(old.total, "energy") == 0.0
    assert "Energy" not in text_of(totals(old.total))
    assert run_data(old)["energy"] is None


@pytest.mark.usefixtures("undrawn")
def test_a_sweep_searches_for_area_and_energy(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    spec = tmp_path / "s.yaml"
    spec.write_text(
        "name: s\nworkloads: [tiny]\nhardware: tiny_4x4\nbatch: 2\nmode: search\n"
        "search: {objectives: {area: minimize, energy: minimize, tops_per_watt: maximize}, budget: 3, seed: 1}\n"
        "axes: {vector_memory.word_elements: [1, 2, 4], array.size: [2, 4]}\n"
    )
    done = CliRunner().invoke(app, ["sweep", str(spec), "--out", str(tmp_path), "--workers", "1", "--format", "svg"])
    assert done.exit_code == 0, done.output
    rows = [*csv.DictReader((tmp_path / "points.csv").open())]
    assert len(rows) == 3
    for row in rows:
        assert float(row["area"]) > 0
        assert float(row["energy_delay"]) == pytest.approx(float(row["energy"]) * float(row["time_us"]) / 1e6)
    assert any(row["pareto"] == "True" for row in rows)
