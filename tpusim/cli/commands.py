"""The commands of `tpusim`: options and help texts.

Actions are in `tpusim.cli.actions`, imported when needed, so that help and --version come at once. Help lists
commands in the order of this module.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar, Unpack

from typer import Argument, Exit, Option, Typer

from tpusim.base.errors import InputError, Problem
from tpusim.base.version import __version__
from tpusim.cli import names, options
from tpusim.cli.options import words
from tpusim.cli.terminal import NO_FILE, errors_reported, say
from tpusim.cli.visitors import COMMANDS, Commands
from tpusim.machines.family import PAPER_MACHINE
from tpusim.report.plots import KNOWN, known_formats

Action = TypeVar("Action", bound=Callable[..., None])

# Plain help and tracebacks: rich's would take longer to import than a small run takes.
_PLAIN: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}

app = Typer(
    name="tpusim",
    cls=Commands,
    help="Simulate neural networks on a TPU, v2 to 7x, or a GPU, cycle by cycle: convolutional networks and language "
    "models, inference and training. Every output is checked.",
    epilog="Example: tpusim run resnet50 --out results/resnet50",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    **_PLAIN,
)


def _version(wanted: bool) -> None:
    if wanted:
        say(sys.stdout, f"tpusim {__version__}")
        raise Exit


def command(example: str, name: str | None = None, interrupted: str = NO_FILE) -> Callable[[Action], Action]:
    """A command whose errors are reported; help ends with the example, and Ctrl-C prints `interrupted`."""

    def known(action: Action) -> Action:
        alone = COMMANDS[name or action.__name__] = Typer(add_completion=False, **_PLAIN)
        return alone.command(name, epilog=f"Example: tpusim {example}")(errors_reported(interrupted)(action))

    return known


@app.callback()
def _common(
    version: Annotated[bool, Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Holds the options of `tpusim` itself; the help text is that of `app`."""


_Engine = Annotated[
    str,
    Option(
        metavar="NAME",
        help=f"What keeps time: {', '.join(f'{name} ({word})' for name, word in names.ENGINES.items())}.",
        autocompletion=words(names.ENGINES),
    ),
]
_Dtype = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help=f"What values are: {', '.join(names.DTYPES)}. Unless given, small integers of exact sums. f32, bf16, f16, "
        "f8: reals, held against float64 within a proven bound. Times follow where a machine's file tells of the type.",
        autocompletion=words(names.DTYPES),
    ),
]
_Sums = Annotated[
    str,
    Option(
        metavar="ORDER", help="Add in any order, or as the array does, which is slow.", autocompletion=words(names.SUMS)
    ),
]
_Given = Annotated[
    Path | None,
    Option("--input", metavar="FILE.npz", help="Inputs of an ONNX model; values then go from layer to layer."),
]
_Saved = Annotated[
    Path | None,
    Option("--save-outputs", metavar="FILE.npz", help="Write its outputs; its inputs are random unless given."),
]


@command("run resnet50 --batch 8 --set array.size=256 --json run.json")
def run(
    workload: options.Workload,
    hardware: options.Hardware = None,
    batch: options.Batch = None,
    lowering: options.Lowering = None,
    engine: _Engine = "event",
    check: Annotated[bool, Option("--check/--no-check", help="Compute and check every output.")] = True,
    layers: options.Layers = "*",
    changes: options.Changes = None,
    seed: options.Seed = 0,
    dtype: _Dtype = None,
    sums: _Sums = "any",
    slice: options.Slice = None,
    tokens: Annotated[
        int | None,
        Option(
            parser=options.whole("--tokens", 1, names.MOST_TOKENS),
            metavar="N",
            help="Tokens that a language model makes one after another, each with all before it in its cache; timing "
            "alone. Of workloads that say which size each token adds one to (grows:), with --phase decode.",
        ),
    ] = None,
    prompt: Annotated[
        int | None,
        Option(
            parser=options.whole("--prompt", 1, names.MOST_TOKENS),
            metavar="M",
            help="Beside --tokens: tokens of a prompt, read in the phase prefill, which make the first token; the "
            "others follow in the phase decode.",
        ),
    ] = None,
    given: _Given = None,
    outputs: _Saved = None,
    json: options.Json = None,
    csv: Annotated[
        str | None,
        Option(metavar="FILE|-", help="Write a row a layer, units in the names of columns; - is stdout."),
    ] = None,
    out: Annotated[
        Path | None,
        Option(
            metavar="DIR",
            help=f"Write DIR/{names.RESULT_FILE}, for tpusim plot DIR; with --tokens DIR/{names.GENERATION_FILE}, "
            "its picture and its page.",
        ),
    ] = None,
    **flags: Unpack[options.WorkloadFlags],
) -> None:
    """Simulate a workload: time, stalls, and every output checked.

    Exit code 0: done; 1: a wrong output (the JSON is still written) or a deadlock; 2: bad input, or too little memory;
    130: Ctrl-C (the layers that were done are shown, and written where --out or --json says).
    """
    from dataclasses import replace

    from tpusim.api.asked import asked_for, model_options
    from tpusim.cli.actions.inputs import NetworkData, resolved, tell, tell_unasked, workload_options
    from tpusim.cli.actions.run import simulate_and_report
    from tpusim.cli.json_output import CsvOutput, refuse_replaced

    refuse_replaced([workload], {"--json": json, "--csv": csv, "--out": out and out / names.RESULT_FILE})
    table = CsvOutput(csv, made=out)
    ends = NetworkData(given, outputs, check)
    asked_of = workload_options(flags)
    asked = replace(model_options(**asked_of), arrays=ends.arrays)
    if tokens is not None:
        from tpusim.cli.actions.answers import generate_and_report

        beside: dict[str, Any] = {"--training": flags["training"], "--input": given, "--save-outputs": outputs}
        beside |= {"--slice": slice, "--layers": layers != "*", "--dtype": dtype}
        beside |= {"--engine": engine != "event", "--csv": csv}
        if wrong := [Problem("not beside --tokens; leave one of them out", each) for each in beside if beside[each]]:
            raise InputError(wrong)
        own = {"tokens": tokens, "prompt": prompt, "batch": batch or 1, "lowering": lowering, "set": changes}
        generate_and_report(workload, hardware, json, out, **own, **asked_of)
        return
    if prompt is not None:
        raise InputError(Problem("only a generation has one; add --tokens N", "--prompt"))
    found = asked_for(workload, hardware, batch, changes, asked, tell, slice)
    jobs = resolved(found, lowering, layers, ends.dtype(dtype))
    if found.unnamed:
        tell_unasked(jobs.work)
    values: dict[str, Any] = {"sums": sums, "seed": seed}
    journey = ends.journey(workload, jobs, asked, **values) if ends.asked else None
    chosen = {"journey": journey, "slice": found.place, "engine": engine, "check": check, **values}
    simulate_and_report(jobs, json, table, out, ends, **chosen)


@command("report results/resnet50 -o report.html")
def report(
    source: Annotated[
        Path,
        Argument(
            metavar="RUN_OR_SWEEP",
            help=f"A result JSON or its directory (DIR/{names.RESULT_FILE}), or that of a sweep.",
        ),
    ],
    out: Annotated[
        Path | None, Option("-o", "--out", metavar="FILE", help=f"Default: {names.PAGE_FILE} beside the source.")
    ] = None,
) -> None:
    """Write one HTML page on a run or a sweep, to open in a browser.

    The page needs no network and no other file.

    Exit code 0: done; 2: bad input.
    """
    from tpusim.cli.actions.results import write_page

    write_page(source, out or (source if os.path.isdir(source) else source.parent) / names.PAGE_FILE)


@command("explain alexnet --out why.html")
def explain(
    workload: options.Workload,
    layer: Annotated[
        str | None, Option(metavar="NAME", help="Only that layer, in more detail; unless given, the whole network.")
    ] = None,
    hardware: options.Hardware = None,
    batch: options.Batch = None,
    lowering: options.Lowering = None,
    changes: options.Changes = None,
    slice: options.Slice = None,
    json: options.Json = None,
    out: Annotated[
        Path | None,
        Option(
            metavar="FILE", help=f"A page: .html; or of one layer a picture: {', '.join(f'.{kind}' for kind in KNOWN)}."
        ),
    ] = None,
    **flags: Unpack[options.WorkloadFlags],
) -> None:
    """Say why a network or a layer is slow, and what would help.

    A layer is simulated again and again, timing alone, each time with one thing made easier: twice the HBM
    bandwidth, twice the batch, a port for every client, ... The change that saves the most cycles shows what bounds it.

    Of a network the five kinds of layers that cost most are explained so. Then the whole network is simulated with
    each change that may help.

    Of one layer (--layer) you also learn where its cycles go, and what it costs by every other lowering.
    """
    from tpusim.cli.actions.answers import explain_and_report
    from tpusim.cli.actions.inputs import workload_options
    from tpusim.cli.json_output import refuse_replaced

    refuse_replaced([workload], {"--json": json, "--out": out})
    own = {"layer": layer, "batch": batch, "lowering": lowering, "set": changes, "slice": slice}
    explain_and_report(workload, hardware, json, out, **own, **workload_options(flags))


@command("scale gpt2_small --dim layers=1 --slices v6e_8,v6e_4x4 --mesh 'fsdp=*' --batch 16 --out scaling.png")
def scale(
    workload: options.Workload,
    slices: Annotated[
        str,
        Option(
            metavar="NAME,...",
            help="Slices of one generation, as --slice of tpusim run takes them: v6e_8,v6e_4x4,v6e_8x8.",
            autocompletion=options.shipped_names("configs/slices"),
        ),
    ],
    batch: Annotated[
        int | None,
        Option(
            parser=options.whole("--batch", 1, names.MOST_IMAGES),
            metavar="N",
            show_default=False,
            help="Images or sequences of all chips together, on every slice (strong scaling). Unless given, as many as "
            f"the file holds, else {names.BATCH}.",
        ),
    ] = None,
    batch_a_chip: Annotated[
        int | None,
        Option(
            parser=options.whole("--batch-a-chip", 1, names.MOST_IMAGES),
            metavar="N",
            help="Images or sequences a chip, instead, so that more chips have more of them (weak scaling).",
        ),
    ] = None,
    hardware: options.Hardware = None,
    lowering: options.Lowering = None,
    changes: options.Changes = None,
    dtype: _Dtype = None,
    json: options.Json = None,
    out: Annotated[
        Path | None,
        Option(metavar="FILE", help=f"A picture: {', '.join(f'.{kind}' for kind in KNOWN)}; or a page with it: .html."),
    ] = None,
    **flags: Unpack[options.WorkloadFlags],
) -> None:
    """Time a network on slices of more and more chips.

    A row a slice: the time of a step, what all chips and each chip make in a second, what part that is of the ideal,
    and where the time goes. Ideally each chip makes as much as one of the smallest slice. A slice that cannot run the
    network, as a chip's share does not fit its HBM for instance, says so in its row.

    Timing alone: no value is computed. Each chip is the chip of the slices, unless --hardware names another machine.

    Exit code 0: done; 2: bad input, or no slice can run it; 130: interrupted.
    """
    from tpusim.cli.actions.answers import scale_and_report
    from tpusim.cli.actions.inputs import workload_options
    from tpusim.cli.json_output import refuse_replaced

    refuse_replaced([workload], {"--json": json, "--out": out})
    own: dict[str, Any] = {"batch": batch, "batch_a_chip": batch_a_chip, "lowering": lowering, "set": changes}
    own |= {"dtype": dtype} if dtype else {}
    scale_and_report(workload, slices, hardware, json, out, **own, **workload_options(flags))


@command("compare results/resnet50 run.json", interrupted="")
def compare(
    before: Annotated[
        str,
        Argument(
            metavar="A",
            help=f"A result JSON or its directory (DIR/{names.RESULT_FILE}), or that of a sweep; with --closed-form a "
            "network, as tpusim run takes it.",
        ),
    ],
    after: Annotated[str | None, Argument(metavar="B", help="Another.", show_default=False)] = None,
    sort: Annotated[
        str,
        Option(
            metavar="ORDER",
            help=f"Of the rows: {', '.join(names.LAYER_ORDERS)}.",
            autocompletion=words(names.LAYER_ORDERS),
        ),
    ] = "change",
    closed_form: Annotated[
        bool,
        Option(
            "--closed-form",
            help="Time a network, and show beside each layer what the closed form of SCALE-Sim says. The options from "
            "--hardware on are of this.",
        ),
    ] = False,
    hardware: options.Hardware = None,
    batch: options.Batch = None,
    lowering: options.Lowering = None,
    layers: options.Layers = "*",
    changes: options.Changes = None,
    dims: options.Dims = None,
    phase: options.Phase = None,
    ops: options.Ops = None,
    json: options.Json = None,
) -> None:
    """Compare two runs layer by layer, or two sweeps point by point.

    With --closed-form, a network with what another simulator counts. Of runs also what differs in what was asked.
    Layers are matched by name, with those that ride on their results, points by their axes. The largest change comes
    first; --sort network keeps the order of the network or sweep, --sort ratio begins with what became fastest.
    """
    from tpusim.cli.json_output import refuse_replaced

    sources = [each for each in (before, after) if each is not None]
    refuse_replaced([*sources, *(os.path.join(each, names.RESULT_FILE) for each in sources)], {"--json": json})
    if closed_form:
        from tpusim.api.asked import asked_for, model_options
        from tpusim.cli.actions.answers import compare_forms_and_report
        from tpusim.cli.actions.inputs import resolved, tell, workload_options

        if after is not None:
            says = f"not beside --closed-form, which is of one network, {before}; leave one of them out"
            raise InputError(Problem(says, after))
        asked = model_options(**workload_options({"dims": dims, "ops": ops, "phase": phase}))
        found = asked_for(before, hardware, batch, changes, asked, tell)
        compare_forms_and_report(resolved(found, lowering, layers), json)
        return
    if after is None:
        raise InputError(Problem("name another result to compare it with; or --closed-form, for a network", before))
    of_forms: dict[str, Any] = {"--hardware": hardware, "--batch": batch, "--lowering": lowering}
    of_forms |= {"--layers": None if layers == "*" else layers, "--set": changes, "--dim": dims}
    of_forms |= {"--phase": phase, "--ops": ops}
    if written := ", ".join(each for each in of_forms if of_forms[each] is not None):
        raise InputError(Problem("only beside --closed-form; results are of runs that are done", written))
    from tpusim.cli.actions.results import compare_and_report

    compare_and_report(Path(before), Path(after), sort, json)


@command("sweep array_size --out results/array_size", interrupted="")
def sweep(
    spec: Annotated[
        str,
        Argument(
            metavar="SPEC",
            help="Shipped name (see tpusim list), .yaml path, or - for stdin.",
            autocompletion=options.shipped_names("configs/sweeps"),
        ),
    ],
    out: Annotated[Path | None, Option(metavar="DIR", help="Results and pictures; default: results/NAME.")] = None,
    workers: options.Workers = options.PROCESSORS,
    cluster: Annotated[
        str | None,
        Option(metavar="tcp://HOST:PORT", help="Use a Dask cluster instead of processes here; tls:// if encrypted."),
    ] = None,
    resume: Annotated[
        bool, Option("--resume/--fresh", help="Keep points that DIR has already, or compute all again.")
    ] = True,
    parquet: Annotated[bool, Option("--parquet", help="Also points.parquet and layers.parquet.")] = False,
    formats: options.Formats = None,
) -> None:
    """Simulate every point of a sweep, timing alone.

    What is in DIR already is not computed again: stopped at any time, the same command continues.

    Exit code 0: done; 1: a point failed (the others are there); 2: bad input; 130: interrupted.
    """
    from tpusim.cli.actions.sweep import run_and_report

    kinds = known_formats(formats)
    run_and_report(spec, out, workers, cluster, fresh=not resume, parquet=parquet, kinds=kinds)


@command(
    "plot results/resnet50 --out figures --format pdf", interrupted="Interrupted; the pictures named so far are there."
)
def plot(
    source: Annotated[
        Path, Argument(metavar="DIR_OR_JSON", help=f"Written by tpusim run --json, or --out (DIR/{names.RESULT_FILE}).")
    ],
    out: Annotated[Path | None, Option(metavar="DIR", help="Where pictures go; default: beside the result.")] = None,
    formats: options.Formats = None,
) -> None:
    """Draw use, cycles, roofline, ops, memory and network of a run.

    Each picture comes with a caption, in captions.txt.
    """
    from tpusim.cli.actions.results import plot_result

    plot_result(source, out, known_formats(formats))


@command("trace resnet50 --layers conv1 -o conv1.perfetto-trace")
def trace(
    workload: options.Workload,
    hardware: options.Hardware = None,
    batch: options.Batch = None,
    lowering: options.Lowering = None,
    layers: options.Layers = "*",
    changes: options.Changes = None,
    seed: options.Seed = 0,
    slice: options.Slice = None,
    first: Annotated[
        int,
        Option(
            "--from", parser=options.whole("--from", 0, names.MOST_NUMBER), metavar="CYCLE", help="First cycle shown."
        ),
    ] = 0,
    last: Annotated[
        int | None,
        Option("--to", parser=options.whole("--to", 0, names.MOST_NUMBER), metavar="CYCLE", help="Last cycle shown."),
    ] = None,
    out: Annotated[
        Path | None,
        Option(
            "--out", "-o", metavar="FILE", help=f"Write FILE: {', '.join(names.TRACE_FORMATS)}; default: text here."
        ),
    ] = None,
    **flags: Unpack[options.WorkloadFlags],
) -> None:
    """Show what the machine does, cycle by cycle.

    As text, picture (.png, .svg, .pdf) or .vcd: every lane in every cycle of one layer, from the register engine.

    As .perfetto-trace (or .pftrace): what every unit does, and what it waits for, in one layer or many, from the event
    engine. Where layers overlap (sequencer.between_layers) they do so here. As .json (a Chrome trace): the same in a
    larger file, without the perfetto package.

    Of a network that the chips of a slice share (--slice), the same files show a step: layers, and collectives beside
    them on each link.

    Of machines of other families, a .perfetto-trace or .json alone: of a GPU kernels, waves of blocks, and what an SM
    does.

    Open a .perfetto-trace or .json at https://ui.perfetto.dev (the file stays on your computer), a .json in Chrome at
    chrome://tracing, too, a .vcd with: gtkwave FILE
    """
    from tpusim.cli.actions.answers import print_or_write
    from tpusim.cli.actions.inputs import workload_options

    own = {"batch": batch, "lowering": lowering, "layers": layers, "set": changes, "slice": slice, "seed": seed}
    print_or_write(workload, hardware, out, **own, first=first, last=last, **workload_options(flags))


@command("validate --set-of-numbers vgg16")
def validate(
    sets: Annotated[
        list[str] | None,
        Option(
            "--set-of-numbers",
            metavar="NAME",
            help=f"A kind of reference, for all its sets: {', '.join(names.NUMBER_WORDS)}; several sets: "
            f"{names.NETWORK_SETS} (whole networks), {names.MEMORY_SETS} (against another simulator of DRAM), "
            f"{names.GPU_SETS} (measured on a GPU), {names.COLLECTIVE_SETS} and {names.POD_SETS} (several chips), "
            f"{', '.join(names.GENERATION_SETS)} (all TPUs, or one); or a single "
            f"set: {', '.join(names.NUMBER_SETS)}. Repeatable.",
            autocompletion=words(names.ASKED_SETS),
        ),
    ] = None,
    lowering: options.AnotherLowering = None,
    changes: options.Changes = None,
    truth: Annotated[
        Path | None,
        Option(metavar="DIR", help="Tables of the shipped names and columns, to take the place of these."),
    ] = None,
    json: options.Json = None,
    out: Annotated[Path | None, Option(metavar="DIR", help="Draw parity and errors.")] = None,
    formats: options.Formats = None,
) -> None:
    """Compare cycles with what is known of the chip.

    Known are measurements, and schedules and estimates of Google's compiler. Without a name, a row tells of each TPU
    and kind of ops what was measured and scheduled. A single set is shown case by case.
    """
    from tpusim.cli.actions.validate import compare_and_report

    compare_and_report(sets or [], lowering, changes or [], json, out, known_formats(formats), truth)


@command("dram trace.csv --device hbm2_16ch_700 --mapping rorababgcoch")
def dram(
    trace: Annotated[
        Path,
        Argument(metavar="TRACE", help="A .csv file or -: time,address,bytes,rw (memory cycles or nothing; r or w)."),
    ],
    device: Annotated[
        str,
        Option(
            metavar="NAME|PATH",
            help="Shipped name or .yaml path.",
            autocompletion=options.shipped_names("configs/dram"),
        ),
    ] = "hbm2_16ch_700",
    mapping: Annotated[
        str | None, Option(metavar="TEXT", help="Which address bits are what: rorabgbachco, row:bank:column:channel.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        Option("--set", metavar="PATH=VALUE", help="Change a field of the device: timing.tRP=20. Repeatable."),
    ] = None,
    json: options.Json = None,
    engine: Annotated[
        str, Option(metavar="NAME", help=f"The model: {', '.join(names.MODELS)}.", autocompletion=words(names.MODELS))
    ] = "one_pass",
) -> None:
    """Play a trace of requests on a DRAM, bank by bank.

    A row without a time comes as soon as it can, in order.

    Exit code 0: done; 1: the two models differ (--engine both); 2: bad input.
    """
    from tpusim.cli.actions.hardware import play_trace

    more = [f"mapping={mapping}"] if mapping is not None else []
    play_trace(trace, device, [*(changes or []), *more], engine, json)


@command("collective all-reduce --bytes 64MiB --slice v6e_16x16")
def collective(
    op: Annotated[
        str,
        Argument(
            metavar="OP",
            help=f"{', '.join(names.COLLECTIVES)} (each to the next chip of a ring).",
            autocompletion=words(names.COLLECTIVES),
        ),
    ],
    size: Annotated[
        str, Option("--bytes", metavar="SIZE", help="What a chip has before, of an all-gather after: 64MiB.")
    ] = "64MiB",
    place: Annotated[
        str,
        Option(
            "--slice",
            metavar="NAME|PATH",
            help="Shipped name (see tpusim list), GENERATION_SIDES such as v5e_4x8, or .yaml path.",
            autocompletion=options.shipped_names("configs/slices"),
        ),
    ] = "v6e_2x4",
    axes: Annotated[
        str | None,
        Option(
            metavar="X,Y",
            help="Axes whose chips take part together, of the slice (x, y, z; dcn between slices) or of --mesh; "
            "default: all.",
        ),
    ] = None,
    mesh: Annotated[
        str | None, Option(metavar="NAME=N,...", help="Axes of a mesh, for --axes to name: data=2,tensor=8.")
    ] = None,
    dtype: Annotated[
        str,
        Option(
            metavar="NAME", help=f"Type of an element: {', '.join(names.REALS)}.", autocompletion=words(names.REALS)
        ),
    ] = "bf16",
    algorithm: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="How it is done, in place of what Google's compiler takes; --explain times the others of an op.",
        ),
    ] = None,
    sizes: Annotated[
        str | None, Option(metavar="A..B", help="A row for each size from A, twice the last, up to B: 64KiB..1GiB.")
    ] = None,
    explain_it: Annotated[
        bool, Option("--explain", help="Say what a faster link, other axes or another algorithm would give.")
    ] = False,
    engine: _Engine = "event",
    changes: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="PATH=VALUE",
            help="Change a field: slices=2, torus=4x8, interconnect.link.hop=1us. Repeatable.",
        ),
    ] = None,
    trace: Annotated[
        Path | None, Option(metavar="FILE", help="Write a timeline of links: .perfetto-trace, .pftrace, .json.")
    ] = None,
    json: options.Json = None,
    out: Annotated[Path | None, Option(metavar="DIR", help="Draw the torus and its links: DIR/torus.png.")] = None,
) -> None:
    """Time a collective of several chips, and say what bounds it.

    All chips of a slice take part, or those along some of its axes. Chips that stand alike take alike, so that one of
    each kind is simulated. Of up to 16 chips with few bytes every element of every chip is checked; --engine both steps
    through every register of each of them as well.

    Exit code 0: done; 1: a wrong element, or engines that differ; 2: bad input.
    """
    from tpusim.cli.actions.collective import AskedCollective, time_and_report

    asked = AskedCollective(
        op, place, changes or [], size, sizes, axes, mesh, dtype, algorithm, engine, explain_it
    )  # fmt: skip
    time_and_report(asked, json, out, trace)


@command("import model.onnx -o my.yaml", name="import")
def import_model(
    file: Annotated[
        Path,
        Argument(
            metavar="FILE",
            help="An .onnx model, config.json of a language model, a .csv topology of SCALE-Sim, or FILE.py:FUNCTION.",
        ),
    ],
    out: Annotated[
        Path | None, Option("--out", "-o", metavar="FILE|-", help="A .yaml file to write; default, and -: text here.")
    ] = None,
    batch: options.Batch = None,
    dims: options.Dims = None,
    skip_unknown: options.SkipUnknown = False,
    shapes: options.Shapes = None,
) -> None:
    """Write a model of another tool as a workload file.

    The file is for any batch; --batch is that of the MACs told here. A topology whose column Batch says how many images
    its layers are for is told with them. Ops that take no time in it are named, with
    how often they come.

    Exit code 0: done; 2: bad input.
    """
    from tpusim.api.asked import model_options
    from tpusim.cli.actions.inputs import import_and_report, workload_options

    asked = workload_options({"dims": dims, "skip_unknown": skip_unknown, "shapes": shapes})
    import_and_report(file, out, batch, model_options(**asked))


@command("area --set vector_memory.word_elements=1")
def area(hardware: options.Hardware = None, changes: options.Changes = None, json: options.Json = None) -> None:
    """Show what each part of a machine takes of a chip.

    Areas are in the machine's technology (--set technology=NAME|PATH); each says whether it is a model's or published.

    Exit code 0: done; 2: bad input.
    """
    from tpusim.cli.actions.hardware import show_area

    show_area(PAPER_MACHINE if hardware is None else hardware, changes or [], json)


@command("paper --figure 14a --figure 16b", interrupted="")
def paper(
    out: Annotated[Path, Option(metavar="DIR", help="Results, pictures and page.")] = Path("results/paper"),
    figures: Annotated[
        list[str] | None,
        Option(
            "--figure",
            metavar="NAME",
            help=f"Only {', '.join(names.EXHIBITS)}. Repeatable; default: all.",
            autocompletion=words(names.EXHIBITS),
        ),
    ] = None,
    workers: options.Workers = options.PROCESSORS,
    json: options.Json = None,
    formats: options.Formats = None,
) -> None:
    """Make figures and tables of the paper, and judge its claims.

    The paper is the one that the machine tpu_v2 comes from. Each figure stands beside what the text states; verdicts
    follow from our figures by rules that are told. DIR/paper.html holds all of it.

    What is in DIR already is not computed again: stopped at any time, the same command continues.

    Exit code 0: done, whatever the verdicts; 1: a simulation failed; 2: bad input; 130: interrupted.
    """
    from tpusim.cli.actions.paper import make_and_report

    make_and_report(figures or [], out, workers, json, known_formats(formats))


@command("list", name="list", interrupted="")
def list_shipped(json: options.Json = None) -> None:
    """List workloads, machines, DRAMs, slices, lowerings and sweeps."""
    from tpusim.cli.actions.hardware import show_shipped

    show_shipped(json)
