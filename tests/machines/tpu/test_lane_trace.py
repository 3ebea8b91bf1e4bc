"""Fig. 10 and 11 of the paper and the manual's figure, cycle by cycle, on the 4 x 4 machine with words of 2."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from tests import ROOT
from tests.rules import rule
from tests.strategies import machine
from tpusim.cli import app as cli
from tpusim.flow.jobs import resolve
from tpusim.flow.recordings import trace as simulated
from tpusim.flow.verify import expected, operands_of
from tpusim.machines.lowered import LaneCycle
from tpusim.machines.tpu import definition, event
from tpusim.machines.tpu.description import load_hardware
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST
from tpusim.machines.tpu.observation.timeline import Timing, unwatched
from tpusim.machines.tpu.register import RegisterMachine, trace
from tpusim.network.ops.array_op import Conv2d
from tpusim.network.workload_file import load_workload
from tpusim.report.plots.figure import DOTS_PER_INCH
from tpusim.report.plots.layer import draw_trace
from tpusim.report.trace.lanes import LEGEND, lines
from tpusim.result.vocabulary.states import ACCESSES

TIMING = (ROOT / "docs" / "timing.md").read_text()

Golden = Callable[[str, str], None]
FIG_10 = Conv2d("fig10", 4, 3, 3, 4, (1, 1), (1, 1), (0, 0), (1, 1), 1)
"""Tile (1,1) of the 3 x 3 filter: N = 2, C_I = C_O = 4, 3 x 3 outputs, as a 1 x 1 layer of its own."""
FIG_11 = Conv2d("fig11", 2, 3, 4, 4, (1, 2), (1, 1), (0, 0), (1, 1), 1)
"""Tiles (1,1) and (1,2) stacked: C_I = 2, 3 x 3 outputs."""


def traced(layer: Conv2d) -> tuple[list[str], RegisterMachine]:
    hardware = machine(4, 4, word_elements=2, alus=8, bytes_per_cycle=5000, latency_cycles=1)
    program = CHANNEL_FIRST.lower(layer, 2, hardware)[0]
    operands = operands_of(layer, 2, seed=0)
    running = RegisterMachine(program, hardware, operands)
    text = list(lines(trace(running)))
    np.testing.assert_array_equal(running.hbm.tensor("ofmap"), expected(layer, operands))
    return text, running


def ports(text: list[str]) -> list[str]:
    return [line.split()[1] for line in text[len(LEGEND) + 1 :]]


@rule("T5")
def test_fig_10_reads_and_writes_swap_every_cycle(golden: Golden) -> None:
    """In the steady state lanes 1 and 3 read while lanes 2 and 4 write, and swap the cycle after."""
    text, _ = traced(FIG_10)
    golden("fig10.txt", "\n".join(text) + "\n")
    assert ports(text)[25:34] == ["WRWR", "RWRW"] * 4 + ["WRWR"]


def test_the_manual_shows_fig_10_and_the_command_that_prints_it(golden: Golden) -> None:
    """docs/timing.md, section 8: its lines are the golden's, in order."""
    (arguments,) = re.findall(r"`tpusim (trace tiny --layers fig10 [^`]*)`", TIMING)
    shown = CliRunner().invoke(cli.app, shlex.split(arguments))
    assert shown.exit_code == 0, shown.output
    golden("fig10.txt", shown.stdout)
    (block,) = re.findall(r"^```\n(cycle  lanes.*?)^```", TIMING, re.MULTILINE | re.DOTALL)
    printed = [line.split() for line in shown.stdout.splitlines()]
    for part in block.split("...\n"):
        quoted = [line.split() for line in part.splitlines()]
        at = printed.index(quoted[0])
        if quoted[0][0] == "cycle":
            quoted, at = quoted[1:], printed.index(quoted[1])
        assert printed[at : at + len(quoted)] == quoted


@pytest.fixture(scope="module")
def two_passes() -> tuple[Timing, list[LaneCycle]]:
    """What the manual's figure shows."""
    hardware = load_hardware("tiny_4x4")
    jobs = resolve(load_workload("tiny", batch=2), hardware).picked("two_passes")
    timing = event.run(CHANNEL_FIRST.lower(jobs.work.layers[0], 2, hardware)[0], hardware)
    return timing, list(simulated(jobs)[1](0, unwatched))


def test_what_the_manual_says_of_two_passes(two_passes: tuple[Timing, list[LaneCycle]], golden: Golden) -> None:
    """docs/timing.md, section 8: every cycle that the bullets name."""
    timing, cycles = two_passes
    golden("two_passes.txt", "\n".join(lines(cycles)) + "\n")
    lane_0 = "".join(cycle.ports[0] for cycle in cycles)
    at = {letter: [cycle for cycle, other in enumerate(lane_0) if other == letter] for letter in "RPWkfs"}
    moving = [cycle.number for cycle in cycles if cycle.moving]
    assert (at["f"][0], max(cycle for cycle in at["f"] if cycle < at["R"][0])) == (8, 20)
    assert at["k"] == [10, 12, 23, 25]
    assert moving == [*range(11, 21), *range(24, 34)]
    assert at["R"] == [*range(21, 43, 3), *range(48, 70, 3)]
    assert at["W"][:8] == list(range(29, 51, 3))
    assert at["f"][-2:] == [45, 46]
    assert at["P"] == list(range(55, 77, 3))
    assert at["s"][0] > at["W"][-1]
    assert {cycle.working for cycle in cycles[26:45]} == {10, 11}
    array = timing.units["systolic_array"]
    assert (array["starved"], array["port_stall"], array["blocked"]) == (18, 21, 0)
    words = " ".join(TIMING.split())
    for claim in (
        "(8 to 20)", "(k) in 10 and 12", "travel down until 20", "from 21 to 42", "10 or 11 activations", "D_w = 8",
        "from 29 to 50", "(23 to 33)", "in 23 and 25", "(f) in 45 and 46", "from 48 to 69", "(P), from 55 to 76",
    ):  # fmt: skip
        assert claim in words


@pytest.mark.long
def test_the_manuals_figure_is_what_the_command_draws(tmp_path: Path) -> None:
    """Up to a few dots, since fonts differ from one matplotlib to the next."""
    (arguments,) = re.findall(r"`tpusim (trace tiny --layers two_passes [^`]*)two_passes.png`", TIMING)
    drawn = tmp_path / "two_passes.png"
    assert CliRunner().invoke(cli.app, [*shlex.split(arguments), str(drawn)]).exit_code == 0
    one, other = (imread(path) for path in (drawn, ROOT / "docs" / "two_passes.png"))
    assert one.shape == other.shape
    assert np.abs(one - other).mean() < 0.01


def test_pictures_of_one_cycle_and_of_many_lanes(two_passes: tuple[Timing, list[LaneCycle]]) -> None:
    """Whole cycles below, and at least two dots for each lane."""
    _, cycles = two_passes
    figure = draw_trace(cycles[30:31], "one")
    figure.canvas.draw()
    low, high = figure.axes[1].get_xlim()
    assert [tick for tick in figure.axes[1].get_xticks() if low <= tick <= high] == [30]
    many = draw_trace([LaneCycle(0, "R" * 512, 0, 0), LaneCycle(1, "W" * 512, 0, 0)], "many")
    many.canvas.draw()
    assert [each.get_xlabel() for each in many.axes] == ["cycle"], "no PE works"
    assert many.axes[0].get_window_extent().height / many.dpi * DOTS_PER_INCH > 2 * 500


def test_letters_are_in_the_order_of_the_clients_and_each_is_told_apart() -> None:
    words = [access.word for access in ACCESSES.values()]
    assert words == ["free", *definition.CLIENTS[1:7], "fill", "spill", "unused"]
    for told in (
        words,
        [access.meaning for access in ACCESSES.values()],
        [access.tone for access in ACCESSES.values()],
    ):
        assert len(set(told)) == len(ACCESSES)
    assert [letter for letter, access in ACCESSES.items() if not access.meaning] == ["."]


@pytest.mark.parametrize("letter", ["R", "k"])
def test_what_the_array_reads_stands_out_among_fills(letter: str) -> None:
    """In a picture of many cycles a word is a dot wide: weights were light blue on yellow and white."""

    def luminance(tone: str) -> float:
        parts = (int(tone[at : at + 2], 16) / 255 for at in (1, 3, 5))
        return float(np.dot([each**2.2 for each in parts], [0.2126, 0.7152, 0.0722]))

    for other in ".f-":
        light, dark = (luminance(ACCESSES[each].tone) for each in (other, letter))
        assert (light + 0.05) / (dark + 0.05) > 3


def test_fig_11_two_taps_fill_the_array(golden: Golden) -> None:
    """One pass instead of two; every PE works in the steady state."""
    text, running = traced(FIG_11)
    golden("fig11.txt", "\n".join(text) + "\n")
    assert len({stream.rows for stream in running.program.streams}) == 1
    assert running.program.streams[0].rows == 4
    assert len(running.program.streams[0].reads.groups) == 2
