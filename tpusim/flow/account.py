"""Put a layer's plan, timing and check together into its `LayerResult`."""

from __future__ import annotations

from tpusim.flow.verify import Verdict
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.plan import Plan
from tpusim.machines.tpu.observation.timing import PORT_CLIENTS, Timing
from tpusim.machines.tpu.program.steps import FilterFill, IfmapFill, Program, Spill
from tpusim.network.workload import Conv2d, Gemm
from tpusim.result.records import STALL_CAUSES, Blocking, LayerResult, VectorMemoryUse


def layer_result(
    layer: Conv2d | Gemm, batch: int, plan: Plan, program: Program, timing: Timing, verdict: Verdict
) -> LayerResult:
    """One row of the report."""
    hardware, cycles = plan.hardware, timing.cycles
    macs, pes = layer.macs(batch), hardware.pes
    seconds = cycles / hardware.clock_hz
    streams = program.streams
    occupied = sum(stream.rows * stream.cols for stream in streams) * hardware.array.count
    fills = [step for step in program.steps if isinstance(step, IfmapFill | FilterFill)]
    spills = [step for step in program.steps if isinstance(step, Spill)]
    channels, rows, cols, images = program.ofmap_shape
    return LayerResult(
        name=layer.name,
        op=layer.op,
        macs=macs,
        passes=len(streams),
        multi_tile=program.multi_tile,
        cycles=cycles,
        time_us=seconds * 1e6,
        ideal_cycles=-(-macs // pes),
        pe_utilization=macs / (pes * cycles),
        mapping_efficiency=occupied / (pes * len(streams)),
        tflops=2 * macs / seconds / 1e12,
        stall_cycles={cause: timing.units["systolic_array"].get(cause, 0) for cause in STALL_CAUSES},
        hbm_read_bytes=sum(step.hbm_bytes for step in fills),
        hbm_write_bytes=sum(step.hbm_bytes for step in spills),
        vector_memory=_memory_use(program, timing, hardware),
        outputs=channels * rows * cols * images,
        outputs_checked=verdict.checked,
        outputs_mismatched=verdict.mismatched,
        units=timing.units,
        blocking=_blocking(plan),
        first_mismatch=verdict.first,
    )


def _memory_use(program: Program, timing: Timing, hardware: Hardware) -> VectorMemoryUse:
    ports = 1 if hardware.vector_memory.ports == "shared" else len(PORT_CLIENTS)
    lane_cycles = hardware.lanes * timing.cycles * ports
    ifmap_bytes = program.ifmap_words * max(stream.rows for stream in program.streams) * hardware.word_bytes
    other_words = program.peak_words - program.ifmap_words
    other_bytes = other_words * max(stream.cols for stream in program.streams) * hardware.word_bytes
    return VectorMemoryUse(
        reads=timing.reads,
        writes=timing.writes,
        port_idle_ratio=1 - (timing.reads + timing.writes) / lane_cycles,
        peak_bytes=ifmap_bytes + other_bytes,
        ifmap_bytes=ifmap_bytes,
    )


def _blocking(plan: Plan) -> Blocking:
    tiling = plan.tiling
    return Blocking(
        rows=tiling.rows,
        cols=tiling.cols,
        images=min(tiling.groups * plan.word_fill, plan.shape.images),
        blocks=len(plan.blocks),
        row_folds=len(plan.row_folds),
        col_folds=len(plan.col_folds),
        loop_order=tiling.loop_order,
        word_fill=plan.word_fill,
        strips=plan.shape.row.strips,
    )
