"""Sets of reference numbers that come with tpusim, by name; and cases of products, chips and GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from statistics import fmean

from tpusim.network.ops.array_op import Conv2d, Gemm
from tpusim.network.ops.op import Op
from tpusim.study.validation import convolutions, operations
from tpusim.study.validation.cases import NETWORKS, Case, NumberSet, Row, cached, numbers, rows, sizes

ESTIMATOR, CODE, V3 = "tpu_v2_estimator", "tpu_v2_core", "tpu_v3_core"
"""Machines: one with the costs that the compiler expects of TPU v2, one with the costs of its code there, and TPU v3.
"""

GRADIENT_SETS = "gradients"
"""Kind of the sets of convolutions and their gradients."""

_estimated = partial(NumberSet, status="estimated", hardware=ESTIMATOR)
_scheduled = partial(NumberSet, status="scheduled", hardware=CODE)


@cached
def number_sets() -> dict[str, NumberSet]:
    """Every set of a TPU by its name, in the order of reports."""
    return {each.name: each for each in (*_layers(), *_operations(), *_chips())}


def _layers() -> Iterator[NumberSet]:
    # Half of these cases served to choose the fitted numbers of the estimator's machine.
    made = partial(_estimated, kind="layers", fitted=True)
    products: list[Case] = []
    for row in rows("xla_tpu_v2_gemm"):
        name, cycles = "{}x{}x{}".format(*numbers(row, "m n k")), float(row["estimated_cycles"])
        products.append(Case(name, (Gemm(name, *sizes(name)),), 1, cycles, cycles))
    yield made("gemm", about="matrix products", cases=tuple(products))
    for name, about in (("ResNet50", "ResNet-50"), ("VGG16", "VGG16"), ("YOLOv2", "YOLOv2"),
                        ("micro", "sizes, channels, kernels, strides")):  # fmt: skip
        yield made(name.lower(), about=about, cases=convolutions.of_network(name))
    for name, about in convolutions.ESTIMATED.items():
        yield _estimated(name, kind="convolutions", about=about, cases=convolutions.estimated(name))
    for name, about in convolutions.SCHEDULED.items():
        # Half of these cases served to choose the fitted numbers of the machine that follows the code.
        yield _scheduled(name, kind="convolutions", about=about, cases=convolutions.scheduled(name), fitted=True)
    for name, about in convolutions.VARIANTS.items():
        # Depthwise cases belong to the machine of the code, whose vector unit has its costs from them.
        machine, kind = (CODE, "variants") if name == "depthwise" else (ESTIMATOR, name)
        cases, how = convolutions.variants(name), convolutions.LOWERINGS.get(name, "channel_first")
        yield NumberSet(name, "estimated", kind, about, machine, cases, lowering=how)
    for name, about in convolutions.GRADIENTS.items():
        yield _estimated(name, kind=GRADIENT_SETS, about=about, cases=convolutions.gradients(name))
    about = "gradients one by one"
    cases = convolutions.scheduled_gradients()
    yield _scheduled(convolutions.GRADIENT_CODE, kind=GRADIENT_SETS, about=about, cases=cases)


def _operations() -> Iterator[NumberSet]:
    about = "pooling, sums of maps, activations, softmax, copies, each by itself"
    vector = partial(NumberSet, kind="vector_ops", lowering="vector_ops")
    yield vector("vector_ops", "estimated", about=about, hardware=ESTIMATOR, cases=operations.vector_ops())
    for name, about in operations.ESTIMATED.items():
        cases, others = operations.estimated(name)
        yield _estimated(name, kind=NETWORKS, about=about, cases=cases, left_out=others)
    for name, about in operations.SCHEDULED.items():
        cases, others = operations.scheduled(name)
        yield _scheduled(name, kind=NETWORKS, about=about, cases=cases, left_out=others)
    about = "pooling within these networks"
    yield vector(operations.POOLING, "scheduled", about=about, hardware=CODE, cases=operations.scheduled_pooling())


# ---- chips

TRUSTED_BATCH, TRUSTED_NODES = 256, 512
"""Least sizes of rows of the training profiles that count: smaller ones wait for their input."""

ODD = "conv_64x56x56x64x64x3x1x1"
"""A measurement six times as long as its neighbour of equal work; see docs/validation.md."""


def _chips() -> Iterator[NumberSet]:
    """Measurements on chips, and the compiler's two words for the same shapes on TPU v3."""
    core = partial(NumberSet, kind="v3", hardware=V3)
    one = "one core of TPU v3"
    compiled = {row["case"]: row for row in rows("tpu_v3_measured_estimated_scheduled") if row["dtype"] == _FLOAT32}
    took = {row["workload"]: float(row["measured_cycles_940mhz"]) for row in rows("measured_tpu_v3")}

    def cases(theirs: dict[str, float]) -> tuple[Case, ...]:
        return tuple(_v3(compiled[name], cycles) for name, cycles in theirs.items())

    estimates = cases({name: float(row["estimated_main"]) for name, row in compiled.items()})
    yield core("v3_estimated", "estimated", about=f"what was measured on {one}", cases=estimates)
    # Cycles of code of products are reported without waits for HBM.
    code = {name: float(row["scheduled_cycles"]) for name, row in compiled.items() if name.startswith("conv")}
    yield core("v3_scheduled", "scheduled", about=f"convolutions on {one}, without HBM", cases=cases(code))
    odd = {ODD: took.pop(ODD)}
    yield core("v3", "measured", about=one, cases=cases(took))
    yield core("v3_odd", "measured", about=f"{one}, the layer that stands apart", cases=cases(odd))
    # The type is not stated; float32 agrees best.
    float32 = ("vector_memory.element_bytes=4",)
    yield NumberSet("training", "measured", "training", "training steps on TPU v2", ESTIMATOR, tuple(_training()),
                    float32, "% of peak")  # fmt: skip


_FLOAT32 = "f32"
"""The type of the measurements is not stated; they agree best with this one."""


def _v3(row: Row, theirs: float) -> Case:
    """A shape of the compiler's table."""
    name, estimated = row["case"], float(row["estimated_main"])
    kind, shape = name.split("_")
    if kind == "gemm":
        return Case(name, (Gemm(name, *sizes(shape)),), 1, theirs, estimated, dtype=_FLOAT32)
    batch, height, width, channels, out, kernel, stride, padding = sizes(shape)
    pairs = (kernel, kernel), (stride, stride), (padding, padding)
    layer: Op = Conv2d("conv", channels, height, width, out, *pairs)
    return Case(name, (layer,), batch, theirs, estimated, float(row["scheduled_cycles"]), dtype=_FLOAT32)


def _training() -> Iterator[Case]:
    """Products of a training step: forward, gradient of the input, gradient of the weights."""
    for row in rows("measured_tpu_v2_fc_training"):
        batch, nodes = numbers(row, "batch_per_core nodes")
        if batch < TRUSTED_BATCH or nodes < TRUSTED_NODES:
            continue
        sides = {"forward": (batch, nodes, nodes), "inputs": (batch, nodes, nodes), "weights": (nodes, nodes, batch)}
        layers = tuple(Gemm(name, *mnk) for name, mnk in sides.items())
        name = f"{row['hidden_layers']} layers of {nodes}, batch {batch}"
        yield Case(name, layers, 1, float(row["measured_mxu_flops_percent_of_peak"]))


# ---- a training step


@cached
def step_sets() -> dict[str, NumberSet]:
    """A whole training step, by name: against its code, and against a chip."""
    made = partial(NumberSet, kind=operations.STEP, hardware=CODE, changes=operations.STEP_CHANGES)
    about = "a training step of ResNet-50 at batch 128, operations with their HBM"
    code = made(operations.STEP, "scheduled", about=about, cases=operations.training_step(CODE))
    about = "the same on a core of a TPU v2"
    chip = made(f"{operations.STEP}_measured", "measured", about=about, cases=operations.measured_step(CODE), unit="us")
    return {each.name: each for each in (code, chip)}


# ---- a GPU

_measured = partial(NumberSet, status="measured", kind="deepbench", hardware="v100", unit="us", lowering="channel_last")


@cached
def deepbench_sets() -> dict[str, NumberSet]:
    """Times of cuDNN and cuBLAS on a V100 by Baidu's DeepBench, for convolutions and products in half precision.

    Every set by its name: the half of the convolutions that constants were fitted on, the other one, products.
    """
    cases = gpu_convolutions()
    halves = (("fitted", True, "constants were"), ("judged", False, "nothing was"))
    made = [
        _measured(f"deepbench_{name}", about=f"convolutions of cuDNN that {about} fitted on",
                  cases=tuple(case for case in cases if case.fitted is fitted))
        for name, fitted, about in halves
    ]  # fmt: skip
    about = "products of cuBLAS, of which nothing was fitted"
    gemms: list[Case] = []
    for row in rows("deepbench_v100_fp16_gemm"):
        # M and N change places, because cuBLAS counts columns first.
        m, n, k = numbers(row, "N M K")
        name = f"{m}x{k}>{n} {row['transA']}{row['transB']}"
        gemms.append(Case(name, (Gemm(name, m, n, k),), 1, 1000 * float(row["ms"])))
    made.append(_measured("deepbench_products", about=about, cases=tuple(gemms)))
    return {each.name: each for each in made}


@cached
def gpu_convolutions() -> tuple[Case, ...]:
    """Convolutions of cuDNN 7.6.2, NHWC, by its implicit algorithm; a shape that the table has twice counts once.

    With the channels that the library was given: DeepBench fills them up to eight.
    """
    taken: dict[tuple[str, Conv2d, int], list[float]] = defaultdict(list)
    for row in rows("deepbench_v100_fp16_conv"):
        batch, channels, height, width, out = numbers(row, "N C_I_padded H_I W_I C_O_padded")
        high, wide, down, across, above, beside = numbers(row, "H_F W_F stride_h stride_w pad_h pad_w")
        padding = above, beside
        layer = Conv2d("layer", channels, height, width, out, (high, wide), (down, across), padding)
        name = f"{layer.text}{f' p{padding[0]}' if any(padding) else ''} batch {batch}"
        taken[name, layer, batch].append(1000 * float(row["fwd_ms"]))
    return tuple(Case(name, (layer,), batch, fmean(times)) for (name, layer, batch), times in taken.items())
