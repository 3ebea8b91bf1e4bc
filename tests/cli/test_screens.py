"""What a newcomer sees on a terminal of 80 columns, and what a shell completes."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests import ROOT, forked
from tests.conftest import in_this_process
from tpusim.cli import app as cli
from tpusim.cli.actions import hardware
from tpusim.cli.names import ENGINES
from tpusim.cli.visitors import COMMANDS
from tpusim.flow.lowerings import AUTO, glosses
from tpusim.input.source import shipped
from tpusim.machines.tpu.lowering.registry import LOWERINGS
from tpusim.network.workload_file import load_workload

SHAPES = pytest.mark.xdist_group("shapes of layers")
"""The layer is explained once for all of these tests."""
ESTIMATE = ("--set", "mapping.search=estimate")
EXPLAINED = ("explain", "resnet50", "--hardware", "tpu_v2_core", "--batch", "1", *ESTIMATE, "--layer")
PLAIN = re.compile(r"\x1b\[[0-9;]*m")


@cache
def in_terminal(*words: str, columns: int = 80) -> str:
    """What a command shows on a terminal, without its colours; simulated in this process."""
    with pytest.MonkeyPatch.context() as patch:
        in_this_process(patch)
        done = CliRunner().invoke(cli.app, words, env={"COLUMNS": str(columns), **COLOURS}, color=True)
    assert done.exit_code == 0, done.stderr
    return PLAIN.sub("", done.stdout)


COLOURS = {"FORCE_COLOR": "1", "TERM": "xterm"}
SHIPPED = cache(load_workload)
"""Each network that `list` tells of is read once for all of these tests."""
LISTED = pytest.mark.xdist_group("shipped networks")
"""Those tests, in one process."""


@pytest.fixture(autouse=True)
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "load_workload", SHIPPED)


def help_of(*words: str) -> str:
    """What `--help` shows on a terminal."""
    done = CliRunner().invoke(
        cli.app, [*words, "--help"], prog_name="tpusim", env={"COLUMNS": "80", **COLOURS}, color=True
    )
    assert done.exit_code == 0, done.stderr
    return PLAIN.sub("", done.stdout)


def by_itself(*words: str, **more: str) -> str:
    """What a process of its own shows, which has the name that help tells."""
    done = forked.tpusim(*words, more={"COLUMNS": "80", **COLOURS, **more}, folder=ROOT)
    assert done.returncode == 0, done.stderr
    return PLAIN.sub("", done.stdout)


@LISTED
def test_list_fits_and_nothing_is_cut() -> None:
    lines = in_terminal("list").splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if "…" in line]
    for folder in ("workloads", "configs", "configs/dram", "configs/sweeps"):
        # Each name begins a row, with what belongs to it beside it, also where the row goes on below.
        for name in shipped(folder):
            (row,) = (line for line in lines if line.startswith(f"{name} "))
            assert len(row.split()) > 2, row
    (row,) = (line for line in lines if line.startswith("zfnet "))
    assert row.split()[1] == str(len(load_workload("zfnet").layers))
    assert "M. D. Zeiler" in row
    assert "arXiv:1311.2901, Figure 3" in " ".join(" ".join(lines).split())


@LISTED
def test_every_lowering_is_told_in_a_line_or_two_and_where_the_help_says() -> None:
    lines = [line.rstrip() for line in in_terminal("list").splitlines()]
    head = next(
        at for at, line in enumerate(lines) if line.split() == ["lowering", "how", "convolutions", "become", "passes"]
    )
    told = lines[head + 2 : lines.index("", head)]
    names = [line.split()[0] for line in told if not line.startswith(" ")]
    assert (names[0], names[-1], {*names}) == ("channel_first", AUTO, {*LOWERINGS, AUTO})
    assert all(len(gloss) > 20 for _, gloss in glosses())
    for name in ("run", "explain"):
        shown = " ".join(help_of(name).split())
        assert "tpusim list says what each is" in shown
        assert "A layer's own lowering: in the workload file goes before it." in shown


@LISTED
def test_a_list_in_a_pipe_folds_and_loses_no_word() -> None:
    """Citations and axes took lines of 247 characters; a column alone is as wide as what stands in it."""
    lines = CliRunner().invoke(cli.app, ["list"]).stdout.splitlines()
    assert max(map(len, lines)) <= 120
    words = " ".join(" ".join(lines).split())
    assert 'extracted by a deep learning algorithm", Computers in Biology and Medicine 109, 2019' in words
    assert "hbm.layout, layers.conv.stride, layers.conv.in_height, layers.conv.in_width, mapping.fetch" in words


@LISTED
def test_list_names_everything_shipped() -> None:
    lines = in_terminal("list", columns=120)
    for part in (
        "resnet50",
        "54",
        "4.09 G",
        "tpu_v2",
        "128 x 128",
        "700 MHz",
        "256 KiB",
        "700 GB/s",
        "tpusim run",
    ):
        assert part in lines


@LISTED
def test_list_shows_banks_where_there_are_any() -> None:
    lines = in_terminal("list", columns=120).splitlines()
    assert max(map(len, lines)) <= 120
    rows = {line.split()[0]: " ".join(line.split()) for line in lines if line.strip()}
    assert "128 x 128 KiB 128 x 128 KiB 8 x 4 B" in rows["tpu_v2_banked"]
    assert "128 x 256 KiB - 8 x 4 B" in rows["tpu_v2"]


@LISTED
def test_list_has_the_machines_of_a_generation_together_by_year_behind_those_of_no_chip() -> None:
    lines = in_terminal("list", columns=120).splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("hardware "))
    rows = [" ".join(line.split()) for line in lines[first + 2 : lines.index("", first)]]
    names = [row.split()[0] for row in rows]
    assert len(names) == len(set(names))
    assert names[:4] == ["tiny_4x4", "tpu_v2", "tpu_v2_banked", "tpu_v2_hbm"]
    chips = [re.search(r"TPU (\w+), (20\d\d)", row) for row in rows[4:]]
    found = [chip.groups() for chip in chips if chip]
    assert len(found) == len(chips)
    assert list(dict.fromkeys(name for name, _ in found)) == ["v2", "v3", "v4", "v5e", "v5p", "v6e", "7x"]
    assert [year for _, year in found] == sorted(year for _, year in found)
    # What the makers publish of a chip, or half of that of a core; of 7x the peak of the compiler's roofline.
    assert "tpu_v5e TPU v5e, 2023 4 x 128 x 128 1.5 GHz 197 128 x 1 MiB - 8 x 2 B 16 GiB 819 GB/s" in rows
    assert "tpu_v6e TPU v6e, 2024 2 x 256 x 256 1.75 GHz 918 256 x 512 KiB - 8 x 2 B 32 GiB 1.638 TB/s" in rows
    assert "tpu_v7x_core TPU 7x, 2025* 2 x 256 x 256 1.9 GHz 996 256 x 256 KiB - 8 x 2 B 96 GiB 3.69 TB/s" in rows
    assert "tpu_v7x TPU 7x, 2025 4 x 256 x 256 1.9 GHz 1,992 256 x 512 KiB - 8 x 2 B 192 GiB 7.38 TB/s" in rows
    assert re.search(r"(?m)^v100 +Volta, 2017 +80 1.53 GHz +125 ", "\n".join(lines))


@LISTED
def test_list_as_json_tells_all_that_comes_along() -> None:
    told = json.loads(CliRunner().invoke(cli.app, ["list", "--json", "-"]).stdout)
    for key, folder in (("workloads", "workloads"), ("machines", "configs"), ("drams", "configs/dram"),
                        ("sweeps", "configs/sweeps")):  # fmt: skip
        assert {each["name"] for each in told[key]} == {*shipped(folder)}
    assert {*told["lowerings"]["tpu"]} == {*LOWERINGS, AUTO}
    machines = {each["name"]: each for each in told["machines"]}
    v4 = {key: value for key, value in machines["tpu_v4"].items() if key != "hardware"}
    assert v4 == {
        "name": "tpu_v4", "family": "tpu", "generation": "TPU v4", "year": 2021, "chip_cores": 1,
        "peak_tflops": 275.2512,
        "pes": 8 * 2**14, "sram_bytes": 2**25, "hbm_bytes_per_s": 1_230_000_000_000, "hbm_capacity_bytes": 2**35,
    }  # fmt: skip
    own = machines["tpu_v2"]
    assert (own["generation"], own["year"], own["hbm_capacity_bytes"]) == (None, None, None)
    assert own["hardware"]["array"]["rows"] == 128


def test_summaries_of_commands_are_not_cut() -> None:
    shown = help_of()
    told = shown.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in told] == [*COMMANDS]
    for line in told:
        assert line.endswith("."), line
        assert not line.endswith("..."), line


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_fits(name: str) -> None:
    assert max(map(len, help_of(name).splitlines())) <= 80


@pytest.mark.parametrize(
    "words",
    [
        ("run", "resnet18", "--no-check", "--hardware", "tpu_v2_core"),
        pytest.param((*EXPLAINED, "conv1"), marks=SHAPES),
        ("validate", "--set-of-numbers", "v3"),
        ("trace", "tiny", "--layers", "fig10", "--hardware", "tiny_4x4", "--batch", "2", "--to", "30"),
    ],
    ids=lambda words: words[0],
)
def test_no_line_is_wider_than_the_terminal(words: tuple[str, ...]) -> None:
    lines = in_terminal(*words).splitlines()
    assert max(map(len, lines)) <= 80
    # A line that a terminal broke of its own accord would begin at the margin, in the middle of a sentence.
    assert not [line for line in lines if re.match(r"(?:blocked|idle|port|together|TFLOPS)\b", line)]


@pytest.mark.parametrize("columns", range(38, 44))
def test_a_number_stays_with_its_unit(columns: int) -> None:
    shown = in_terminal("run", "tiny", "--hardware", "tiny_4x4", *ESTIMATE, columns=columns)
    totals = shown[shown.index("Total: ") : shown.index("Every output")]
    units = ("%", "MHz", "us", "ns", "kB", "KiB", "kMAC", "GFLOPS", "s", "cycles", "passes")
    assert "\u00a0" not in totals
    assert not [line for line in totals.splitlines() if line.strip(" ").split(" ")[0].strip(",;") in units]


@SHAPES
def test_explain_says_how_to_read_the_shape() -> None:
    text = " ".join(in_terminal(*EXPLAINED, "conv1").split())
    assert "224x224x3>64 7x7/2 + relu (conv2d rows x columns x channels > output channels, kernel, /stride, d" in text
    assert "(gemm m x k > n, g products side by side, w bits of weights in HBM)" in in_terminal(*EXPLAINED, "fc")


@pytest.mark.usefixtures("undrawn")
def test_a_sweep_of_long_paths_stays_legible(tmp_path: Path) -> None:
    """Where there is no room, columns go; the columns that stay are whole, and explained."""
    spec = tmp_path / "s.yaml"
    axes = ("array.rows", "array.cols", "vector_memory.word_elements", "vector_memory.capacity", "hbm.bandwidth")
    values = ("[8]", "[8, 16]", "[8]", "[128 KiB]", "[700 GB/s]")
    lines = [f"  {axis}: {value}" for axis, value in zip(axes, values, strict=True)]
    spec.write_text("\n".join(["name: s", "workloads: [tiny]", "pareto: [time_us, pes]", "axes:", *lines]))
    shown = in_terminal("sweep", str(spec), "--out", str(tmp_path / "out"), "--workers", "1")
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    heads = shown.partition("---")[0].splitlines()[-1].split()
    assert heads[:6] == ["workload", "rows", "cols", "elements", "capacity", "bandwidth"]
    assert "time: cycles at the machine's clock." in " ".join(shown.split())
    assert ("ports unused:" in shown) == ("unused" in shown.partition("---")[0])


def completed(line: str) -> list[str]:
    """What a shell offers for the last word of a line."""
    count = len(f"{line}|".split()) - 1
    told = by_itself(_TPUSIM_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(count))
    return told.split()


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("tpusim com", ["compare"]),
        ("tpusim run resnet", ["resnet18", "resnet50"]),
        ("tpusim run resnet50 --hardware ", [*shipped("configs")]),
        ("tpusim run resnet50 --engine ", [*ENGINES]),
        ("tpusim sweep array_", ["array_by_word", "array_size"]),
        ("tpusim validate --set-of-numbers vg", ["vgg16"]),
        ("tpusim run my_", []),
    ],
)
def test_shells_complete_what_there_is(line: str, offers: list[str]) -> None:
    assert completed(line) == offers


def test_completion_can_be_installed(tmp_path: Path) -> None:
    shown = by_itself("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "_TPUSIM_COMPLETE=complete_bash" in shown
    home = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    assert "completion installed" in by_itself("--install-completion", "bash", **home)
    assert [path for path in tmp_path.rglob("*") if path.is_file() and "tpusim" in path.read_text()]
