"""What figures are of: one chip's share of a network, one core of a chip, or the paper's machine that nobody named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cli.test_screens import LISTED, SHIPPED
from tests.covering import covering, few
from tests.network.test_composites import SMALL
from tpusim import Conv2d, Gemm, Hardware, Workload, load_hardware, load_workload, simulate
from tpusim.api import asked
from tpusim.api.asked import _NOT_OF_THE_PAPER
from tpusim.base.errors import InputError
from tpusim.cli import app as cli
from tpusim.cli.actions import inputs
from tpusim.cli.actions.inputs import tell_unasked
from tpusim.input.document import Document
from tpusim.input.source import shipped
from tpusim.machines.tpu.program.operations import OPERATIONS, Arity
from tpusim.network.ops import OPS
from tpusim.network.workload_file import described, open_workload
from tpusim.report.tables.hardware import part_notice
from tpusim.report.tables.sentences import heading
from tpusim.result.notebook import html_of
from tpusim.study.sweep.points import load_sweep

NOTICE = "This is one chip's share of 4: what the chips exchange takes no time here."
SHARE = "one chip's share of 4"
QUICK = ("--hardware", "tiny_4x4", "--set", "mapping.search=estimate")


@pytest.fixture(autouse=True)
def in_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    growing = SMALL.replace("layers:\n  - block", "grows: context\nlayers:\n  - block", 1)
    Path("whole.yaml").write_text(growing)
    Path("share.yaml").write_text(growing.replace("grows:", "chips: 4\ngrows:", 1))


def shown(*words: str) -> str:
    done = CliRunner().invoke(cli.app, words, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


# ---- one chip's share of a network


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("file", "says"), few(1, [("share.yaml", True), ("whole.yaml", False)]))
def test_a_share_is_told_beside_every_figure(file: str, says: bool) -> None:
    asked = ("run", file, "--phase", "decode", "--batch", "1", "--no-check", "--layers", "query_*", *QUICK)
    screen = shown(*asked, "--out", "made")
    assert ((NOTICE in screen), (f", {SHARE}, on tiny_4x4" in screen)) == (says, says)
    held = json.loads(Path("made/run.json").read_text())
    assert (held.get("chips"), held.get("notes")) == ((4, [NOTICE]) if says else (None, None))
    shown("report", "made")
    page = Path("made/report.html").read_text()
    assert [NOTICE.replace("'", quote) in page for quote in ("'", "&#x27;")] == [says, says]
    assert (SHARE.replace("'", "&#x27;") in page.partition("<title>")[2].partition("</title>")[0]) == says
    shown("plot", "made", "--format", "svg")
    assert (SHARE in Path("made/captions.txt").read_text()) == says
    assert (SHARE in shown("compare", "made", "made")) == says
    why = ("explain", file, "--phase", "decode", "--batch", "1", "--layer", "query_1", *QUICK)
    assert (f"query_1, batch 1, {SHARE}, on tiny_4x4" in shown(*why)) == says
    shown("trace", file, "--phase", "decode", "--batch", "1", "--layers", "query_1", *QUICK, "-o", "made.json")
    assert (SHARE in Path("made.json").read_text()) == says
    Path("sweep.yaml").write_text(f"workloads: {file}\nhardware: tiny_4x4\naxes: {{batch: [1]}}\n")
    assert any(NOTICE in note for note in load_sweep("sweep.yaml").notes) == says


@pytest.mark.parametrize(("file", "says"), few(1, [("share.yaml", True), ("whole.yaml", False)]))
def test_a_share_is_told_beside_tokens_a_second(file: str, says: bool) -> None:
    asked = ("run", file, "--phase", "decode", "--tokens", "2", *QUICK, "--out", "made")
    screen = shown(*asked)
    assert (f"of each sequence. {NOTICE}" in screen) == says
    assert (SHARE in screen.partition("tokens of each sequence")[0]) == says
    held = json.loads(Path("made/generation.json").read_text())
    assert (held["chips"], held.get("notes")) == ((4, [NOTICE]) if says else (1, None))
    assert ("one chip&#x27;s share of 4" in Path("made/report.html").read_text()) == says
    assert (SHARE in Path("made/captions.txt").read_text()) == says
    assert any(SHARE in picture.read_text() for picture in Path("made").glob("*.svg")) == says


@LISTED
def test_python_tells_a_share_and_the_shipped_one_is_listed() -> None:
    work = load_workload("share.yaml", batch=1)
    assert work.chips == 4
    result = simulate(work, load_hardware("tiny_4x4", "mapping.search=estimate"), check=False)
    assert SHARE in html_of(result).replace("&#x27;", "'")
    assert {SHIPPED(name, batch=1).chips for name in shipped("workloads")} == {1}


@pytest.mark.parametrize("chips", ["0", "2.5", "many", "true"])
def test_a_share_of_no_number_is_refused(chips: str) -> None:
    Path("bad.yaml").write_text(SMALL.replace("layers:\n  - block", f"chips: {chips}\nlayers:\n  - block", 1))
    with pytest.raises(InputError, match=r"chips: .* whole number"):
        load_workload("bad.yaml")


# ---- one core of a chip

PAIRS = [(name, f"{name}_core") for name in ("tpu_v4", "tpu_v5p", "tpu_v7x")]


def tpu(name: str) -> Hardware:
    machine = load_hardware(name)
    assert isinstance(machine, Hardware)
    return machine


@pytest.mark.parametrize(("chip", "core"), PAIRS)
def test_a_chip_is_twice_its_core(chip: str, core: str) -> None:
    both, one = tpu(chip), tpu(core)
    assert (both.chip_cores, one.chip_cores) == (1, 2)
    for of in (
        lambda each: each.macs_per_cycle,
        lambda each: each.sram_bytes,
        lambda each: each.vector_unit.alus,
        lambda each: each.vector_unit.slots.loads,
        lambda each: each.vector_unit.slots.stores,
        lambda each: each.hbm.capacity_bytes,
        lambda each: each.mapping.window_bytes,
    ):
        assert of(both) == 2 * of(one)
    # A published 2,765 GB/s is odd.
    assert both.hbm_bytes_per_s // 10**9 // 2 == one.hbm_bytes_per_s // 10**9
    assert (both.clock_hz, both.generation) == (one.clock_hz, one.generation)
    for name, kind in one.types:
        # Windows are those of both; each converts what it reads, and half of the results.
        shared = kind and {"window_bytes": kind.window_bytes and 2 * kind.window_bytes,
                           "convert_result_cycles": kind.convert_result_cycles / 2}  # fmt: skip
        assert getattr(both.types, name) == (kind and kind.model_copy(update=shared))


@pytest.mark.parametrize("name", [name for name in shipped("configs") if "_core" in name or name == "tpu_v2_estimator"])
def test_every_core_says_so(name: str) -> None:
    machine = tpu(name)
    assert machine.chip_cores == 2
    result = simulate(Workload("one", 1, [Gemm("g", m=1, n=8, k=8)]), machine, check=False)
    assert heading(result).endswith("FLOPS, one of the 2 cores of a chip")
    assert json.loads(result.to_json())["notes"] == [f"{name} is one of the 2 cores of a chip."]
    assert part_notice([machine]) == ""
    assert part_notice([machine, tpu("tpu_v6e")]) == f"One core of a chip, and no whole one: {name} (of 2)."


def test_no_whole_machine_does() -> None:
    assert "core" not in heading(simulate(load_workload("tiny", batch=2), load_hardware("tiny_4x4"), check=False))
    whole = [name for name in shipped("configs") if getattr(load_hardware(name), "chip_cores", 1) == 1]
    assert {"tpu_v2", "tpu_v4", "tpu_v5e", "tpu_v5p", "tpu_v6e", "tpu_v7x", "a100"} <= {*whole}


def test_the_chip_of_7x_runs_in_both_engines() -> None:
    layers = [
        Conv2d("conv", in_channels=64, in_height=4, in_width=4, out_channels=96, kernel=3, padding=1),
        Gemm("product", m=8, n=512, k=300),
    ]
    chip, core = tpu("tpu_v7x"), tpu("tpu_v7x_core")
    result = simulate(Workload("small", 2, layers), chip, engine="both")
    assert result.correct
    large = Workload("large", 1, [Gemm("product", m=4096, n=4096, k=4096)])
    times = [simulate(large, each, check=False).total.cycles for each in (chip, core)]
    assert 1.8 < times[1] / times[0] <= 2


# ---- the machine that nobody named

ACTS = "name: acts\nlayers:\n  - {name: one, op: sigmoid, channels: 8, height: 2, width: 2}\n"
ENDS = (
    "name: ends\nlayers:\n  - {name: fc, op: gemm, m: 2, n: 8, k: 8}\n"
    "  - {name: last, op: softmax, channels: 8, images: 2}\n"
)


@pytest.mark.parametrize(
    ("case", "command"),
    covering(
        1,
        [(ACTS, True), (ENDS, False), (SMALL, True)],
        [("run", "--no-check"), ("explain",), ("trace", "-o", "made.json")],
    ),
)
def test_a_network_of_no_convolutions_hears_of_the_paper_s_machine(
    case: tuple[str, bool], command: tuple[str, ...]
) -> None:
    text, says = case
    Path("net.yaml").write_text(text)
    name, *more = command
    if name == "explain":
        layers = load_workload("net.yaml").layers
        more = ["--layer", layers[0].name]
    unasked = ("tpu_v2, the paper's", "--hardware tpu_v6e")
    told = shown(name, "net.yaml", "--batch", "1", "--set", "mapping.search=estimate", *more)
    assert [part in told for part in unasked] == [says, says]
    if says:
        named = (*more, "--hardware", "tpu_v2")
        asked = shown(name, "net.yaml", "--batch", "1", "--set", "mapping.search=estimate", *named)
        assert "the paper's" not in asked


@LISTED
def test_tokens_hear_of_it_and_so_do_shipped_networks_of_language(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("run", "whole.yaml", "--phase", "decode", "--tokens", "2")
    assert "tpu_v2, the paper's" in shown(*asked)
    assert "the paper's" not in shown(*asked, *QUICK)
    heard = set()
    for name in shipped("workloads"):
        tell_unasked(SHIPPED(name, batch=1))
        if capsys.readouterr().err:
            heard.add(name)
    assert heard == {
        "bert_base", "gemma2_9b", "gpt2_small", "llama3_70b", "llama3_8b", "maxtext", "mixtral_8x7b",
        "vit_b16",
    }  # fmt: skip


def test_every_op_that_takes_functions_is_known_for_it() -> None:
    """But divisions and roots, which batch normalisation has as well."""
    taking = {
        name for name, each in OPERATIONS.items() if {*each.functions(Arity(2, 1, 1))} - {"divide", "reciprocal_root"}
    }
    assert taking & {*OPS} <= _NOT_OF_THE_PAPER | {name for name in OPS if name.endswith("_gradient")}
    assert {*OPS} >= _NOT_OF_THE_PAPER


# ---- a batch that nobody gave


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("run", "whole.yaml", "--no-check", "--layers", "query_1"), "batch 3,"),
        (("explain", "whole.yaml", "--layer", "query_1"), "batch 3,"),
        (("trace", "whole.yaml", "--layers", "query_1", "-o", "made.json"), "made.json"),
        (("import", "whole.yaml", "-o", "again.yaml"), "at batch 3"),
    ],
)
def test_every_command_takes_the_batch_that_a_model_is_for(
    command: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function of JAX is for the batch of its arguments; so is a model for that of its arrays."""

    def as_of_three(read: Callable[..., Document]) -> Callable[..., Document]:
        return lambda *given: replace(read(*given), images=3)

    monkeypatch.setattr(asked, "open_workload", as_of_three(open_workload))
    monkeypatch.setattr(inputs, "described", as_of_three(described))
    monkeypatch.setattr(inputs, "is_foreign", lambda _: True)
    name, *words = command
    machine = () if name == "import" else QUICK
    assert says in shown(name, *words, *machine)
    assert says in shown(name, *words, *machine, "--batch", "3")
    if name != "import":
        refused = CliRunner().invoke(cli.app, [name, *words, *machine, "--batch", "8"])
        assert refused.exit_code == 2
        assert re.search("(shapes|layers) are for 3 images", refused.output)
