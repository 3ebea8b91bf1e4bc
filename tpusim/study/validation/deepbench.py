"""What cuDNN and cuBLAS take on a V100: Baidu's DeepBench, convolutions and products of half precision."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache, partial
from statistics import fmean

from tpusim.network.ops.conv2d import Conv2d
from tpusim.network.ops.gemm import Gemm
from tpusim.study.validation.cases import Case, NumberSet, Row, rows

_measured = partial(NumberSet, status="measured", kind="deepbench", hardware="v100", unit="us", lowering="channel_last")


@cache
def deepbench_sets() -> dict[str, NumberSet]:
    """Every set by its name: the half of the convolutions that constants were fitted on, the other one, products."""
    return {each.name: each for each in _sets()}


def _sets() -> Iterator[NumberSet]:
    cases = convolutions()
    for name, fitted, about in (("fitted", True, "constants were"), ("judged", False, "nothing was")):
        half = tuple(case for case in cases if case.fitted is fitted)
        yield _measured(f"deepbench_{name}", about=f"convolutions of cuDNN that {about} fitted on", cases=half)
    about = "products of cuBLAS, of which nothing was fitted"
    yield _measured("deepbench_products", about=about, cases=tuple(products()))


@cache
def convolutions() -> tuple[Case, ...]:
    """Those of cuDNN 7.6.2, NHWC, by its implicit algorithm; a shape that the table has twice counts once."""
    taken: dict[Case, list[float]] = defaultdict(list)
    for row in rows("deepbench_v100_fp16_conv"):
        case, milliseconds = _convolution(row), float(row["fwd_ms"])
        taken[case].append(1000 * milliseconds)
    return tuple(Case(case.name, case.layers, case.batch, fmean(times)) for case, times in taken.items())


def products() -> Iterator[Case]:
    """Those of cuBLAS, by rows of the first factor, which are its columns: it counts columns first."""
    for row in rows("deepbench_v100_fp16_gemm"):
        m, n, k = int(row["N"]), int(row["M"]), int(row["K"])
        name = f"{m}x{k}>{n} {row['transA']}{row['transB']}"
        yield Case(name, (Gemm(name, m, n, k),), 1, 1000 * float(row["ms"]))


def _convolution(row: Row) -> Case:
    """With the channels that the library was given: DeepBench fills them up to eight."""
    numbers = {key: int(value) for key, value in row.items() if value.isdigit()}
    kernel, stride = (numbers["H_F"], numbers["W_F"]), (numbers["stride_h"], numbers["stride_w"])
    padding = numbers["pad_h"], numbers["pad_w"]
    sizes = numbers["C_I_padded"], numbers["H_I"], numbers["W_I"], numbers["C_O_padded"]
    layer = Conv2d("layer", *sizes, kernel, stride, padding)
    padded = f" p{padding[0]}" if any(padding) else ""
    batch = numbers["N"]
    return Case(f"{layer.text}{padded} batch {batch}", (layer,), batch, 0.0)
