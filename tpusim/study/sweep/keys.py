"""What a result of a sweep depends on, as a key: its inputs, and the sources that decide on it."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path

from tpusim.machines.tpu.description import Hardware
from tpusim.network.workload import Workload
from tpusim.study.sweep.space import Point

_MODEL = (
    "network/**/*.py", "memory/**/*.py", "technology/*.py", "machines/**/*.py", "flow/account.py",
    "flow/energy_account.py", "flow/choice.py", "flow/lowerings.py", "flow/modelled.py", "flow/fusion.py",
    "flow/chains.py", "flow/residency.py", "result/records.py", "result/totals.py", "result/energy_use.py",
)  # fmt: skip


@cache
def sources_digest(*patterns: str) -> str:
    """Return a digest of source files of this package, named as in "lowering/*.py"."""
    package = Path(__file__).parents[2]
    files = sorted(file for pattern in patterns for file in package.glob(pattern))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def model_version() -> str:
    """Return a digest of the sources that decide on cycles and energies: a change of the model makes every key new."""
    return sources_digest(*_MODEL)


def key_of(point: Point) -> str:
    """Return a digest of a point's complete inputs and of the version of the model."""
    machine = {name: value for name, value in point.hardware.to_dict().items() if name != "name"}
    if isinstance(point.hardware, Hardware):
        # A shipped technology goes by its name there, and its constants may change.
        machine["technology"] = point.hardware.silicon.to_dict()
    inputs = {"work": _digest(point.workload), "hardware": machine, "lowering": point.lowering}
    return sha256(f"{model_version()} {json.dumps(inputs, sort_keys=True)}".encode()).hexdigest()


@lru_cache(maxsize=4096)
def _digest(workload: Workload) -> str:
    layers = [{"op": layer.op, **asdict(layer)} for layer in workload.layers]
    own = [(each.layer, each.lowering) for each in workload.lowerings]
    inputs = json.dumps([workload.batch, layers, own, workload.edges], sort_keys=True, default=_bytes_digest)
    return sha256(inputs.encode()).hexdigest()


def _bytes_digest(numbers: bytes) -> str:
    """The digest of what a layer has read of a file."""
    return sha256(numbers).hexdigest()
