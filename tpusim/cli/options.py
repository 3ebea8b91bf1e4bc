"""Options that several commands share, and their completion by shells. Nothing heavy is imported for help."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Annotated, TypedDict

from typer import Argument, Option

from tpusim.base.errors import InputError, Problem
from tpusim.cli.names import BATCH, MOST_IMAGES, MOST_NUMBER, NARROW, OPS, OPTIMIZERS
from tpusim.cli.terminal import errors_reported
from tpusim.flow.lowerings import AUTO, known, usual
from tpusim.machines.family import PAPER_MACHINE
from tpusim.report.plots import FORMATS, KNOWN


def words(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Completion by words that begin with the typed text."""
    # Typer recognizes the parameter by this name.
    return lambda incomplete: [word for word in known if word.startswith(incomplete)]


def whole(option: str, least: int, most: int) -> Callable[[object], int]:
    """A reader of whole numbers from `least` to `most`, as strict as files: Typer would take 3.0 for 3."""

    def read(given: object) -> int:
        from tpusim.input.scalars import FLOAT, INTEGER, whole_number

        # A default is already a number.
        text = str(given)
        with errors_reported():
            try:
                number = int(text) if INTEGER.fullmatch(text) else float(text) if FLOAT.fullmatch(text) else given
                return whole_number(number, least, most)
            except InputError as error:
                raise InputError(Problem(str(error), option)) from None

    return read


def shipped_names(folder: str) -> Callable[[str], list[str]]:
    """Completion by names of shipped files in a folder; if none fits, shells offer files."""

    def offered(incomplete: str) -> list[str]:
        from tpusim.input.source import shipped

        return words(shipped(folder))(incomplete)

    return offered


Workload = Annotated[
    str,
    Argument(
        metavar="WORKLOAD",
        help="Shipped name (see tpusim list), path (.yaml, .onnx, config.json of a language model, .csv of SCALE-Sim), "
        "- for stdin, or FILE.py:FUNCTION of JAX: that file is imported, so what stands in it is executed.",
        autocompletion=shipped_names("workloads"),
    ),
]
Hardware = Annotated[
    str | None,
    Option(
        metavar="NAME|PATH",
        help=f"Shipped name or .yaml path. Default: the chip of the slice, if one is named, else {PAPER_MACHINE}.",
        autocompletion=shipped_names("configs"),
    ),
]
Batch = Annotated[
    int | None,
    Option(
        parser=whole("--batch", 1, MOST_IMAGES),
        metavar="N",
        show_default=False,
        help=f"Images at a time: unless given, as many as --input, or the file or function, holds, else {BATCH}.",
    ),
]
AnotherLowering = Annotated[
    str | None,
    Option(
        "--lowering",
        metavar="NAME",
        help=f"Simulate by {', '.join(known())}, whatever a set is simulated by otherwise; without a set, all that "
        "channel_first is for.",
        autocompletion=words(known()),
    ),
]
Lowering = Annotated[
    str | None,
    Option(
        "--lowering",
        metavar="NAME",
        help=f"How convolutions become passes: {', '.join(known())}; tpusim list says what each is, and those of other "
        f"machines ({AUTO}: the fastest of each layer). A layer's own lowering: in the workload file goes before it. "
        f"Layers of such names are lowered otherwise: '{AUTO},conv*=explicit,conv1=channel_last' (the last that fits). "
        f"Default: {usual()}, for layers of several groups what their estimate prefers; of other machines, the first "
        "that tpusim list names.",
        autocompletion=words(known()),
    ),
]
Layers = Annotated[
    str, Option(metavar="GLOB", help="Only layers of such names: 'layer1.*'; or from one to another: conv1..maxpool.")
]
Changes = Annotated[
    list[str] | None, Option("--set", metavar="PATH=VALUE", help="Change a hardware field: array.rows=64. Repeatable.")
]
Dims = Annotated[
    list[str] | None,
    Option(
        "--dim",
        metavar="NAME=N",
        help="Size that a workload file names, or an ONNX model leaves open: seq=128. Repeatable.",
    ),
]
Phase = Annotated[
    str | None,
    Option(metavar="NAME", help="Phase of the workload file: prefill reads a prompt, decode makes a token behind it."),
]
Weights = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help=f"Store weights of products as {' or '.join(NARROW)}, which the vector unit widens as they come.",
        autocompletion=words(NARROW),
    ),
]
Caches = Annotated[
    str | None,
    Option(metavar="NAME", help="Store keys and values of caches so.", autocompletion=words(NARROW)),
]
Mesh = Annotated[
    str | None,
    Option(
        metavar="NAME=N,...",
        help="Axes along which chips share the network: data=2,tensor=8. data and fsdp part the batch, which --batch "
        "gives for all chips together, fsdp the weights, too; what tensor and expert part, the workload file says. "
        "Beside --slice, * takes the chips that the others leave: tensor=8,fsdp=*.",
    ),
]
Microbatches = Annotated[
    int | None,
    Option(
        parser=whole("--microbatches", 1, MOST_IMAGES),
        metavar="M",
        help="Beside a mesh with stage: parts of the batch that go through the stages one after another. Unless given, "
        "as many as part it evenly, up to four a stage.",
    ),
]
Slice = Annotated[
    str | None,
    Option(
        metavar="NAME|PATH",
        help="Chips on links that share the network: a shipped slice, a generation with its sides such as v5e_4x8, or "
        "a path. Unless --hardware names another machine, each is the chip of that slice; without a mesh they share "
        "the batch. --set slice.FIELD=VALUE changes it.",
        autocompletion=shipped_names("configs/slices"),
    ),
]
SkipUnknown = Annotated[
    bool, Option("--skip-unknown", help="Leave out the ops of an ONNX model that are not known here, and say so.")
]
Shapes = Annotated[
    str | None,
    Option(
        metavar="AxB,...",
        help="Arguments of FILE.py:FUNCTION, in order: 8x224x224x3,1000:i32,scalar. Types: f32 (unless said), bf16, "
        "f16, i32, i8, i4, bool.",
    ),
]
Ops = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help="What is timed: all ops that are known, or array: convolutions and products alone, others are named. "
        "Unless given, what the workload file says (ops: array in the shipped networks), else all.",
        autocompletion=words(OPS),
    ),
]
Training = Annotated[
    bool,
    Option("--training", help="A training step of the network: forward, backward, and the update of its weights."),
]
Keep = Annotated[
    list[str] | None,
    Option(
        metavar="all|none|GLOB",
        help="Of a training step: layers whose outputs stay in HBM for the way back; others are computed again. "
        "Repeatable. Unless given, what the workload file says, else all.",
    ),
]
Offload = Annotated[
    list[str] | None,
    Option(
        metavar="all|none|GLOB",
        help="Of a training step: kept outputs that wait for the way back in the memory of the host. Repeatable; with "
        "--slice, whose links say how fast the way there is. Unless given, what the workload file says, else none.",
    ),
]
Optimizer = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help=f"Of a training step: how weights are updated, {' or '.join(OPTIMIZERS)}. Unless given, what the workload "
        "file says, else sgd, which has momentum.",
        autocompletion=words(OPTIMIZERS),
    ),
]


class WorkloadFlags(TypedDict):
    """What the command line says of a workload: options that run, explain, scale and trace have alike."""

    dims: Dims
    phase: Phase
    weights: Weights
    caches: Caches
    mesh: Mesh
    microbatches: Microbatches
    skip_unknown: SkipUnknown
    shapes: Shapes
    ops: Ops
    training: Training
    keep: Keep
    offload: Offload
    optimizer: Optimizer


Seed = Annotated[int, Option(parser=whole("--seed", 0, MOST_NUMBER), metavar="N", help="Of the random operands.")]
RESULTS = "json", "csv", "out"
"""Parameters that say where results go."""
Json = Annotated[str | None, Option(metavar="FILE|-", help="Write it as JSON; - is stdout, words go to stderr.")]
Formats = Annotated[
    list[str] | None,
    Option(
        "--format",
        metavar="NAME",
        help=f"Of pictures: {', '.join(KNOWN)}. Repeatable; default: {' and '.join(FORMATS)}.",
        autocompletion=words(KNOWN),
    ),
]
Workers = Annotated[
    int, Option(parser=whole("--workers", 1, 1024), metavar="N", help="Processes; default: one a processor.")
]
PROCESSORS = os.cpu_count() or 1
