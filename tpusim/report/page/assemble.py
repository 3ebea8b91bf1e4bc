"""The page itself: template, style and script in one file, under a policy that forbids everything else; its columns."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, Literal

from tpusim.base.errors import InputError
from tpusim.report.style import tones
from tpusim.report.text import scale
from tpusim.result.vocabulary.figures import Figure

_ASSETS = files("tpusim.report.page") / "assets"
_COMMON = ("dom", "format", "scale", "selection", "figure", "axis", "states", "table")
_SCRIPTS = {
    "run": (*_COMMON, "strip", "roofline", "diagram", "run"),
    "sweep": (*_COMMON, "points", "curves", "heat_map", "pareto", "effects", "sweep"),
}
_IN_SCRIPT = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def page(kind: str, title: str, plain: Sequence[str], data: Mapping[str, Any]) -> bytes:
    """The file's contents; the same data gives the same bytes.

    `kind` is "run" or "sweep"; `plain` are the sentences for a reader without JavaScript. Pictures stand in `data`, as
    addresses that hold them themselves ("data:").

    Raises:
        InputError: when a figure of `data` is no finite number.
    """
    parts = "\n".join(_asset(f"{name}.js") for name in _SCRIPTS[kind])
    script = f'"use strict";\n(() => {{\n{parts}}})();\n'
    style = Template(_asset("page.css")).substitute(tones())
    text = Template(_asset("page.html")).substitute(
        title=escape(title),
        policy=f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        style=style,
        plain="\n".join(f"<p>{escape(sentence)}</p>" for sentence in plain),
        data=_json(data),
        script=script,
    )
    # A name from a JSON file may hold half of a surrogate pair.
    return text.encode(errors="replace")


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _json(data: Mapping[str, Any]) -> str:
    """JSON that cannot end the element it stands in."""
    try:
        return json.dumps(data, allow_nan=False, separators=(",", ":")).translate(_IN_SCRIPT)
    except ValueError:
        raise InputError("holds a figure that is not a finite number; write the result again") from None


def _digest(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


Column = dict[str, Any]
"""A column of a table and a figure of a chart, ready for JSON."""


def column(figure: Figure, values: Iterable[float | None] = (), bar: Literal["", "widest", "whole"] = "") -> Column:
    """A figure in one unit for all `values`, so that the eye can compare; a `bar` in a cell shows its share."""
    unit, divide = scale(values, figure.units)
    return {
        "key": figure.key, "label": figure.label, "style": figure.style, "unit": unit, "divide": divide,
        "title": figure.meaning, "better": figure.better, "bar": bar,
    }  # fmt: skip


def text_column(key: str, label: str, title: str = "") -> Column:
    """Words, as they are."""
    return {"key": key, "label": label, "style": "text", "title": title}
