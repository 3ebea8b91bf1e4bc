"""What a run takes for layers of several groups when nobody says how they are to be lowered."""

from __future__ import annotations

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from tests.strategies import conv
from tpusim import load_hardware, load_workload, simulate
from tpusim.cli import app as cli
from tpusim.flow.lowerings import with_usual_lowerings
from tpusim.network.workload import Workload

DEPTHWISE = replace(conv(96, 28, 96, 3, padding=1, groups=96), name="depthwise")
GROUPED = replace(conv(128, 14, 128, 3, padding=1, groups=32), name="grouped")
PLAIN = replace(conv(64, 14, 64, 3, padding=1), name="plain")
WIDE = replace(conv(512, 7, 512, 1, groups=2), name="wide")
NETWORK = Workload("net", 8, (DEPTHWISE, GROUPED, PLAIN, WIDE))


def test_layers_of_several_groups_get_lowerings_of_their_own() -> None:
    """But one for which no two groups fit side by side: that is channel_first by any name."""
    own = {each.layer: each.lowering for each in with_usual_lowerings(NETWORK, load_hardware("tpu_v2")).lowerings}
    assert set(own) == {"depthwise", "grouped"}
    assert own["grouped"] == "block_diagonal"
    assert own["depthwise"] in ("block_diagonal", "vector")


@pytest.mark.parametrize("layer", [DEPTHWISE, GROUPED], ids=lambda layer: layer.name)
def test_what_is_taken_unasked_is_near_the_fastest(layer: object) -> None:
    work, hardware = Workload("net", 8, (layer,)), load_hardware("tpu_v2")  # type: ignore[arg-type]
    names = "channel_first", "block_diagonal", *(["vector"] if layer is DEPTHWISE else [])
    cycles = {name: simulate(work, hardware, lowering=name, check=False).total.cycles for name in names}
    unasked = simulate(work, hardware, check=False)
    assert unasked.total.cycles <= 1.1 * min(cycles.values())
    assert unasked.layers[0].lowering != "channel_first"
    assert simulate(work, hardware, lowering="channel_first", check=False).layers[0].lowering == "channel_first"


def test_what_a_file_or_a_run_names_is_taken() -> None:
    hardware = load_hardware("tpu_v2")
    named = Workload("net", 8, (DEPTHWISE,), lowerings={"depthwise": "channel_first"})  # type: ignore[arg-type]
    assert with_usual_lowerings(named, hardware) == named
    plain = Workload("net", 8, (PLAIN, WIDE))
    assert with_usual_lowerings(plain, hardware) is plain
    gpu = load_hardware("v100")
    assert with_usual_lowerings(NETWORK, gpu) is NETWORK


def test_where_the_vector_unit_cannot_another_does() -> None:
    """Banks are no lanes, which the vector unit reads from."""
    own = with_usual_lowerings(NETWORK, load_hardware("tpu_v2_banked")).lowerings
    assert {each.lowering for each in own} == {"block_diagonal"}


def test_the_screen_says_so() -> None:
    words = ["run", "mobilenet_v2", "--layers", "features.[23].*", "--batch", "1", "--no-check"]
    words += ["--set", "mapping.search=estimate"]
    shown, asked = (CliRunner().invoke(cli.app, [*words, *more]) for more in ([], ["--lowering", "block_diagonal"]))
    assert (
        "2 layers of several groups go by the lowering that the estimate prefers; --lowering channel_first gives"
        in shown.stdout
    )
    assert "estimate prefers" not in asked.stdout


def test_networks_without_groups_stay() -> None:
    work = load_workload("resnet18", batch=1)
    assert with_usual_lowerings(work, load_hardware("tpu_v2")) is work
