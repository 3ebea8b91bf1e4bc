"""A timeline of what every unit does, of one layer or many, on one axis of time, in any form with tracks and counters.

A unit of time of the form is a cycle, so that every slice is exact and lengths add up to the cycles of the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from tpusim.base.version import __version__
from tpusim.machines.lowered import Drawing, TimeSlice, Told
from tpusim.report.text import frequency

_MOST_WINDOWS = 1000

Arguments = Mapping[str, int | str]


class TimelineForm(Protocol):
    """Collects a trace in the form of a viewer. Tracks appear in the order they are added.

    Attributes:
        unit: what viewers call a unit of its time; here it is a cycle.
    """

    unit: ClassVar[str]

    def track(self, name: str, about: str, parent: int | None = None, unit: str | None = None) -> int:
        """Add a track, below `parent`; the first has none and is the whole. With a `unit` it is a counter.

        Returns:
            Its number.
        """

    def slices(self, track: int, slices: Iterable[TimeSlice], arguments: Sequence[Arguments], at: int) -> None:
        """Add slices `at` units of time later than they say, each with the arguments of its step."""

    def values(self, track: int, values: Iterable[tuple[int, float]]) -> None:
        """Add (time, value) of a counter: each value holds from its time until the next."""

    def to_bytes(self) -> bytes:
        """Return the whole file."""


def root_of(form: TimelineForm, title: str, clock_hz: int, seen: str = "") -> int:
    """Add the track that is the whole, which says how long a cycle is, and what is `seen`."""
    time = f"1 {form.unit} here is 1 cycle ({1e9 / clock_hz:.4g} ns at {frequency(clock_hz)})"
    return form.track(f"{title}: {time}", f"tpusim {__version__}{seen}. {time}.")


class LayerSpan(NamedTuple):
    """A layer's share of the time: cycles [first, stop) of its Program; and the layers it reads, where known."""

    name: str
    first: int
    stop: int
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class TracedWork:
    """The work of a layer, or of several that overlap, on the time axis of a trace: its cycle 0 is cycle `at`."""

    at: int
    drawing: Drawing
    layers: tuple[LayerSpan, ...]

    @property
    def stop(self) -> int:
        """The cycle after the last."""
        return self.at + self.drawing.cycles


def timeline(
    form: TimelineForm, title: str, placed: Sequence[TracedWork], clock_hz: int, first: int, stop: int, watch: Told
) -> bytes:
    """Return a file of this form: what layers, one after another, do in cycles [first, stop), which cover part of each.

    `watch` is told how many layers are written.
    """
    shown = placed[0].drawing
    root = root_of(form, title, clock_hz, shown.seen)
    layer_track = form.track("layer", shown.about_layers, root)
    # A track is added only if some part has it: viewers show empty ones as well.
    known = {name for each in placed for name in each.drawing.names}
    may_be = {name: about for each in placed for name, about in each.drawing.about.items()}
    tracks = {name: form.track(name, about, root) for name, about in may_be.items() if name in known}
    # Counters are means over windows, as a value for every cycle would make the file too large.
    window = max(1, -(-(stop - first) // _MOST_WINDOWS))
    series = {
        name: form.track(name, about.format(window=window), root, unit) for name, (unit, about) in shown.counted.items()
    }
    done = 0
    for each in placed:
        watch(done)
        # A part counts cycles from its own start.
        start, end = max(first, each.at) - each.at, min(stop, each.stop) - each.at
        seen = (
            TimeSlice(max(start, layer.first), min(end, layer.stop), layer.name, number)
            for number, layer in enumerate(each.layers)
            if layer.first < end and layer.stop > start
        )
        told: list[Arguments] = [
            {"cycles": layer.stop - layer.first, **({"reads": ", ".join(layer.reads)} if layer.reads else {})}
            for layer in each.layers
        ]
        form.slices(layer_track, seen, told, each.at)
        arguments = each.drawing.arguments([layer.name for layer in each.layers])
        for name, track in each.drawing.tracks(start, end).items():
            form.slices(tracks[name], track, arguments, each.at)
        edges = np.append(np.arange(start, end, window), end)
        for name, (cycles, values) in each.drawing.counters(edges).items():
            form.values(series[name], zip((cycles + each.at).tolist(), values.tolist(), strict=True))
        done += len(each.layers)
    for counter in series.values():
        # A value holds until the next one, so the last must be ended.
        form.values(counter, [(stop, 0.0)])
    return form.to_bytes()
