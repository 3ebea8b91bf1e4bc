"""The description of a DRAM, frozen, read from YAML with units in the values; and the mapping of addresses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import PlainSerializer, model_validator

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.base.units import FREQUENCY, SIZE, TIME
from tpusim.input.document import Document
from tpusim.input.form import (
    FROM_YAML,
    Choice,
    FileModel,
    FileSection,
    Form,
    Name,
    Overrides,
    Quantity,
    Reader,
    read_overrides,
    texts_of,
    whole,
    written,
)
from tpusim.input.scalars import show, whole_number
from tpusim.input.source import open_document

FOLDER = "configs/dram"
"""Folder of the shipped devices."""

MOST_BANKS = 60
"""Most banks of a channel that can be modelled: the clocked controller searches all of them in each cycle."""

_MOST_CYCLES = 10**6
"""Longest time, in cycles, that a file may give."""

_LETTERS = {"ro": "row", "bg": "group", "ba": "bank", "ch": "channel", "co": "column", "ra": "rank"}
"""Pairs of letters by which DRAMsim3 writes a mapping, highest bits first."""

FIELDS = tuple(_LETTERS.values())
"""Fields of a burst's number, in the order of their index in `AddressMapping.cuts`."""

_WORD = re.compile(r"([a-z]+)([1-9][0-9]?)?")
_EXAMPLE = "row:group:bank:channel:column, or by letters rorabgbachco"


@dataclass(frozen=True)
class Duration:
    """A time of the data sheet: picoseconds, or cycles of the memory's clock."""

    amount: int
    in_cycles: bool

    def cycles(self, clock_hz: int) -> int:
        """Whole cycles; a time in picoseconds is rounded up."""
        # Rounded up: a controller that came a fraction of a cycle early would break the data sheet.
        return self.amount if self.in_cycles else -(-self.amount * clock_hz // 10**12)


def _read_time(value: object) -> Duration:
    if isinstance(value, Duration):
        return value
    if isinstance(value, str):
        return Duration(TIME.parse(value), in_cycles=False)
    return Duration(whole_number(value, 0, _MOST_CYCLES), in_cycles=True)


def _written_time(value: Duration | None) -> int | str | None:
    if value is None:
        return None
    return value.amount if value.in_cycles else TIME.format(value.amount)


Time = Annotated[
    Duration,
    Reader(_read_time, f"a whole number of memory cycles, 0 to {_MOST_CYCLES}, or a time with its unit"),
    PlainSerializer(_written_time),
]
"""A field of a device that is a time: YAML writes a whole number of cycles, or a time with its unit."""


class Organisation(FileSection):
    """The number of each part. All sizes are powers of two, as addresses are cut into bits.

    Attributes:
        stacks: stacks of HBM, or modules.
        channels: channels of a stack.
        pseudo_channels: pseudo channels of a channel. Each has banks, rows and a bus of its own: a channel in all but
            name.
        bank_groups: bank groups of a channel.
        banks: banks of a bank group.
        rows: rows of a bank.
        columns: bursts of a row.
        burst_bytes: bytes of a burst.
    """

    stacks: Annotated[int, whole(64)] = 1
    channels: Annotated[int, whole(1024), written(8)]
    pseudo_channels: Annotated[int, whole(2)] = 1
    bank_groups: Annotated[int, whole(MOST_BANKS), written(4)]
    banks: Annotated[int, whole(MOST_BANKS), written(4)]
    rows: Annotated[int, whole(2**24), written(32768)]
    columns: Annotated[int, whole(2**16), written(32)]
    burst_bytes: Annotated[int, Quantity(SIZE, "4 KiB"), written("64 B", "burst")]


class DataSheet(FileSection):
    """Times of the data sheet, by the names of the standard (JEDEC).

    Attributes:
        tBURST: time that a burst keeps the data bus.
        tCL: time from a read to its first data.
        tCWL: time from a write to its first data.
        tRCDRD: time from opening a row to a read of it.
        tRCDWR: time from opening a row to a write to it.
        tRP: time to close a row.
        tRAS: least time from opening a row to closing it.
        tRC: least time between two openings of rows of a bank; tRAS + tRP unless given.
        tRRD_S: least time between openings of rows in two bank groups.
        tRRD_L: least time between openings of rows in one bank group.
        tFAW: time in which a channel opens four rows at most.
        tCCD_S: least time between accesses to two bank groups.
        tCCD_L: least time between accesses to one bank group.
        tRTP: least time from a read to closing its row.
        tWR: least time from the last data of a write to closing its row.
        tWTR_S: least time from the last data of a write to a read of another bank group.
        tWTR_L: least time from the last data of a write to a read of the same bank group.
        tRTRS: time that the bus takes to turn from reading to writing.
        tRFC: time of a refresh of all banks.
        tRFC_bank: time of a refresh of one bank, which `refresh: per_bank` needs.
        tREFI: time between refreshes.
    """

    tBURST: Annotated[Time, written(2)]
    tCL: Annotated[Time, written("14 ns")]
    tCWL: Annotated[Time, written("4 ns")]
    tRCDRD: Annotated[Time, written("14 ns")]
    tRCDWR: Annotated[Time, written("14 ns")]
    tRP: Annotated[Time, written("14 ns")]
    tRAS: Annotated[Time, written("34 ns")]
    tRC: Annotated[Time | None, written("50 ns")] = None
    tRRD_S: Annotated[Time, written("4 ns")]
    tRRD_L: Annotated[Time, written("6 ns")]
    tFAW: Annotated[Time, written("30 ns")]
    tCCD_S: Annotated[Time, written(1)]
    tCCD_L: Annotated[Time, written(2)]
    tRTP: Annotated[Time, written(5)]
    tWR: Annotated[Time, written("16 ns")]
    tWTR_S: Annotated[Time, written("6 ns")]
    tWTR_L: Annotated[Time, written("8 ns")]
    tRTRS: Annotated[Time, written(2)]
    tRFC: Annotated[Time, written("260 ns")]
    tRFC_bank: Annotated[Time | None, written("130 ns")] = None
    tREFI: Annotated[Time, written("3.9 us")]


class Controller(FileSection):
    """The memory controller of a channel.

    Attributes:
        transaction_queue: reads that wait for the queue of a bank, and as many writes.
        command_queue: accesses that wait in the queue of a bank.
        row_hits: accesses after which a row is closed for another, even where more wait for it.
        idle_writes: writes that may wait while no bank has work; more are drained, and a full queue always is.
    """

    transaction_queue: Annotated[int, whole(4096), written(32)]
    command_queue: Annotated[int, whole(256), written(8)]
    row_hits: Annotated[int, whole(10**6), written(8)] = 4
    idle_writes: Annotated[int, whole(4096, least=0), written(16)] = 8


class Requests(FileSection):
    """The way of requests to the channels.

    Attributes:
        per_cycle: requests that are accepted in a memory cycle, at most.
        lookahead: oldest requests of which any may go ahead; 1 keeps their order.
        outstanding: reads that are under way at a time, at most; 0: any number. Writes are posted.
    """

    per_cycle: Annotated[int, whole(4096), written(1)] = 32
    lookahead: Annotated[int, whole(65536), written(64)] = 1
    outstanding: Annotated[int, whole(2**31, least=0), written(512)] = 0


class Device(FileModel):
    """A whole DRAM, complete and immutable.

    Attributes:
        name: name of the device.
        clock_hz: frequency of the memory's clock.
        organisation: how many of each part there are; a section.
        timing: times of the data sheet; a section.
        mapping: which bits of an address are what, the highest first: by letters (ro row, bg bank group, ba bank, ch
            channel, co column, ra rank), or by words, such as row:bank:column3:channel:column2, in which column3 is
            three bits.
        hash: whether bank and bank group are mixed with the lowest bits of the `row`, so that neighbouring rows lie in
            different banks.
        page: whether a row stays `open` after an access, or is `closed`.
        refresh: what is refreshed at a time: `all_banks`, a bank (`per_bank`), or nothing (`none`).
        controller: the controller of a channel; a section.
        requests: how requests reach the channels; a section.
    """

    name: Annotated[str, Name(), written("my_dram")]
    clock_hz: Annotated[int, Quantity(FREQUENCY, "100 GHz"), written("1 GHz", "clock")]
    organisation: Organisation
    timing: DataSheet
    mapping: Annotated[str, Name(), written("rorabgbachco")]
    hash: Annotated[Literal["none", "row"], Choice()] = "none"
    page: Annotated[Literal["open", "closed"], Choice()] = "open"
    refresh: Annotated[Literal["all_banks", "per_bank", "none"], Choice()] = "all_banks"
    controller: Controller
    requests: Requests = Requests()

    @model_validator(mode="after")
    def _sound(self) -> Device:
        if problems := list(_contradictions(self)):
            raise InputError(problems)
        # A mapping that does not fit the sizes is found now, not at the first request.
        self.addresses()
        return self

    @property
    def channels(self) -> int:
        """Channels of all stacks; pseudo channels count one by one."""
        organisation = self.organisation
        return organisation.stacks * organisation.channels * organisation.pseudo_channels

    @property
    def banks(self) -> int:
        """Banks of a channel."""
        return self.organisation.bank_groups * self.organisation.banks

    @property
    def capacity_bytes(self) -> int:
        """Bytes of all channels."""
        organisation = self.organisation
        return self.channels * self.banks * organisation.rows * organisation.columns * organisation.burst_bytes

    @property
    def peak_bytes_per_cycle(self) -> Fraction:
        """Bytes in a cycle of the memory's clock while every channel's data bus is busy."""
        return Fraction(self.channels * self.organisation.burst_bytes, max(1, self.cycles("tBURST")))

    @property
    def peak_bytes_per_s(self) -> float:
        """Bytes a second while every channel's data bus is busy."""
        return float(self.peak_bytes_per_cycle * self.clock_hz)

    def cycles(self, name: str) -> int:
        """A time of the data sheet in cycles of the memory's clock, rounded up."""
        given: Duration | None = getattr(self.timing, name)
        if given is None:
            return self.cycles("tRAS") + self.cycles("tRP") if name == "tRC" else 0
        return given.cycles(self.clock_hz)

    @property
    def longest_access(self) -> int:
        """An upper limit, in cycles, of a refresh with one access that closes one row and opens another."""
        refresh = "tRFC_bank" if self.refresh == "per_bank" else "tRFC"
        return self.cycles(refresh) + sum(self.cycles(name) for name in _ONE_ACCESS)

    @property
    def longest_wait(self) -> int:
        """Cycles after which a channel has surely served everything that its queues can hold."""
        # Both transaction queues, of reads and of writes, and the queue of every bank.
        queued = 2 * self.controller.transaction_queue + self.banks * self.controller.command_queue
        return queued * self.longest_access

    def ns(self, cycles: float) -> float:
        """Cycles of the memory's clock in nanoseconds."""
        return cycles * 1e9 / self.clock_hz

    def addresses(self) -> AddressMapping:
        """The mapping of addresses to channels, banks, rows and columns. Raises InputError placed at "mapping"."""
        sizes = {"channel": self.channels, "group": self.organisation.bank_groups, "bank": self.organisation.banks,
                 "row": self.organisation.rows, "column": self.organisation.columns}  # fmt: skip
        try:
            return AddressMapping.read(self.mapping, sizes, self.organisation.burst_bytes, self.hash == "row")
        except InputError as error:
            raise InputError([Problem(each.message, "mapping") for each in error.problems]) from None

    def to_dict(self) -> dict[str, Any]:
        """The YAML form, units in the values."""
        return self.model_dump(by_alias=True, exclude_none=True)

    def with_overrides(self, overrides: Overrides) -> Device:
        """The device with `PATH=VALUE` changes. Raises InputError."""
        return _build(Document(self.name, self.to_dict()), overrides).telling(self.changes)


def load_device(name_or_path: str | Path, overrides: Overrides = ()) -> Device:
    """The device of a shipped name, a YAML path, or "-" (standard input), with changes such as "timing.tRP=20".

    Raises InputError with every problem of the file and the overrides.
    """
    return _build(open_document(name_or_path, FOLDER), overrides)


def read_device(data: object) -> Device:
    """The device of a mapping in the YAML form. Raises InputError, with each problem at its path in the mapping."""
    return _FORM.build(data, FROM_YAML)


def _build(document: Document, overrides: Overrides) -> Device:
    given, refused = read_overrides(overrides, _FORM)
    for path, (value, where) in given.items():
        document = document.override(path, value, where)
    return _FORM.read(document, FROM_YAML, refused).telling(texts_of(given))


def device_of(value: object) -> Device | None:
    """The device that a machine's file names or writes out; None for no device. Raises InputError with every
    problem.
    """
    if value is None or isinstance(value, Device):
        return value
    if isinstance(value, Mapping):
        return read_device(value)
    if not isinstance(value, str):
        named = "write the name of a shipped one, e.g. hbm2_16ch_700, or a path"
        raise InputError(f"{show(value)} is not a device; {named}")
    try:
        return load_device(value)
    except InputError as error:
        # The problem is in another file, so its place is told in the message.
        raise InputError([Problem(str(each)) for each in error.problems]) from None


@lru_cache(maxsize=64)
def with_mapping(device: Device, mapping: str) -> Device:
    """The device with another mapping of addresses. Raises InputError."""
    try:
        return device.with_overrides({"mapping": mapping})
    except InputError as error:
        raise InputError([Problem(each.message) for each in error.problems]) from None


_ORDERED = [
    ("tCCD_S", "tCCD_L", "within a bank group columns cannot follow faster than between groups"),
    ("tRRD_S", "tRRD_L", "within a bank group rows cannot open faster than between groups"),
    ("tWTR_S", "tWTR_L", "within a bank group the bus cannot turn faster than between groups"),
    ("tRRD_S", "tFAW", "the window of four activates holds more than one"),
    ("tRCDRD", "tRAS", "a row stays open at least until it can be read"),
    ("tRCDWR", "tRAS", "a row stays open at least until it can be written"),
    ("tRFC_bank", "tRFC", "refreshing one bank cannot take longer than all"),
]

_ONE_ACCESS = ("tRC", "tRC", "tFAW", "tRRD_L", "tCL", "tCWL", "tBURST", "tBURST", "tWTR_L", "tRTRS", "tWR")
"""Times whose sum is more than one access ever takes, even if it closes one row and opens another."""


def _contradictions(device: Device) -> Iterator[Problem]:
    """Problems of a device: sizes that are no powers of two, as addresses are cut into bits; too many banks; and times
    of the data sheet that cannot hold together.
    """
    for field, size in device.organisation:
        if size & (size - 1):
            key = "burst" if field == "burst_bytes" else field
            below, above = 1 << (size.bit_length() - 1), 1 << size.bit_length()
            message = f"{size} is no power of two, and addresses are cut into bits; write {below} or {above}"
            yield Problem(message, f"organisation.{key}")
    if device.banks > MOST_BANKS:
        message = (
            f"{device.banks} banks a channel (bank_groups x banks) are too many; at most {MOST_BANKS} are modelled"
        )
        yield Problem(message, "organisation.banks")
    for less, more, why in _ORDERED:
        if device.cycles(less) > device.cycles(more):
            said = f"{less} is {device.cycles(less)} cycles and {more} {device.cycles(more)}"
            # The problem names the field that the file gives; the other may be a default.
            given = less if getattr(device.timing, more) is None else more
            yield Problem(f"{said}, but {why}; write {more} of at least {less}", f"timing.{given}")
    if device.cycles("tRC") < device.cycles("tRAS") + device.cycles("tRP"):
        least = device.cycles("tRAS") + device.cycles("tRP")
        said = f"tRC is {device.cycles('tRC')} cycles, but a row is open for tRAS of it and closes for tRP, {least}"
        yield Problem(f"{said}; write at least tRAS + tRP, or leave tRC out", "timing.tRC")
    least, one = device.longest_access, device.refresh == "per_bank"
    between = device.cycles("tREFI") // (device.banks if one else 1)
    if one and device.timing.tRFC_bank is None:
        yield Problem("refresh: per_bank needs tRFC_bank; add it, such as tRFC_bank: 130 ns", "timing")
    elif device.refresh != "none" and device.cycles("tREFI") and between < least:
        which = f"tREFI over {device.banks} banks leaves {between} cycles" if one else f"tREFI is {between} cycles"
        said = f"{which}, and a refresh with one access takes up to {least}"
        yield Problem(f"{said}; write a longer tREFI, or refresh: none", "timing.tREFI")
    for name in ("tBURST", "tREFI", "tRP", "tRCDRD", "tRCDWR"):
        if device.cycles(name) < 1:
            yield Problem("0 cycles are no time; write at least 1", f"timing.{name}")


_FORM = Form(Device)


@dataclass(frozen=True)
class AddressMapping:
    """Runs of address bits above the bits of a burst, lowest first: (field, number of bits).

    Addresses beyond the capacity wrap around to 0. With `hashed`, group and bank are XORed with the lowest bits
    of the row, so that consecutive rows lie in different banks (permutation-based interleaving: Zhang, Zhu,
    Zhang, MICRO 2000).
    """

    runs: tuple[tuple[str, int], ...]
    burst_bytes: int
    banks: int
    groups: int
    hashed: bool = False

    @classmethod
    def read(cls, text: str, sizes: Mapping[str, int], burst_bytes: int, hashed: bool) -> AddressMapping:
        """Read a mapping: "rorabgbachco", or "row:bank:column3:channel:column2", where column3 is three bits.

        `bank` without `group` stands for bank:group; `sizes` of the fields are powers of two. Raises InputError.
        """
        bits = {**{field: size.bit_length() - 1 for field, size in sizes.items()}, "rank": 0}
        fields, runs = _fields(text), []
        left = {name: bits[name] - sum(width or 0 for each, width in fields if each == name) for name in bits}
        for name, width in fields:
            open_runs = fields.count((name, None))
            if open_runs > 1:
                said = f"{name} stands there {open_runs} times; say how many bits, such as {name}2"
                raise InputError(f"{show(text)}: {said}")
            runs.append((name, left[name] if width is None else width))
        given = {name: sum(width for each, width in runs if each == name) for name in bits}
        wrong = [f"{name} has {bits[name]} bits, given {given[name]}" for name in bits if given[name] != bits[name]]
        if wrong or any(width < 0 for _, width in runs):
            what = "; ".join(wrong) or "a field is given more bits than it has"
            raise InputError(f"{show(text)} does not name every bit once: {what}; write {_EXAMPLE}")
        return cls(tuple(reversed(runs)), burst_bytes, sizes["bank"], sizes["group"], hashed)

    @property
    def channels(self) -> int:
        """Number of channels that the mapping tells apart."""
        return 1 << sum(width for field, width in self.runs if field == "channel")

    @cached_property
    def cuts(self) -> NDArray[np.int64]:
        """The mapping as numbers, int64[runs + 1, 5].

        The row of a run has the index of its field in FIELDS, its lowest bit in the number of a burst, the mask of its
        bits shifted there, and the number of lower bits of its field in other runs. The first row has the bits of a
        place in a burst, the mask of the number of a burst, the least change of that number that may change the row,
        the bits of a bank in its group, and the mask of the row's bits that the bank is hashed with.
        """
        runs = [(field, width) for field, width in self.runs if width]
        rows, at, taken = [[0] * 5], 0, dict.fromkeys(FIELDS, 0)
        for field, width in runs:
            # Runs of a field come lowest first, so bits that were taken before are lower ones.
            rows.append([FIELDS.index(field), at, (1 << width) - 1, taken[field], 0])
            at, taken[field] = at + width, taken[field] + width
        # Only while the lowest run counts columns does the next burst lie in the same row.
        same = 1 << runs[0][1] if runs and runs[0][0] == "column" else 1
        hashed = self.groups * self.banks - 1 if self.hashed else 0
        rows[0] = [self.burst_bytes.bit_length() - 1, (1 << at) - 1, same, self.banks.bit_length() - 1, hashed]
        return np.array(rows, np.int64)


def _fields(text: str) -> list[tuple[str, int | None]]:
    """Fields of a mapping, highest first, with their numbers of bits; None for all bits that are left."""
    # No word begins with such a pair and has no colon: the two ways to write cannot be confused.
    if ":" not in text and len(text) % 2 == 0 and text[:2] in _LETTERS:
        pairs = [text[at : at + 2] for at in range(0, len(text), 2)]
        if unknown := [pair for pair in pairs if pair not in _LETTERS]:
            known = ", ".join(f"{letters} ({name})" for letters, name in _LETTERS.items())
            raise InputError(f"{show(text)}: no field {show(unknown[0])}; the letters are {known}")
        return [(_LETTERS[pair], None) for pair in pairs]
    found: list[tuple[str, int | None]] = []
    for word in map(str.strip, text.split(":")):
        match = _WORD.fullmatch(word)
        if match is None or match[1] not in FIELDS:
            hint = did_you_mean(word, FIELDS) or ";"
            said = f"no field {show(word)}{hint} fields are {', '.join(FIELDS)}"
            raise InputError(f"{show(text)}: {said}; write {_EXAMPLE}")
        found.append((match[1], int(match[2]) if match[2] else None))
    # A mapping by banks alone has the group right below the bank.
    if not any(name == "group" for name, _ in found):
        at = [index for index, (name, _) in enumerate(found) if name == "bank"]
        found[at[-1] + 1 : at[-1] + 1] = [("group", None)] if at else []
    return found
