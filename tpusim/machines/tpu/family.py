"""The TPU as a machine family: the names that it gives to what it does. Help pages import it: nothing heavy with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tpusim.machines.tpu.lowering.registry import LOWERINGS, meant, unasked

if TYPE_CHECKING:
    from tpusim.input.document import Document
    from tpusim.input.form import Overrides
    from tpusim.machines.tpu.description import Hardware
    from tpusim.network.ops.op import Op


class _Glosses(Mapping[str, str]):
    """The gloss of each lowering, for which its module is imported; names come without."""

    def __getitem__(self, name: str) -> str:
        return LOWERINGS[name].gloss

    def __iter__(self) -> Iterator[str]:
        return iter(LOWERINGS)

    def __len__(self) -> int:
        return len(LOWERINGS)


class Tpu:
    """Systolic arrays beside vector memories: `machines.family.Family`."""

    name = "tpu"
    title = "a TPU"
    engines = "event", "register", "both"

    @property
    def lowerings(self) -> Mapping[str, str]:
        """Glosses by the names of the registry, which tests add to."""
        return _Glosses()

    @property
    def partial(self) -> frozenset[str]:
        """Names of lowerings that refuse some layers."""
        return frozenset(name for name, each in LOWERINGS.items() if each.partial)

    def paths(self) -> tuple[str, ...]:
        """Every field of its description, and "array.size"."""
        from tpusim.machines.tpu.description import hardware_paths

        return hardware_paths()

    def model(self) -> type[Hardware]:
        """Its description."""
        from tpusim.machines.tpu.description import Hardware

        return Hardware

    def read(self, document: Document, overrides: Overrides) -> Hardware:
        """The machine that a file describes. Raises InputError."""
        from tpusim.machines.tpu.description import read_hardware

        return read_hardware(document, overrides)

    def meant(self, layer: Op, lowering: str) -> str:
        """Ops of a unit that has one way to do them are lowered in that way."""
        return meant(layer, lowering)

    def unasked(self, layer: Op, batch: int, machine: Hardware) -> str:
        """The first lowering; for layers of several groups the one that their estimate prefers."""
        return unasked(layer, batch, machine)


FAMILY = Tpu()
