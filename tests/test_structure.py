"""Imports run downward only, only the command line prints, and docstrings and comments can be followed."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import ROOT

PACKAGE = ROOT / "tpusim"
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
pytestmark = pytest.mark.xdist_group("structure")
"""Each module is parsed once for all of them."""

MODULES = sorted(path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py"))
TOP = ("__init__", "__main__")
"""The package's own face: it hands names on."""


def rooms(inside: str) -> list[list[str]]:
    """The rooms of docs/architecture.md from the top down; those on one line stand side by side."""
    block = re.search(rf"```rooms{f' {inside}' if inside else ''}\n(.*?)```", ARCHITECTURE, re.S)
    assert block is not None
    return [re.split(r"\s{2,}", line)[0].split() for line in block[1].splitlines()]


def level(room: str, floors: list[list[str]]) -> int:
    return next(index for index, names in enumerate(floors) if room in names)


class Seen(NamedTuple):
    """What the tests look for in a module, found in one walk through it."""

    imports: set[str]
    ways_out: set[str]
    riddles: list[str]
    types: list[str]


@cache
def seen(path: Path) -> Seen:
    text = path.read_text()
    tree = ast.parse(text)
    nodes = statements(tree)
    named = nodes_below(tree) if NAMED_WAYS_OUT.search(text) else nodes
    types = [each.name for each in tree.body if isinstance(each, ast.ClassDef) and not each.name.startswith("_")]
    return Seen(_imports(nodes), ways_out(named), riddles(nodes), types)


def statements(tree: ast.Module) -> list[ast.AST]:
    """The module and its statements, which hold all of its imports and docstrings, and are few of its nodes."""
    found: list[ast.AST] = [tree]
    for node in found:
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            found += getattr(node, block, ())
    return found


def nodes_of(source: str) -> list[ast.AST]:
    return nodes_below(ast.parse(source))


def nodes_below(tree: ast.AST) -> list[ast.AST]:
    """The nodes that `ast.walk` finds, but for loads, stores and operators, in a third of its time."""
    found = [tree]
    for node in found:
        for inner in node.__dict__.values():
            if isinstance(inner, list):
                found += [each for each in inner if isinstance(each, ast.AST)]
            elif isinstance(inner, ast.AST) and not isinstance(inner, ast.expr_context | ast.operator | ast.unaryop):
                found.append(inner)
    return found


def imports(path: Path) -> set[str]:
    """The modules of the package that a file imports, without the leading `tpusim.`."""
    return seen(path).imports


def _imports(nodes: list[ast.AST]) -> set[str]:
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, "absolute imports only"
            found |= {_module(node.module, name.name) for name in node.names}
    return {name.removeprefix("tpusim").lstrip(".") for name in found if name.split(".")[0] == "tpusim"}


@cache
def _module(module: str, name: str) -> str:
    """`from module import name` means the module of that name, if there is one."""
    below = (ROOT / module.replace(".", "/") / name).with_suffix(".py")
    return f"{module}.{name}" if below.exists() or below.with_suffix("").is_dir() else module


def test_every_folder_is_a_room() -> None:
    named = {room for floor in rooms("") for room in floor}
    assert named == {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}


FAMILIES = sorted(
    f"machines.{path.name}" for path in (PACKAGE / "machines").iterdir() if (path / "__init__.py").exists()
)
"""Of machines."""


NAMED = [".".join(module.parts) for module in MODULES if str(module) not in TOP]
"""Modules of the package."""


def imported(own: str) -> set[str]:
    return imports((PACKAGE / own.replace(".", "/")).with_suffix(".py"))


@pytest.mark.parametrize("inside", ["", *FAMILIES])
def test_imports_run_downward(inside: str) -> None:
    """In the package, and in each family."""
    prefix, floors = f"{inside}." if inside else "", rooms(inside)
    modules = [own for own in NAMED if own.startswith(prefix) and own != f"{inside}.__init__"]
    assert modules
    for own in modules:
        room = own.removeprefix(prefix).split(".")[0]
        for other in imported(own):
            if other.startswith(prefix) and (below := other.removeprefix(prefix).split(".")[0]):
                assert room == below or level(below, floors) > level(room, floors), f"{own} imports {other}"


def test_the_flow_has_no_circle() -> None:
    """Neither at run time nor for types alone."""
    left = {own: imported(own) for own in NAMED if own.startswith("flow.")}
    while free := {own for own, others in left.items() if not others & left.keys()}:
        left = {own: others for own, others in left.items() if own not in free}
    assert not left


def test_jobs_are_resolved_in_one_place() -> None:
    """Nobody else fuses, or works out which lowering a layer is asked for."""
    assert [own for own in NAMED if "flow.fusion" in imported(own)] == ["flow.jobs"]
    paths = {own: (PACKAGE / own.replace(".", "/")).with_suffix(".py").read_text() for own in NAMED}
    asking = re.compile(r"\b(by_name|with_usual_lowerings)\(")
    assert {own for own, text in paths.items() if asking.search(text)} == {"flow.jobs", "flow.lowerings"}


def test_families_never_import_one_another() -> None:
    for own in (each for each in NAMED if each.startswith("machines.")):
        family = ".".join(own.split(".")[:2])
        others = tuple(f"{each}." for each in FAMILIES if each != family)
        assert not [name for name in imported(own) if f"{name}.".startswith(others)], own


@pytest.mark.parametrize("family", FAMILIES)
def test_every_folder_of_a_family_is_a_room(family: str) -> None:
    folder = PACKAGE / family.replace(".", "/")
    found = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert {room for floor in rooms(family) for room in floor} == found - {"__init__"}


DATA_PATH = {
    "machines.tpu.register.lanes": {"Lanes"},
    "machines.tpu.register.array": {"PeArray", "WeightRegisters", "Deserializers"},
}
"""The units of each module."""


@pytest.mark.parametrize("module", DATA_PATH)
def test_units_of_the_data_path_meet_only_in_wires(module: str) -> None:
    path = (PACKAGE / module.replace(".", "/")).with_suffix(".py")
    assert not imports(path) & {*DATA_PATH}
    named = {
        each.name: {node.id for node in ast.walk(each) if isinstance(node, ast.Name)}
        for each in ast.parse(path.read_text()).body
        if isinstance(each, ast.ClassDef)
    }
    assert named.keys() == DATA_PATH[module]
    assert not any(names & (named.keys() - {unit}) for unit, names in named.items())


def test_the_reference_shares_no_code() -> None:
    paths = [*(PACKAGE / "reference").rglob("*.py")]
    assert PACKAGE / "reference" / "nodes" / "node.py" in paths
    for path in paths:
        assert {name.split(".")[0] for name in imports(path)} <= {"base", "network", "reference"}, path


STREAMS = {"stdout", "stderr", "__stdout__", "__stderr__"}
NAMED_WAYS_OUT = re.compile(r"print|stdout|stderr")
"""In modules without these words nothing but an import can print."""
DRAWN = {"rich.table", "rich.text", "rich.box", "rich.cells"}
"""Of Rich, what makes something to print without printing it."""


def ways_out(nodes: list[ast.AST]) -> set[str]:
    """What in a module could print: `print` itself, the streams, and whatever of others does it."""
    found = set()
    for node in nodes:
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in {"print", *STREAMS}:
                found.add(name)
            case ast.Import(names=names):
                found |= {each.name for each in names if _prints(each.name)}
            case ast.ImportFrom(module=str(module), names=names):
                found |= {each.name for each in names if module == "sys" and each.name in STREAMS} | {
                    module for _ in names if _prints(module)
                }
    return found


def _prints(module: str) -> bool:
    return module.split(".")[0] in {"typer", "click", "rich", "pprint"} and module not in DRAWN


def test_nothing_prints_past_the_terminal() -> None:
    """Everything that does is for cli/ alone; a report is drawn into a text."""
    quiet = [PACKAGE / each.with_suffix(".py") for each in MODULES if each.parts[0] != "cli"]
    drawn = PACKAGE / "report" / "shown.py"
    quiet.remove(drawn)
    assert drawn.read_text().count("Console(") == drawn.read_text().count("Console(file=text,") == 1
    assert not {str(path): ways for path in quiet if (ways := seen(path).ways_out)}


@pytest.mark.parametrize(
    "source",
    ["print(1)", "say = print", "import sys\nsys.stdout.write('1')", "from sys import stderr", "import typer",
     "from click import echo", "from rich import print as say", "from rich.console import Console", "import rich",
     "import builtins\nbuiltins.print(1)", "from pprint import pprint"],
)  # fmt: skip
def test_every_way_to_print_is_seen(source: str) -> None:
    assert ways_out(nodes_of(source))


@pytest.mark.parametrize("source", ["from rich.table import Table", "import sys\nsys.exit(1)", "'print'", "import re"])
def test_what_does_not_print_may_be_there(source: str) -> None:
    assert not ways_out(nodes_of(source))


# ---- docstrings and comments

RIDDLES = re.compile(
    r"(That|Those|This|These|It|Its|They|Their|Ones|Such|Of|As|Whose|None|Nobody|Somebody|Anybody|Always|Whatever|"
    r"The same|One of|One that|With what|What is (there|left|said|so)|What there is|Who)\b"
)
"""Openings that have no subject of their own: the reader looks for it in the name, or in the code."""

PRAGMA = re.compile(r"#\s*(fmt:|mypy:|noqa|ruff:|type:)")
"""Comments for tools."""

LEAST_COMMENTS = 0.02
"""Of the package's lines: fewer leave places without the reason that a reader stops for."""


def docstrings(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring, those of constants and attributes included."""
    for node in nodes:
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else ():
            if (
                isinstance(each, ast.Expr)
                and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, str)
            ):
                yield each.lineno, each.value.value


def riddles(nodes: list[ast.AST]) -> list[str]:
    return [
        f"{line}: {text.strip().splitlines()[0]}"
        for line, text in docstrings(nodes)
        if RIDDLES.match(text.strip()) or "so many" in text
    ]


def test_docstrings_name_their_subject() -> None:
    """A docstring says what the thing is: it does not open with a pronoun or without a subject."""
    paths = (PACKAGE / each.with_suffix(".py") for each in MODULES)
    assert not {str(path): found for path in paths if (found := seen(path).riddles)}


@pytest.mark.parametrize(
    "text",
    ["Those of taps that there are.", "It has all.", "What there is of it.", "The same, moved.",
     "One that fits.", "Whose words these are.", "As many as fit.", "Return so many words.", "Its sizes."],
)  # fmt: skip
def test_riddles_are_seen(text: str) -> None:
    for source in (
        f'"""{text}"""',
        f'def f():\n    """{text}"""',
        f'A = 1\n"""{text}"""',
        f'class A:\n    """{text}"""',
    ):
        assert len(riddles(nodes_of(source))) == 1


@pytest.mark.parametrize("text", ["Return its sizes.", "One block of outputs.", "The samest.", "Items.", "Offsets."])
def test_a_subject_is_no_riddle(text: str) -> None:
    assert not riddles(nodes_of(f'"""{text}"""'))


@pytest.mark.long
def test_comments_say_why() -> None:
    """Comments for readers are on at least one line in fifty; pragmas do not count."""
    lines = remarks = 0
    for module in MODULES:
        source = (PACKAGE / module.with_suffix(".py")).read_text()
        lines += len(source.splitlines())
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        remarks += sum(each.type == tokenize.COMMENT and not PRAGMA.match(each.string) for each in tokens)
    assert remarks >= LEAST_COMMENTS * lines, f"{remarks} comments in {lines} lines"


def test_a_type_has_a_name_of_its_own() -> None:
    """A name that two rooms give to different types makes a reader look up which one is meant."""
    where: dict[str, list[str]] = {}
    for module in MODULES:
        for name in seen((PACKAGE / module).with_suffix(".py")).types:
            where.setdefault(name, []).append(str(module))
    assert not {name: modules for name, modules in where.items() if len(modules) > 1}
