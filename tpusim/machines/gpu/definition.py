"""Durations of all that a block does, and the kernels of a layer one after another: shared by interpreters and
estimates.
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
    """The state of an SM in a cycle: of all that its blocks do then, the first in this list."""

    BUSY = 0
    STAGE = 1
    EPILOGUE = 2
    LOAD_WAIT = 3


@dataclass(frozen=True)
class BlockPace:
    """Cycles of the k-steps of a block while a number of SMs work together.

    Attributes:
        stages: for each k-step, cycles of the load port, and cycles to read offsets and store the operands.
        period: number of k-steps after which stages repeat, except for the last ones.
        latency: cycles from the load port to the block.
        step: cycles for addresses and the barrier.
        multiply: cycles of the tensor cores.
        epilogue: cycles to write the tile.
        ahead: number of k-steps whose operands are loaded ahead.
        held: whether room for a load is free once a k-step is stored (registers), or once it is multiplied
        (asynchronous copies).
        together: number of blocks that store and multiply at a time.
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


def pace_of(products: ProductKernel, gpu: Gpu, active: int, stages: Sequence[StepTraffic] | None = None) -> BlockPace:
    """The pace of a kernel's blocks while `active` SMs share L2; with `stages`, for these k-steps in place of a
    block's.
    """
    part = products.stages[: products.part] if stages is None else stages
    kinds: dict[StepTraffic, tuple[int, int]] = {}
    for stage in set(part):
        from_l2 = -(-stage.fetched * active // gpu.l2.bytes_per_cycle)
        by_port = -(-stage.requested // gpu.sm.load_bytes_per_cycle)
        # Asynchronous copies need no instruction to store the operands; offsets are read by the threads that compute.
        stored = 0 if gpu.sm.async_copy else -(-stage.stored // gpu.sm.shared_bytes_per_cycle)
        kinds[stage] = max(from_l2, by_port), stored + stage.taps * gpu.sm.tap_cycles
    return BlockPace(
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
    """Cycles of the DRAM for the bytes of a kernel; 0 if it moves none."""
    moved = kernel.hbm_read_bytes + kernel.hbm_write_bytes
    return gpu.pipe.cycles(moved) if moved else 0


def move_cycles(kernel: MoveKernel, gpu: Gpu) -> int:
    """Cycles of a kernel that moves bytes, without its launch."""
    if kernel.between == "dram":
        return gpu.cycles_of(kernel.fixed_ps) + dram_cycles(kernel, gpu)
    moved = kernel.read_bytes + kernel.write_bytes
    return gpu.cycles_of(kernel.fixed_ps) - (-moved // gpu.l2.bytes_per_cycle)


def waves(products: ProductKernel, gpu: Gpu) -> list[dict[int, int]]:
    """Resident sets one after another, each as {blocks on an SM: number of SMs}.

    A block goes to the SM with the fewest blocks. Blocks that begin together end together, so sets do not overlap.
    """
    whole, rest = divmod(products.count, gpu.sm.count * products.resident)
    most, more = divmod(rest, gpu.sm.count)
    last = {most + 1: more, most: gpu.sm.count - more if most else 0}
    full = [{products.resident: gpu.sm.count}] * whole
    return full + ([{blocks: sms for blocks, sms in last.items() if sms}] if rest else [])


# ---- the kernels of a layer, one after another

ResidentTime: TypeAlias = Callable[[BlockPace, int], Counter[SmState]]
"""Cycles of an SM by state while it runs a number of blocks at some pace; each interpreter has its own function."""

_ORDER = ("busy", "load_wait", "stage", "epilogue", "dram_wait", "move", "launch", "idle")


def timed(program: GpuProgram, gpu: Gpu, of_set: ResidentTime) -> PlainTiming:
    """The timing of a layer, with launches; `of_set` is asked once for every kind of resident set."""
    spent: Counter[str] = Counter()
    hbm = transformation = 0
    for kernel in program.kernels:
        states = _states_of(kernel, gpu, of_set)
        spent += states
        hbm += dram_cycles(kernel, gpu)
        if kernel.what == "lowered":
            transformation += states.total() // gpu.sm.count
    cycles = spent.total() // gpu.sm.count
    # An average SM, in whole cycles: the largest remainders are rounded up, so that the states add up to `cycles`.
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
    """Cycles of all SMs together by state; a resident set lasts as long as its slowest SM."""
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
    # The DRAM works beside the SMs, so only the cycles beyond theirs are a wait.
    made["dram_wait"] = max(0, dram_cycles(kernel, gpu) - made.total() // gpu.sm.count) * gpu.sm.count
    return spent + made
