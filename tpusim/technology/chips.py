"""What is published of whole chips: areas and powers to stand beside those that are worked out here."""

from __future__ import annotations

from typing import Annotated

from tpusim.base.units import AREA, LENGTH, POWER
from tpusim.input.form import FROM_YAML, FileSection, Form, Name, Quantity, whole, written
from tpusim.input.source import open_document, shipped

FOLDER = "configs/chips"


class Chip(FileSection):
    """A chip of so many `cores`, of each of which a machine is the matrix units and vector memories."""

    name: Annotated[str, Name(), written("my_chip")]
    cores: Annotated[int, whole(1024), written(2)]
    area_nm2: Annotated[int, Quantity(AREA, "1 m2"), written("611 mm2", "area")]
    power_pw: Annotated[int, Quantity(POWER, "1 kW"), written("280 W", "power")]
    feature_nm: Annotated[int, Quantity(LENGTH, "1 m"), written("16 nm", "feature")]


def chip_of(machine: str) -> Chip | None:
    """The chip that a machine of this name models: tpu_v2 of tpu_v2 and of tpu_v2_core; None where none is known."""
    name = next((name for name in shipped(FOLDER) if machine == name or machine.startswith(f"{name}_")), None)
    return _FORM.read(open_document(name, FOLDER), FROM_YAML) if name else None


_FORM = Form(Chip)
