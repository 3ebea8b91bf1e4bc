"""The machine's HBM: what a network takes of it, by hand and by counting, and networks that it does not hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.strategies import cases
from tpusim import Gemm, Workload, load_hardware, load_workload, simulate
from tpusim.base.errors import CapacityError, InputError
from tpusim.cli import app as cli
from tpusim.flow.hbm_need import UNPADDED, HbmNeed, _between, hbm_need, hbm_use
from tpusim.machines.family import family_of
from tpusim.network.ops.elementwise import Add
from tpusim.network.ops.op import Op
from tpusim.network.workload import Source
from tpusim.result.load import parse_result

TINY = load_hardware("tiny_4x4")
"""Its elements have 4 bytes, and its maps no padding."""
ROW = 4 * 8
"""Bytes of 8 elements, one for each row of the products below."""


def product(name: str, k: int, n: int) -> Gemm:
    return Gemm(name, m=8, n=n, k=k)


def net(*layers: Op, **reads: Any) -> Workload:
    """Layers, and what each reads; without that, what the one ahead makes."""
    return Workload("net", 8, layers, edges=reads)  # type: ignore[arg-type]


CHAIN = product("one", 5, 6), product("two", 6, 7), product("three", 7, 3)
WEIGHTS = 4 * (5 * 6 + 6 * 7 + 7 * 3)


def test_each_layer_reads_what_the_one_ahead_makes_where_nobody_says_more() -> None:
    """Input 8 x 5 and output 8 x 3; 8 x 6 and 8 x 7 are there together while `two` runs."""
    found = HbmNeed(WEIGHTS, ROW * (5 + 3), ROW * (6 + 7), "two")
    assert hbm_need(net(*CHAIN), TINY) == found
    assert hbm_need(net(*CHAIN, one=["image"], two=["one"], three=["two"]), TINY) == found


def test_a_map_is_there_until_its_last_reader() -> None:
    """What `one` makes goes past `two` and `three`, and is added: then it, `three` and the sum are there."""
    layers = *CHAIN[:2], product("three", 7, 6), Add("sum", 6, 1, 1), product("four", 6, 2)
    reads = {"one": ["x"], "two": ["one"], "three": ["two"], "sum": ["three", "one"], "four": ["sum"]}
    found = hbm_need(net(*layers, **reads), TINY)
    assert found == HbmNeed(4 * (30 + 42 + 42 + 12), ROW * (5 + 2), ROW * (6 + 7 + 6), "three")


def test_a_sum_that_takes_no_time_is_one_map_once_it_is_made() -> None:
    """`one`, and behind it `one` + `two`, is 8 x 6; beside it are what `two` reads and makes."""
    layers = product("one", 5, 6), product("mid", 6, 9), product("two", 9, 6), product("three", 6, 4)
    reads = {"one": ["x"], "mid": ["one"], "two": ["mid"], "three": [Source(("two", "one"), direct=False)]}
    found = hbm_need(net(*layers, **reads), TINY)
    assert (found.between, found.at) == (ROW * (6 + 9 + 6), "two")
    joined = {**reads, "three": [Source(("two", "one"))]}
    wide = (*layers[:3], product("three", 12, 400))
    # Side by side both are read; the output counts with inputs and outputs.
    assert hbm_need(net(*wide, **joined), TINY) == HbmNeed(
        4 * (30 + 54 + 54 + 4800), ROW * (5 + 400), ROW * (6 + 9 + 6), "two"
    )


def test_of_a_part_of_a_network_only_that_part_counts() -> None:
    """What layers that are left out make is there while it is read; what they read is no output of the network."""
    whole = net(*CHAIN, one=["x"], two=["one"], three=["two"])
    part = whole.with_layers(lambda layer: layer.name == "two")
    assert hbm_need(part, TINY) == HbmNeed(4 * 42, 0, ROW * (6 + 7), "two")


def test_tensors_are_counted_in_the_tiles_of_the_machine_and_without_them() -> None:
    """Weights, inputs, maps between layers: a product of 8 rows has a tile of 8 x 128 for each of its maps."""
    core, work = load_hardware("tpu_v2_core"), net(*CHAIN)
    tile = 8 * 128 * 2
    # Of the weights of 5 x 6, 6 x 7 and 7 x 3 the last take a tile of four rows.
    assert hbm_need(work, core) == HbmNeed(2 * tile + tile // 2, tile + tile // 2, 2 * tile, "two")
    assert hbm_need(work, core, UNPADDED) == HbmNeed(WEIGHTS // 2, ROW // 2 * (5 + 3), ROW // 2 * (6 + 7), "two")
    use = hbm_use(work, core)
    assert use is not None
    assert (use.need_bytes, use.unpadded_bytes) == (6 * tile, hbm_need(work, core, UNPADDED).total)
    assert sum(use.parts.values()) == use.need_bytes
    assert hbm_use(work, TINY) is None


def test_the_padded_need_is_refused_and_both_are_told() -> None:
    work = net(*CHAIN)
    bare = hbm_need(work, load_hardware("tpu_v2_core"), UNPADDED).total
    machine = load_hardware("tpu_v2_core", {"hbm.capacity": "8 KiB"})
    with pytest.raises(CapacityError) as error:
        simulate(work, machine)
    says = str(error.value)
    assert f"needs 12,288 B of HBM at batch 8 ({bare:,} B without padding), and tpu_v2_core" in says
    assert f"5,120 B ({WEIGHTS // 2:,} B) are weights, 3,072 B (128 B) inputs and outputs, 4,096 B (208 B) maps" in says
    assert simulate(work, load_hardware("tpu_v2_core", {"hbm.capacity": "12 KiB"}), check=False).hbm_use is not None


@pytest.mark.parametrize(("machine", "shown"), [("tpu_v5e", True), ("v100", True), ("tpu_v2", False)])
def test_a_run_tells_both_where_its_machine_says_what_hbm_holds(machine: str, shown: bool) -> None:
    done = CliRunner().invoke(cli.app, ["run", "tiny", "--hardware", machine, "--no-check"])
    assert done.exit_code == 0
    assert ("HBM holds" in done.stdout) == shown
    assert ("unpadded" in done.stdout) == (machine == "tpu_v5e")
    result = simulate(load_workload("tiny"), load_hardware(machine), check=False)
    assert parse_result(result.to_json()).hbm_use == result.hbm_use
    assert ("hbm_use" in result.to_dict()) == shown


@pytest.mark.parametrize(("name", "weights"), [("resnet50", 25_502_912), ("vgg16", 138_344_128)])
def test_weights_are_as_many_as_published(name: str, weights: int) -> None:
    """Without biases and batch normalisation: 25.6 and 138.4 million with them."""
    assert hbm_need(load_workload(name, batch=1), load_hardware("v100")).weights == 2 * weights


def test_operands_of_attention_are_no_weights() -> None:
    """12 layers of 768 x 2304, 768 x 768 and 2 of 768 x 3072, and the scales and shifts of 24 normalisations."""
    found = hbm_need(load_workload("bert_base", batch=1), load_hardware("v100")).weights
    assert found == 2 * (12 * (768 * 2304 + 768 * 768 + 2 * 768 * 3072) + 24 * 2 * 768)


@st.composite
def values(draw: st.DrawFn) -> tuple[dict[tuple[str, ...], tuple[int, int]], dict[str, int]]:
    """Values by their makers: size, last reader; and the bytes of what each layer makes."""
    made = {f"layer{at}": draw(st.integers(1, 9)) for at in range(draw(st.integers(2, 8)))}
    names, found = [*made], dict[tuple[str, ...], tuple[int, int]]()
    for last in range(1, len(names)):
        makers = draw(st.sets(st.sampled_from(names[:last]), max_size=3))
        if makers:
            key = tuple(sorted(makers))
            found[key] = max(draw(st.integers(1, 20)), found.get(key, (0, 0))[0]), last
    return found, made


@settings(max_examples=cases(usual=50))
@given(values())
def test_what_is_there_between_layers_by_counting_value_by_value(
    drawn: tuple[dict[tuple[str, ...], tuple[int, int]], dict[str, int]],
) -> None:
    found, made = drawn
    place = {name: at for at, name in enumerate(made)}
    for at, held in enumerate(_between(found, made, place)):
        so_far: dict[frozenset[str], int] = {}
        for makers, (size, last) in found.items():
            if last >= at and (there := frozenset(name for name in makers if place[name] < at)):
                size_so_far = min(size, sum(made[name] for name in there))
                so_far[there] = max(size_so_far, so_far.get(there, 0))
        assert held == sum(so_far.values())


# ---- networks that do not fit


def with_capacity(size: int) -> Any:
    return load_hardware("tiny_4x4", {"hbm.capacity": f"{size} B"})


def test_a_network_that_just_fits_runs_and_a_byte_less_is_refused() -> None:
    work = net(*CHAIN)
    need = hbm_need(work, TINY)
    assert simulate(work, with_capacity(need.total)).correct
    with pytest.raises(CapacityError) as error:
        simulate(work, with_capacity(need.total - 1))
    (problem,) = error.value.problems
    assert str(problem) == (
        f"network net: needs {need.total:,} B of HBM at batch 8, and tiny_4x4 with hbm.capacity={need.total - 1} B has "
        f"{need.total - 1:,} B: {WEIGHTS:,} B are weights, {ROW * 8:,} B inputs and outputs, {ROW * 13:,} B maps "
        "between layers, while two runs; take a smaller batch, or fewer layers, or a machine that holds more"
    )
    with pytest.raises(CapacityError, match="no batch is small enough; take fewer layers, or a machine that"):
        simulate(work, with_capacity(WEIGHTS - 1))


@pytest.mark.parametrize("machine", ["tpu_v3_core", "v100"])
def test_a_run_is_refused_before_it_begins(machine: str, tmp_path: Path) -> None:
    field = "hbm.capacity" if machine.startswith("tpu") else "dram.capacity"
    words = ["run", "vgg16", "--hardware", machine, "--no-check", "--set", f"{field}=300 MiB"]
    refused = CliRunner().invoke(cli.app, [*words, "--out", str(tmp_path / "out")])
    assert (refused.exit_code, refused.stdout, [*tmp_path.iterdir()]) == (2, "", [])
    assert "network vgg16: needs" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_machine_has_no_more_than_its_dram() -> None:
    with pytest.raises(InputError, match="is 9 GiB, and hbm2_8ch_300 has 8 GiB; write 8 GiB or less"):
        load_hardware("tpu_v2_core_hbm", {"hbm.capacity": "9 GiB"})
    for wrong in ("16", "-1 GiB", "0 B", "2000 GiB"):
        with pytest.raises(InputError, match=r"hbm\.capacity"):
            load_hardware("tpu_v2", {"hbm.capacity": wrong})


def test_a_machine_as_a_result_has_it_keeps_its_capacity() -> None:
    for name in ("tpu_v2", "tpu_v3_core", "v100"):
        machine = load_hardware(name)
        again = type(machine).model_validate(machine.to_dict(), context={"from_yaml": True})  # type: ignore[attr-defined]
        assert again == machine
    assert family_of(TINY).capacity(TINY) is None


@pytest.mark.usefixtures("undrawn")
def test_points_of_a_sweep_that_do_not_fit_are_told_as_others_that_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sweep.yaml").write_text(
        "workloads: [tiny]\nhardware: tiny_4x4\naxes: {hbm.capacity: [1 GiB, 1 KiB], batch: [1, 2]}\n"
    )
    done = CliRunner().invoke(cli.app, ["sweep", "sweep.yaml", "--out", "out", "--workers", "1"])
    assert done.exit_code == 1, done.output
    assert "1 of 4 points failed" in done.output
    rows = Path("out/points.csv").read_text().splitlines()
    assert ["network tiny: needs" in row for row in rows] == [False, False, False, False, True]
    assert rows[-1].startswith("1 KiB,2,tiny,,")
    one, two = (hbm_need(load_workload("tiny", batch=batch), TINY).total for batch in (1, 2))
    assert one <= 1024 < two
