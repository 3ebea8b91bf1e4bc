"""About how many cycles the products of a layer take: what tiles and splits are chosen by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tpusim.machines.gpu.definition import Pace, dram_cycles, pace_of, waves
from tpusim.machines.gpu.description import Gpu
from tpusim.machines.gpu.program.kernels import Products, Stage


def estimate(products: Products, gpu: Gpu, kinds: Mapping[Stage, int]) -> float:
    """Resident sets one after another, each as long as what binds it; at least what the DRAM takes.

    `kinds` are the k-steps of the whole sum, counted; a block is taken to have its share of each.
    """
    share = products.part / len(products.steps)
    sets = Counter(tuple(wave.items()) for wave in waves(products, gpu))
    cycles = 0.0
    for wave, number in sets.items():
        pace = pace_of(products, gpu, sum(sms for _, sms in wave), tuple(kinds))
        numbers = [share * count for count in kinds.values()]
        cycles += number * resident_cycles(pace, numbers, max(blocks for blocks, _ in wave))
    return max(cycles, dram_cycles(products, gpu))


def resident_cycles(pace: Pace, numbers: list[float], blocks: int) -> float:
    """Blocks of one SM that begin together: bound by what they hold the SM for, by the load port, or each by itself.

    There are so many (`numbers`) of each of the k-steps that the pace has.
    """
    holds = loads = chain = 0.0
    for (load, store), number in zip(pace.stages, numbers, strict=True):
        hold = store + pace.step + pace.multiply
        holds += number * hold
        loads += number * load
        chain += number * max(hold, (store * pace.held + load + pace.latency) // pace.ahead)
    begin = pace.stages[0][0] + pace.latency
    return begin + max(holds * max(1, blocks // pace.together), blocks * loads, chain) + blocks * pace.epilogue
