"""Put a layer's time, what its family has counted, and the verdict together into its `LayerResult`."""

from __future__ import annotations

from tpusim.machines.family import Machine
from tpusim.machines.lowered import Lowered, Timed
from tpusim.network.ops.op import Op
from tpusim.numerics.equality import Verdict
from tpusim.result.records import LayerResult


def layer_result(
    layer: Op, batch: int, machine: Machine, ready: Lowered, timing: Timed, verdict: Verdict
) -> LayerResult:
    """One row of the report."""
    account = ready.account(layer, batch, timing)
    cycles, macs, pes = timing.cycles, layer.macs(batch), machine.pes
    seconds = cycles / machine.clock_hz
    return LayerResult(
        name=layer.name,
        op=layer.core.op,
        macs=macs,
        cycles=cycles,
        time_us=seconds * 1e6,
        ideal_cycles=-(-macs // pes),
        pe_utilization=macs / (pes * cycles),
        tflops=2 * macs / seconds / 1e12,
        outputs=layer.outputs(batch),
        outputs_checked=verdict.checked,
        outputs_mismatched=verdict.mismatched,
        units=timing.units,
        lowering=ready.lowering,
        first_mismatch=verdict.first,
        intermediates_checked=verdict.intermediates_checked,
        intermediates_mismatched=verdict.intermediates_mismatched,
        transformation_share=account.transformation_cycles / cycles,
        error_share=verdict.error_share,
        **vars(account),
    )
