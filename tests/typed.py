"""What a page of Markdown has its reader type, and what it shows: read from the page, so that tests can type it.

A block without a language holds commands, one a line, with comments behind `#`. A block `text` behind it shows what its
last command prints, a block `text` behind Python what that prints; `...` stands for what is left out, between lines or
in one. A block of YAML, CSV, JSON or Python is the file that is named last in the paragraph above it, if one is.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property

from typer.testing import CliRunner

from tests import ROOT
from tpusim.cli.app import app

BY_HAND = ("scripts/quickstart", "scripts/test", "scripts/prove", "scripts/bench", "scripts/site", "export ", "pip ")
"""What installs things or takes minutes: tests of its own hold it, or none."""
_FILE = re.compile(r"`(my_\w+\.\w+)`")


@dataclass(frozen=True)
class Step:
    """A command, or some Python, and the lines that the page shows of its output (empty: none)."""

    text: str
    shown: str = ""

    @property
    def is_command(self) -> bool:
        return self.text.startswith(("tpusim ", "scripts/"))

    @property
    def written(self) -> set[str]:
        """Files and folders that the step writes; a sweep writes results of its name."""
        swept = re.findall(r"^tpusim sweep (\w+)", self.text)
        named = re.findall(r"(?:-o|--out|--json|--save-outputs) (\w[\w./-]*)", self.text)
        return {*named, *(f"results/{name}" for name in swept)}

    def typed(self) -> tuple[int, str, str]:
        """Exit code, output and messages of the step, in the working directory."""
        if self.text.startswith("tpusim "):
            done = CliRunner().invoke(app, shlex.split(self.text)[1:])
            return done.exit_code, done.stdout, done.stderr
        first, *rest = shlex.split(self.text) if self.is_command else ("-c", self.text)
        words = [sys.executable, str(ROOT / first) if self.is_command else first, *rest]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        ran = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
        return ran.returncode, ran.stdout, ran.stderr


@dataclass(frozen=True)
class Page:
    """A page, such as `README.md` or `docs/start.md`."""

    name: str

    @cached_property
    def text(self) -> str:
        return (ROOT / self.name).read_text(encoding="utf-8")

    @cached_property
    def blocks(self) -> list[tuple[str, str, str]]:
        """Of each block of code: the paragraph above it, its language and what it holds."""
        found = re.finditer(r"^```(\w*)\n(.*?)^```$", self.text, re.M | re.S)
        above = (self.text[: each.start()].rstrip().rpartition("\n\n")[2] for each in found)
        languages = re.findall(r"^```(\w*)\n(.*?)^```$", self.text, re.M | re.S)
        return [(before, *each) for before, each in zip(above, languages, strict=True)]

    @cached_property
    def files(self) -> dict[str, str]:
        """The files that the page shows, by name; a block whose paragraph names none is a part of one."""
        shown = (
            (above, held) for above, language, held in self.blocks if language in ("yaml", "csv", "json", "python")
        )
        named = ((_FILE.findall(above), held) for above, held in shown)
        return {names[-1]: held for names, held in named if names}

    @cached_property
    def steps(self) -> list[Step]:
        """Everything to type, in order."""
        found: list[Step] = []
        for above, language, held in self.blocks:
            if not language:
                lines = (line.split(" #")[0].strip() for line in held.splitlines())
                found += [Step(line) for line in lines if line and not line.startswith(BY_HAND)]
            elif language == "python" and not _FILE.search(above):
                found.append(Step(held))
            elif language == "text":
                found[-1] = Step(found[-1].text, held)
        return found

    @cached_property
    def strands(self) -> list[list[Step]]:
        """Steps that share files, in order; a step that shares none stands alone, so that all can be tried at once."""
        written = {name for step in self.steps for name in step.written}
        found: list[tuple[set[str], list[Step]]] = []
        for step in self.steps:
            names = {
                name for name in written if re.search(rf"(?<![\w/]){re.escape(name)}(?!\w)", step.text)
            } | step.written
            joined = [each for each in found if each[0] & names]
            whole = [each for _, held in joined for each in held]
            found = [each for each in found if each not in joined]
            found.append((names.union(*(held for held, _ in joined)), [*whole, step]))
        return [held for _, held in found]


def shows(shown: str, seen: str) -> bool:
    """Whether an output has the lines that a page shows of it, in order; `...` stands for any text."""
    lines = (re.escape(line.rstrip()).replace(re.escape("..."), ".*") for line in shown.splitlines())
    pattern = "\n".join(r"[\s\S]*" if line == ".*" else line for line in lines)
    return re.search(pattern, "\n".join(line.rstrip() for line in seen.splitlines())) is not None


GUIDES = (
    "start", "tables", "why_slow", "your_model", "your_machine", "algorithms", "other_simulators", "proofs",
    "number_types", "generations", "several_chips",
)  # fmt: skip
PAGES = [Page(name) for name in ("README.md", *(f"docs/{guide}.md" for guide in GUIDES))]
"""Those that have their reader type what is typed here."""
