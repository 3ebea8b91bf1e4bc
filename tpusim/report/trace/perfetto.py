"""A timeline in Perfetto's native format, for https://ui.perfetto.dev and the tools of the perfetto package.

A nanosecond of the trace is a cycle, so that every slice is exact and lengths add up to the cycles of the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackDescriptor, TrackEvent

from tpusim.base.version import __version__
from tpusim.machines.lowered import Drawing, TimeSlice, Told
from tpusim.report.text import frequency

_MOST_WINDOWS = 1000


def unwatched(_: int) -> None:
    """Tell nobody how far it is."""


class LayerSpan(NamedTuple):
    """A layer's share of the time: cycles [first, stop) of those of its Program; and what it reads, where known."""

    name: str
    first: int
    stop: int
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class TracePart:
    """What was done, on the time axis of a trace, of a layer or of several that overlap: its cycle 0 is cycle `at`."""

    at: int
    drawing: Drawing
    layers: tuple[LayerSpan, ...]

    @property
    def stop(self) -> int:
        """The cycle after its last."""
        return self.at + self.drawing.cycles


def perfetto(
    title: str, placed: Sequence[TracePart], clock_hz: int, first: int, stop: int, watch: Told = unwatched
) -> bytes:
    """The file's contents: what layers, one after another, do in cycles [first, stop), which cover part of each.

    `watch` is told how many layers are written.
    """
    shown = placed[0].drawing
    packets = Packets()
    time = f"1 ns here is 1 cycle ({1e9 / clock_hz:.4g} ns at {frequency(clock_hz)})"
    root = packets.track(f"{title}: {time}", f"tpusim {__version__}{shown.seen}. {time}.")
    layer_track = packets.track("layer", shown.about_layers, root)
    known = {name for each in placed for name in each.drawing.names}
    may_be = {name: about for each in placed for name, about in each.drawing.about.items()}
    tracks = {name: packets.track(name, about, root) for name, about in may_be.items() if name in known}
    window = max(1, -(-(stop - first) // _MOST_WINDOWS))
    series = {
        name: packets.track(name, about.format(window=window), root, unit)
        for name, (unit, about) in shown.counted.items()
    }
    done = 0
    for each in placed:
        watch(done)
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
        packets.slices(layer_track, seen, told, each.at)
        arguments = each.drawing.arguments([layer.name for layer in each.layers])
        for name, track in each.drawing.tracks(start, end).items():
            packets.slices(tracks[name], track, arguments, each.at)
        edges = np.append(np.arange(start, end, window), end)
        for name, (cycles, values) in each.drawing.counters(edges).items():
            packets.values(series[name], zip((cycles + each.at).tolist(), values.tolist(), strict=True))
        done += len(each.layers)
    for counter in series.values():
        packets.values(counter, [(stop, 0.0)])
    return packets.to_bytes()


# ---- packets of a trace: tracks, slices and counters, with every name written once


_SEQUENCE = 1

Arguments = Mapping[str, int | str]


class Packets:
    """Collects a trace; times are nanoseconds. Tracks appear in the order they are added."""

    def __init__(self) -> None:
        first = _trace({"sequence_flags": TracePacket.SEQ_INCREMENTAL_STATE_CLEARED})
        self._data = bytearray(first.SerializeToString())
        self._tracks = 0
        self._events: dict[str, int] = {}
        self._arguments: dict[str, int] = {}

    def track(self, name: str, about: str, parent: int | None = None, unit: str | None = None) -> int:
        """A new track, below `parent` if that is given; with a `unit` it is a counter. Returns its number."""
        self._tracks += 1
        descriptor = TrackDescriptor(
            uuid=self._tracks,
            name=name,
            description=about,
            parent_uuid=parent,
            child_ordering=TrackDescriptor.EXPLICIT,
            sibling_order_rank=self._tracks,
            counter=None if unit is None else {"unit_name": unit},
        )
        self._data += _trace({"track_descriptor": descriptor}).SerializeToString()
        return self._tracks

    def slices(self, track: int, slices: Iterable[TimeSlice], arguments: Sequence[Arguments], at: int) -> None:
        """Slices `at` nanoseconds later than they say, each with the arguments of its step."""
        templates: dict[tuple[str, int], Trace] = {}
        for each in slices:
            key = each.name, each.step
            if key not in templates:
                templates[key] = self._pair(track, each.name, arguments[each.step] if each.step >= 0 else {})
            pair = templates[key]
            pair.packet[0].timestamp, pair.packet[1].timestamp = at + each.start, at + each.end
            self._data += pair.SerializeToString()

    def values(self, track: int, values: Iterable[tuple[int, float]]) -> None:
        """Each value of a counter holds from its time until the next."""
        trace = _trace({"track_event": {"type": TrackEvent.TYPE_COUNTER, "track_uuid": track}})
        (packet,) = trace.packet
        for time, value in values:
            packet.timestamp, packet.track_event.double_counter_value = time, value
            self._data += trace.SerializeToString()

    def to_bytes(self) -> bytes:
        """The whole trace."""
        return bytes(self._data)

    def _pair(self, track: int, name: str, arguments: Arguments) -> Trace:
        """Beginning and end of a slice, but for their times."""
        event = self._interned(self._events, name, "event_names")
        annotations = [
            {
                "name_iid": self._interned(self._arguments, key, "debug_annotation_names"),
                "string_value" if isinstance(value, str) else "int_value": value,
            }
            for key, value in arguments.items()
        ]
        begin = {"type": TrackEvent.TYPE_SLICE_BEGIN, "name_iid": event, "debug_annotations": annotations}
        end = {"type": TrackEvent.TYPE_SLICE_END}
        return _trace(*({"track_event": {**each, "track_uuid": track}} for each in (begin, end)))

    def _interned(self, known: dict[str, int], name: str, field: str) -> int:
        if name not in known:
            known[name] = len(known) + 1
            entry = {"iid": known[name], "name": name}
            self._data += _trace({"interned_data": {field: [entry]}}).SerializeToString()
        return known[name]


def _trace(*packets: Mapping[str, Any]) -> Trace:
    """A trace of these packets alone."""
    usual = {"trusted_packet_sequence_id": _SEQUENCE, "sequence_flags": TracePacket.SEQ_NEEDS_INCREMENTAL_STATE}
    return Trace(packet=[{**usual, **packet} for packet in packets])
