"""Put a layer's lowering, timing and verdict together into its `LayerResult`."""

from __future__ import annotations

from tpusim.flow.dram_account import dram_use
from tpusim.flow.energy_account import energy_of
from tpusim.flow.engines import Prepared
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timing import Timing
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import Inbound, Spill
from tpusim.network.ops.op import Op
from tpusim.numerics.equality import Verdict
from tpusim.result.records import STALL_CAUSES, LayerResult, VectorMemoryUse


def layer_result(layer: Op, batch: int, ready: Prepared, timing: Timing, verdict: Verdict) -> LayerResult:
    """One row of the report."""
    program, explanation, hardware = ready.program, ready.explanation, ready.hardware
    cycles, macs, pes = timing.cycles, layer.macs(batch), hardware.pes
    seconds = cycles / hardware.clock_hz
    transformation, element_bytes = transformation_cycles(program, timing), hardware.vector_memory.element_bytes
    occupied = sum(stream.rows * stream.cols for stream in program.streams) * hardware.array.count
    return LayerResult(
        name=layer.name,
        op=layer.core.op,
        macs=macs,
        passes=len(program.streams),
        multi_tile=explanation.multi_tile,
        cycles=cycles,
        time_us=seconds * 1e6,
        ideal_cycles=-(-macs // pes),
        pe_utilization=macs / (pes * cycles),
        mapping_efficiency=occupied / (pes * max(1, len(program.streams))),
        tflops=2 * macs / seconds / 1e12,
        stall_cycles={cause: timing.units["systolic_array"].get(cause, 0) for cause in STALL_CAUSES},
        hbm_read_bytes=program.use.hbm_read_bytes,
        hbm_write_bytes=program.use.hbm_write_bytes,
        vector_memory=_memory_use(program, timing, hardware),
        outputs=layer.outputs(batch),
        outputs_checked=verdict.checked,
        outputs_mismatched=verdict.mismatched,
        units=timing.units,
        blocking=explanation.blocking,
        lowering=ready.lowering,
        first_mismatch=verdict.first,
        intermediates_checked=verdict.intermediates_checked,
        intermediates_mismatched=verdict.intermediates_mismatched,
        lowered_bytes=sum(
            each.bytes(element_bytes)
            for each in map(program.tensor, program.intermediates & program.checked)
            if each.scratch is None
        ),
        transformation_cycles=transformation,
        transformation_share=transformation / cycles,
        dram=dram_use(ready.wanted_bytes, timing, hardware),
        energy_use=energy_of(macs, program, timing, hardware),
        error_share=verdict.error_share,
        own=_scratch_use(program),
    )


def transformation_cycles(program: Program, timing: Timing) -> int:
    """Cycles of the bus that go to what writes intermediates: their spills, and the fills that these wait for."""
    checked = program.intermediates & program.checked
    spills = [step for step in program.steps if isinstance(step, Spill) and step.tensor.name in checked]
    sources = (program.steps[each] for spill in spills for each in spill.after)
    steps = (*spills, *(step for step in sources if isinstance(step, Inbound)))
    return sum(timing.bus.get(label, 0) for label in {step.label for step in steps})


def _scratch_use(program: Program) -> dict[str, int]:
    """What crosses the bus of the scratch memory, or is brought there, if anything does."""
    names, use = ("scratch_read_bytes", "scratch_write_bytes"), program.use._asdict()
    return {name: use[name] for name in names if use[name]}


def _memory_use(program: Program, timing: Timing, hardware: Hardware) -> VectorMemoryUse:
    lane_ports = len(program.ports(hardware)) - hardware.banked
    ports = hardware.lanes * lane_ports + hardware.banks * (hardware.vector_memory.bank_ports + 1)
    return VectorMemoryUse(
        reads=timing.reads,
        writes=timing.writes,
        port_idle_ratio=max(0.0, 1 - (timing.reads + timing.writes) / (ports * timing.cycles)),
        peak_bytes=program.lane_words() * hardware.word_bytes,
        ifmap_bytes=program.lane_words("ifmap") * hardware.word_bytes,
    )
