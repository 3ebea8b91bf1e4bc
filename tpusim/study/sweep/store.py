"""Results of sweeps in SQLite: a row for each point and each layer, keyed by everything that a result depends on."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from functools import cache, lru_cache
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any
from zlib import crc32

from tpusim.base.errors import InputError
from tpusim.flow.jobs import Jobs
from tpusim.flow.numbers import INTEGERS
from tpusim.network.workload import Workload
from tpusim.result.records import LayerResult, total_of
from tpusim.result.vocabulary.figures import FIGURES, value_of
from tpusim.result.vocabulary.runs import COLUMN

_MODEL = (
    "network/**/*.py", "memory/**/*.py", "technology/*.py", "machines/**/*.py", "flow/engines.py",
    "flow/jobs.py", "flow/lowerings.py", "flow/fusion.py", "flow/hbm_need.py", "flow/need.py", "result/records.py",
)  # fmt: skip


@cache
def sources_digest(*patterns: str) -> str:
    """Return a digest of source files of this package, named by patterns such as "lowering/*.py"."""
    package = Path(__file__).parents[2]
    files = sorted(file for pattern in patterns for file in package.glob(pattern))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def model_version() -> str:
    """Return a digest of the sources that decide cycles and energies, so that a change of the model changes every
    key.
    """
    return sources_digest(*_MODEL)


_LABELS = "name", "generation", "chip_cores"
"""Fields of a machine that say what it stands for, and change no result."""


def key_of(jobs: Jobs) -> str:
    """Return a digest of all that the results of jobs depend on, the version of the model included."""
    machine = {name: value for name, value in jobs.hardware.to_dict().items() if name not in _LABELS}
    machine |= jobs.family.constants(jobs.hardware)
    inputs = {"work": _digest(jobs.work), "hardware": machine, "lowering": jobs.lowering}
    # Points of small whole numbers have the keys that they had before there were others.
    inputs |= {"dtype": jobs.dtype} if jobs.dtype != INTEGERS else {}
    return sha256(f"{model_version()} {json.dumps(inputs, sort_keys=True)}".encode()).hexdigest()


@lru_cache(maxsize=4096)
def _digest(workload: Workload) -> str:
    def from_file(numbers: bytes) -> str:
        return sha256(numbers).hexdigest()

    layers = [{"op": layer.op, **asdict(layer)} for layer in workload.layers]
    own = [(each.layer, each.lowering) for each in workload.lowerings]
    inputs = json.dumps([workload.batch, layers, own, workload.edges], sort_keys=True, default=from_file)
    return sha256(inputs.encode()).hexdigest()


# ---- the file of results

FILE = "sweep.sqlite"
LOCK = "sweep.lock"

_APPLICATION = int.from_bytes(b"tpus")
_SQL = {int: "INTEGER", float: "REAL"}
_COLUMNS = ", ".join(f"{key} {_SQL[figure.kind]}" for key, figure in FIGURES.items())
_TABLES = f"""
CREATE TABLE IF NOT EXISTS points (
    key TEXT PRIMARY KEY, workload TEXT NOT NULL, batch INTEGER NOT NULL, hardware TEXT NOT NULL, error TEXT,
    {_COLUMNS}, detail TEXT, seal INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS finished ON points (key) WHERE error IS NULL;
CREATE TABLE IF NOT EXISTS layers (
    key TEXT NOT NULL, position INTEGER NOT NULL, name TEXT NOT NULL, op TEXT NOT NULL,
    {COLUMN} TEXT NOT NULL, {_COLUMNS}, detail TEXT,
    seal INTEGER NOT NULL, PRIMARY KEY (key, position)
);
CREATE TABLE IF NOT EXISTS files (name TEXT PRIMARY KEY, digest TEXT NOT NULL, stamp TEXT NOT NULL);
"""
_VERSION = crc32(_TABLES.encode()) >> 1
"""Version of the tables, apart from their columns; SQLite keeps 31 bits without a sign."""
_SCHEMA = f"""
BEGIN IMMEDIATE;
{_TABLES}
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_VERSION};
COMMIT;
"""
_MOVE = "move it away, and the same command computes its points again"
_CHECK = "check the place and its permissions, or take another --out"
_OUTSIDE = {
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
}  # fmt: skip
"""Errors that are not caused by the file."""
_WAIT_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_STAMP_WORDS = 3
"""Words of a stamp: size, time and digest; earlier versions had no digest."""


class DamagedStore(InputError):
    """Stored results can neither be used nor added to."""


class Store:
    """A file of results. Several sweeps may use it at once, and a killed sweep leaves only whole points behind.

    Every method raises InputError if the file can no longer be read or written.
    """

    def __init__(self, path: Path) -> None:
        """Raise InputError if the file holds something else, or was written by an older tpusim; it is left as it is."""
        self._path = path
        with self._failures_told("used"):
            self._connection = sqlite3.connect(path, timeout=_WAIT_SECONDS)
            try:
                _when_free(self._open)
            except BaseException:
                self._connection.close()
                raise

    def _open(self) -> None:
        self._connection.rollback()
        # In one transaction, because another sweep may be creating the tables, too.
        self._connection.execute("BEGIN")
        application, version = self._number("PRAGMA application_id"), self._number("PRAGMA user_version")
        empty = not self._number("SELECT count(*) FROM sqlite_master")
        self._connection.rollback()
        if not empty and (application, version) != (_APPLICATION, _VERSION):
            older = "another version of tpusim wrote it, and keeps its results in another form"
            other = "it holds something else than the results of a sweep, or those of an old version of tpusim"
            said = older if application == _APPLICATION else other
            raise InputError(f"{self._path}: {said}; take another --out, or move it away")
        # A killed process loses nothing; after a power failure the last points may be missing, and are computed again.
        for setting in ("journal_mode = WAL", "synchronous = NORMAL", "temp_store = MEMORY"):
            self._connection.execute(f"PRAGMA {setting}")
        if empty:
            self._connection.executescript(_SCHEMA)
        self._connection.execute("CREATE TEMP TABLE IF NOT EXISTS asked (place INTEGER PRIMARY KEY, key TEXT NOT NULL)")

    def close(self) -> None:
        """Write the rest of the log into the file."""
        self._connection.close()

    def done(self, keys: Iterable[str]) -> set[str]:
        """Return those of `keys` whose point has a result."""
        with self._failures_told("read"):
            self._put_keys(keys)
            query = "SELECT asked.key FROM asked JOIN points INDEXED BY finished USING (key) WHERE error IS NULL"
            return {key for (key,) in self._connection.execute(query)}

    def save(self, key: str, jobs: Jobs, finding: tuple[LayerResult, ...] | str) -> None:
        """Store the result of a point, as a whole or not at all: its layers, or why it cannot be simulated."""
        # SQLite would go on writing into a deleted file that nobody can open any more.
        if not self._path.exists():
            raise InputError(f"{self._path}: was removed while the sweep ran, and its points with it; start it again")
        # A finding is the layers' results, or the reason why there are none.
        layers = () if isinstance(finding, str) else finding
        error = finding if isinstance(finding, str) else None
        figures, detail = _figures(total_of(layers, 0.0)) if layers else ((None,) * len(FIGURES), None)
        work, machine = jobs.work, json.dumps(jobs.hardware.to_dict())
        seal = _seal(key, work.name, work.batch, error, *figures)
        row = (key, work.name, work.batch, machine, error, *figures, detail, seal)
        rows = []
        for place, layer in enumerate(layers):
            figures, detail = _figures(layer)
            read = key, place, layer.name, layer.op, layer.lowering, *figures
            rows.append((*read, detail, _seal(*read)))
        with self._failures_told("written"), self._connection:
            self._connection.execute("DELETE FROM layers WHERE key = ?", (key,))
            self._connection.execute(f"REPLACE INTO points VALUES ({_placeholders(row)})", row)
            if rows:
                self._connection.executemany(f"INSERT INTO layers VALUES ({_placeholders(rows[0])})", rows)

    def points(self, keys: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        """Yield workload, batch, error and FIGURES for each of `keys`, in order."""
        return self._rows(keys, len(keys), "points", ("workload", "batch", "error", *FIGURES), "place")

    def layers(self, keys: Sequence[str], count: int) -> Iterator[Mapping[str, Any]]:
        """Yield a row for every layer of each of `keys`, in order: index of the key, position, name, op, lowering, and
        FIGURES.

        The file is damaged unless there are `count` of them.
        """
        return self._rows(keys, count, "layers", ("position", "name", "op", COLUMN, *FIGURES), "place, position")

    def word_fills(self, keys: Sequence[str]) -> dict[str, int]:
        """The fewest elements used of a word in any layer, by key; only for keys whose layers have words."""
        query = "SELECT asked.key, min(json_extract(detail, '$.blocking.word_fill')) AS fill FROM asked JOIN layers"
        with self._failures_told("read"):
            self._put_keys(keys)
            found = self._connection.execute(f"{query} USING (key) GROUP BY key HAVING fill IS NOT NULL")
            return {key: fill for key, fill in found if isinstance(fill, int) and fill > 0}

    def kept_files(self, inputs: object, written: Iterable[str]) -> list[str]:
        """Names of files beside the store, which are `written` only if their inputs have changed or a file is missing
        or changed.

        The text of `inputs` holds whatever they depend on. Files from other inputs are forgotten first.
        """
        digest = sha256(repr(inputs).encode()).hexdigest()
        with self._failures_told("read"):
            query = "SELECT name, stamp FROM files WHERE digest = ? AND typeof(name) = 'text'"
            found = self._connection.execute(query, (digest,)).fetchall()
            # Files from other inputs are forgotten before any new one is written, so that an interrupted run leaves no
            # false entry.
            if not found and self._number("SELECT count(*) FROM files"):
                with self._connection:
                    self._connection.execute("DELETE FROM files")
            before = {name: stamp.rpartition(" ")[0] for name, stamp in found if isinstance(stamp, str)}
        if before and all(stamp and stamp == self._stamp(name) for name, stamp in before.items()):
            return [*before]
        names = [*written]
        rows = [(name, digest, f"{self._stamp(name)} {_contents(self._path.with_name(name))}") for name in names]
        with self._failures_told("written"), self._connection:
            self._connection.execute("DELETE FROM files")
            self._connection.executemany("INSERT INTO files VALUES (?, ?, ?)", rows)
        return names

    def _stamp(self, name: str) -> str:
        """Size and time of a file beside the store; empty if there is none."""
        file = self._path.parent / name
        status = file.stat() if file.exists() else None
        return f"{status.st_size} {status.st_mtime_ns}" if status else ""

    def _rows(
        self, keys: Iterable[str], count: int, kind: str, columns: Sequence[str], order: str
    ) -> Iterator[Mapping[str, Any]]:
        """Yield `count` rows of `keys` in the table `kind`, each with the index of its key."""
        query = f"SELECT place, seal, key, {', '.join(columns)} FROM asked JOIN {kind} USING (key) ORDER BY {order}"
        found = 0
        with self._failures_told("read"):
            self._put_keys(keys)
            with closing(self._connection.execute(query)) as cursor:
                for place, seal, *row in cursor:
                    found += 1
                    if seal != _seal(*row):
                        raise DamagedStore(f"{self._path}: is damaged: what it holds is not what was written; {_MOVE}")
                    yield {"place": place, **dict(zip(columns, row[1:], strict=True))}
        if found != count:
            raise DamagedStore(f"{self._path}: is damaged: {found:,} of {count:,} {kind} are left; {_MOVE}")

    def _put_keys(self, keys: Iterable[str]) -> None:
        """Put keys into a table for queries: a list of a hundred thousand does not fit into a query."""
        with self._connection:
            self._connection.execute("DELETE FROM asked")
            self._connection.executemany("INSERT INTO asked VALUES (?, ?)", enumerate(keys))

    def _number(self, query: str) -> int:
        return int(self._connection.execute(query).fetchone()[0])

    @contextmanager
    def _failures_told(self, done: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # The latter, where SQLite quotes what is damaged.
            said = f"{self._path}: cannot be {done} as the results of a sweep ({error})"
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _OUTSIDE:
                raise InputError(f"{said}; {_CHECK}") from None
            raise DamagedStore(f"{said}; {_MOVE}") from None


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the folder of a sweep. Raises InputError while another process holds it, or where it cannot be held.

    SQLite locks a file there through the system, so a killed process holds nothing.
    """
    file = folder / LOCK
    try:
        lock = sqlite3.connect(file, timeout=0, isolation_level=None)
    except sqlite3.Error as error:
        raise InputError(f"{file}: cannot be used to hold the folder ({error}); {_CHECK}") from None
    with closing(lock) as connection:
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            # Any other error is reported by the store itself.
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                says = "another tpusim sweep is at work there; wait until it ends, or take another --out"
                raise InputError(f"{folder}: {says}") from None
        try:
            yield
        finally:
            # A file left by a killed process does no harm.
            with suppress(OSError):
                file.unlink()


def is_as_written(file: Path) -> bool:
    """Whether a file is as the sweep wrote it whose store lies beside it; also if no store can tell."""
    target = file.resolve()
    store = target.with_name(FILE)
    # Without a log nobody is at work: nothing is locked or left behind, even where nothing may be written.
    mode = "mode=ro" if store.with_name(f"{FILE}-wal").exists() else "immutable=1"
    try:
        with closing(sqlite3.connect(f"{store.as_uri()}?{mode}", uri=True)) as connection:
            row = connection.execute("SELECT stamp FROM files WHERE name = ?", (target.name,)).fetchone()
    except (sqlite3.Error, UnicodeDecodeError):
        return True
    written = str(row[0]).split() if row else []
    return len(written) != _STAMP_WORDS or written[-1] == _contents(file)


def _contents(file: Path) -> str:
    """Return a digest of a file's content; raise InputError if it cannot be read."""
    try:
        with file.open("rb") as stream:
            return file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); {_CHECK}") from None


def _when_free(do: Callable[[], None]) -> None:
    """Try again and again while another process has the file to itself: SQLite does not wait while a log is created."""
    until = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            return do()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(_LOOK_SECONDS)


def _figures(of: LayerResult) -> tuple[tuple[Any, ...], str]:
    """FIGURES with their types, and everything else as JSON."""
    detail = {name: value for name, value in asdict(of).items() if name not in FIGURES and name != "name"}
    values = ((figure, value_of(of, key)) for key, figure in FIGURES.items())
    return tuple(None if value is None else figure.kind(value) for figure, value in values), json.dumps(detail)


def _seal(*row: Any) -> int:
    """Return a checksum of a row: SQLite has none, and would pass on what a faulty disk made of it."""
    return crc32(repr(row).encode(errors="surrogatepass"))


def _placeholders(row: tuple[Any, ...]) -> str:
    return ", ".join("?" * len(row))
