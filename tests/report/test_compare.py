"""Two results against each other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from typer.testing import Result as Done

from tests.strategies import conv, machine
from tpusim import load_hardware, load_workload, simulate
from tpusim.cli import app as cli
from tpusim.machines.tpu.description import Hardware
from tpusim.network.ops.array_op import Conv2d, Gemm
from tpusim.network.ops.elementwise import Add, Relu
from tpusim.network.ops.pool2d import Pool2d
from tpusim.network.workload import Workload
from tpusim.report.shown import Sentences, text_of
from tpusim.report.tables.compare import layer_table, rewired, runs_compared, totals, verdicts
from tpusim.report.tables.compared import Change, ComparedResults, compared_results
from tpusim.report.tables.sentences import verdict
from tpusim.result.load import parse_result
from tpusim.result.records import LayerResult, Result, total_of
from tpusim.result.vocabulary.states import ARRAY_UNIT

LAYERS = (replace(conv(4, 8, 4, 3), name="first"), Gemm("second", 4, 40, 4), Gemm("third", 4, 4, 4))


def run(*layers: Conv2d | Gemm, hardware: Hardware | None = None, batch: int = 2, check: bool = False) -> Result:
    """By blocks of an estimate: what simulation would choose takes most of the time, and changes both sides alike."""
    on = (hardware or machine(4, 4)).with_overrides(["mapping.search=estimate"])
    return simulate(Workload("net", batch, layers or LAYERS), on, check=check)


def slowed(result: Result, **factors: float) -> Result:
    """The result with the cycles of some layers multiplied, in the largest part of every unit's."""

    def changed(split: Mapping[str, int], cycles: int) -> dict[str, int]:
        largest = max(split, key=lambda cause: split[cause])
        return {**split, largest: split[largest] + cycles - sum(split.values())}

    def slower(layer: LayerResult) -> LayerResult:
        cycles = round(layer.cycles * factors.get(layer.name, 1))
        share = layer.cycles / cycles
        units = {unit: changed(split, cycles) for unit, split in layer.units.items()}
        return replace(
            layer,
            cycles=cycles,
            units=units,
            time_us=layer.time_us / share,
            tflops=layer.tflops * share,
            pe_utilization=layer.pe_utilization * share,
            stall_cycles={cause: units[ARRAY_UNIT][cause] for cause in layer.stall_cycles},
            energy_use=None,
        )

    layers = tuple(map(slower, result.layers))
    return replace(result, layers=layers, total=total_of(layers, 0.0))


def test_only_what_differs_is_listed() -> None:
    fast, slow = machine(4, 4), machine(4, 4, bytes_per_cycle=7)
    assert compared_results(run(), run()).changes == ()
    changed = compared_results(run(hardware=fast), run(hardware=slow, batch=4)).changes
    assert changed == (Change("batch", 2, 4), Change("hbm.bandwidth", "64 GB/s", "7 GB/s"))


def said(words: Sentences) -> str:
    """The sentences, each in a line however long it is."""
    return "\n".join(words.lines)


def data_of(compared: ComparedResults) -> Any:
    """What the command writes as JSON, read back."""
    return json.loads(runs_compared(compared, ("one", "other"), "change").to_json())


def wired(edges: dict[str, list[str]], *layers: Conv2d | Gemm) -> Result:
    work = Workload("net", 2, layers or LAYERS, edges=edges)  # type: ignore[arg-type]
    return simulate(work, machine(4, 4), check=False)


def test_layers_that_read_something_else_are_told() -> None:
    one = wired({"second": ["first"], "third": ["second"]})
    other = wired({"second": ["first"], "third": ["first"]})
    compared = compared_results(one, other)
    assert compared.rewired == {"third": (("second",), ("first",))}
    assert said(rewired(compared)) == "Not wired alike: third reads second in A, first in B."
    told = {layer["name"]: layer.get("inputs") for layer in data_of(compared)["layers"]}
    assert told == {"first": None, "second": None, "third": [["second"], ["first"]]}


def test_only_some_of_many_are_told() -> None:
    names = [f"g{number}" for number in range(7)]
    chain = [Gemm(name, 4, 4, 4) for name in names]
    one = wired({name: [ahead] for ahead, name in pairwise(names)}, *chain)
    other = wired({name: ["input"] for name in names[1:]}, *chain)
    assert said(rewired(compared_results(one, other))).endswith("in B; and 2 more (--json has them).")


def test_what_nobody_tells_or_what_only_one_has_is_no_other_wiring() -> None:
    one = wired({"second": ["first"], "third": ["second"]})
    fewer = wired({"third": ["first"]}, LAYERS[0], LAYERS[2])
    assert said(rewired(compared_results(one, run()))) == said(rewired(compared_results(one, fewer))) == ""


def test_a_dram_that_one_side_has_is_told_by_its_name() -> None:
    pipe, banks, other = (run(), *(with_dram(run(), name) for name in ("mine", "yours")))
    assert compared_results(pipe, banks).changes == (Change("hbm.device", None, "mine"),)
    assert compared_results(banks, pipe).changes == (Change("hbm.device", "mine", None),)
    assert compared_results(banks, other).changes == (Change("hbm.device.name", "mine", "yours"),)


def with_dram(result: Result, name: str) -> Result:
    device = {"name": name, "timing": {"tRP": 14}}
    return replace(result, hardware={**result.hardware, "hbm": {**result.hardware["hbm"], "device": device}})


def without(result: Result, section: str, key: str) -> Result:
    fields = {name: value for name, value in result.hardware[section].items() if name != key}
    return replace(result, tpusim="0.1", hardware={**result.hardware, section: fields, "name": "old"})


def test_a_field_that_a_result_must_have_and_does_not() -> None:
    result = run()
    changes = compared_results(without(result, "hbm", "bandwidth"), replace(result, tpusim="0.2")).changes
    assert changes == (
        Change("tpusim", "0.1", "0.2"),
        Change("hardware", "old", "test"),
        Change("hbm.bandwidth", None, "64 GB/s"),
    )


@pytest.mark.parametrize(("path", "default", "other"), [
    ("mapping.chunks", "auto", "needed"), ("mapping.transformation", "overlapped", "before"),
    ("vector_memory.ports", "shared", "separate"), ("hbm.burst", "64 B", "32 B"),
])  # fmt: skip
def test_a_field_that_an_older_version_did_not_know(path: str, default: str, other: str) -> None:
    """It has its default; only another value is a change."""
    same, changed = (
        replace(result, tpusim="0.2", hardware={**result.hardware, "name": "new"})
        for value in (default, other)
        for result in [run(hardware=machine(4, 4).with_overrides({path: value}))]
    )
    old, names = without(same, *path.split(".")), {"tpusim", "hardware"}
    assert {change.name for change in compared_results(old, same).changes} == names
    assert {change.name for change in compared_results(same, old).changes} == names
    changes = [change for change in compared_results(old, changed).changes if change.name not in names]
    assert changes == [Change(path, default, other)]


def test_ratios_and_their_mean() -> None:
    before = run()
    compared = compared_results(before, slowed(before, first=4, second=1))
    ratios = [row.ratio for row in compared.rows]
    assert ratios == [4, 1, 1]
    assert [row.unchanged for row in compared.rows] == [False, True, True]
    assert compared.rows[0].difference == 3 * before.layers[0].cycles
    assert compared.geometric_mean == pytest.approx(4 ** (1 / 3))
    assert compared_results(compared.after, before).geometric_mean == pytest.approx(4 ** (-1 / 3))


def test_what_multiplies_nothing_is_told_to_be_left_out_of_the_mean() -> None:
    pool = Pool2d("pool", "max", 4, 8, 8, (2, 2), (2, 2))
    before = simulate(Workload("net", 2, (*LAYERS, pool)), machine(4, 4), check=False)
    compared = compared_results(before, slowed(before, pool=8))
    assert "Geometric mean over the 3 of 4 layers that multiply, each weighing the same: x 1." in said(totals(compared))
    same = compared_results(before, before)
    assert [row.unchanged for row in same.rows] == [True] * 4
    assert "Geometric mean over layers, each" in said(totals(compared_results(run(), run())))


def test_a_size_may_be_called_as_a_field_is() -> None:
    one, two = (replace(run(), sizes={"batch": size}) for size in (3, 4))
    assert compared_results(one, two).changes == (Change("sizes.batch", 3, 4),)


def test_an_error_that_rounds_to_all_of_its_bound_is_within_it() -> None:
    result = run(check=True)

    def told(**changes: float) -> str:
        return verdict(replace(result, total=replace(result.total, **changes)))

    assert "The largest error worked out is 99.9 % of its bound." in told(error_share=0.99999)
    assert "is 12.3 % of" in told(error_share=0.1234)
    assert "is 123 % of" in told(error_share=1.234, outputs_mismatched=1)


def test_other_work_is_compared_by_the_mac() -> None:
    one, two = run(LAYERS[2], LAYERS[0]), run(Gemm("third", 8, 4, 4), LAYERS[0])
    compared = compared_results(one, two)
    row = compared.rows[0]
    assert not compared.same_work
    assert row.ratio is not None
    assert row.mac_ratio == pytest.approx(row.ratio / 2)
    assert compared.geometric_mean == pytest.approx(sqrt(row.ratio / 2))


def test_layers_in_one_only_and_of_one_name() -> None:
    compared = compared_results(run(LAYERS[0], LAYERS[1]), run(LAYERS[1], LAYERS[2]))
    sides = [(row.name, row.before is not None, row.after is not None) for row in compared.rows]
    assert sides == [("first", True, False), ("second", True, True), ("third", False, True)]
    assert compared.rows[0].difference == -compared.before.layers[0].cycles
    assert compared.rows[0].ratio is None
    assert sum(row.difference for row in compared.rows) == compared.after.total.cycles - compared.before.total.cycles
    twins = replace(compared.before, layers=(compared.before.layers[0],) * 2)
    assert [row.ratio for row in compared_results(twins, twins).rows] == [1, 1]


# ---- the command


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def saved(result: Result, name: str) -> str:
    Path(name).write_text(result.to_json())
    return name


def tpusim(*arguments: str) -> Done:
    return CliRunner().invoke(cli.app, ["compare", *arguments])


def table_of(text: str) -> list[str]:
    """The names in the table of layers, in order."""
    names = [line.split()[0] for line in text.splitlines() if line.split()]
    return [name for name in names if name in {"first", "second", "third"}]


def test_the_words(desk: Path) -> None:
    before = run(check=True)
    after = replace(slowed(run(hardware=machine(4, 4, bytes_per_cycle=7)), third=9), engine="both")
    done = tpusim(saved(before, "a.json"), saved(after, "b.json"))
    assert done.exit_code == 0
    text = " ".join(done.stdout.split())
    assert "hbm.bandwidth 64 GB/s 7 GB/s" in text
    assert "engine event both" in text
    assert f"Total: {before.total.cycles:,} -> {after.total.cycles:,} cycles" in text
    assert "A: Every output checked" in text
    assert "B: Outputs not checked" in text
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_orders(desk: Path) -> None:
    before = run()
    cycles = {layer.name: layer.cycles for layer in before.layers}
    after = slowed(before, first=0.9, third=1 + 2 * cycles["first"] / cycles["third"])
    files = saved(before, "a.json"), saved(after, "b.json")
    assert table_of(tpusim(*files).stdout) == ["third", "first"]
    assert "1 of 3 layers take the same cycles" in tpusim(*files).stdout
    assert table_of(tpusim(*files, "--sort", "ratio").stdout) == ["first", "third"]
    assert table_of(tpusim(*files, "--sort", "network").stdout) == ["first", "second", "third"]


def test_the_same_run_in_a_directory(desk: Path) -> None:
    Path("run").mkdir()
    saved(run(), "run/run.json")
    done = tpusim("run", "run/run.json")
    assert done.exit_code == 0
    assert "Nothing differs in what was asked." in done.stdout
    assert "Every layer takes the same cycles." in done.stdout


def test_numbers_of_another_type(desk: Path) -> None:
    whole, real = run(), replace(run(), dtype="bf16", sums="array")
    assert compared_results(whole, real).changes == (
        Change("dtype", "integers", "bf16"),
        Change("sums", "any", "array"),
    )
    heads = " ".join(tpusim(saved(whole, "a.json"), saved(real, "b.json")).stdout.split())
    assert "event engine, bf16, seed 0" in heads


def test_another_batch_and_clock(desk: Path) -> None:
    faster = machine(4, 4).with_overrides(["clock=2 GHz"])
    before, after = run(), run(hardware=faster, batch=4)
    done = tpusim(saved(before, "a.json"), saved(after, "b.json"), "--sort", "network")
    per_image = after.total.time_us / 4 / (before.total.time_us / 2)
    assert f"(x {per_image:.3f})" in done.stdout.split("Per image")[1]
    heads = " ".join(done.stdout.split())
    assert "time MAC" in heads
    first = after.layers[0].time_us / before.layers[0].time_us
    assert f" {first:.3f} " in done.stdout


def test_one_image_is_compared_with_several_by_the_image(desk: Path) -> None:
    before, after = run(batch=1), run(batch=4)
    told = tpusim(saved(before, "a.json"), saved(after, "b.json")).stdout
    assert f"(x {after.total.time_us / 4 / before.total.time_us:.3f})" in told.split("Per image")[1]


def test_layers_that_take_the_same_are_counted(desk: Path) -> None:
    before = run()
    told = " ".join(tpusim(saved(before, "a.json"), saved(slowed(before, first=4), "b.json")).stdout.split())
    assert "2 of 3 layers take the same cycles (--sort network shows them)." in told
    same = " ".join(tpusim(saved(before, "c.json"), saved(before, "d.json")).stdout.split())
    assert "Every layer takes the same cycles." in same


def test_no_layer_in_common(desk: Path) -> None:
    done = tpusim(saved(run(LAYERS[0]), "a.json"), saved(run(LAYERS[1]), "b.json"))
    assert done.exit_code == 0
    assert table_of(done.stdout) == ["first", "second"]
    assert "no layer in common" in done.stdout
    assert "Geometric" not in done.stdout


def test_wrong_outputs_are_said(desk: Path) -> None:
    good = run(check=True)
    layer = replace(good.layers[0], outputs_mismatched=3)
    wrong = replace(good, layers=(layer, *good.layers[1:]), total=replace(good.total, outputs_mismatched=3))
    done = tpusim(saved(good, "a.json"), saved(wrong, "b.json"))
    assert done.exit_code == 0
    text = " ".join(done.stdout.split())
    assert "WRONG: layer first: 3 of" in text.split("B: Every output")[1]


def test_the_json(desk: Path) -> None:
    before = run()
    after = slowed(before, first=2)
    files = saved(before, "a.json"), saved(after, "b.json")
    done = tpusim(*files, "--json", "-")
    data: dict[str, Any] = json.loads(done.stdout)
    assert data["changes"] == []
    assert data["layers"][0]["ratio"] == 2
    assert data["layers"][0]["cycles"] == [layer.cycles for layer in (before.layers[0], after.layers[0])]
    assert data["total"]["ratio"] == after.total.cycles / before.total.cycles
    assert data["outputs"][0] == {"outputs": before.total.outputs, "checked": 0, "mismatched": 0, "correct": None}
    assert "first" in done.stderr
    assert tpusim(*files, "--json", "out.json").exit_code == 0
    assert json.loads(Path("out.json").read_text()) == data


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.json", "missing.json"], "missing.json: no such file"),
        (["a.json", "other.json"], "other.json: not a tpusim result"),
        (["a.json"], "a.json: name another result to compare it with"),
        (["a.json", "a.json", "--sort", "chang"], "did you mean change"),
        (["a.json", "a.json", "--json", "missing/c.json"], "missing/c.json: cannot be written"),
        (["a.json", "empty"], "run.json: no such file"),
    ],
)
def test_bad_input(arguments: list[str], message: str, desk: Path) -> None:
    saved(run(), "a.json")
    Path("other.json").write_text("{}")
    Path("empty").mkdir()
    done = tpusim(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert sorted(path.name for path in desk.rglob("*")) == ["a.json", "empty", "other.json"]


def test_numbers_that_no_run_gives(desk: Path) -> None:
    """A file edited by hand: no work, no batch, no machine."""
    result = run()
    none: dict[str, Any] = {"macs": 0, "tflops": 0.0, "pe_utilization": 0.0, "ideal_cycles": 0, "energy_use": None}
    layers = tuple(replace(layer, **none) for layer in result.layers)
    odd = replace(result, batch=0, layers=layers, total=total_of(layers, 0.0))
    data = json.loads(json.dumps(asdict(odd)))
    Path("odd.json").write_text(json.dumps({**data, "hardware": {"name": [1], "clock": None}}))
    for files in (["odd.json", saved(result, "a.json")], ["a.json", "odd.json"], ["odd.json", "odd.json"]):
        assert tpusim(*files, "--json", "c.json").exit_code == 0


@cache
def fused_and_not(*more: str) -> tuple[Result, Result]:
    """A residual block, layer by layer, and with what may ride on its convolutions."""
    a, b = Conv2d("a", 8, 6, 6, 8, (1, 1)), Conv2d("b", 8, 6, 6, 8, (1, 1))
    layers = (
        a,
        Relu("relu", 8, 6, 6),
        b,
        Add("sum", 8, 6, 6),
        Relu("last", 8, 6, 6),
        Pool2d("p", "max", 8, 6, 6, (1, 1)),
    )
    edges = {"relu": ["a"], "b": ["relu"], "sum": ["b", "relu"], "last": ["sum"], "p": ["last"]}
    work = Workload("net", 2, layers, edges=edges)  # type: ignore[arg-type]
    hardware = machine(4, 4, alus=16)
    fusing = hardware.with_overrides(["sequencer.fusion=results", *more])
    return simulate(work, hardware, check=False), simulate(work, fusing, check=False)


def test_what_rides_in_one_is_a_row_with_what_carries_it() -> None:
    apart, together = fused_and_not()
    for compared in (compared_results(apart, together), compared_results(together, apart)):
        assert [(row.name, row.layers) for row in compared.rows] == [("a", 2), ("b", 3), ("p", 1)]
        assert compared.same_work
        assert compared.rewired == {}
        change = sum(row.difference for row in compared.rows)
        assert change == compared.after.total.cycles - compared.before.total.cycles
    cycles = {layer.name: layer.cycles for layer in apart.layers}
    told = {layer["name"]: layer for layer in data_of(compared_results(apart, together))["layers"]}
    assert told["b"]["layers"] == 3
    assert told["b"]["cycles"][0] == cycles["b"] + cycles["sum"] + cycles["last"]
    assert [row.layers for row in compared_results(together, together).rows] == [1, 1, 1]


def test_layers_that_ride_on_different_ones_are_a_row() -> None:
    """What carries it in one is by itself in the other."""
    _, together = fused_and_not()
    by_name = {layer.name: layer for layer in together.layers}
    other = replace(by_name["b"], riders=("last",)), replace(by_name["a"], riders=("relu", "sum"))
    compared = compared_results(together, replace(together, layers=(*other, by_name["p"])))
    assert [(row.name, row.layers) for row in compared.rows] == [("a", 2), ("p", 1)]


def test_what_fusion_and_residency_save_is_told() -> None:
    apart, together = fused_and_not("sequencer.between_layers=stay")
    compared = compared_results(apart, together)
    assert "\nHBM traffic " in said(totals(compared))
    assert "; energy, a model, " in said(totals(compared))
    told = verdicts(compared).lines
    assert told[1] == "B: 3 layers ride on the results of 2."
    assert [line.partition(": ")[2][:7] for line in told[2:4]] == ["Layers ", "Outputs"]
    assert "+1: with a layer that rides" in text_of(layer_table(compared, "change").legend())
    assert "HBM" not in said(totals(compared_results(apart, apart)))


@pytest.mark.parametrize("name", ["tpu_v2", "tpu_v6e"])
def test_how_hbm_has_weights_is_told_as_a_change(name: str) -> None:
    """Also where other ops ride on the products."""
    kinds = {"computed": {}, "int8": {"int8": 5}}
    results, small = [], {"layers": 1, "context": 8, "vocabulary": 500, "inner": 300}
    for weights, expected in kinds.items():
        work = load_workload("gpt2_small", batch=1, phase="decode", dims=small, weights=weights)
        results.append(simulate(work, load_hardware(name, "mapping.search=estimate"), check=False))
        assert results[-1].narrow == expected
        assert parse_result(results[-1].to_json()) == results[-1]
    changes = compared_results(*results).changes
    assert [(each.name, each.before, each.after) for each in changes] == [("layers of int8 in HBM", None, 5)]
