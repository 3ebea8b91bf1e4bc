"""Every rule of docs/timing.md has a number, a test that holds it, and a place in the event engines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from types import FunctionType

from tests import ROOT
from tests.rules import TIMING, rules
from tpusim.machines.tpu.event import loop, processes


def held(source: str) -> Iterator[tuple[str, str]]:
    """Each test of a source with a rule that it holds."""
    for node in ast.walk(ast.parse(source if "rule(" in source else "")):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            for mark in node.decorator_list:
                match mark:
                    case ast.Call(ast.Name("rule"), numbers):
                        yield from ((node.name, str(ast.literal_eval(each))) for each in numbers)


def sources() -> Iterator[Path]:
    return (ROOT / "tests").rglob("test_*.py")


def table() -> list[list[str]]:
    """The rows that give each rule its functions: rule, numbers, functions of the loop, functions in SimPy."""
    found = re.search(r"\| rule \| numbers \| `loop.py` \| `processes.py` \|\n.*?\n\n", TIMING, re.DOTALL)
    assert found
    return [row.split("|")[1:-1] for row in found[0].splitlines()[2:] if row]


def test_each_rule_has_a_number_of_its_own() -> None:
    assert len(rules()) == len({*rules()}) > 100


def test_every_rule_has_a_test_and_every_test_names_rules_that_there_are() -> None:
    named = {number for path in sources() for _, number in held(path.read_text())}
    assert {*rules()} - named == set(), "rules without a test: mark one with @rule"
    assert named - {*rules()} == set(), "rules that docs/timing.md does not have"


def test_a_mark_is_found_wherever_it_stands() -> None:
    marked = '@given(x=1)\n@rule("T1", "T2")\ndef test_a(): ...\nclass A:\n  @rule("T3")\n  def test_b(): ...'
    assert [*held(marked)] == [("test_a", "T1"), ("test_a", "T2"), ("test_b", "T3")]
    assert [*held('@rule("T1")\ndef helper(): ...\n@other("T1")\ndef test_c(): ...')] == []


def test_each_function_of_the_loop_holds_a_rule_and_each_rule_has_a_function() -> None:
    """In the table of docs/timing.md."""
    loops, simpys = (re.findall(r"`([\w.]+)`", " ".join(row[column] for row in table())) for column in (2, 3))
    own = {
        name for name, each in vars(loop).items() if isinstance(each, FunctionType) and each.__module__ == loop.__name__
    }
    assert {*loops} == own
    for name in simpys:
        assert callable(attrgetter(name)(processes)), name


def test_the_table_of_functions_names_rules_that_there_are() -> None:
    for row in table():
        numbers = re.findall(r"T\d+", row[1])
        assert numbers, row
        assert {*numbers} <= {*rules()}, row
