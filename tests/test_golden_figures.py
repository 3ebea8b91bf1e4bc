"""Nothing published moves unseen: every figure of the shipped networks, of `validate` and of a sweep, as goldens.

A line a run: what it is, the totals that people quote, and a digest of every figure of every layer.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from itertools import product
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.conftest import GOLDEN
from tpusim import load_hardware, load_workload, simulate
from tpusim.cli import app as cli
from tpusim.result.records import DramUse, EnergyUse
from tpusim.study.validation.comparison import Comparison

NETWORKS = (
    "alexnet", "densenet121", "gemm_suite", "googlenet", "resnet18", "resnet50", "vgg16", "yolov2", "zfnet",
)  # fmt: skip
UNTRANSFORMED = (
    "intermediates_checked", "intermediates_mismatched", "lowered_bytes", "transformation_cycles",
    "transformation_share", "hidden_cycles", "hbm_saved_bytes",
)  # fmt: skip
"""What these runs have none of."""
HEADER = "network batch: cycles, passes, HBM bytes read, written, words read, written, peak, digest of everything"


def published(network: str, batch: int, machine: str) -> str:
    """The line of one run, layer by layer."""
    work = load_workload(network, batch=batch, ops="array")
    result = simulate(work, load_hardware(machine, {"sequencer.fusion": "none"}), check=False).to_dict()
    total, layers = result["total"], result["layers"]
    del total["wall_seconds"]
    assert {layer.pop("lowering") for layer in layers} == {"channel_first"}
    for layer in layers:
        del layer["inputs"]
        assert not layer.pop("apart")
    for record in (total, *layers):
        # A constant of the machine, for each layer.
        del record["launch_cycles"]
        for key in UNTRANSFORMED:
            assert record.pop(key) == 0
        assert record.pop("dram") is None
        assert record.pop("error_share") is None
        assert record.pop("residency", None) is None
        # Of their own, in tests/technology: the digests are older.
        assert record.pop("energy_use")["energy"] > 0
    for each in (total, *layers):
        # The digests are older than banks, which these machines do not have, and than vector steps.
        splits = (each["stall_cycles"], *each["units"].values())
        assert not any(split.pop(cause, 0) for split in splits for cause in ("bank_conflict", "vector_work"))
    memory = total["vector_memory"]
    told = (total["cycles"], total["passes"], total["hbm_read_bytes"], total["hbm_write_bytes"])
    told += (memory["reads"], memory["writes"], memory["peak_bytes"])
    digest = sha256(json.dumps([total, layers], sort_keys=True).encode()).hexdigest()[:16]
    return f"{network} {batch}: {', '.join(map(str, told))}, {digest}"


def run(*words: str) -> None:
    """A command of tpusim that must succeed."""
    done = CliRunner().invoke(cli.app, words)
    assert done.exit_code == 0, done.output


@pytest.mark.long
@pytest.mark.parametrize("machine", ["tpu_v2", "tpu_v2_core", "tpu_v3_core"])
def test_every_figure_of_every_layer(machine: str, golden: Callable[[str, str], None]) -> None:
    lines = [published(network, batch, machine) for batch in (1, 8) for network in NETWORKS]
    golden(f"networks_{machine}.txt", "\n".join((HEADER, *lines, "")))


WHOLE = tuple((each, 8) for each in ("gemm_suite", "resnet50"))
CORES = (("alexnet", 1), ("resnet18", 8))
"""The cores lower as the machine of the paper does: large kernels, small ones, and batches of one are
enough. AlexNet on the paper's machine is what the README shows."""


@pytest.mark.parametrize(
    ("machine", "networks"),
    [
        ("tpu_v2", WHOLE),
        ("tpu_v2_core", CORES),
        ("tpu_v3_core", CORES[:1]),
    ],
)
def test_every_figure_of_some_networks(machine: str, networks: tuple[tuple[str, int], ...]) -> None:
    lines = (GOLDEN / f"networks_{machine}.txt").read_text().splitlines()
    for network, batch in networks:
        assert published(network, batch, machine) in lines


OTHERS = (
    ("channel_last", "tpu_v2", ()), ("explicit", "tpu_v2", ()),
    ("explicit", "tpu_v2", ("mapping.transformation=before",)),
    ("explicit", "tpu_v2", ("mapping.transformation=on_chip",)), ("implicit_gemm", "tpu_v2", ()),
    ("implicit_gemm", "tpu_v2", ("mapping.fetch=per_tap",)), ("indirect", "tpu_v2", ()),
    ("channel_first", "tpu_v2_banked", ()), ("channel_last", "tpu_v2_banked", ()),
    ("channel_last", "tpu_v2_banked", ("vector_memory.bank_map=chw",)),
)  # fmt: skip
"""The last takes as long as all others, and is held against banks one by one in tests/agreement, too."""


OF_GROUPS = ("mobilenet_v2", "resnext50_32x4d")
"""Networks of grouped layers, and so those that block_diagonal is for."""


LAYERS = {
    "alexnet": ("conv2", "conv5"), "resnet50": ("layer3.0.conv2",),
    "mobilenet_v2": ("features.2.conv.0.0", "features.2.conv.1.0"), "resnext50_32x4d": ("layer1.0.conv2",),
}  # fmt: skip
"""Layers of large kernels, of small ones and of groups, all of them quick in every way."""


@pytest.mark.parametrize(
    "networks",
    [
        pytest.param(("alexnet", *OF_GROUPS), id="large", marks=pytest.mark.long),
        pytest.param(("resnet50",), id="small", marks=pytest.mark.long),
    ],
)
def test_totals_of_every_other_lowering(networks: tuple[str, ...], golden: Callable[[str, str], None]) -> None:
    """On one network of large kernels and one of small; the README's and docs/decisions.md's figures hang on them."""
    golden(f"lowerings_{networks[0]}.txt", totals_of_others(networks, {}))


@pytest.mark.long
def test_totals_of_some_layers_by_every_other_lowering(golden: Callable[[str, str], None]) -> None:
    golden("lowerings_of_layers.txt", totals_of_others([*LAYERS], LAYERS))


def test_totals_of_few_layers_by_every_other_lowering() -> None:
    known = (GOLDEN / "lowerings_of_layers.txt").read_text().splitlines()
    assert {*totals_of_others(("resnet50", "mobilenet_v2"), LAYERS, OTHERS[:-1]).splitlines()} <= {*known}


def totals_of_others(
    networks: Sequence[str],
    layers: Mapping[str, Sequence[str]],
    others: Sequence[tuple[str, str, tuple[str, ...]]] = OTHERS,
) -> str:
    """The golden of networks, or of some layers of them, by every lowering but the one that is usual."""
    of_groups = [("block_diagonal", "tpu_v2", ())]
    asked = [(network, *each) for network in networks for each in (of_groups if network in OF_GROUPS else others)]
    lines = ["network lowering machine: cycles, passes, HBM bytes read, written, words read, written, bank conflict"]
    for network, lowering, machine, changes in asked:
        hardware, work = load_hardware(machine, [*changes]), load_workload(network, batch=8)
        if kept := layers.get(network):
            work = work.with_layers(lambda layer, kept=kept: layer.name in kept)
        total = simulate(work, hardware, lowering=lowering, check=False).total
        told = total.cycles, total.passes, total.hbm_read_bytes, total.hbm_write_bytes
        told += total.vector_memory.reads, total.vector_memory.writes, total.stall_cycles["bank_conflict"]
        lines.append(f"{' '.join((network, lowering, machine, *changes))}: {', '.join(map(str, told))}")
    return "\n".join((*lines, ""))


@pytest.mark.long
def test_totals_of_transposed_convolutions(golden: Callable[[str, str], None]) -> None:
    golden("transposed_convolutions.txt", "\n".join((*totals_of_transposed("dcgan", "unet"), "")))


def test_totals_of_some_transposed_convolutions() -> None:
    """Of kernels that overlap; those of the other network lie side by side, and are lowered alike."""
    assert {*totals_of_transposed("dcgan")} <= {*(GOLDEN / "transposed_convolutions.txt").read_text().splitlines()}


def totals_of_transposed(*networks: str) -> list[str]:
    """Lines of the golden: its head, and one for each network, lowering and machine."""
    lines = ["network lowering machine: cycles, passes, HBM bytes read, written, words read, written"]
    for network in networks:
        work = load_workload(network, batch=8).with_layers(lambda layer: layer.op == "conv_transpose2d")
        for lowering, machine in product(("stride_phases", "zero_insertion"), ("tpu_v2", "tpu_v2_core")):
            total = simulate(work, load_hardware(machine), lowering=lowering, check=False).total
            told = total.cycles, total.passes, total.hbm_read_bytes, total.hbm_write_bytes
            told += total.vector_memory.reads, total.vector_memory.writes
            lines.append(f"{network} {lowering} {machine}: {', '.join(map(str, told))}")
    return lines


@pytest.mark.long
def test_totals_of_deformable_convolutions(golden: Callable[[str, str], None]) -> None:
    golden("deformable_convolutions.txt", "\n".join((*totals_of_deformable("tpu_v2", "tpu_v2_core"), "")))


def test_totals_of_a_deformable_convolution(golden: Callable[[str, str], None]) -> None:
    """Of one image, which takes less than half of the passes of eight."""
    golden("deformable_convolution.txt", "\n".join((*totals_of_deformable("tpu_v2", batch=1), "")))


def totals_of_deformable(*machines: str, batch: int = 8) -> list[str]:
    """Lines of the golden: its head, and one for each machine."""
    lines = ["layer machine: cycles, passes, HBM bytes read, written, words read, written, gathering"]
    work = load_workload("dcn_res5", batch=batch).with_layers(lambda layer: layer.name == "res5a_branch2b")
    for machine in machines:
        total = simulate(work, load_hardware(machine), check=False).total
        told = total.cycles, total.passes, total.hbm_read_bytes, total.hbm_write_bytes
        told += total.vector_memory.reads, total.vector_memory.writes, total.stall_cycles["vector_work"]
        lines.append(f"res5a_branch2b {machine}: {', '.join(map(str, told))}")
    return lines


@pytest.mark.long
@pytest.mark.xdist_group("comparisons")
def test_every_row_of_validate(golden: Callable[[str, str], None], comparisons: dict[str, Comparison]) -> None:
    golden("validate.txt", "\n".join((*rows_of(comparisons), "")))


@pytest.mark.xdist_group("quick comparisons")
def test_every_row_of_the_quick_sets(quick_comparisons: dict[str, Comparison]) -> None:
    known = {*(GOLDEN / "validate.txt").read_text().splitlines()}
    assert [line for line in rows_of(quick_comparisons) if line not in known] == []


def rows_of(comparisons: Mapping[str, Comparison]) -> list[str]:
    """A line a case."""
    return [f"{name} {row.name}: {row.ours:.10g}" for name, each in comparisons.items() for row in each.rows]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.long
def test_every_row_of_a_sweep(golden: Callable[[str, str], None], tmp_path: Path) -> None:
    run("sweep", "word_size", "--out", str(tmp_path), "--workers", "1")
    with (tmp_path / "points.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    # The golden is older than banks of HBM, which this machine does not have, and than areas and energies.
    of_dram = {at for at, key in enumerate(head) if key in DramUse.__dataclass_fields__}
    assert {float(row[at]) for row in rows for at in of_dram} == {0.0}
    later = of_dram | {at for at, key in enumerate(head) if key in ("area", *EnergyUse.__dataclass_fields__)}
    kept = ([cell for at, cell in enumerate(row) if at not in later] for row in (head, *rows))
    golden("sweep_word_size.txt", "".join(f"{', '.join(row)}\n" for row in kept))
