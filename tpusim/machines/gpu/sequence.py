"""The kernels of a layer, one after another, and what its SMs did meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from math import floor
from typing import TypeAlias

from tpusim.machines.family import Timing
from tpusim.machines.gpu.definition import Pace, dram_bytes, dram_cycles, moves_cycles, pace_of, waves
from tpusim.machines.gpu.description import Gpu
from tpusim.machines.gpu.program.kernels import Moves, Products, Program
from tpusim.machines.gpu.state import Resident, State

Set: TypeAlias = Callable[[Pace, int], Resident]
"""How long so many blocks of a pace take on an SM, by whichever interpreter."""

_ORDER = ("busy", "load_wait", "stage", "epilogue", "dram_wait", "move", "launch", "idle")


def run(program: Program, gpu: Gpu, of_set: Set) -> Timing:
    """How long a layer takes, launches included; of every kind of resident set, `of_set` is asked once."""
    spent: Counter[str] = Counter()
    hbm = transformation = 0
    for kernel in program.kernels:
        launch = gpu.cycles_of(gpu.launch.kernel_ps) if isinstance(kernel, Products) or kernel.launched else 0
        states = _products(kernel, gpu, of_set) if isinstance(kernel, Products) else _moves(kernel, gpu)
        spent += Counter({name: cycles * gpu.sm.count for name, cycles in (("launch", launch),)}) + states
        hbm += dram_cycles(kernel, gpu)
        if isinstance(kernel, Moves) and kernel.what == "lowered":
            transformation += launch + sum(states.values()) // gpu.sm.count
    cycles = sum(spent.values()) // gpu.sm.count
    return Timing(
        cycles=cycles,
        units={"sms": _averaged(spent, gpu.sm.count, cycles), "hbm": {"busy": hbm, "idle": cycles - hbm}},
        hbm_read_bytes=sum(_read(kernel)[0] for kernel in program.kernels),
        hbm_write_bytes=sum(_read(kernel)[1] for kernel in program.kernels),
        lowered_bytes=program.lowered_bytes,
        transformation_cycles=transformation,
        figures=_figures(program.products, gpu),
    )


def _read(kernel: Products | Moves) -> tuple[int, int]:
    """Bytes that a kernel reads from DRAM, and writes there."""
    if isinstance(kernel, Products):
        return kernel.hbm_read_bytes, kernel.hbm_write_bytes
    return dram_bytes(kernel)


def _figures(products: Products, gpu: Gpu) -> dict[str, int | float]:
    fetched = sum(stage.fetched for stage in products.stages)
    return {
        "blocks": products.count,
        "waves": len(waves(products, gpu)),
        "a_bytes": products.a_bytes,
        "b_bytes": products.b_bytes,
        "l2_bytes": fetched * products.blocks.count * products.columns,
    }


def _moves(moves: Moves, gpu: Gpu) -> Counter[str]:
    return Counter(move=moves_cycles(moves, gpu) * gpu.sm.count)


def _products(products: Products, gpu: Gpu, of_set: Set) -> Counter[str]:
    """Cycles of all SMs together by what they do; a resident set is as long as the longest of its SMs."""
    spent: Counter[str] = Counter()
    for wave, number in Counter(tuple(each.items()) for each in waves(products, gpu)).items():
        pace = pace_of(products, gpu, sum(sms for _, sms in wave))
        for name, cycles in _wave(wave, partial(of_set, pace), gpu.sm.count).items():
            spent[name] += number * cycles
    shortfall = dram_cycles(products, gpu) - sum(spent.values()) // gpu.sm.count
    spent["dram_wait"] = max(0, shortfall) * gpu.sm.count
    return spent


def _wave(wave: tuple[tuple[int, int], ...], of_blocks: Callable[[int], Resident], sms: int) -> Counter[str]:
    spent: Counter[str] = Counter()
    found = {blocks: of_blocks(blocks) for blocks, _ in wave}
    longest = max(each.cycles for each in found.values())
    for blocks, number in wave:
        for state, cycles in found[blocks].states.items():
            spent[State(state).name.lower()] += number * cycles
    spent["idle"] = longest * sms - sum(spent.values())
    return spent


def _averaged(spent: Counter[str], sms: int, cycles: int) -> dict[str, int]:
    """What an average SM spends, in whole cycles that add up: those with the largest rests are rounded up."""
    exact = {name: spent[name] / sms for name in _ORDER}
    whole = {name: floor(each) for name, each in exact.items()}
    rests = sorted(_ORDER, key=lambda name: whole[name] - exact[name])
    for name in rests[: cycles - sum(whole.values())]:
        whole[name] += 1
    return {name: count for name, count in whole.items() if count or name in ("busy", "idle")}
