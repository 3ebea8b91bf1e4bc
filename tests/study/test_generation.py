"""Generations: tokens that are simulated, and those on lines between them; parts of a token; and what is refused."""

from __future__ import annotations

import json
import re
from html import unescape
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.network.test_composites import SMALL
from tests.strategies import cases
from tpusim import Gemm, Workload, load_hardware, simulate
from tpusim.cli import app as cli
from tpusim.network.formats import ModelOptions
from tpusim.network.workload_file import open_workload, workload_of
from tpusim.report.plots.generation import time_of_tokens
from tpusim.report.shown import Sentences
from tpusim.report.tables.generation import generated
from tpusim.study.generation import CHECKED, Generation, generate

TEXT = SMALL.replace("layers:\n  - block", "grows: context\nlayers:\n  - block", 1).replace("count: 3", "count: 2")

QUICK = ("--set", "mapping.search=estimate")
"""Blocks that simulation chooses take most of the time, and have no say in what is told of tokens."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(TEXT)
    return path


def at(path: Path, context: int) -> Workload:
    return workload_of(open_workload(path, ModelOptions({"context": context}, phase="decode")), 2)


def test_a_token_takes_what_its_layers_take_alone(path: Path) -> None:
    machine = load_hardware("tiny_4x4", ["mapping.search=estimate"])
    made = generate(lambda context: at(path, context), machine, 9, 3)
    assert [token.context for token in made.tokens] == [9, 10, 11]
    for token in made.tokens:
        assert token.cycles == simulate(at(path, token.context), machine, check=False).total.cycles
        assert sum(part.cycles for part in token.parts) == token.cycles
    assert made.off == 0
    assert sum(part.layers for part in made.tokens[0].parts) == len(at(path, 9).layers)


def test_most_of_many_tokens_lie_on_lines_between_those_that_are_simulated(path: Path) -> None:
    machine, first, many = load_hardware("tiny_4x4", ["mapping.search=estimate"]), 4, CHECKED + 4
    made = generate(lambda context: at(path, context), machine, first, many)
    assert [token.context for token in made.tokens] == [*range(first, first + many)]
    simulated = [token for token in made.tokens if token.simulated]
    assert len(simulated) == CHECKED + 2
    others = [token for token in made.tokens if not token.simulated]
    assert len(others) == 2
    true = {
        token.context: simulate(at(path, token.context), machine, check=False).total.cycles
        for token in (*simulated[::4], *others)
    }
    assert all(token.cycles == true[token.context] for token in simulated[::4])
    # The window of five keys is full from the second token on, so a token costs no more behind a longer context.
    assert made.off < 0.1
    assert all(abs(token.cycles - true[token.context]) <= 0.1 * true[token.context] for token in others)


def test_layers_that_overlap_are_simulated_together(path: Path) -> None:
    machine = load_hardware("tiny_4x4", ["sequencer.between_layers=overlap", "mapping.search=estimate"])
    made = generate(lambda context: at(path, context), machine, 9, 1)
    assert made.tokens[0].cycles == simulate(at(path, 9), machine, check=False).total.cycles


def test_the_command_tells_tokens_and_parts(path: Path) -> None:
    asked = [
        "run",
        str(path),
        "--hardware",
        "tiny_4x4",
        "--phase",
        "decode",
        "--tokens",
        "3",
        "--batch",
        "2",
        *QUICK,
        "--json",
        "-",
    ]
    done = CliRunner().invoke(cli.app, asked)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert [part["name"] for part in told["parts"]] == ["weights", "attention", "vector", "LM head"]
    assert told["tokens_per_second"] == pytest.approx(3 * 2 / told["seconds"])
    assert told["hbm_bound_seconds"] < told["tokens"][0]["cycles"] / told["clock_hz"]
    assert "3 tokens behind 11" in done.stderr
    assert "weights: products with weights. attention: products with the cache" in " ".join(done.stderr.split())


def test_a_prompt_makes_the_first_token(path: Path, tmp_path: Path, undrawn: None) -> None:
    asked = ["run", "-", *QUICK, "--hardware", "tiny_4x4", "--prompt", "5", "--tokens", "4", "--batch", "2"]
    out = tmp_path / "made"
    done = CliRunner().invoke(cli.app, [*asked, "--out", str(out)], input=path.read_text())
    assert done.exit_code == 0, done.output
    made = json.loads((out / "generation.json").read_text())
    assert [token["context"] for token in made["tokens"]] == [6, 7, 8]
    assert made["prompt"]["cycles"] == sum(part["cycles"] for part in made["prompt"]["parts"])
    assert made["prompt"]["cycles"] > max(token["cycles"] for token in made["tokens"])
    said = " ".join(done.stdout.split())
    assert "a prompt of 5, and 4 tokens of each sequence" in said
    assert "Time to the first token: " in said
    assert "With it all 4 tokens of each sequence take" in said
    assert "Parts of the prompt" in said
    assert "Parts of the token behind the prompt" in said
    page = (out / "report.html").read_text()
    assert "time to first token" in page
    assert "reads a prompt of 5 tokens" in page


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--tokens", "1", "--prompt", "5"), "--tokens 1: the prompt makes the first token; ask for 2 at least"),
        (("--prompt", "5"), "--prompt: only a generation has one; add --tokens N"),
        (("--tokens", "3", "--prompt", "5", "--phase", "prefill"), "--phase prefill: --prompt reads in prefill"),
        (("--tokens", "3", "--prompt", "5", "--dim", "context=7"), "--dim context=7: --prompt 5 says it; leave one"),
        (("--tokens", "3", "--prompt", "0"), "--prompt: 0 is out of range"),
    ],
)
def test_prompts_that_cannot_be_are_refused(path: Path, options: tuple[str, ...], says: str) -> None:
    done = CliRunner().invoke(cli.app, ["run", str(path), "--hardware", "tiny_4x4", *options])
    assert (done.exit_code, done.stdout) == (2, "")
    assert says in done.stderr


def test_a_prompt_needs_phases_of_both_kinds(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(TEXT.replace("prefill:", "reading:"))
    done = CliRunner().invoke(cli.app, ["run", str(path), "--tokens", "3", "--prompt", "5"])
    assert done.exit_code == 2
    assert 'there is no phase "prefill"' in done.stderr


def scores(keys: int) -> Workload:
    return Workload("scores", 1, [Gemm("scores", m=4, n=keys, k=128, groups=8)])


def words(made: Generation) -> str:
    """All that is told of a generation, in one line."""
    return " ".join(" ".join(line for each in paragraph for line in each.lines) for paragraph in told(made))


def told(made: Generation) -> list[list[Sentences]]:
    paragraphs = generated(made, "").paragraphs
    return [[each for each in paragraph if isinstance(each, Sentences)] for paragraph in paragraphs]


def test_no_line_is_told_across_a_change_of_plan() -> None:
    """The products have one column of passes more from the second token on."""
    machine = load_hardware("tpu_v6e")
    across = generate(scores, machine, 256, 3)
    assert across.plan_changes == ((256, 257),)
    assert across.lines == ()
    more = across.tokens[-1].cycles - across.tokens[0].cycles
    assert f"The last token takes {more:,} cycles more than the first" in words(across)
    assert "The plan of some layer changes between context 256 and 257." in words(across)
    assert "Fewer than 3 simulated tokens in a row are on one plan: no line tells what a key adds." in words(across)
    assert "each key adds" not in words(across)
    assert generate(scores, machine, 257, 2).lines == ()


@settings(deadline=None, max_examples=cases(0.1))
@given(first=st.integers(120, 300), tokens=st.integers(1, 40))
def test_lines_and_changes_are_those_of_simulated_tokens(first: int, tokens: int) -> None:
    made = generate(scores, load_hardware("tpu_v6e"), first, tokens)
    blocks = {each.context: -(-each.context // 256) for each in made.simulated}
    assert [one for one in made.plan_changes if blocks[one[0]] != blocks[one[1]]] == [
        pair for pair in pairwise(blocks) if blocks[pair[0]] != blocks[pair[1]]
    ]
    for line in made.lines:
        on_it = [each for each in made.simulated if line.first <= each.context <= line.last]
        assert len(on_it) >= 3
        assert len({each.plan for each in on_it}) == 1
        assert on_it[-1].cycles == pytest.approx(on_it[0].cycles + line.slope * (line.last - line.first))
        assert f"From context {line.first:,} to {line.last:,}, on one plan, each key adds {line.slope:,.0f}" in words(
            made
        )
    data = json.loads(generated(made, "").to_json())
    assert [each["plan"] is None for each in data["tokens"]] == [not each.simulated for each in made.tokens]
    assert len(data["lines"]) == len(made.lines)


def test_a_bound_is_told_of_as_many_bytes_on_that_machine() -> None:
    says = words(generate(scores, load_hardware("tpu_v6e"), 256, 1))
    assert "The HBM of tpu_v6e moves the bytes of the first token in" in says
    assert "% of its time: a token that moves as many cannot be faster there." in says
    assert "The last token" not in says


def test_a_folder_gets_the_generation_its_picture_and_a_page_with_all_that_the_command_says(
    path: Path, tmp_path: Path
) -> None:
    """Bars are the simulated tokens, and parts stand on one another."""
    asked = ["run", str(path), *QUICK, "--hardware", "tiny_4x4", "--phase", "decode", "--tokens", "3", "--batch", "1"]
    done = CliRunner().invoke(cli.app, [*asked, "--out", str(tmp_path / "made"), "--json", str(tmp_path / "a.json")])
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "made" / "generation.json").read_text()) == json.loads(
        (tmp_path / "a.json").read_text()
    )
    drawn = (tmp_path / "made" / "token_time.svg").read_text()
    assert all(f">{words}<" in drawn for words in ("12", "13", "14", "bytes at the bandwidth of HBM"))
    assert "LM head: the product that rates every next token, and what follows it" in drawn
    assert "simulated tokens, by part" in (tmp_path / "made" / "captions.txt").read_text()
    page = (tmp_path / "made" / "report.html").read_text()
    assert "<script" not in page
    assert (page.count("<table>"), page.count("data:image/svg+xml")) == (2, 1)
    shown = " ".join(unescape(re.sub(r"<style.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL)).split())
    told, _, _ = done.stdout.partition(str(tmp_path))
    # Lines are folded and columns padded differently; every word and every figure stands in both.
    assert {*told.replace("-", " ").split()} <= {*shown.replace("-", " ").split()}


@pytest.mark.parametrize("command", [["plot", "out"], ["report", "out"], ["compare", "out", "out"]], ids=" ".join)
def test_a_folder_of_tokens_is_told_from_one_of_a_run(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said that run.json is missing."""
    monkeypatch.chdir(tmp_path)
    Path("out").mkdir()
    Path("out/generation.json").write_text("{}")
    done = CliRunner().invoke(cli.app, command)
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"out: is of tokens (--tokens), and {command[0]} is of a run or a sweep; their picture" in done.stderr


def test_one_token_is_one_bar(path: Path) -> None:
    made = generate(lambda context: at(path, context), load_hardware("tiny_4x4", ["mapping.search=estimate"]), 9, 1)
    axes = time_of_tokens(made, "").draw().axes[0]
    assert [bar.get_height() for bar in axes.patches] == pytest.approx(
        [part.cycles / made.clock_hz * 1e6 / 1e3 ** (made.seconds >= 1e-3) for part in made.tokens[0].parts]
    )


def test_a_file_from_standard_input_is_read_once(path: Path) -> None:
    asked = ["run", "-", *QUICK, "--hardware", "tiny_4x4", "--phase", "decode", "--tokens", "2", "--batch", "1"]
    asked += ["--json", "-"]
    from_file = CliRunner().invoke(cli.app, [asked[0], str(path), *asked[2:]])
    done = CliRunner().invoke(cli.app, asked, input=path.read_text())
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["tokens"] == json.loads(from_file.stdout)["tokens"]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["tiny", "--tokens", "2"], "does not say which of its sizes each token adds one to"),
        (["PATH", "--phase", "decode", "--tokens", "0"], "--tokens"),
        (["PATH", "--phase", "decode", "--tokens", "2", "--training"], "--training: not beside --tokens"),
        (["PATH", "--phase", "decode", "--tokens", "2", "--hardware", "v100"], "a generation is of TPUs alone"),
        (["PATH", "--phase", "prefill", "--tokens", "2"], "as if each read all tokens ahead of it again"),
        (["PATH", "--tokens", "2"], "such as --phase decode"),
        (["PATH", "--phase", "writing"], 'there is no phase "writing"'),
    ],
)
def test_what_is_wrong_is_told(path: Path, asked: list[str], says: str) -> None:
    done = CliRunner().invoke(cli.app, ["run", *(str(path) if each == "PATH" else each for each in asked)])
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())
