"""Notebooks executed without Jupyter: `scripts/notebooks` stores what their cells show, and tests hold it.

A kernel writes times, counters and names of this computer into a notebook. Here a cell's outputs are what it prints,
the value of its last expression, and the pictures that it leaves open; nothing else changes from run to run.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "notebooks"
Output = dict[str, Any]


def executed(notebook: Mapping[str, Any]) -> Iterator[list[Output]]:
    """Yield the outputs of each code cell, in order, as a notebook's JSON has them.

    Cells share one namespace and run in a folder that is empty at first. A line that begins with `!` is a command with
    names in braces, as in Jupyter. Raises whatever a cell raises, and CalledProcessError where a command fails.
    """
    import matplotlib

    matplotlib.use("Agg")
    names: dict[str, Any] = {"__name__": "__main__", "_command": _print_said}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), matplotlib.rc_context():
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                yield _outputs("".join(cell["source"]), names)


def shown(outputs: list[Output]) -> str:
    """Return what a reader sees of `outputs` as text; pictures and tables of HTML are left out."""
    said = (output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs)
    return "".join("".join(each) for each in said)


def said(line: str) -> str:
    """Run a command with the tpusim of this Python, and return what it says. Raises CalledProcessError if it fails."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    tree = os.pathsep.join([str(FOLDER.parent.parent), os.environ.get("PYTHONPATH", "")])
    where = {**os.environ, "PATH": path, "PYTHONPATH": tree, "COLUMNS": "80"}
    return subprocess.run(line, shell=True, check=True, env=where, stdout=subprocess.PIPE, text=True).stdout


def _print_said(line: str) -> None:
    print(said(line), end="")


def _outputs(source: str, names: dict[str, Any]) -> list[Output]:
    import matplotlib.pyplot as plt

    lines = (f"_command(f{line[1:]!r})" if line.startswith("!") else line for line in source.splitlines())
    body = ast.parse("\n".join(lines)).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive")
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if isinstance(last, ast.Expr) else None
    outputs: list[Output] = []
    if text := printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
    for number in plt.get_fignums():
        drawn = io.BytesIO()
        plt.figure(number).savefig(drawn, format="png", dpi=100, bbox_inches="tight", metadata={"Software": None})
        data = {"image/png": base64.b64encode(drawn.getvalue()).decode(), "text/plain": ["<Figure>"]}
        outputs.append({"data": data, "metadata": {}, "output_type": "display_data"})
    plt.close("all")
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_().splitlines(keepends=True)
        outputs.append({"data": data, "execution_count": None, "metadata": {}, "output_type": "execute_result"})
    return outputs


def store(file: Path) -> None:
    """Execute the notebook in `file`, and write it with its outputs."""
    notebook = json.loads(file.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for cell, outputs in zip(code, executed(notebook), strict=True):
        cell["outputs"], cell["execution_count"] = outputs, None
    file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for each in [Path(name).resolve() for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb")):
        store(each)
        print(each.name)
