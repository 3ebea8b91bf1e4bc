"""Configurations of SCALE-Sim (`.cfg`), as machine files: an array, three memories, and words a cycle.

The format is that of `scale_config.py` in SCALE-Sim 2 and 3: sections of keys, of which the size of an element, the
clock, ports and latencies are no part. What stands for them here is told in notes, as is every key that is not read.
"""

from __future__ import annotations

import configparser
from collections.abc import Iterator, Mapping
from typing import Any

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.input.document import Document
from tpusim.input.scalars import INTEGER, show, whole_number

_ROWS, _COLS = "ArrayHeight", "ArrayWidth"
_MEMORIES = ("IfmapSramSzkB", "FilterSramSzkB", "OfmapSramSzkB")
_BANDWIDTH, _FLOW, _INTERFACE, _NAME = "Bandwidth", "Dataflow", "InterfaceBandwidth", "run_name"
_MOST = {_ROWS: 65536, _COLS: 65536, _BANDWIDTH: 10**6, **dict.fromkeys(_MEMORIES, 2**24)}
"""Whole numbers, and the most of each."""
_SPELT = {each.lower(): each for each in (*_MOST, _FLOW, _INTERFACE, _NAME)}
_SPELT |= {each.removesuffix("kB").lower(): each for each in _MEMORIES}
"""The keys that are read, by their small letters; SCALE-Sim 1 wrote sizes without their unit."""

_CYCLES_PER_S, _WORD = 10**9, 8
_UNLIMITED = "1000 TB/s"
_FLOWS = {"ws": "weight-stationary", "os": "output-stationary", "is": "input-stationary"}


def read_configuration(text: str, label: str) -> Document:
    """Read a configuration as the data of a machine file. Raises InputError with all that is wrong."""
    found, others = _keys(text, label)
    lines = {name: number for number, name in _numbered(text)}
    problems: list[Problem] = []

    def wrong(name: str, message: str) -> None:
        number = lines.get(name, 1)
        problems.append(Problem(f"{name}: {message}", f"{label}:{number}", number))

    sizes: dict[str, int] = {}
    calculated = found.get(_INTERFACE, "USER").upper() == "CALC"
    for name, most in _MOST.items():
        if name == _BANDWIDTH and calculated:
            continue
        if name not in found:
            wrong(name, "missing; a configuration of SCALE-Sim has it")
            continue
        # Bandwidths may be several, of which SCALE-Sim takes the first.
        value = found[name].split(",")[0].strip()
        try:
            sizes[name] = whole_number(int(value) if INTEGER.fullmatch(value) else value, 1, most)
        except InputError as error:
            wrong(name, str(error))
    flow = found.get(_FLOW, "ws").lower()
    if flow not in _FLOWS:
        wrong(_FLOW, f"{show(found[_FLOW])} is none{did_you_mean(flow, _FLOWS) or ';'} write {', '.join(_FLOWS)}")
    if problems:
        raise InputError(problems)
    return Document(label, _machine(found, sizes), {"": 1}, notes=tuple(_notes(found, sizes, others, flow)))


def _keys(text: str, label: str) -> tuple[dict[str, str], list[str]]:
    """Return values by the keys that are read, and the other keys. Raises InputError."""
    parser = configparser.ConfigParser(interpolation=None, allow_no_value=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text)
    except configparser.Error as error:
        says = " ".join(str(error).replace("<string>", label).split())
        advice = "a .cfg is a configuration of SCALE-Sim: [sections], and lines such as ArrayHeight: 128"
        raise InputError(Problem(f"{advice}; {says}", label)) from None
    every = [(name, value.strip()) for section in parser.sections() for name, value in parser.items(section)]
    found = {_SPELT[name.lower()]: value for name, value in every if name.lower() in _SPELT}
    return found, [name for name, _ in every if name.lower() not in _SPELT]


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line of each key that is read."""
    for number, line in enumerate(text.splitlines(), 1):
        name = line.replace("=", ":").partition(":")[0].strip().lower()
        if name in _SPELT:
            yield number, _SPELT[name]


def _machine(found: Mapping[str, str], sizes: Mapping[str, int]) -> dict[str, Any]:
    rows, cols = sizes[_ROWS], sizes[_COLS]
    lanes = max(rows, cols)
    memory = sum(sizes[each] for each in _MEMORIES) * 1024 // lanes
    bandwidth = f"{sizes[_BANDWIDTH]} GB/s" if _BANDWIDTH in sizes else _UNLIMITED
    name = {"name": found[_NAME].strip("\"'")} if found.get(_NAME) else {}
    return {
        **name,
        "clock": "1 GHz",
        "array": {"rows": rows, "cols": cols, "weight_buffers": 1},
        "vector_memory": {
            "capacity": f"{max(memory // _WORD, 1) * _WORD} B", "word_elements": _WORD, "element_bytes": 1,
        },
        "vector_unit": {"alus": 2 * lanes},
        "hbm": {"bandwidth": bandwidth, "latency": "1 ns"},
    }  # fmt: skip


def _notes(found: Mapping[str, str], sizes: Mapping[str, int], others: list[str], flow: str) -> Iterator[str]:
    lanes = max(sizes[_ROWS], sizes[_COLS])
    three = " + ".join(f"{sizes[each]:,}" for each in _MEMORIES)
    yield f"a configuration of SCALE-Sim: {lanes:,} lanes hold ifmap, weights and ofmap together, {three} KiB in all"
    told = f"Bandwidth {sizes[_BANDWIDTH]:,} words a cycle" if _BANDWIDTH in sizes else f"{_INTERFACE} CALC: never late"
    yield f"it has no clock and no type: elements of 1 byte at 1 GHz; {told}, of all operands together"
    if flow != "ws":
        yield f"{_FLOW} {found[_FLOW]}: {_FLOWS[flow]} arrays are not modelled; this one is weight-stationary"
    if others:
        yield f"not read: {', '.join(others)}"
