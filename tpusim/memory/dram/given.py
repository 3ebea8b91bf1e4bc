"""A device as a machine names it: by a shipped name, a path, or written out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from tpusim.base.errors import InputError, Problem
from tpusim.input.scalars import show
from tpusim.memory.dram.device import Device, load_device, read_device


def device_of(value: object) -> Device | None:
    """The device that a machine's file names, or writes out; None for none. Raises InputError with every problem."""
    if value is None or isinstance(value, Device):
        return value
    if isinstance(value, str):
        return _named(value)
    if isinstance(value, Mapping):
        return read_device(value)
    raise InputError(f"{show(value)} is not a device; write the name of a shipped one, e.g. hbm2_16ch_700, or a path")


def _named(name: str) -> Device:
    try:
        return load_device(name)
    except InputError as error:
        # Of another file: its place belongs to the message.
        raise InputError([Problem(str(each)) for each in error.problems]) from None


@lru_cache(maxsize=64)
def with_mapping(device: Device, mapping: str) -> Device:
    """The same device, addresses mapped in another way. Raises InputError."""
    try:
        return device.with_overrides({"mapping": mapping})
    except InputError as error:
        raise InputError([Problem(each.message) for each in error.problems]) from None
