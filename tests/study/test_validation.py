"""Against the reference numbers: that errors are errors, and that we come as close as the documents say."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests import ROOT
from tests.conftest import QUICK_SETS, in_this_process
from tpusim import load_hardware
from tpusim.base.errors import CapacityError
from tpusim.cli import app as cli
from tpusim.cli.actions import validate
from tpusim.cli.actions.validate import BY_NAME, survey
from tpusim.network.ops.array_op import Gemm
from tpusim.report.shown import laid_out
from tpusim.report.style import SERIES
from tpusim.report.tables.validation import summaries, surveyed, validated
from tpusim.study.validation import convolutions
from tpusim.study.validation.cases import WORDS, Case, NumberSet
from tpusim.study.validation.chips import chip_sets
from tpusim.study.validation.comparison import ComparedCase, Comparison, ErrorSpread, Validation, by_word, compare
from tpusim.study.validation.generations import GENERATIONS, generation_sets
from tpusim.study.validation.operations import MEASURED_STEP_MS
from tpusim.study.validation.sets import number_sets

SURVEY, FILE = ROOT / "docs" / "validation.md", ROOT / "docs" / "validation_v2.md"
DOCUMENT = FILE.read_text()
TPUS = [each.name for each in GENERATIONS]
CONFIGS = ROOT / "configs"
GOALS = {"gemm": 0.03, "resnet50": 0.05, "vgg16": 0.05, "yolov2": 0.05, "micro": 0.08, "fresh": 0.09,
         "first_layers": 0.05, "1x1": 0.06, "3x3": 0.04, "depthwise": 0.08, "dilated": 0.02, "v3": 0.06,
         "training": 0.03, "gradients_filter": 0.06, "gradients_input": 0.04, "scheduled_gradients": 0.12,
         "scheduled_first": 0.06, "scheduled_1x1": 0.07, "scheduled_3x3": 0.05,
         "scheduled_large": 0.08}  # fmt: skip
"""Mean absolute errors that must not grow beyond these."""

NETWORKS = ("resnet50", "vgg16", "yolov2")
WHOLE = ("network_resnet18", "network_resnet50", "network_vgg16", "network_yolov2", "network_bert_layer")


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)


def quiet(*_: object) -> None:
    """No progress."""


def test_errors_and_their_spread() -> None:
    rows = [
        ComparedCase("a", 110, 100, 50, True),
        ComparedCase("b", 80, 100, 100, False),
        ComparedCase("c", 100, 100, 100, False),
    ]
    spread = ErrorSpread.of([(row.error, row.name) for row in rows])
    assert spread.mean == pytest.approx(0.1)
    assert spread.median == pytest.approx(0.1)
    assert (spread.worst, spread.where) == (pytest.approx(-0.2), "b")
    assert spread.p90 == pytest.approx(0.2)


def test_the_halves_are_halves() -> None:
    cases = [case for each in number_sets().values() for case in each.cases]
    fitted = sum(case.fitted for case in cases) / len(cases)
    assert 0.4 < fitted < 0.6


SMALL = Gemm("small", 64, 64, 64)


def made(*cases: Case, **changes: Any) -> NumberSet:
    """A set of these cases."""
    return replace(NumberSet("made", "estimated", "layers", "nothing", "tpu_v2_core", cases), **changes)


def test_a_shape_is_simulated_once_and_told_wherever_it_stands() -> None:
    other = replace(SMALL, name="other")
    one, two = made(Case("a", (SMALL, other), 1, 1000)), made(Case("b", (other,), 1, 1000), name="more")
    plan = Validation([one, two])
    assert len(plan.simulations) == 1
    told: list[int] = []
    first, second = compare(plan, lambda done, _: told.append(done))
    assert told == [1]
    assert first.rows[0].ours == 2 * second.rows[0].ours > 0


def test_each_machine_and_change_is_simulated_for_itself() -> None:
    case = Case("a", (SMALL,), 1, 1000)
    sets = [made(case), made(case, hardware="tpu_v2"), made(case, changes=("sequencer.launch_cycles=9000",))]
    plain, paper, slow = (each.rows[0].ours for each in compare(Validation(sets), quiet))
    assert paper < plain < slow


def test_a_case_with_their_block_is_simulated_with_both() -> None:
    """Here any change of the machine is a block: cases are told with ours and with theirs, sets in two columns."""
    slower, impossible = ("sequencer.launch_cycles=9000",), ("vector_memory.capacity=64 B",)
    cases = [Case(f"{block}", (SMALL,), 1, 1000, their_block=block) for block in ((), slower, impossible)]
    (comparison,) = compare(Validation([made(*cases)]), quiet)
    none, given, refused = comparison.rows
    assert none.ours == given.ours == refused.ours
    assert none.with_their_block is refused.with_their_block is None
    assert given.with_their_block is not None
    assert given.with_their_block > given.ours + 8000
    spread = comparison.with_their_blocks
    assert spread is not None
    assert spread.mean == pytest.approx(given.with_their_block / 1000 - 1)
    table = printed([comparison])
    assert "their" in table[0] + table[1] + table[2]
    assert any(f" {100 * spread.mean:.2f} (1) " in line for line in table)


def test_where_no_block_is_given_there_is_no_column_for_it() -> None:
    assert "blocks" not in "".join(printed(compare(Validation([made(Case("a", (SMALL,), 1, 1000))]), quiet)))


def test_a_case_that_does_not_fit_is_an_error_unless_the_block_is_theirs() -> None:
    with pytest.raises(CapacityError):
        compare(Validation([made(Case("a", (SMALL,), 1, 1000))], ["vector_memory.capacity=64 B"]), quiet)


def test_estimate_and_schedule_agree_within_five_percent_of_the_schedule() -> None:
    pairs = [(105, 100), (106, 100), (95, 100), (94, 100), (100, None)]
    rows = tuple(ComparedCase("a", 1, 1, 1, True, None, one, other) for one, other in pairs)
    assert [row.words_agree for row in rows] == [True, False, True, False, None]
    assert Comparison(made(), rows).agreement == (2, 4)
    assert Comparison(made(), rows[-1:]).agreement is None


def test_the_quirk_is_told_with_and_without() -> None:
    rows = ComparedCase("a", 150, 100, 1, True, quirk=True), ComparedCase("b", 110, 100, 1, True)
    both, one = Comparison(made(), rows), Comparison(made(), rows[1:])
    assert (both.ours.mean, both.quirks, both.without_quirks) == (pytest.approx(0.3), 1, pytest.approx(0.1))
    assert (one.quirks, one.without_quirks) == (0, None)


def test_numbers_of_two_words_or_kinds_never_meet() -> None:
    rows = (ComparedCase("a", 110, 100, 1, True),)
    chosen = [("a", "estimated", "layers"), ("b", "scheduled", "layers"), ("c", "estimated", "networks"),
              ("d", "estimated", "layers"), ("e", "measured", "layers"), ("f", "simulated", "dram")]  # fmt: skip
    sets = [Comparison(made(name=name, status=word, kind=kind), rows) for name, word, kind in chosen]
    found = {word: [each.numbers.name for each in rows] for word, rows in by_word(sets).items()}
    assert found == {"estimated": ["a", "d", "all layers", "c"], "scheduled": ["b"], "measured": ["e"],
                     "simulated": ["f"]}  # fmt: skip
    assert [*found] == [*WORDS]
    assert len(by_word(sets)["estimated"][2].rows) == 2
    assert len({each.numbers.picture for each in sets}) == 5


def test_every_set_of_a_picture_has_a_marker_of_its_own() -> None:
    assert max(Counter(each.picture for each in number_sets().values()).values()) <= len(SERIES)


@pytest.mark.long
@pytest.mark.xdist_group("comparisons")
def test_no_further_off_than_the_goals(comparisons: dict[str, Comparison]) -> None:
    assert GOALS.keys() <= comparisons.keys()
    within_the_goals(comparisons)
    assert mean(abs(comparisons[name].total_error) for name in WHOLE) < 0.03


@pytest.mark.xdist_group("quick comparisons")
def test_quick_sets_are_no_further_off_than_the_goals(quick_comparisons: dict[str, Comparison]) -> None:
    within_the_goals({name: quick_comparisons[name] for name in QUICK_SETS})


def within_the_goals(comparisons: dict[str, Comparison]) -> None:
    """Each whole set that has a goal reaches it, and networks as a whole."""
    for name in GOALS.keys() & comparisons.keys():
        comparison = comparisons[name]
        assert comparison.ours.mean < GOALS[name], name
        assert comparison.ours.mean < comparison.roofline.mean / 2, name
    for names, most in ((NETWORKS, 0.03), (WHOLE, 0.06)):
        found = [abs(comparisons[name].total_error) for name in names if name in comparisons]
        assert found
        assert max(found) < most


@pytest.mark.long
@pytest.mark.xdist_group("comparisons")
def test_the_other_half_is_hardly_worse(comparisons: dict[str, Comparison]) -> None:
    """Over all cases of the sets of which half served for fitting."""
    hardly_worse(comparisons)
    assert comparisons["v3"].half(True) is comparisons["training"].half(False) is None


@pytest.mark.xdist_group("quick comparisons")
def test_the_other_half_of_quick_sets_is_hardly_worse(quick_comparisons: dict[str, Comparison]) -> None:
    hardly_worse(quick_comparisons)
    assert quick_comparisons["v3"].half(True) is None


def hardly_worse(comparisons: dict[str, Comparison]) -> None:
    """Cases that did not serve for fitting are nearly as close as those that did."""
    rows = [row for each in comparisons.values() if each.numbers.fitted for row in each.rows]
    fit, rest = (mean(abs(row.error) for row in rows if row.fitted is half) for half in (True, False))
    assert rest < fit + 0.01


@pytest.mark.long
@pytest.mark.xdist_group("comparisons")
def test_the_document_says_what_the_command_prints(comparisons: dict[str, Comparison]) -> None:
    """All tables, to the digit."""
    written = {" ".join(line.split()) for line in DOCUMENT.splitlines()}
    assert [line for line in printed([*comparisons.values()]) if line not in written] == []
    text = io.StringIO()
    *_, totals, _, _ = laid_out(validated([*comparisons.values()]).paragraphs)
    Console(file=text, width=250).print(totals)
    assert [line for line in text.getvalue().splitlines() if " ".join(line.split()) not in written] == []


@pytest.mark.xdist_group("quick comparisons")
def test_the_document_says_what_the_command_prints_of_quick_sets(quick_comparisons: dict[str, Comparison]) -> None:
    """The lines of single sets; those of several together need them all."""
    written = {" ".join(line.split()) for line in DOCUMENT.splitlines()}
    whole = [each for name, each in quick_comparisons.items() if name in QUICK_SETS]
    lines = [line for line in printed(whole) if line.partition(" ")[0] in QUICK_SETS]
    assert len(lines) == len(QUICK_SETS)
    assert [line for line in lines if line not in written] == []


@pytest.mark.long
@pytest.mark.xdist_group("comparisons")
def test_the_readme_says_what_the_command_prints(comparisons: dict[str, Comparison]) -> None:
    """How many cases there are, and of each row of its table the kind, the cases and the mean error."""
    groups = [each for group in by_word([*comparisons.values()]).values() for each in group]
    held = {(each.numbers.status, each.numbers.name): each for each in (*comparisons.values(), *groups)}
    readme = (ROOT / "README.md").read_text()
    assert f"compares {sum(len(each.rows) for each in comparisons.values())} cases" in readme
    rows = readme_rows()
    assert len(rows) == 10
    for kind, name, cases, error in rows:
        if (found := held.get((kind, name))) is None:
            assert name in LATER
            continue
        assert (cases, error) == (str(len(found.rows)), f"{100 * found.ours.mean:.1f}"), name


@pytest.mark.xdist_group("quick comparisons")
def test_the_readme_says_what_the_command_prints_of_quick_sets(quick_comparisons: dict[str, Comparison]) -> None:
    held = {name: each for name, each in quick_comparisons.items() if name in QUICK_SETS}
    told = {name: (cases, error) for _, name, cases, error in readme_rows() if name in held}
    assert told == {name: (str(len(held[name].rows)), f"{100 * held[name].ours.mean:.1f}") for name in told}
    assert told


def readme_rows() -> list[tuple[str, str, str, str]]:
    """Kind, name, cases and mean error of each row of the README's table."""
    pattern = r"^\| .* \| (\w+) \| `([\w ]+)` \| (\d+) \| ([\d.]+) % \|$"
    return re.findall(pattern, (ROOT / "README.md").read_text(), re.MULTILINE)


@pytest.mark.long
def test_the_readme_says_what_a_step_takes_that_anybody_can_type() -> None:
    """Its time, the measured time, and how far they are apart."""
    pattern = r"^\| .*: ([\d.]+) ms, measured ([\d.]+) \| measured \| `tpusim (run .*)` \| 1 \| ([\d.]+) % \|$"
    ((took, measured, command, error),) = re.findall(pattern, (ROOT / "README.md").read_text(), re.MULTILINE)
    done = CliRunner().invoke(cli.app, [*command.split(), "--json", "-"])
    assert done.exit_code == 0, done.output
    milliseconds = json.loads(done.stdout)["total"]["time_us"] / 1000
    assert float(measured) == MEASURED_STEP_MS
    assert (took, error) == (f"{milliseconds:.1f}", f"{100 * abs(milliseconds / MEASURED_STEP_MS - 1):.1f}")


LATER = ("v4_measured", "v6e_measured", "v7x_measured")
"""What chips after v3 took: names of sets, or of several, in the README."""


@pytest.mark.long
def test_the_survey_is_what_the_document_and_the_readme_say(request: pytest.FixtureRequest) -> None:
    """All of it, to the digit; --update-golden writes the document's anew."""
    comparisons = compare(Validation(survey()), quiet)
    text = io.StringIO()
    for each in laid_out(surveyed(comparisons, BY_NAME).paragraphs):
        Console(file=text, width=250).print(each)
    shown = "\n".join(line.rstrip() for line in text.getvalue().splitlines())
    before, old, after = re.split("<!-- /?survey -->", SURVEY.read_text())
    told = f"\n\n```\n{shown}\n```\n\n"
    if request.config.getoption("--update-golden"):
        SURVEY.write_text(f"{before}<!-- survey -->{told}<!-- /survey -->{after}")
    else:
        assert old == told
    lines = {line.split()[-1]: line.split() for line in shown.splitlines() if line}
    rows = {name: (cases, error) for _, name, cases, error in readme_rows() if name in LATER}
    assert rows == {name: (lines[name][2], f"{float(lines[name][3]):.1f}") for name in LATER}


def legend_of(comparisons: list[Comparison], width: int | None) -> str:
    """What the columns of the tables hold."""
    return str(laid_out(validated(comparisons).paragraphs, width)[-1])


def printed(comparisons: list[Comparison], width: int | None = None) -> list[str]:
    """The lines of all tables, without their spaces."""
    text = io.StringIO()
    for heading, table in summaries(comparisons):
        Console(file=text, width=width or 250).print(heading, table.drawn(width), sep="\n")
    return [" ".join(line.split()) for line in text.getvalue().splitlines()]


# ---- machines beside the one that was fitted

NEIGHBOURS = {
    "scheduled": {"first layers": "scheduled_first", "1x1": "scheduled_1x1", "up to 3x3": "scheduled_3x3",
                  "larger": "scheduled_large"},
    "depthwise": {"depthwise": "depthwise"},
    "estimated": {name: name.replace(" ", "_") for name in
                  ("gemm", "resnet50", "vgg16", "yolov2", "micro", "fresh", "first layers")},
}  # fmt: skip
"""The sets of the columns of each table of changes, by what its command asks for."""


def neighbours() -> Iterator[Any]:
    """Rows of the tables of changes; the few depthwise cases are quick."""
    pattern = r"`tpusim validate --set-of-numbers (\w+) --set PATH=VALUE`[^|]*((?:^\|[^\n]*\n)+)"
    for asked, table in re.findall(pattern, DOCUMENT, re.MULTILINE):
        head, _, *rows = ([cell.strip(" `") for cell in line.split("|")[1:-1]] for line in table.splitlines())
        for change, *errors in rows:
            marks = () if asked == "depthwise" else (pytest.mark.long,)
            told = dict(zip(head[1:], errors, strict=True))
            yield pytest.param(asked, change, told, id=f"{asked}: {change}", marks=marks)


@pytest.mark.parametrize(("asked", "change", "told"), [*neighbours()])
def test_a_change_costs_what_the_document_says(
    asked: str, change: str, told: dict[str, str], request: pytest.FixtureRequest
) -> None:
    """By set, and over all their cases and both halves, to the digit; --update-golden writes the row anew."""
    sets = [without_their_blocks(number_sets()[name]) for name in NEIGHBOURS[asked].values()]
    compared = compare(Validation(sets, [] if change == "as configured" else [change]), quiet)
    rows = [row for each in compared for row in each.rows]
    groups = dict(zip(NEIGHBOURS[asked], (each.rows for each in compared), strict=True))
    if len(compared) > 1:
        halves = ([row for row in rows if row.fitted is half] for half in (True, False))
        groups |= dict(zip(("all", "fit", "rest"), (rows, *halves), strict=True))
    found = {name: f"{100 * mean(abs(row.error) for row in some):.2f}" for name, some in groups.items()}
    if request.config.getoption("--update-golden"):
        name = change if change == "as configured" else f"`{change}`"
        before, after = (" | ".join(("", name, *each.values(), "")).strip() for each in (told, found))
        FILE.write_text(FILE.read_text().replace(before, after))
        told = found
    assert told == found


def test_every_table_of_changes_is_held() -> None:
    assert DOCUMENT.count("\n| change |") == len(NEIGHBOURS) == len({each.values[0] for each in neighbours()})
    assert len([*neighbours()]) > 40


def without_their_blocks(numbers: NumberSet) -> NumberSet:
    """A set whose cases are simulated with our blocks alone."""
    return replace(numbers, cases=tuple(replace(case, their_block=()) for case in numbers.cases))


def test_the_rule_of_the_paper_is_what_the_estimates_imply() -> None:
    """At 8 to 64 channels and stride 1, the rule's taps are closer than one or two."""
    errors, micro = {}, number_sets()["micro"]
    thin = replace(micro, cases=tuple(each for each in micro.cases if re.search(r"x(8|16|32|64)>.* 3x3/1", each.name)))
    for taps in ("1", "2", "auto"):
        (comparison,) = compare(Validation([thin], [f"mapping.multi_tile={taps}"]), quiet)
        errors[taps] = mean(abs(row.error) for row in comparison.rows)
    assert errors["auto"] < errors["2"] / 3 < errors["1"] / 3


@pytest.mark.parametrize("machine", ["tpu_v2_core", "tpu_v2_estimator"])
def test_at_most_fifteen_fitted_numbers_and_every_value_says_what_it_is(machine: str) -> None:
    text = (CONFIGS / f"{machine}.yaml").read_text()
    values = [line for line in text.splitlines() if re.match(r"(clock|  (?!slots|functions)\w+|    \w+):", line)]
    assert sum("# fitted" in line for line in values) <= 15
    assert all(re.search(r"# (published|read|fitted|bfloat16|JEDEC|ours|as )", line) for line in values)


def test_only_the_core_of_the_chip_has_what_the_paper_does_not_describe() -> None:
    paper, core = load_hardware("tpu_v2"), load_hardware("tpu_v2_core")
    assert (paper.vector_unit.unpack_cycles, paper.vector_unit.pack_cycles, paper.hbm.channel_multiple) == (0, 0, 1)
    assert (paper.sequencer.launch_cycles, paper.sequencer.between_blocks) == (0, "overlap")
    assert core.sequencer.between_blocks == "drain"


def test_the_command(tmp_path: Path) -> None:
    run = CliRunner().invoke
    words = ["validate", "--set-of-numbers", "v3"]
    shown = run(cli.app, [*words, "--json", str(tmp_path / "v.json"), "--out", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "gemm_256x256x256" in shown.stdout
    assert "measured" in shown.stdout
    told = json.loads((tmp_path / "v.json").read_text())
    (numbers,), together = told["sets"], told["together"]
    assert together == []
    assert (numbers["status"], numbers["hardware"], numbers["with_their_blocks"]) == ("measured", "tpu_v3_core", None)
    assert numbers["estimate_and_schedule"] == {"agree": 2, "known": 3}
    assert len(numbers["rows"]) == numbers["cases"] == 7
    assert numbers["ours"]["mean"] == pytest.approx(sum(abs(row["error"]) for row in numbers["rows"]) / 7)
    assert (tmp_path / "measured_v3.png").stat().st_size > 1000
    slower = run(cli.app, [*words, "--set", "clock=470 MHz", "--json", "-"])
    assert json.loads(slower.stdout)["sets"][0]["rows"] != numbers["rows"]


@pytest.mark.xdist_group("quick comparisons")
def test_a_narrow_terminal_loses_columns_not_digits(quick_comparisons: dict[str, Comparison]) -> None:
    sets = [*quick_comparisons.values()]
    text = "\n".join(printed(sets, 80))
    assert "…" not in text
    assert "mean" in text
    assert "where:" not in legend_of(sets, 80)
    assert "where:" in legend_of(sets, None)


def test_a_word_stands_for_all_its_sets(tmp_path: Path) -> None:
    """Together with one of them, each is there once."""
    shown = CliRunner().invoke(
        cli.app, ["validate", "--set-of-numbers", "v3_odd", "--set-of-numbers", "measured", "--json", "-", "--set",
                  "clock=700 MHz"],
    )  # fmt: skip
    told = json.loads(shown.stdout)
    assert [each["name"] for each in told["sets"]] == ["v3_odd", "v3", "training"]
    assert [(each["name"], each["cases"]) for each in told["together"]] == [("all v3", 8)]
    assert "rows" not in told["together"][0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set-of-numbers", "gem"], "did you mean gemm"),
        (["--set-of-numbers", "schedule"], "did you mean scheduled"),
        (["--set-of-numbers", "scheduled_3x4"], "did you mean scheduled_3x3"),
        (["--lowering", "channel_frist"], "unknown lowering 'channel_frist'; did you mean channel_first?"),
        (["--set", "array.rowz=1"], "did you mean array.rows"),
        (["--json", "nowhere/v.json"], "cannot be written"),
        (["--json", ""], "cannot be written"),
    ],
)
def test_mistakes(arguments: list[str], says: str) -> None:
    shown = CliRunner().invoke(cli.app, ["validate", *arguments])
    assert shown.exit_code == 2
    assert says in shown.stderr
    assert shown.stdout == ""


def test_the_code_of_some_isolated_convolutions_lays_their_ifmap_out_anew() -> None:
    """Those whose code loads much more for a multiplication; never a network's."""
    relaid = {
        case.name: each.kind
        for each in number_sets().values()
        for case in each.cases
        if case.changes == convolutions.RELAID
    }
    assert {*relaid.values()} == {"convolutions"}
    loads = {
        shape.name: int(row["count_vld"]) / int(row["count_vmatmul"])
        for shape, row in convolutions._code().items()
        if shape.channels > convolutions.THIN_CHANNELS
    }
    assert {name for name, each in loads.items() if each > 3.5} == {*relaid}
    assert len(relaid) == 10


def test_a_lowering_stands_for_all_that_channel_first_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A set about another lowering is simulated by it only where it is named."""
    known = {each.name: each for each in (made(Case("a", (SMALL,), 1, 1000)), number_sets()["depthwise"])}
    monkeypatch.setattr("tpusim.cli.actions.validate.number_sets", lambda: known)
    words = ["validate", "--lowering", "implicit_gemm", "--json", "-"]
    told = json.loads(CliRunner().invoke(cli.app, words).stdout)
    assert [(each["name"], each["lowering"]) for each in told["sets"]] == [("made", "implicit_gemm")]
    shown = CliRunner().invoke(cli.app, ["validate", "--set-of-numbers", "depthwise", "--lowering", "block_diagonal"])
    assert (
        "depthwise: a channel a group, by the vector unit; estimated, simulated on tpu_v2_core by block_diagonal."
        in (" ".join(shown.stdout.split()))
    )


# ---- all of it on a screen


def as_if_compared(numbers: NumberSet) -> Comparison:
    """A set whose every case is a tenth too slow."""
    rows = (ComparedCase(case.name, 1.1 * case.theirs, case.theirs, case.theirs, case.fitted) for case in numbers.cases)
    return Comparison(numbers, tuple(rows))


def test_without_a_name_a_screen_has_a_row_for_each_tpu_and_kind_measured_first() -> None:
    sets = survey()
    text = io.StringIO()
    for each in laid_out(surveyed([*map(as_if_compared, sets)], BY_NAME).paragraphs, 100):
        Console(file=text, width=100).print(each)
    lines = text.getvalue().splitlines()
    assert len(lines) < 65
    assert max(map(len, lines)) <= 100
    headings = [line.partition(":")[0] for line in lines if line.partition(":")[0].lower() in WORDS]
    assert headings == ["Measured", "Scheduled"]
    rows = [line.split() for line in lines if line.split()[:1] and line.split()[0] in ("v2", *TPUS)]
    assert sum(int(row[-7]) for row in rows) == sum(len(each.cases) for each in sets)
    assert all(row[-6] == "10.00" for row in rows)
    assert {row[0] for row in rows} == {"v2", *TPUS}
    # What a row names shows more of it, and more than that.
    shown = {each.name for each in validate._sets([row[-1] for row in rows])}
    assert {each.name for each in sets} <= shown


def test_what_the_screen_leaves_out_is_asked_for_by_name() -> None:
    """Whole sets, never cases; and no set twice, for blocks of the compiler."""
    sets = {each.name: each for each in survey()}
    every = number_sets() | generation_sets() | chip_sets()
    assert all(len(every[name].cases) == len(each.cases) for name, each in sets.items())
    assert not any(case.their_block for each in sets.values() for case in each.cases)
    others = [each for name, each in every.items() if name not in sets]
    left = {each.status if each.status == "estimated" else each.group for each in others}
    assert left - {""} == {"estimated", "passes", "v3_tiles", "models_measured"}
    names = {*re.findall(r"\w+", BY_NAME)}
    assert {*left, "fused", "llm", "training_step", "deepbench", "dram"} - {""} <= names
    assert validate._sets(sorted(left - {""}))
