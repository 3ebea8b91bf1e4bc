"""What `simulate` refuses before anything runs."""

from __future__ import annotations

import ast
import re
from functools import partial
from typing import Any

import pytest

from tests import ROOT
from tpusim import ConvTranspose2d, Workload, load_hardware, load_workload, simulate
from tpusim.base.errors import InputError
from tpusim.flow.jobs import resolve
from tpusim.flow.recordings import trace


@pytest.mark.parametrize(
    ("given", "wrong", "load"),
    [
        ((load_workload("tiny"), "tiny_4x4"), "'tiny_4x4' is no Hardware", "load_hardware"),
        (("tiny", load_hardware("tiny_4x4")), "'tiny' is no Workload", "load_workload"),
    ],
)
def test_names_are_not_what_they_name(given: tuple[Any, Any], wrong: str, load: str) -> None:
    with pytest.raises(InputError, match=wrong) as error:
        simulate(*given)
    assert f"give what tpusim.{load}(...) returns" in str(error.value)


OPTIONS = r"--(batch|engine|(no-)?check|dtype|sums|seed|lowering|layers|ops)\b"


@pytest.mark.parametrize("seed", [-1, 1.5, "x", None, True, 10**30])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    work, machine = load_workload("tiny"), load_hardware("tiny_4x4")
    for run in (partial(simulate, work, machine), partial(trace, resolve(work, machine))):
        with pytest.raises(InputError, match=r"^seed: .*; write a whole number, 0 to "):
            run(seed=seed)


def test_advice_names_no_option_that_python_lacks() -> None:
    for asked in ({"dtype": "f23"}, {"sums": "x"}, {"engine": "none"}):
        with pytest.raises(InputError) as error:
            simulate(load_workload("tiny"), load_hardware("tiny_4x4"), **asked)  # type: ignore[arg-type]
        assert "--" not in str(error.value)


def test_messages_that_python_sees_name_no_option_of_the_command() -> None:
    """All texts below the commands and their reports, also those that take a full computer to be seen."""
    rooms = "flow", "machines", "memory", "reference", "network/formats", "numerics"
    files = [path for room in rooms for path in (ROOT / "tpusim" / room).rglob("*.py")]
    files += (ROOT / "tpusim" / "network").glob("*.py")
    found = []
    for path in files:
        source = path.read_text()
        # A text that a line break parts is put together again only where it is parsed.
        if not re.search(OPTIONS, source):
            continue
        tree = ast.parse(source)
        told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = (each for each in ast.walk(tree) if isinstance(each, ast.Constant) and id(each) not in told)
        found += [f"{path}:{each.lineno}" for each in texts if re.search(OPTIONS, str(each.value))]
    assert found == []


@pytest.mark.parametrize("lowering", ["stride_phases", "zero_insertion"])
def test_progress_ends_at_all_outputs(lowering: str) -> None:
    """Parts reach beyond the map, where words hold more than is left of a row."""
    work, said = Workload("w", 3, [ConvTranspose2d("up", 3, 13, 13, 5, 3, stride=2)]), list[str]()
    simulate(work, load_hardware("tpu_v2"), lowering=lowering, watch=lambda _, doing: said.append(doing))
    shares = [int(each.partition("%")[0]) for each in said if "%" in each]
    assert shares == sorted(shares)
    assert shares[-1] == 100
