"""Results of sweeps in SQLite: a row a point, a row a layer, keyed by all that a result depends on."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from tpusim.errors import InputError
from tpusim.hardware import Hardware
from tpusim.result import LayerResult, Total, total_of
from tpusim.workload import Workload

FILE = "sweep.sqlite"

FIGURES = (
    "macs", "passes", "cycles", "time_us", "ideal_cycles", "pe_utilization", "mapping_efficiency", "tflops",
    "hbm_read_bytes", "hbm_write_bytes",
)  # fmt: skip
"""Columns of their own, of a point's total and of each layer; `detail` holds everything as JSON."""

_COLUMNS = ", ".join(f"{name} REAL" for name in (*FIGURES, "port_idle_ratio"))
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS points (
    key TEXT PRIMARY KEY, workload TEXT NOT NULL, batch INTEGER NOT NULL, hardware TEXT NOT NULL, error TEXT,
    {_COLUMNS}, detail TEXT
);
CREATE TABLE IF NOT EXISTS layers (
    key TEXT NOT NULL, position INTEGER NOT NULL, name TEXT NOT NULL, {_COLUMNS}, detail TEXT,
    PRIMARY KEY (key, position)
);
"""
_WAIT_SECONDS = 60.0
_MODEL = (
    "program.py", "layer_result.py", "result.py", "lowering/*.py", "machine/*.py", "engine/event/*.py",
    "engine/timing.py",
)  # fmt: skip


@cache
def model_version() -> str:
    """A digest of the sources that decide on cycles: a change of the model makes every key new."""
    package = Path(__file__).parent.parent
    files = [file for part in _MODEL for file in package.glob(part)]
    digest = sha256()
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def key_of(workload: Workload, hardware: Hardware, lowering: str) -> str:
    """Of a point: its complete inputs and the version of the model."""
    layers = [{"op": layer.op, **asdict(layer)} for layer in workload.layers]
    machine = {name: value for name, value in hardware.to_dict().items() if name != "name"}
    inputs = {"layers": layers, "batch": workload.batch, "hardware": machine, "lowering": lowering}
    return sha256(f"{model_version()} {json.dumps(inputs, sort_keys=True)}".encode()).hexdigest()


class Store:
    """One file; several sweeps may use it at once, and a killed one leaves only whole points behind."""

    def __init__(self, path: Path) -> None:
        try:
            self._connection = sqlite3.connect(path, timeout=_WAIT_SECONDS)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise InputError(f"{path}: cannot be used as the results of a sweep ({error})") from None
        self._path = path

    def close(self) -> None:
        """Write what is left of the log into the file."""
        self._connection.close()

    def done(self, keys: Iterable[str]) -> set[str]:
        """Those of `keys` whose point has a result."""
        found = self._connection.execute("SELECT key FROM points WHERE error IS NULL")
        return {key for (key,) in found} & {*keys}

    def save(self, key: str, workload: Workload, hardware: Hardware, layers: tuple[LayerResult, ...]) -> None:
        """A finished point, whole or not at all."""
        rows = [(key, position, layer.name, *_figures(layer)) for position, layer in enumerate(layers)]
        self._write(key, workload, hardware, None, _figures(total_of(layers, 0.0)), rows)

    def save_error(self, key: str, workload: Workload, hardware: Hardware, error: str) -> None:
        """A point that cannot be simulated, and why."""
        self._write(key, workload, hardware, error, (None,) * (len(FIGURES) + 2), [])

    def point(self, key: str) -> Mapping[str, Any]:
        """Every column of a point."""
        with closing(self._connection.execute("SELECT * FROM points WHERE key = ?", (key,))) as cursor:
            names = [column[0] for column in cursor.description]
            return dict(zip(names, cursor.fetchone(), strict=True))

    def layers(self, key: str) -> Iterator[Mapping[str, Any]]:
        """Every column of a point's layers, in network order."""
        query = "SELECT * FROM layers WHERE key = ? ORDER BY position"
        with closing(self._connection.execute(query, (key,))) as cursor:
            names = [column[0] for column in cursor.description]
            for row in cursor:
                yield dict(zip(names, row, strict=True))

    def _write(
        self, key: str, workload: Workload, hardware: Hardware, error: str | None, figures: tuple[Any, ...],
        layers: list[tuple[Any, ...]],
    ) -> None:  # fmt: skip
        point = (key, workload.name, workload.batch, json.dumps(hardware.to_dict()), error, *figures)
        try:
            with self._connection:
                self._connection.execute("DELETE FROM layers WHERE key = ?", (key,))
                self._connection.execute(f"REPLACE INTO points VALUES ({_marks(point)})", point)
                if layers:
                    self._connection.executemany(f"INSERT INTO layers VALUES ({_marks(layers[0])})", layers)
        except sqlite3.Error as problem:
            raise InputError(f"{self._path}: cannot be written ({problem})") from None


def _figures(of: LayerResult | Total) -> tuple[Any, ...]:
    return (*(getattr(of, name) for name in FIGURES), of.vector_memory.port_idle_ratio, json.dumps(asdict(of)))


def _marks(row: tuple[Any, ...]) -> str:
    return ", ".join("?" * len(row))
