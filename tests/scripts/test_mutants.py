"""scripts/mutants: which mutants there are, and which of them live."""

from __future__ import annotations

import runpy
from functools import cache
from itertools import islice
from pathlib import Path

import pytest

from tests import ROOT

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "mutants"))

SOURCE = '''
def f(a: "x[1]") -> int:
    """doc 1."""
    if größe < 3 and not b:
        return min(a, e * 2)
    if b:
        raise ValueError(f"{1}" + 1)
    return a - b if c else 0


A: TypeAlias = B | C
_MOST_D = 1 << 4
zip(a, b, strict=True)
x.astype(y, copy=False)
'''


def test_every_expression_is_changed_but_those_for_people() -> None:
    made = SCRIPT["mutants"](SOURCE)
    assert [(each.line, each.before, each.after) for each in made] == [
        (4, "größe < 3 and (not b)", "größe < 3 or not b"), (4, "größe < 3 and (not b)", "größe < 3"),
        (4, "größe < 3 and (not b)", "not b"), (4, "größe < 3", "größe <= 3"), (4, "3", "4"), (4, "3", "2"),
        (4, "not b", "b"), (5, "min(a, e * 2)", "max(a, e * 2)"), (5, "e * 2", "e // 2"), (5, "e * 2", "e"),
        (5, "e * 2", "2"), (5, "2", "3"), (5, "2", "1"), (6, "b", "not b"),
        (8, "a - b if c else 0", "0 if c else a - b"),
        (8, "c", "not c"), (8, "a - b", "a + b"), (8, "a - b", "b - a"), (8, "a - b", "a"), (8, "a - b", "b"),
        (8, "0", "1"), (8, "0", "-1"),
    ]  # fmt: skip
    changed = [each.of(SOURCE) for each in made]
    assert "if (größe < 3 or not b):" in changed[0]
    assert "größe < (4) and not b" in changed[4]
    assert "return (0 if c else a - b)\n" in changed[14]
    assert len({*changed, SOURCE}) == len(made) + 1


def test_a_seed_draws_the_same_ones_and_none_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCRIPT["drawn"].__globals__, "mutants", cache(SCRIPT["mutants"]))
    one, again, other = (list(SCRIPT["drawn"](["reference", "dram"], 20, seed)) for seed in (1, 1, 2))
    assert one == again != other
    assert len({(path, mutant) for _, path, mutant in one}) == 20
    assert {path.parts[1] for _, path, _ in one} == {"reference", "memory"}
    for _, path, mutant in islice(one, 3):
        source = (ROOT / path).read_text()
        compile(mutant.of(source), str(path), "exec")


def test_a_mutant_lives_where_its_tests_pass_in_time(tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text("def f(a):\n    while a:\n        pass\n    return a < 3\n")
    # What is compiled stays beside the tree.
    (tmp_path / "test_made.py").write_text(
        "import os, pathlib\nfrom made import f\n\n\ndef test_it():\n    assert f(0)\n"
        "    assert pathlib.Path(os.environ['XDG_CACHE_HOME']).parent == pathlib.Path.cwd().parent\n"
    )

    def complaint(before: str, after: str, seconds: float = 60) -> str:
        text = (tmp_path / "made.py").read_text()
        (tmp_path / "made.py").write_text(text.replace(before, after))
        fault: str = SCRIPT["complaint"](tmp_path, ("test_made.py",), seconds)
        (tmp_path / "made.py").write_text(text)
        return fault

    assert complaint("a < 3", "(a <= 3)") == ""
    assert "failed" in complaint("a < 3", "(a > 3.0)")
    assert complaint("while a", "while not a", 1) == "longer than 1 CPU seconds"


def test_a_module_is_judged_by_the_tests_of_its_folder() -> None:
    tests_of = SCRIPT["tests_of"]
    assert tests_of("study", Path("tpusim/study/paper/run.py")) == ("tests/study/test_paper.py",)
    assert "tests/study/test_worker_processes.py" in tests_of("study", Path("tpusim/study/worker_processes.py"))
    words = {word for folders in SCRIPT["ROOMS"].values() for words in folders.values() for word in words}
    assert [word for word in words - {"-m", ""} if not (ROOT / word).exists()] == []
