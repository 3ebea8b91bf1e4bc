"""The TPU as a machine family: the names that it gives to what it does. Help pages import it: nothing heavy with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tpusim.machines.tpu.lowering.registry import GLOSSES, LOWERINGS, PARTIAL, meant

if TYPE_CHECKING:
    from tpusim.input.document import Document
    from tpusim.input.overrides import Overrides
    from tpusim.machines.tpu.description import Hardware
    from tpusim.network.ops import Op


class Tpu:
    """Systolic arrays beside vector memories: `machines.family.Family`."""

    name = "tpu"
    title = "a TPU"
    engines = "event", "register", "both"
    partial = PARTIAL

    @property
    def lowerings(self) -> Mapping[str, str]:
        """Those of the registry, which tests add to."""
        return {name: GLOSSES.get(name, "") for name in LOWERINGS}

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


FAMILY = Tpu()
