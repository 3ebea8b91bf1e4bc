"""The table of operators of ONNX on the page of one's own model: made of the registries, so that it tells what is true.

`--update-golden` writes it anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import onnx
import pytest

from tpusim.network.formats.onnx_model.array_nodes import ARRAY_OPS
from tpusim.network.formats.onnx_model.bodies import WITH_BODIES
from tpusim.network.formats.onnx_model.expansions import DYNAMIC_LSTM, EXPANSIONS
from tpusim.network.formats.onnx_model.facts import NOT_TIMED, STAYING
from tpusim.network.formats.onnx_model.standard import GATES
from tpusim.network.formats.onnx_model.vector_nodes import VECTOR_OPS
from tpusim.reference.nodes import NODES

PAGE = Path(__file__).parents[2] / "docs" / "your_model.md"
BEGIN, END = "| operators | what becomes of them |\n|---|---|\n", "\nAll others are refused"
_DOMAIN = "com.microsoft."


def table() -> str:
    """Return the rows of the table."""
    timed, written = {*ARRAY_OPS, *VECTOR_OPS}, {*EXPANSIONS, *WITH_BODIES}
    own = {name for name in written if not name.startswith(_DOMAIN)}
    others = {name.removeprefix(_DOMAIN) for name in written - own}
    rows = (
        (ARRAY_OPS, "timed: layers of the array"),
        (VECTOR_OPS, "timed: layers of the vector unit, where one computes them as they are; otherwise computed"),
        (own, "timed: written out as the operators that they are made of"),
        (others, "timed, of the domain `com.microsoft`: written out likewise"),
        ({*GATES, "If", DYNAMIC_LSTM}, "timed: replaced by their steps, or by the branch that is taken"),
        (STAYING - timed, "no time: their results are read where their operands lie"),
        (NOT_TIMED - timed - own - STAYING, "no time: the reference computes them; a note says why"),
    )
    return "".join(f"| {_listed(names)} | {what} |\n" for names, what in rows)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def test_the_page_has_the_operators_of_the_registries(request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    found, _, behind = rest.partition(END)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(f"{before}{BEGIN}{table()}{END}{behind}")
        found = table()
    assert found == table(), "docs/your_model.md differs; if that is right, run with --update-golden"


def test_every_operator_of_the_table_is_one_and_has_a_function() -> None:
    """Of ONNX, in some opset; what takes no time has a function that computes it."""
    known = {each.name for each in onnx.defs.get_all_schemas_with_history() if not each.domain}
    own = {name for name in (*ARRAY_OPS, *VECTOR_OPS, *EXPANSIONS, *WITH_BODIES, *NOT_TIMED) if "." not in name}
    assert own - known == {"SimplifiedLayerNormalization"}
    assert NODES.keys() >= NOT_TIMED
