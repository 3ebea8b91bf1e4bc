"""A workload as its file has it: YAML text, a line a layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tpusim.input.document import Document

_PLAIN: Mapping[str, object] = {
    "kernel": None, "stride": [1], "dilation": [1], "padding": [0], "output_padding": [0], "groups": 1, "count": 1,
}  # fmt: skip
"""What one number may be written for; a layer that has just this number needs no such key."""


def yaml_of(document: Document) -> str:
    """The text of a file that reads as `document` does; its notes are comments."""
    return "".join(f"{line}\n" for line in _lines(document))


def _lines(document: Document) -> Iterator[str]:
    data = document.data
    yield from (f"# {note}" for note in document.notes)
    for key in ("name", "source", "inputs", "not_timed", "not_known"):
        if data.get(key):
            yield _flow({key: data[key]})[1:-1]
    yield "layers:"
    yield from (f"  - {_flow(_short(entry))}" for entry in data["layers"])


def _short(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is so by default, and with one number for several that are the same."""
    alike = {key: _one(value) if key in _PLAIN else value for key, value in entry.items()}
    return {key: value for key, value in alike.items() if key not in _PLAIN or value not in (_default(key),)}


def _one(value: object) -> object:
    return value[0] if isinstance(value, list) and len({*value}) == 1 else value


def _default(key: str) -> object:
    return _one(_PLAIN[key])


def _flow(value: Mapping[str, Any]) -> str:
    """On one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=float("inf"), allow_unicode=True)
    return text.strip()
