"""Imports run downward only, and only the command line prints."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "tpusim"
LAYERS = [
    ["cli", "__main__", "__init__"],
    ["commands"],
    ["screen"],
    ["report"],
    ["sweep"],
    ["explain"],
    ["simulation", "validation"],
    ["outcome"],
    ["layer_result", "check"],
    ["engine"],
    ["machine"],
    ["lowering"],
    ["program"],
    ["reference"],
    ["workload", "hardware"],
    ["terminal", "files", "extras"],
    ["result", "version", "fields", "checks", "yaml_source", "yaml_document"],
    ["errors", "units"],
]
"""From the top down; a module may import from its own place in the list and below."""

MODULES = sorted(path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py"))


def level(module: str) -> int:
    """The place of `tpusim.<module>` in LAYERS."""
    top = module.split(".")[0] or "__init__"
    return next(index for index, names in enumerate(LAYERS) if top in names)


def imports(path: Path) -> set[str]:
    """The modules of the package that a file imports, without the leading `tpusim.`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, "absolute imports only"
            submodules = {f"{node.module}.{name.name}" for name in node.names}
            modules = {
                name for name in submodules if (PACKAGE.parent / name.replace(".", "/")).with_suffix(".py").exists()
            }
            found |= modules or {node.module}
    return {name.removeprefix("tpusim").lstrip(".") for name in found if name.split(".")[0] == "tpusim"}


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_imports_run_downward(module: Path) -> None:
    own = ".".join(module.parts)
    for other in imports(PACKAGE / module.with_suffix(".py")):
        assert level(other) >= level(own), f"{own} imports {other}"


@pytest.mark.parametrize("module", [m for m in MODULES if m.parts[0] == "machine"], ids=str)
def test_units_of_the_machine_never_import_one_another(module: Path) -> None:
    assert not any(other.startswith("machine") for other in imports(PACKAGE / module.with_suffix(".py")))


DATA_PATH = {f"engine.register.{name}" for name in ("lanes", "array", "weights", "deserializers")}


@pytest.mark.parametrize("unit", sorted(DATA_PATH))
def test_units_of_the_data_path_meet_only_in_wires(unit: str) -> None:
    assert not imports((PACKAGE / unit.replace(".", "/")).with_suffix(".py")) & DATA_PATH


def test_the_reference_shares_no_code() -> None:
    assert imports(PACKAGE / "reference.py") <= {"errors", "workload"}


@pytest.mark.parametrize("module", [m for m in MODULES if m.name != "cli"], ids=str)
def test_only_the_command_line_prints(module: Path) -> None:
    tree = ast.parse((PACKAGE / module.with_suffix(".py")).read_text())
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    assert not any(isinstance(call, ast.Name) and call.id == "print" for call in calls)
