"""How long each thing that a block does takes: all that the interpreters and estimates share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tpusim.machines.gpu.description import Gpu
from tpusim.machines.gpu.program.kernels import Moves, Products, Stage


@dataclass(frozen=True)
class Pace:
    """Cycles of the k-steps of a block, while so many SMs are at work.

    Attributes:
        stages: kinds of k-steps: cycles of the load port, and cycles to read offsets and store what has come.
        latency: from the load port to the block.
        step: addresses and barrier. multiply: the tensor cores.
        epilogue: writing the tile.
        ahead: k-steps whose operands are on their way. held: whether what is stored makes room for them (registers),
            or only what is multiplied (asynchronous copies).
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


def pace_of(products: Products, gpu: Gpu, active: int, stages: Sequence[Stage] | None = None) -> Pace:
    """The pace of one of its blocks while `active` SMs share L2; of other `stages` than a block's, where given."""
    part = products.stages[: products.part] if stages is None else stages
    kinds = {stage: _timed(stage, gpu, active) for stage in set(part)}
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


def _timed(stage: Stage, gpu: Gpu, active: int) -> tuple[int, int]:
    """What is copied asynchronously needs no instruction to store it; offsets are read by the same threads."""
    from_l2 = -(-stage.fetched * active // gpu.l2.bytes_per_cycle)
    by_port = -(-stage.requested // gpu.sm.load_bytes_per_cycle)
    stored = 0 if gpu.sm.async_copy else -(-stage.stored // gpu.sm.shared_bytes_per_cycle)
    return max(from_l2, by_port), stored + stage.taps * gpu.sm.tap_cycles


def dram_cycles(kernel: Products | Moves, gpu: Gpu) -> int:
    """What the DRAM takes for the bytes of a kernel; 0 for none."""
    read, written = (
        (kernel.hbm_read_bytes, kernel.hbm_write_bytes) if isinstance(kernel, Products) else dram_bytes(kernel)
    )
    return gpu.pipe.cycles(read + written) if read + written else 0


def dram_bytes(moves: Moves) -> tuple[int, int]:
    """What it reads and writes there."""
    return (moves.read_bytes, moves.write_bytes) if moves.between == "dram" else (0, 0)


def moves_cycles(moves: Moves, gpu: Gpu) -> int:
    """What a kernel takes that moves bytes, its launch not included."""
    moved = moves.read_bytes + moves.write_bytes
    if moves.between == "dram":
        return gpu.cycles_of(moves.fixed_ps) + dram_cycles(moves, gpu)
    return gpu.cycles_of(moves.fixed_ps) - (-moved // gpu.l2.bytes_per_cycle)


def waves(products: Products, gpu: Gpu) -> list[dict[int, int]]:
    """How many SMs have how many blocks, one resident set after another; those like the first are there once each.

    Blocks go to the SM with the fewest; blocks that begin together end together.
    """
    whole, rest = divmod(products.count, gpu.sm.count * products.resident)
    most, more = divmod(rest, gpu.sm.count)
    last = {most + 1: more, most: gpu.sm.count - more if most else 0}
    full = [{products.resident: gpu.sm.count}] * whole
    return full + ([{blocks: sms for blocks, sms in last.items() if sms}] if rest else [])
