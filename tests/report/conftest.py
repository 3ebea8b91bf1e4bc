"""Results that the tests of the page show."""

from __future__ import annotations

import pytest

from tests.checks import ESTIMATE
from tpusim import load_hardware, load_workload, simulate
from tpusim.result.records import Result


@pytest.fixture(scope="package")
def resnet50() -> Result:
    # Blocks that simulation chooses would take most of the time.
    return simulate(load_workload("resnet50", batch=8), load_hardware("tpu_v2", ESTIMATE), check=False)


@pytest.fixture(scope="package")
def tiny() -> Result:
    return simulate(load_workload("tiny", batch=2), load_hardware("tiny_4x4"))
