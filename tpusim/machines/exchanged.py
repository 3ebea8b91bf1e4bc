"""Collectives of a network, timed: what a family of machines tells of several chips that share one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tpusim.network.workload import Workload

DCN, HOST_OUT, HOST_BACK = "dcn", "host_out", "host_back"
"""What a collective holds beside axes of a torus: the network between slices, the ways to the host's memory and back.
"""


class TimedCollective(NamedTuple):
    """A collective, timed by itself.

    Attributes:
        cycles: cycles of the chip's clock.
        hbm_cycles: those of them in which it uses the chip's HBM.
        bytes: bytes, in the sense of its op.
        holds: axes of the torus whose links it holds, and `DCN`, `HOST_OUT`, `HOST_BACK`.
        kind: its kind, of which only some may be under way at once.
        algorithm: name of its algorithm.
        alone: whether no layer runs beside it.
    """

    cycles: int
    hbm_cycles: int
    bytes: int
    holds: tuple[str, ...]
    kind: str
    algorithm: str
    alone: bool = False


@dataclass(frozen=True)
class Exchanges:
    """All collectives of a network on a slice.

    Attributes:
        work: the network, with its collectives as they run: small ones joined.
        place: name of the slice, with what was set.
        about: the slice in words.
        chips: its chips.
        each: the collectives, in the order of the workload.
        most: by kind how many of it may be under way at once.
        ahead: blocks whose weights may be there, or on their way, before the readers of one ahead of them are done.
        beside: whether collectives run beside layers.
    """

    work: Workload
    place: str
    about: str
    chips: int
    each: tuple[TimedCollective, ...]
    most: Mapping[str, int]
    ahead: int
    beside: bool
