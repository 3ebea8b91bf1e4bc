"""Every TPU: what Google's compiler made of the same shapes for each, by the sets of a generation. Of v2 these tables
have ops of the vector unit; all else is in sets of its own.

Compared is the emitted code (`scheduled_with_hbm`), at the public bandwidth, without the launch of an op or the latency
of HBM: that word counts neither. Estimates of the same shapes stand in sets of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import ceil, prod
from typing import Literal, NamedTuple

from tpusim.network.ops.array_op import Gemm
from tpusim.network.ops.elementwise import Copy, ScaleShift
from tpusim.network.ops.moves import Transpose
from tpusim.network.ops.op import Op
from tpusim.network.ops.pool2d import Pool2d
from tpusim.study.validation.cases import PASSES, Case, NumberSet, Omission, Row, cached, numbers, rows, sizes
from tpusim.study.validation.convolutions import FIRST_CHANNELS, SUBLANES, Shape, shape_of
from tpusim.study.validation.operations import ROW_OPS, row_op

PARTS = (
    "products", "convolutions", "first layers", "int8 and fp8", "vector ops", "float16 and float32", "both cores",
    "fused blocks", "fused attention",
    "tiles", "networks", "token products", "token blocks", "experts", "turned experts",
    "attention",
)  # fmt: skip
"""What sets of a generation hold, in the order of the table over all of them."""
BOTH_CORES = "both cores"
"""The part of products that two cores share, in float16 and bfloat16."""


class TpuGeneration(NamedTuple):
    """A TPU, the machine that stands for one core of it, the columns of its array; the machine of its estimates if they
    have one of their own; the machine of two cores that share an op, where there is code for both; and the clock by
    which the tables turn bytes of HBM into cycles, if other than the machine's.
    """

    name: str
    core: str
    columns: int
    estimator: str = ""
    chip: str = ""
    clock: str = ""

    @property
    def code(self) -> tuple[str, ...]:
        """Changes of the machine by which it counts what `scheduled_with_hbm` does: of nearly all rows the first
        window, (steps - 1) max(body, traffic of a step), a body, the last window (`scripts/generation_model`).
        """
        return (*CODE_LEAVES_OUT, *([f"clock={self.clock}"] if self.clock else []))


GENERATIONS = (
    TpuGeneration("v2", "tpu_v2_core", 128, "tpu_v2_estimator"),
    TpuGeneration("v3", "tpu_v3_core", 128),
    TpuGeneration("v4", "tpu_v4_core", 128, chip="tpu_v4"),
    TpuGeneration("v5e", "tpu_v5e", 128),
    TpuGeneration("v5p", "tpu_v5p_core", 128),
    TpuGeneration("v6e", "tpu_v6e", 256),
    TpuGeneration("v7x", "tpu_v7x_core", 256, clock="2200 MHz"),
)

CODE_LEAVES_OUT = ("sequencer.launch_cycles=0", "hbm.latency=1 ps")
"""What neither code nor estimates count."""


def code_of(generation: TpuGeneration) -> str:
    """Return the name that asks for the code and the estimates of a generation."""
    return f"code_{generation.name}"


@cached
def generation_sets() -> dict[str, NumberSet]:
    """Every set of these tables by its name, generation by generation: code, estimates, and passes."""
    return {each.name: each for generation in GENERATIONS for each in _of(generation) if each.cases}


def _of(generation: TpuGeneration) -> Iterator[NumberSet]:
    for part, compiled in _compiled(generation).items():
        name = part.replace(" ", "_")
        alone, core = part == "vector ops", generation.chip if part == BOTH_CORES else generation.core
        columns = ("scheduled_cycles_total", "estimated_cycles_total") if alone else _COLUMNS
        code, unscheduled = _told(compiled, "scheduled", columns)
        estimates, unpriced = _told(compiled, "estimated", columns)
        estimator = core if part == BOTH_CORES else generation.estimator or core
        for word, prefix, machine, cases, others, changes in (
            ("scheduled", "code", core, code, unscheduled, generation.code),
            ("estimated", "estimated", estimator, estimates, unpriced, CODE_LEAVES_OUT),
        ):
            yield NumberSet(
                f"{prefix}_{generation.name}_{name}", word, f"{prefix} {part}", f"{part} on TPU {generation.name}",
                machine, cases, changes, left_out=others, generation=generation.name, part=part,
                group=code_of(generation),
                # The code of ops of the vector unit is told without its transfers.
                lowering="vector_ops" if alone else "channel_first", vector_work=alone and word == "scheduled",
            )  # fmt: skip
    yield NumberSet(
        f"passes_{generation.name}", "scheduled", PASSES, f"passes a word of outputs on TPU {generation.name}",
        generation.core, tuple(_passes(generation)), unit=PASSES, generation=generation.name, group=PASSES,
    )  # fmt: skip


# ---- what was compiled

_COLUMNS = "scheduled_with_hbm", "estimated_cycles"
CompiledRow = tuple[str, Op | None, int, str, Row]
"""A row of a table: its name, its layer if it is one here, the batch, and the type of its numbers."""


def _told(
    found: Sequence[CompiledRow], word: str, columns: tuple[str, str]
) -> tuple[tuple[Case, ...], tuple[Omission, ...]]:
    """The cases that are told under one word, and what is left out: shapes without a figure, ops of no layer; `columns`
    hold the figures of code and estimate.
    """
    cases: list[Case] = []
    others: list[Omission] = []
    for name, layer, batch, dtype, row in found:
        code, price = (float(row[column]) if row[column] else None for column in columns)
        theirs = code if word == "scheduled" else price
        if layer is None:
            others.append(Omission(name, theirs, "no layer here, or one op of several"))
        elif theirs is None:
            others.append(Omission(name, None, f"not {word}"))
        else:
            cases.append(Case(name, (layer,), batch, theirs, price, code, dtype=dtype))
    return tuple(cases), tuple(others)


def _compiled(generation: TpuGeneration) -> dict[str, list[CompiledRow]]:
    """What the tables have of a generation, by part; a part without rows is not there."""

    def table(name: str) -> Iterator[Row]:
        return (row for row in rows(f"xla_tpu_gen_{name}") if row["gen"] == generation.name)

    typed = [*table("f16")]
    convolutions = [(shape_of(row), row) for row in table("conv") if int(row["batch"]) >= SUBLANES]
    made = {
        "products": [_product(row) for row in table("gemm")],
        # Rows of bfloat16 stand in that table beside those of other types, for comparison.
        "float16 and float32": [_product(row) for row in typed if row["cores"] == "1" and row["dtype"] != "bf16"],
        BOTH_CORES: [_product(row) for row in typed if row["cores"] == "2"],
        "convolutions": [_convolution(*each) for each in convolutions if not _is_first(each[0])],
        "first layers": [_convolution(*each) for each in convolutions if _is_first(each[0])],
        "int8 and fp8": [_product(row) for row in table("int8")],
        "vector ops": [_vector_op(_whole(row)) for row in table("vector")],
    }
    return {part: compiled for part, compiled in made.items() if compiled}


def _product(row: Row) -> CompiledRow:
    m, n, k = numbers(row, "m n k")
    kind = "" if row["dtype"] == "bf16" else f" {row['dtype']}"
    name = f"{m}x{n}x{k}{kind}"
    return name, Gemm(name, m, n, k), 1, row["dtype"], row


def _convolution(shape: Shape, row: Row) -> CompiledRow:
    return shape.name, shape.layer, shape.batch, row["dtype"], row


def _is_first(shape: Shape) -> bool:
    return shape.channels <= FIRST_CHANNELS


# ---- ops of the vector unit

_MOVES = "nhwc_nchw", "nchw_nhwc", "heads", "heads_rowmajor"
"""Axes in another order, whose layouts tell what is moved."""
_POOLS: dict[str, Literal["max", "average"]] = {"max": "max", "avg": "average"}
_TYPES = {"bfloat16": "bf16", "float32": "f32", "int8": "s8"}


def _vector_op(row: Row) -> CompiledRow:
    """An op of the vector unit, all that it became; None of what is no layer here."""
    op = row["op"].removesuffix("_f32")
    dims, kind = row["shapes"].split("|")[0].split(":")
    shape, dtype = sizes(dims), _TYPES.get(kind, kind)
    name, batch = f"{row['op']} {dims} {dtype}", 1
    layer: Op | None = None
    if op == "scale_shift" and len(shape) == 4:
        height, width, batch, channels = shape
        layer = ScaleShift(name, channels, height, width)
    elif op in ROW_OPS and len(shape) > 1:
        *outer, channels = shape
        layer = row_op(op, name, channels, prod(outer))
    elif op in _MOVES:
        layer = _moved(name, shape, row)
    elif (pools := re.fullmatch(r"(max|avg|global_avg)pool(?:_\dx\ds\d)?", op)) and len(shape) == 4:
        # Maps lie as rows, columns, images, channels.
        height, width, batch, channels = shape
        layer = _pooled(name, pools[1], channels, height, width, row["note"])
    return name, layer, batch, dtype, row


def _whole(row: Row) -> Row:
    """A row with the sum over all that its op became; an op that stayed one is told without the sum where no HBM was
    looked at.
    """
    alone = row["ops"] == "1" and not row["scheduled_cycles_total"]
    return {**row, "scheduled_cycles_total": row["scheduled_cycles_main"]} if alone else row


def _pooled(name: str, kind: str, channels: int, height: int, width: int, window: str) -> Op:
    """A pooling by "3x3/2", over padding where that keeps the middle of windows on the map; or of all of a map."""
    if kind.startswith("global"):
        return Pool2d(name, "average", channels, height, width, (height, width))
    side, stride = int(window.split("x")[0]), int(window.split("/")[1])
    # Kernels of an even side are not padded.
    padding = (side // 2 * (side % 2),) * 2
    return Pool2d(name, _POOLS[kind], channels, height, width, (side, side), (stride, stride), padding)


def _moved(name: str, shape: tuple[int, ...], row: Row) -> Op | None:
    """Axes in another order, as layouts have it: a copy, or the last two exchanged; None of other moves."""
    (_, before), (dims, after) = (_layout(row[column]) for column in ("main_operands", "main_output"))
    if row["main_operands"].split()[0] == row["main_output"]:
        # The layouts of both differ as their axes do, so words stay as they are.
        copied: Op = Copy(name, dims[after[0]], images=prod(dims) // dims[after[0]])
        return copied
    if before[0] == after[1] and before[1] == after[0] and before[2:] == after[2:]:
        one, other = dims[before[0]], dims[before[1]]
        order = "width", "height", "channels", "images"
        return Transpose(name, one, prod(dims) // (one * other), other, images=1, order=order)
    return None


def _layout(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sizes of "bf16[8x16x1024]{2.1.0}", and its axes from the minor one on."""
    found = re.match(r"\w+\[([\dx]+)\]\{([\d.]+)", text)
    assert found is not None, text
    return sizes(found[1]), tuple(map(int, found[2].split(".")))


# ---- passes


def _passes(generation: TpuGeneration) -> Iterator[Case]:
    """How often the array passes for a word of outputs: the emitted pushes, the overhang of the last windows taken off.

    A word is 8 rows of as many columns as the array has, or fewer.
    """
    emitted = {
        row["shape"]: row
        for row in rows("xla_tpu_gen_scheduled")
        if (row["gen"], row["kind"]) == (generation.name, "conv") and row["passes_per_output_word"]
    }
    for row in rows("xla_tpu_gen_conv"):
        name = "{batch}x{H}x{W}x{ci}>{co} {kh}x{kw}/{s} p{ph}".format(**row)
        if row["gen"] != generation.name or name not in emitted or int(row["batch"]) < SUBLANES:
            continue
        shape, theirs = shape_of(row), emitted[name]
        yield Case(
            shape.name, (shape.layer,), shape.batch, float(theirs["passes_per_output_word"]) / overhang(row),
            dtype=row["dtype"],
        )  # fmt: skip


def overhang(row: Row) -> float:
    """How much of a convolution's outputs its windows hold together; more than 1 where the last ones reach beyond."""
    rows_, cols, images, _ = sizes(row["output_window_bounds"])
    _, batches, downs, acrosses, *_ = sizes(row["iteration_bounds"])
    held = batches * images * downs * rows_ * acrosses * cols
    return held / (ceil(int(row["batch"]) / SUBLANES) * int(row["ho"]) * int(row["wo"]))
