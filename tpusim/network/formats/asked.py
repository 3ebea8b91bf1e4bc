"""What a user says of a model beside its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from tpusim.base.errors import InputError, did_you_mean

OPS = ("all", "array")
"""What may become layers."""


def check_ops(ops: object) -> str:
    """The same, one of OPS. Raises InputError where it is none."""
    if ops not in OPS:
        hint = did_you_mean(str(ops), OPS) or ";"
        says = "all, or array: convolutions and matrix products alone, others are named and take no time"
        raise InputError(f"unknown ops {ops!r}{hint} there is {says}")
    return str(ops)


@dataclass(frozen=True)
class ModelOptions:
    """Sizes of dimensions that a model leaves open, and whether ops that nobody here knows are left out of it.

    `ops` is what becomes layers: all that can, or those of the array alone; None: what the file says, else all.
    `arrays` are inputs of the network, by name: their sizes settle those that are open, what whole numbers among them
    hold settles which branches are taken.
    """

    dims: Mapping[str, int] = field(default_factory=dict)
    skip_unknown: bool = False
    ops: str | None = None
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.ops is not None:
            check_ops(self.ops)


NOTHING = ModelOptions()
