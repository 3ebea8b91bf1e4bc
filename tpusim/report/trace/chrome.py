"""Timelines in the JSON of Chrome's Trace Event Format, for https://ui.perfetto.dev, chrome://tracing and others.

The source is "Trace Event Format", a document of Chrome's: events of phases M (metadata), X (complete) and C (counter),
times in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from tpusim.machines.lowered import TimeSlice
from tpusim.report.trace.timeline import Arguments, TimelineForm

_PROCESS = 1
"""Viewers keep 0 for what is idle, and a thread of the same number for the main one: tracks begin at 2."""


class ChromeTrace(TimelineForm):
    """A process that is the whole, with a thread for each track; `otherData` says what each of them shows."""

    unit: ClassVar[str] = "us"

    def __init__(self) -> None:
        self._events: list[str] = []
        self._about: dict[str, str] = {}
        self._tracks: list[tuple[str, str | None]] = []

    def track(self, name: str, about: str, parent: int | None = None, unit: str | None = None) -> int:
        """See TimelineForm."""
        self._tracks.append((name, unit))
        number = len(self._tracks)
        self._about[name] = about
        if parent is None:
            self._add(ph="M", name="process_name", pid=_PROCESS, args={"name": name})
        elif unit is None:
            self._add(ph="M", name="thread_name", pid=_PROCESS, tid=number, args={"name": name})
            self._add(ph="M", name="thread_sort_index", pid=_PROCESS, tid=number, args={"sort_index": number})
        return number

    def slices(self, track: int, slices: Iterable[TimeSlice], arguments: Sequence[Arguments], at: int) -> None:
        """See TimelineForm."""
        templates: dict[tuple[str, int], str] = {}
        for each in slices:
            key = each.name, each.step
            if key not in templates:
                told = arguments[each.step] if each.step >= 0 else {}
                templates[key] = _text({"ph": "X", "name": each.name, "pid": _PROCESS, "tid": track, "args": told})[:-1]
            self._events.append(f'{templates[key]},"ts":{at + each.start},"dur":{each.end - each.start}}}')

    def values(self, track: int, values: Iterable[tuple[int, float]]) -> None:
        """See TimelineForm."""
        name, unit = self._tracks[track - 1]
        for time, value in values:
            self._add(ph="C", name=name, pid=_PROCESS, ts=time, args={unit: value})

    def to_bytes(self) -> bytes:
        """See TimelineForm."""
        events = ",\n".join(self._events)
        return f'{{"displayTimeUnit":"ns","otherData":{_text(self._about)},"traceEvents":[\n{events}\n]}}\n'.encode()

    def _add(self, **event: Any) -> None:
        self._events.append(_text(event))


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
