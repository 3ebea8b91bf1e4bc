"""The options --json and --csv of commands: where what they write goes, and where words go then."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tpusim.base.errors import InputError
from tpusim.base.files import is_device, probe, write
from tpusim.cli.terminal import NullStream, deliver, present, say

if TYPE_CHECKING:
    from tpusim.report.shown import CommandAnswer

STDOUT = "-"
_READ = frozenset({".yaml", ".yml", ".onnx", ".csv", ".npz"})
"""Suffixes of files that commands read, which JSON must not replace."""


class JsonOutput:
    """Target of JSON: a file, standard output ("-"), or None if no JSON is wanted."""

    option, suffix = "--json", ".json"

    def __init__(self, target: str | None, made: Path | None = None) -> None:
        """Raise InputError, before the work, if it cannot be written; the directory `made` will exist by then."""
        # The file, if that is the target.
        self.file = None if target in (None, STDOUT) else Path(str(target))
        self.to_stdout = target == STDOUT
        if self.to_stdout and isinstance(sys.stdout, NullStream):
            raise InputError(f"{self.option} -: standard output is closed; give a file")
        if self.file is not None and self.file.suffix.lower() in _READ - {self.suffix}:
            says = f"such files are read, not written; name one that ends with {self.suffix}"
            raise InputError(f"{self.option} {target}: {says}")
        if self.file is not None:
            probe(self.file, make_folder=self.file.parent == made)

    def put(self, text: str) -> None:
        """Write the JSON, if it is wanted."""
        if self.to_stdout:
            say(sys.stdout, text)
        if self.file is not None:
            write(self.file, f"{text}\n".encode())

    def deliver(self, shown: CommandAnswer, *more: Callable[[], None]) -> None:
        """Write the JSON, show the words, then do `more`; a failure of one does not stop the others.

        Raises:
            InputError: with everything that failed.
        """
        written = [lambda: self.put(shown.to_json())] if self.place else []
        deliver(*written, lambda: present(self.words_to, shown.paragraphs), *more)

    @property
    def replaced(self) -> bool:
        """Whether the target is a file that is replaced at once, not something that may wait for a reader."""
        return self.file is not None and not is_device(self.file)

    @property
    def place(self) -> str:
        """Place of the JSON, for people; empty if no JSON is wanted."""
        return "standard output" if self.to_stdout else str(self.file or "")

    @property
    def words_to(self) -> TextIO:
        """Stream for words: standard error if standard output has the JSON."""
        return sys.stderr if self.to_stdout else sys.stdout


class CsvOutput(JsonOutput):
    """Target of a table as CSV."""

    option, suffix = "--csv", ".csv"


def refuse_shared(written: Mapping[str, Path | None]) -> None:
    """Refuse two options that would write one file, of which the later would replace the earlier. Raises InputError."""
    options: dict[str, str] = {}
    for option, file in written.items():
        if file is None or is_device(file):
            continue
        other = options.setdefault(os.path.realpath(file), option)
        if other != option:
            raise InputError(f"{other}, {option}: both would write {file}; name another file for one of them")


def refuse_replaced(read: Iterable[str | Path], written: Mapping[str, str | Path | None]) -> None:
    """Refuse an option that would write over a file that the command reads. Raises InputError."""
    sources = [name for name in read if os.path.isfile(name)]
    for option, file in written.items():
        if file is not None and os.path.isfile(file) and any(os.path.samefile(file, name) for name in sources):
            raise InputError(f"{option} {file}: is read by this command, and would be replaced; name another file")
