"""The bounds of a machine: what its array does at most, and what its HBM allows."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from tpusim.base.errors import InputError
from tpusim.input.fields import FROM_YAML
from tpusim.machines.family import KEY, USUAL, Machine, family_named
from tpusim.result.records import LayerResult, Result


@dataclass(frozen=True)
class Peaks:
    """The bounds of the machine."""

    tflops: float
    hbm_bytes_per_s: int
    memory_bytes: int
    pes: int


def hardware_of(result: Result) -> Machine:
    """Raises InputError when the result's machine is none."""
    model = family_named(result.hardware.get(KEY, USUAL)).model()
    try:
        machine: Machine = model.model_validate(dict(result.hardware), context=FROM_YAML)
        return machine
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(map(str, ("hardware", *first["loc"])))
        raise InputError(f"{path}: {first['msg'].removeprefix('Value error, ')}") from None


def peaks_of(hardware: Machine) -> Peaks:
    """Two operations a PE and cycle; all memory on the chip."""
    return Peaks(
        tflops=2 * hardware.pes * hardware.clock_hz / 1e12,
        hbm_bytes_per_s=hardware.hbm_bytes_per_s,
        memory_bytes=hardware.sram_bytes,
        pes=hardware.pes,
    )


def intensity(layer: LayerResult) -> float | None:
    """Operations a byte of HBM traffic, two a MAC; None without traffic."""
    traffic = layer.hbm_read_bytes + layer.hbm_write_bytes
    return 2 * layer.macs / traffic if traffic else None


def memory_roof(layer: LayerResult, peaks: Peaks) -> float:
    """TFLOPS that the HBM's bandwidth allows."""
    operations = intensity(layer)
    return peaks.tflops if operations is None else operations * peaks.hbm_bytes_per_s / 1e12
