"""The sets of reference numbers that come with tpusim, by name."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

from tpusim.network.ops.gemm import Gemm
from tpusim.study.validation import chips, convolutions, networks, variants, vector_ops
from tpusim.study.validation.cases import NETWORKS, Case, NumberSet, rows

ESTIMATOR, CODE, V3 = "tpu_v2_estimator", "tpu_v2_core", "tpu_v3_core"
"""The machines: one that costs what the compiler expects of TPU v2, one what its code takes there, and TPU v3."""

_estimated = partial(NumberSet, status="estimated", hardware=ESTIMATOR)
_scheduled = partial(NumberSet, status="scheduled", hardware=CODE)


@cache
def number_sets() -> dict[str, NumberSet]:
    """Return every set by its name, in the order of reports."""
    return {each.name: each for each in (*_layers(), *_shapes(), *_variants(), *_vector_ops(), *_networks(), *_chips())}


def _layers() -> Iterator[NumberSet]:
    """Those of which half served to choose the fitted numbers of the estimator's machine."""
    made = partial(_estimated, kind="layers", fitted=True)
    yield made("gemm", about="matrix products", cases=tuple(_gemms()))
    for name, about in (("ResNet50", "ResNet-50"), ("VGG16", "VGG16"), ("YOLOv2", "YOLOv2"),
                        ("micro", "sizes, channels, kernels, strides")):  # fmt: skip
        yield made(name.lower(), about=about, cases=convolutions.of_network(name))


def _shapes() -> Iterator[NumberSet]:
    for name, about in convolutions.ESTIMATED.items():
        yield _estimated(name, kind="convolutions", about=about, cases=convolutions.estimated(name))
    for name, about in convolutions.SCHEDULED.items():
        # Half of them served to choose the fitted numbers of the machine that follows the code.
        yield _scheduled(name, kind="convolutions", about=about, cases=convolutions.scheduled(name), fitted=True)


def _variants() -> Iterator[NumberSet]:
    """Depthwise ones on the machine that costs what the code takes, whose vector unit has these costs from them."""
    for name, about in variants.ESTIMATED.items():
        machine = CODE if name == "depthwise" else ESTIMATOR
        kind = "variants" if name == "depthwise" else name
        cases, how = variants.estimated(name), variants.LOWERINGS.get(name, "channel_first")
        yield NumberSet(name, "estimated", kind, about, machine, cases, lowering=how)


def _vector_ops() -> Iterator[NumberSet]:
    about = "pooling, sums of maps, activations, softmax, copies, each by itself"
    yield _estimated("vector_ops", kind="vector_ops", about=about, cases=vector_ops.estimated(), lowering="vector_ops")


def _networks() -> Iterator[NumberSet]:
    for name, about in networks.ESTIMATED.items():
        cases, others = networks.estimated(name), networks.estimated_besides(name)
        yield _estimated(name, kind=NETWORKS, about=about, cases=cases, left_out=others)
    for name, about in networks.SCHEDULED.items():
        cases, others = networks.scheduled(name), networks.scheduled_besides(name)
        yield _scheduled(name, kind=NETWORKS, about=about, cases=cases, left_out=others)
    yield _scheduled(networks.POOLING, kind="vector_ops", about="pooling within these networks",
                     cases=networks.scheduled_pooling(), lowering="vector_ops")  # fmt: skip


def _chips() -> Iterator[NumberSet]:
    core = partial(NumberSet, kind="v3", hardware=V3)
    one = "one core of TPU v3"
    yield core("v3_estimated", "estimated", about=f"what was measured on {one}", cases=chips.estimated_v3())
    yield core("v3_scheduled", "scheduled", about=f"convolutions on {one}, without HBM", cases=chips.scheduled_v3())
    yield core("v3", "measured", about=one, cases=chips.measured_v3(odd=False))
    yield core("v3_odd", "measured", about=f"{one}, the layer that stands apart", cases=chips.measured_v3(odd=True))
    # The type is not stated; float32 agrees best.
    float32 = ("vector_memory.element_bytes=4",)
    yield NumberSet("training", "measured", "training", "training steps on TPU v2", ESTIMATOR, tuple(chips.training()),
                    float32, "% of peak")  # fmt: skip


def _gemms() -> Iterator[Case]:
    for row in rows("xla_tpu_v2_gemm"):
        m, n, k = int(row["m"]), int(row["n"]), int(row["k"])
        name, cycles = f"{m}x{n}x{k}", float(row["estimated_cycles"])
        yield Case(name, (Gemm(name, m, n, k),), 1, cycles, cycles)
