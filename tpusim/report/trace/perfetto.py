"""Timelines in Perfetto's native format, for https://ui.perfetto.dev and the tools of the perfetto package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackDescriptor, TrackEvent

from tpusim.machines.lowered import TimeSlice
from tpusim.report.trace.timeline import Arguments, TimelineForm

_SEQUENCE = 1


class PerfettoTrace(TimelineForm):
    """Packets of tracks, slices and counters, with every name written once."""

    unit: ClassVar[str] = "ns"

    def __init__(self) -> None:
        first = _trace({"sequence_flags": TracePacket.SEQ_INCREMENTAL_STATE_CLEARED})
        self._data = bytearray(first.SerializeToString())
        self._tracks = 0
        self._events: dict[str, int] = {}
        self._arguments: dict[str, int] = {}

    def track(self, name: str, about: str, parent: int | None = None, unit: str | None = None) -> int:
        """See TimelineForm."""
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
        """See TimelineForm."""
        templates: dict[tuple[str, int], Trace] = {}
        for each in slices:
            key = each.name, each.step
            if key not in templates:
                templates[key] = self._pair(track, each.name, arguments[each.step] if each.step >= 0 else {})
            pair = templates[key]
            pair.packet[0].timestamp, pair.packet[1].timestamp = at + each.start, at + each.end
            self._data += pair.SerializeToString()

    def values(self, track: int, values: Iterable[tuple[int, float]]) -> None:
        """See TimelineForm."""
        trace = _trace({"track_event": {"type": TrackEvent.TYPE_COUNTER, "track_uuid": track}})
        (packet,) = trace.packet
        for time, value in values:
            packet.timestamp, packet.track_event.double_counter_value = time, value
            self._data += trace.SerializeToString()

    def to_bytes(self) -> bytes:
        """See TimelineForm."""
        return bytes(self._data)

    def _pair(self, track: int, name: str, arguments: Arguments) -> Trace:
        """Return beginning and end of a slice, but for their times."""
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
    """Return a trace of these packets alone."""
    usual = {"trusted_packet_sequence_id": _SEQUENCE, "sequence_flags": TracePacket.SEQ_NEEDS_INCREMENTAL_STATE}
    return Trace(packet=[{**usual, **packet} for packet in packets])
