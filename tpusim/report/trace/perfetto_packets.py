"""Packets of a Perfetto trace: tracks, slices and counters, with every name written once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackDescriptor, TrackEvent

from tpusim.machines.tpu.observation.timeline import Slice

_SEQUENCE = 1

Arguments = Mapping[str, int | str]


class Packets:
    """Collects a trace; times are nanoseconds. Tracks appear in the order they are added."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._tracks = 0
        self._events: dict[str, int] = {}
        self._arguments: dict[str, int] = {}
        trace = Trace()
        _packet(trace, TracePacket.SEQ_INCREMENTAL_STATE_CLEARED)
        self._data += trace.SerializeToString()

    def track(self, name: str, about: str, parent: int = 0, unit: str | None = None) -> int:
        """A new track, below `parent` if that is given; with a `unit` it is a counter. Returns its number."""
        self._tracks += 1
        trace = Trace()
        descriptor = _packet(trace).track_descriptor
        descriptor.uuid, descriptor.name, descriptor.description = self._tracks, name, about
        descriptor.child_ordering = TrackDescriptor.EXPLICIT
        descriptor.sibling_order_rank = self._tracks
        if parent:
            descriptor.parent_uuid = parent
        if unit is not None:
            descriptor.counter.unit_name = unit
        self._data += trace.SerializeToString()
        return self._tracks

    def slices(self, track: int, slices: Iterable[Slice], arguments: Sequence[Arguments], at: int) -> None:
        """Slices `at` nanoseconds later than they say, each with the arguments of its step."""
        templates: dict[tuple[str, int], Trace] = {}
        for each in slices:
            key = each.name, each.step
            pair = templates.get(key)
            if pair is None:
                pair = templates[key] = self._pair(track, each.name, arguments[each.step] if each.step >= 0 else {})
            pair.packet[0].timestamp, pair.packet[1].timestamp = at + each.start, at + each.end
            self._data += pair.SerializeToString()

    def values(self, track: int, values: Iterable[tuple[int, float]]) -> None:
        """Each value of a counter holds from its time until the next."""
        trace = Trace()
        packet = _packet(trace)
        packet.track_event.type, packet.track_event.track_uuid = TrackEvent.TYPE_COUNTER, track
        for time, value in values:
            packet.timestamp, packet.track_event.double_counter_value = time, value
            self._data += trace.SerializeToString()

    def to_bytes(self) -> bytes:
        """The whole trace."""
        return bytes(self._data)

    def _pair(self, track: int, name: str, arguments: Arguments) -> Trace:
        """Beginning and end of a slice, but for their times."""
        event = self._interned(self._events, name, "event_names")
        keys = [self._interned(self._arguments, key, "debug_annotation_names") for key in arguments]
        trace = Trace()
        begin, end = _packet(trace).track_event, _packet(trace).track_event
        begin.type, begin.track_uuid, begin.name_iid = TrackEvent.TYPE_SLICE_BEGIN, track, event
        end.type, end.track_uuid = TrackEvent.TYPE_SLICE_END, track
        for key, value in zip(keys, arguments.values(), strict=True):
            annotation = begin.debug_annotations.add(name_iid=key)
            if isinstance(value, str):
                annotation.string_value = value
            else:
                annotation.int_value = value
        return trace

    def _interned(self, known: dict[str, int], name: str, field: str) -> int:
        if name not in known:
            known[name] = len(known) + 1
            trace = Trace()
            getattr(_packet(trace).interned_data, field).add(iid=known[name], name=name)
            self._data += trace.SerializeToString()
        return known[name]


def _packet(trace: Trace, flags: int = TracePacket.SEQ_NEEDS_INCREMENTAL_STATE) -> TracePacket:
    """A new packet of `trace`."""
    packet: TracePacket = trace.packet.add()
    packet.trusted_packet_sequence_id = _SEQUENCE
    packet.sequence_flags = flags
    return packet
