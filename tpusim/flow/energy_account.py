"""What a layer took in joules, put together for its record."""

from __future__ import annotations

from typing import NamedTuple

from tpusim.machines.tpu.cost import EnergyCounts, energies
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timing import Timing
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload
from tpusim.result.records import EnergyUse, energy_use


def energy_of(macs: int, program: Program, timing: Timing, hardware: Hardware) -> EnergyUse:
    """All that is counted of a layer of so many `macs`."""
    seconds, vector = timing.cycles / hardware.clock_hz, _vector_work(program, hardware)
    preloads = [step for step in program.steps if isinstance(step, Preload)]
    loaded = sum(step.rows * step.cols for step in preloads)
    # The first row's weight moves once, the last row's through all.
    moves = sum(step.cols * step.rows * (step.rows + 1) // 2 for step in preloads)
    counts = EnergyCounts(
        pe_operations=program.use.pe_words * program.word_fill,
        weight_moves=moves * hardware.array.together,
        vector_products=vector.products,
        vector_sums=vector.sums,
        reads=timing.reads,
        writes=timing.writes,
        hbm_bytes=_hbm_bytes(program, timing, hardware),
        activates=sum(timing.hbm.activates) if timing.hbm else None,
        seconds=seconds,
    )
    done = {"pe_operations": counts.pe_operations, "weights_loaded": loaded * hardware.array.together,
            "vector_products": vector.products, "vector_sums": vector.sums}  # fmt: skip
    return energy_use(hardware.silicon.name, energies(counts, hardware), done, macs, seconds)


class _Work(NamedTuple):
    """Multiplications, and all other operations, of the vector unit."""

    products: int
    sums: int


def _vector_work(program: Program, hardware: Hardware) -> _Work:
    """Elements added to partial sums, and what steps of the unit's own do with each element of a result."""
    products = sum(step.words * step.cols * step.finishing[0] for step in program.streams if step.finish)
    sums = sum(step.words * step.cols * (step.accumulate + step.finishing[1]) for step in program.streams)
    for step in program.vectors:
        multiplied, others = step.operations(hardware)
        products += multiplied * step.writes.accesses
        sums += others * step.writes.accesses
    return _Work(products * program.word_fill, sums * program.word_fill)


def _hbm_bytes(program: Program, timing: Timing, hardware: Hardware) -> int:
    """Those that the DRAM moves where there is one, else those that transfers charge."""
    if timing.hbm and hardware.hbm.dram:
        return sum((*timing.hbm.reads, *timing.hbm.writes)) * hardware.hbm.dram.organisation.burst_bytes
    return program.use.hbm_read_bytes + program.use.hbm_write_bytes
