"""How long each thing takes that a block does, and the kernels of a layer one after another: all that the interpreters
and estimates share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import floor
from typing import TypeAlias

from tpusim.machines.gpu.description import Gpu
from tpusim.machines.gpu.program import GpuProgram, Kernel, MoveKernel, ProductKernel, StepTraffic
from tpusim.machines.lowered import PlainTiming


class SmState(IntEnum):
    """What counts of all that the blocks of an SM do in a cycle: the first that any does."""

    BUSY = 0
    STAGE = 1
    EPILOGUE = 2
    LOAD_WAIT = 3


@dataclass(frozen=True)
class Pace:
    """Cycles of the k-steps of a block, for a number of SMs that are at work together.

    Attributes:
        stages: kinds of k-steps: cycles of the load port, and cycles to read offsets and store what has come.
        period: k-steps after which the stages repeat themselves, but for the last.
        latency: from the load port to the block.
        step: addresses and barrier.
        multiply: the tensor cores.
        epilogue: writing the tile.
        ahead: k-steps whose operands are on their way.
        held: whether what is stored makes room for them (registers), or only what is multiplied (asynchronous copies).
        together: blocks that store and multiply at a time.
    """

    stages: tuple[tuple[int, int], ...]
    period: int
    latency: int
    step: int
    multiply: int
    epilogue: int
    ahead: int
    held: bool
    together: int


def pace_of(products: ProductKernel, gpu: Gpu, active: int, stages: Sequence[StepTraffic] | None = None) -> Pace:
    """The pace of one of its blocks while `active` SMs share L2; of other `stages` than a block's, where given."""
    part = products.stages[: products.part] if stages is None else stages
    kinds: dict[StepTraffic, tuple[int, int]] = {}
    for stage in set(part):
        from_l2 = -(-stage.fetched * active // gpu.l2.bytes_per_cycle)
        by_port = -(-stage.requested // gpu.sm.load_bytes_per_cycle)
        # What is copied asynchronously needs no instruction to store it; offsets are read by the same threads.
        stored = 0 if gpu.sm.async_copy else -(-stage.stored // gpu.sm.shared_bytes_per_cycle)
        kinds[stage] = max(from_l2, by_port), stored + stage.taps * gpu.sm.tap_cycles
    return Pace(
        stages=tuple(kinds[stage] for stage in part),
        period=products.period,
        latency=gpu.l2.latency_cycles,
        step=gpu.sm.step_cycles,
        multiply=gpu.multiply_cycles(products.tile),
        epilogue=-(-products.epilogue_bytes // gpu.sm.epilogue_bytes_per_cycle),
        ahead=gpu.sm.loads_under_way,
        held=not gpu.sm.async_copy,
        together=gpu.together(products.tile),
    )


def dram_cycles(kernel: Kernel, gpu: Gpu) -> int:
    """Cycles of the DRAM for the bytes of a kernel; 0 for none."""
    moved = kernel.hbm_read_bytes + kernel.hbm_write_bytes
    return gpu.pipe.cycles(moved) if moved else 0


def move_cycles(kernel: MoveKernel, gpu: Gpu) -> int:
    """Cycles of a kernel that moves bytes, its launch not included."""
    if kernel.between == "dram":
        return gpu.cycles_of(kernel.fixed_ps) + dram_cycles(kernel, gpu)
    moved = kernel.read_bytes + kernel.write_bytes
    return gpu.cycles_of(kernel.fixed_ps) - (-moved // gpu.l2.bytes_per_cycle)


def waves(products: ProductKernel, gpu: Gpu) -> list[dict[int, int]]:
    """How many SMs have how many blocks, one resident set after another; those like the first are there once each.

    Blocks go to the SM with the fewest; blocks that begin together end together.
    """
    whole, rest = divmod(products.count, gpu.sm.count * products.resident)
    most, more = divmod(rest, gpu.sm.count)
    last = {most + 1: more, most: gpu.sm.count - more if most else 0}
    full = [{products.resident: gpu.sm.count}] * whole
    return full + ([{blocks: sms for blocks, sms in last.items() if sms}] if rest else [])


# ---- the kernels of a layer, one after another

ResidentTime: TypeAlias = Callable[[Pace, int], Counter[SmState]]
"""The cycles that a number of blocks of a pace take on an SM, by its states, from whichever interpreter."""

_ORDER = ("busy", "load_wait", "stage", "epilogue", "dram_wait", "move", "launch", "idle")


def timed(program: GpuProgram, gpu: Gpu, of_set: ResidentTime) -> PlainTiming:
    """How long a layer takes, launches included; of every kind of resident set, `of_set` is asked once."""
    spent: Counter[str] = Counter()
    hbm = transformation = 0
    for kernel in program.kernels:
        states = _states_of(kernel, gpu, of_set)
        spent += states
        hbm += dram_cycles(kernel, gpu)
        if kernel.what == "lowered":
            transformation += states.total() // gpu.sm.count
    cycles = spent.total() // gpu.sm.count
    # An average SM, in whole cycles that add up: those with the largest rests are rounded up.
    exact = {name: spent[name] / gpu.sm.count for name in _ORDER}
    whole = {name: floor(each) for name, each in exact.items()}
    rests = sorted(_ORDER, key=lambda name: whole[name] - exact[name])
    for name in rests[: cycles - sum(whole.values())]:
        whole[name] += 1
    sms = {name: count for name, count in whole.items() if count or name in ("busy", "idle")}
    products = program.products
    fetched = sum(stage.fetched for stage in products.stages)
    return PlainTiming(
        cycles=cycles,
        units={"sms": sms, "hbm": {"busy": hbm, "idle": cycles - hbm}},
        hbm_read_bytes=sum(kernel.hbm_read_bytes for kernel in program.kernels),
        hbm_write_bytes=sum(kernel.hbm_write_bytes for kernel in program.kernels),
        lowered_bytes=program.lowered_bytes,
        transformation_cycles=transformation,
        figures={
            "blocks": products.count,
            "waves": len(waves(products, gpu)),
            "a_bytes": products.a_bytes,
            "b_bytes": products.b_bytes,
            "l2_bytes": fetched * products.blocks.count * products.columns,
        },
    )


def _states_of(kernel: Kernel, gpu: Gpu, of_set: ResidentTime) -> Counter[str]:
    """Cycles of all SMs together by what they do; a resident set is as long as the longest of its SMs."""
    spent = Counter(launch=kernel.launched * gpu.launch_cycles * gpu.sm.count)
    if isinstance(kernel, MoveKernel):
        spent["move"] = move_cycles(kernel, gpu) * gpu.sm.count
        return spent
    made: Counter[str] = Counter()
    for wave, number in Counter(tuple(each.items()) for each in waves(kernel, gpu)).items():
        pace = pace_of(kernel, gpu, sum(sms for _, sms in wave))
        found = [(of_set(pace, blocks), sms) for blocks, sms in wave]
        working: Counter[str] = Counter()
        for states, sms in found:
            for state, cycles in states.items():
                working[state.name.lower()] += sms * cycles
        working["idle"] = max(states.total() for states, _ in found) * gpu.sm.count - working.total()
        for name, cycles in working.items():
            made[name] += number * cycles
    made["dram_wait"] = max(0, dram_cycles(kernel, gpu) - made.total() // gpu.sm.count) * gpu.sm.count
    return spent + made
