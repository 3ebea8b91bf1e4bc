"""The option --json of several commands: where the JSON goes, and where words go then."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tpusim.base.errors import InputError
from tpusim.base.files import is_device, probe, write
from tpusim.cli.terminal import Nowhere, deliver, present, say

if TYPE_CHECKING:
    from tpusim.report.shown import Shown

STDOUT = "-"
_READ = frozenset({".yaml", ".yml", ".onnx", ".csv", ".npz"})
"""How names of files end that commands read, and of which JSON takes no one's place."""


class JsonOutput:
    """A file, standard output ("-"), or None where no JSON is wanted."""

    def __init__(self, target: str | None, made: Path | None = None) -> None:
        """Raise InputError, before the work, if it cannot be written; `made` is a directory that will be there then."""
        self._file = None if target in (None, STDOUT) else Path(str(target))
        self._to_stdout = target == STDOUT
        if self._to_stdout and isinstance(sys.stdout, Nowhere):
            raise InputError("--json -: standard output is closed; give a file")
        if self._file is not None and self._file.suffix.lower() in _READ:
            raise InputError(f"--json {target}: such files are read, not written; name one that ends with .json")
        if self._file is not None:
            probe(self._file, make_folder=self._file.parent == made)

    def put(self, text: str) -> None:
        """Write the JSON, if it is wanted."""
        if self._to_stdout:
            say(sys.stdout, text)
        if self._file is not None:
            write(self._file, f"{text}\n".encode())

    def deliver(self, shown: Shown, *more: Callable[[], None]) -> None:
        """Write the JSON, show the words, then do `more`; what fails keeps nothing else from being done.

        Raises:
            InputError: with everything that failed.
        """
        written = [lambda: self.put(shown.to_json())] if self.place else []
        deliver(*written, lambda: present(self.words_to, shown.paragraphs), *more)

    @property
    def replaced(self) -> bool:
        """Whether it is a file, written at once, and nothing that may wait for a reader."""
        return self._file is not None and not is_device(self._file)

    @property
    def place(self) -> str:
        """Where it goes, for people; empty where no JSON is wanted."""
        return "standard output" if self._to_stdout else str(self._file or "")

    @property
    def words_to(self) -> TextIO:
        """Where words go: they leave standard output to the JSON."""
        return sys.stderr if self._to_stdout else sys.stdout
