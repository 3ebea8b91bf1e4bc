"""The README: its links, its extras and its scripts. What it has a reader type is typed in tests/docs/test_pages.py."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests import ROOT
from tests.typed import Page

README = Page("README.md")


@pytest.mark.parametrize("link", re.findall(r"\]\(([^):]+)\)", README.text))
def test_links_lead_somewhere(link: str) -> None:
    """Also to the heading, if one is named."""
    file, _, heading = link.partition("#")
    titles = re.findall(r"^#+ (.*)$", (ROOT / file).read_text(), re.MULTILINE) if heading else [""]
    assert (ROOT / file).exists()
    assert heading in [title.lower().replace(" ", "-") for title in titles]


EXTRAS = {
    "perfetto": ".perfetto-trace", "vcd": ".vcd", "search": "sweep search",
    "pandas": "to_frame()", "parquet": "--parquet", "cluster": "--cluster", "onnx": "model.onnx",
    "gpu": "scripts/gpu_bench", "jax": ".py:", "torch": "my_torch_net",
}  # fmt: skip
"""What of the README needs each of them."""


def test_extras_are_named_before_the_commands_that_need_them() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {*project["optional-dependencies"]} == {*EXTRAS, "dev", "docs"}
    told = README.text.index("pip install '.[perfetto]'")
    naming = README.text[told : README.text.index("\n\n", told)]
    for extra, sign in EXTRAS.items():
        assert f"[{extra}]" in naming or f"`{extra}`" in naming
        for block in (block for _, _, block in README.blocks if sign in block):
            assert README.text.index(block) > told, f"{sign} comes before its extra"


def test_what_the_readme_and_quickstart_say_next_works_as_typed(tmp_path: Path) -> None:
    """With an environment that is there already, and a tpusim in it that answers at once."""
    answers = '#!/bin/sh\necho "tpusim $*" >>"$(dirname "$0")/../../asked"\n'
    for name, text in {
        "scripts/quickstart": (ROOT / "scripts" / "quickstart").read_text(),
        "pyproject.toml": "",
        ".venv/bin/tpusim": answers,
        ".venv/bin/python": "#!/bin/sh\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    stamp = subprocess.run('echo "$PWD  $(cksum <pyproject.toml)"', shell=True, cwd=tmp_path, capture_output=True)
    (tmp_path / ".venv" / "installed").write_bytes(stamp.stdout)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}

    def typed_in_a_terminal(lines: str) -> list[str]:
        (tmp_path / "asked").unlink(missing_ok=True)
        words = ["bash", "-euc", lines]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        told.append(done.stdout)
        return (tmp_path / "asked").read_text().splitlines()

    told: list[str] = []
    first, commands = (block.splitlines() for _, kind, block in README.blocks[:2] if not kind)
    asked = typed_in_a_terminal("\n".join([first[0], first[-1], commands[0]]))
    assert asked[0] == "tpusim run resnet50 --out results/resnet50"
    assert asked[-1] == "tpusim list"
    (said,) = re.findall(r"^Next: +(.*)$", told[0], re.MULTILINE)
    assert typed_in_a_terminal(f"cd /; {said}") == ["tpusim list"]


def test_the_two_scripts_exist_and_can_be_run() -> None:
    for name in ("quickstart", "test", "bench"):
        assert f"scripts/{name}" in README.text
        assert os.access(ROOT / "scripts" / name, os.X_OK)
    assert "scripts/test" in (ROOT / ".ci" / "run").read_text()
