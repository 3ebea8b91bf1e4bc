"""The figures of convolutions in tiles that the documents quote."""

from __future__ import annotations

import runpy
from dataclasses import replace

import pytest

from tests import ROOT
from tests.strategies import conv
from tpusim import load_hardware, simulate
from tpusim.network.workload import Workload
from tpusim.network.workload_file import load_workload
from tpusim.study.sweep.points import load_sweep


@pytest.mark.long
def test_what_floating_point_rounds() -> None:
    script, told = (
        runpy.run_path(str(ROOT / "scripts" / "tile_error")),
        (ROOT / "docs" / "decisions.md").read_text(),
    )
    quoted = " ".join(told.split())
    for formats in script["FORMATS"].values():
        small, large, fourier, larger = (script["error"](by, *formats) for by in script["TILINGS"].values())
        assert f"{small:.1e} and {large:.1e}" in quoted
        assert f"{fourier:.1e}" == f"{larger:.1e}"
        assert f"{fourier:.1e} " in quoted
        assert fourier < small < large / 4


@pytest.mark.parametrize(
    ("channels", "size", "some"),
    [
        (512, 7, slice(1)),
        *(pytest.param(*each, slice(None), marks=pytest.mark.long) for each in ((256, 14), (512, 7))),
    ],
)
def test_who_wins(channels: int, size: int, some: slice) -> None:
    """The row of a layer, or what it begins with: the fewest ALUs."""
    work = Workload("net", 8, (conv(channels, size, channels, 3, padding=1),))

    def cycles(alus: int, lowering: str) -> int:
        hardware = load_hardware("tpu_v2", {"vector_unit.alus": alus})
        return simulate(work, hardware, lowering=lowering, check=False).total.cycles

    sweep = load_sweep("winners")
    first, *tiles = sweep.axes["lowering"]
    gains = (
        cycles(alus, first) / cycles(alus, each) for alus in sweep.axes["vector_unit.alus"][some] for each in tiles
    )
    row = f"| {channels} | {size} | {' | '.join(f'{gain:.2f}' for gain in gains)} |"
    assert row in (ROOT / "docs" / "experiments.md").read_text()


@pytest.mark.long
@pytest.mark.parametrize(("channels", "taps"), [(128, 7)])
def test_who_wins_with_large_kernels(channels: int, taps: int) -> None:
    work, sweep = load_workload("large_kernel", 8), load_sweep("large_kernels")
    layer = replace(work.layers[0], in_channels=channels, out_channels=channels, kernel=(taps, taps))

    def cycles(alus: int, lowering: str) -> int:
        hardware = load_hardware("tpu_v2", {"vector_unit.alus": alus})
        return simulate(Workload("net", 8, (layer,)), hardware, lowering=lowering, check=False).total.cycles

    gains = [cycles(alus, "channel_first") / cycles(alus, "fft") for alus in sweep.axes["vector_unit.alus"]]
    told = (ROOT / "docs" / "experiments.md").read_text()
    (row,) = (line for line in told.splitlines() if line.startswith(f"| {taps}x{taps} | "))
    figures, column = row.strip("| ").split(" | ")[1:], [64, 128, 256, 512].index(channels)
    assert [figures[column], figures[column + 4]] == [f"{gain:.2f}" for gain in gains]
