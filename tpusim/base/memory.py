"""Memory that this process may still take, and a pause for the garbage collector."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def free_bytes() -> int:
    """The least of the computer's free memory, the rest of the control group's limit, and the rest of `ulimit -v`.

    A limit that cannot be read is ignored.
    """
    return min([*_free(), *_control_group(), *_address_space()], default=sys.maxsize)


def _free() -> Iterator[int]:
    """Free memory of the computer; if the system does not say, all of its memory."""
    with suppress(OSError, ValueError, IndexError):
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        yield int(fields["MemAvailable"].split()[0]) * 1024
        return
    with suppress(AttributeError, OSError, ValueError):
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _control_group() -> Iterator[int]:
    """Memory left by control groups: in version 2 for this process and the groups above it, in version 1 for a
    container.
    """
    with suppress(OSError, ValueError, IndexError):
        inside = Path("/proc/self/cgroup").read_text().rpartition("0::/")[2].split("\n")[0]
        folder = Path("/sys/fs/cgroup", inside)
        for each in (folder, *folder.parents[:-3]):
            yield from _left(each, "memory.max", "memory.current", "inactive_file")
    yield from _left(
        Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
    )


def _left(group: Path, limit: str, used: str, reclaimable: str) -> Iterator[int]:
    """Bytes left of a group's limit; cached files make room when it is needed."""
    with suppress(OSError, ValueError):
        whole = int((group / limit).read_text())
        kept = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        yield max(0, whole - int((group / used).read_text()) + int(kept.get(reclaimable, 0)))


def _address_space() -> Iterator[int]:
    with suppress(ImportError, OSError, ValueError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            yield max(0, limit - used)


YOUNG = 200_000
"""Objects made since the last look for cycles, before the next, in a process of ours."""


def look_seldom() -> None:
    """Have Python look for cycles seldom, in a process that does nothing else: modules and Programs are many small
    objects that stay, and to look through them as often as it does otherwise takes long.
    """
    gc.set_threshold(YOUNG)


@contextmanager
def at_rest() -> Iterator[None]:
    """Pause Python's garbage collector: searching a million small objects again and again takes as long as making
    them.
    """
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
