"""The option --json of several commands: where the JSON goes, and where words go then."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tpusim.base.errors import InputError
from tpusim.base.files import probe, write
from tpusim.cli.terminal import Nowhere, say

STDOUT = "-"


@dataclass(frozen=True)
class JsonOutput:
    """A file, standard output ("-"), or None where no JSON is wanted."""

    target: str | None

    def check(self, made: Path | None = None) -> None:
        """Find out, before the work, whether it can be written; `made` is a directory that will be there by then.

        Raises:
            InputError: when it cannot.
        """
        if self.target == STDOUT:
            if isinstance(sys.stdout, Nowhere):
                raise InputError("--json -: standard output is closed; give a file")
        elif self.target is not None:
            file = Path(self.target)
            probe(file, make_folder=file.parent == made)

    def put(self, text: str) -> None:
        """Write the JSON, if it is wanted."""
        if self.target == STDOUT:
            say(sys.stdout, text)
        elif self.target is not None:
            write(Path(self.target), f"{text}\n".encode())

    @property
    def words_to(self) -> TextIO:
        """Where words go: they leave standard output to the JSON."""
        return sys.stderr if self.target == STDOUT else sys.stdout
