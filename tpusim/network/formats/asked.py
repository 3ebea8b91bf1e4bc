"""What a user says of a model beside its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tpusim.base.errors import InputError, Problem


@dataclass(frozen=True)
class ModelOptions:
    """Sizes of dimensions that a model leaves open, and whether ops that nobody here knows are left out of it."""

    dims: Mapping[str, int] = field(default_factory=dict)
    skip_unknown: bool = False

    def no_dims(self, label: str, what: str) -> None:
        """Raise InputError for dimensions given to what has none open."""
        if self.dims:
            given = ", ".join(f"{name}={size}" for name, size in self.dims.items())
            raise InputError(Problem(f"--dim {given}: {what} leaves no dimension open; leave --dim out", label))


NOTHING = ModelOptions()
