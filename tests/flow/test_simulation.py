"""What `simulate` refuses before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from tpusim import load_hardware, load_workload, simulate
from tpusim.base.errors import InputError


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
