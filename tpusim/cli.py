"""The `tpusim` command: the only file that prints.

Exit codes: 0 done; 1 the check failed or the machine deadlocked; 2 bad input; 130 interrupted.
"""

from __future__ import annotations

import errno
import io
import os
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich.console import Console, RenderableType

from tpusim.errors import CheckFailed, InputError, TpusimError
from tpusim.hardware import load_hardware
from tpusim.report import tables
from tpusim.report.load import RESULT_FILE, read_result
from tpusim.result import LayerResult, Result, total_of
from tpusim.simulate import ENGINES, LOWERINGS, select_layers, simulate
from tpusim.version import __version__
from tpusim.workload import Workload, load_workload
from tpusim.yaml_source import open_document, shipped

INTERRUPTED = 130
QUIET_SECONDS = 2.0
"""A run shorter than this shows no progress; in a pipe, also the time between two lines of it."""

_UNBOUNDED = 100_000

app = typer.Typer(
    name="tpusim",
    help="Simulate the matrix unit of a TPU v2, cycle by cycle, and check every output.",
    epilog="Example: tpusim run resnet50 --out results/resnet50",
    no_args_is_help=True,
    add_completion=False,
    # Plain help and tracebacks: rich's take longer to import than a small run takes.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Entry point of the `tpusim` command."""
    _prepare_streams()
    try:
        app(prog_name="tpusim")
    except KeyboardInterrupt:
        _leave_now()
    except SystemExit as exit_:
        if exit_.code == INTERRUPTED:
            _leave_now()
        raise


def _leave_now() -> None:
    """Exit without waiting for layers still being computed on other threads; every file is in place or absent."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(INTERRUPTED)


class _Nowhere(io.StringIO):
    """Stands in for a closed stream."""


def _prepare_streams() -> None:
    # Python sets a closed stream (`>&-`) to None.
    sys.stdout = sys.stdout or _Nowhere()
    sys.stderr = sys.stderr or _Nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a layer's name should not end the run.
            stream.reconfigure(errors="replace")


def _version(wanted: bool) -> None:
    if wanted:
        _say(sys.stdout, f"tpusim {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Holds the options of `tpusim` itself; the help text is that of `app`."""


@app.command(epilog="Example: tpusim run resnet50 --batch 8 --set array.size=256 --json run.json")
def run(
    workload: Annotated[
        str,
        typer.Argument(metavar="WORKLOAD", help="Shipped name (see tpusim list), .yaml path, or - for stdin."),
    ],
    hardware: Annotated[str, typer.Option(metavar="NAME|PATH", help="Shipped name or .yaml path.")] = "tpu_v2",
    batch: Annotated[int, typer.Option(metavar="N", help="Images at a time.")] = 8,
    lowering: Annotated[
        str, typer.Option(metavar="NAME", help=f"How convolutions become passes: {', '.join(LOWERINGS)}.")
    ] = "channel_first",
    engine: Annotated[str, typer.Option(metavar="NAME", help=f"What keeps time: {', '.join(ENGINES)}.")] = "event",
    check: Annotated[bool, typer.Option("--check/--no-check", help="Compute and check every output.")] = True,
    layers: Annotated[str, typer.Option(metavar="GLOB", help="Only the layers of such names: 'layer1.*'.")] = "*",
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Change a hardware field: array.rows=64. Repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of the random operands.")] = 0,
    json: Annotated[
        str | None,
        typer.Option(metavar="FILE|-", help="Write the result JSON; - is stdout, tables go to stderr."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help=f"Write DIR/{RESULT_FILE}, for tpusim plot DIR.")
    ] = None,
) -> None:
    """Simulate a workload: its time, its stalls, and every output checked.

    Exit code 0: done; 1: a wrong output (the JSON is still written) or a deadlock; 2: bad input.
    """
    with _errors_reported():
        machine = load_hardware(hardware, changes or [])
        work = select_layers(load_workload(workload, batch=batch), layers)
        files = _json_files(json, out)
        for file in files:
            _probe(file, make_folder=file.parent == out)
        report_to = sys.stderr if json == "-" else sys.stdout
        with _Progress(work, report_to) as progress:
            result = simulate(
                work, machine, lowering=lowering, engine=engine, check=check, seed=seed, progress=progress
            )
        for file in files:
            _write(file, f"{result.to_json()}\n".encode())
        if json == "-":
            _say(sys.stdout, result.to_json())
        _report(report_to, work, result)
        if not result.correct:
            raise CheckFailed(f"the check failed: {tables.first_wrong(result)}")


@app.command("list", epilog="Example: tpusim list")
def list_shipped() -> None:
    """List the workloads and the hardware that come with tpusim."""
    with _errors_reported():
        works = [(name, load_workload(name, batch=1), _source(name)) for name in shipped("workloads")]
        machines = [load_hardware(name) for name in shipped("configs")]
        _print(
            sys.stdout,
            tables.workload_table(works),
            "",
            tables.hardware_table(machines),
            "",
            "Run one:      tpusim run resnet50 --batch 8 --out results/resnet50",
            "Plot it:      tpusim plot results/resnet50",
            "Change it:    tpusim run resnet50 --set array.size=256 --layers 'layer1.*'",
            "More:         tpusim run --help",
        )


@app.command(epilog="Example: tpusim plot results/resnet50 --out figures")
def plot(
    source: Annotated[
        Path,
        typer.Argument(metavar="DIR_OR_JSON", help=f"Written by tpusim run --json, or --out (DIR/{RESULT_FILE})."),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where pictures go; default: beside the result.")
    ] = None,
) -> None:
    """Draw PE utilisation and the cycle breakdown of every layer, as PNG and SVG."""
    with _errors_reported():
        result = read_result(source)
        folder = out or (source if source.is_dir() else source.parent)
        _probe(folder / RESULT_FILE, make_folder=True)
        # Here, because matplotlib takes longer to import than a run does.
        from tpusim.report.plots import plots

        for name, picture in list(plots(result)):
            _write(folder / name, picture)
            _say(sys.stdout, str(folder / name))


class _Progress:
    """Tells on stderr how far a run is, and on Ctrl-C reports the layers that finished."""

    def __init__(self, work: Workload, report_to: TextIO) -> None:
        self._work = work
        self._report_to = report_to
        self._finished: list[LayerResult] = []
        self._began = self._told = time.monotonic()

    def __enter__(self) -> _Progress:
        console = Console(stderr=True)
        self._bar = _Bar(len(self._work.layers), console) if console.is_terminal else None
        return self

    def __call__(self, layer: LayerResult) -> None:
        self._finished.append(layer)
        if self._bar:
            self._bar.show(len(self._finished), layer.name)
        elif time.monotonic() - self._told > QUIET_SECONDS:
            self._told = time.monotonic()
            _say(sys.stderr, f"{len(self._finished)}/{len(self._work.layers)} {layer.name} ...")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar:
            self._bar.stop()
        if kind is KeyboardInterrupt:
            self._report_finished()

    def _report_finished(self) -> None:
        done, of = len(self._finished), len(self._work.layers)
        if done:
            total = total_of(tuple(self._finished), time.monotonic() - self._began)
            _print_layers(self._report_to, self._work, self._finished)
            _print(self._report_to, tables.totals(total))
        _say(sys.stderr, f"Interrupted after {done} of {of} layers; no file was written.")


class _Bar:
    """A progress bar that appears only when the run takes over QUIET_SECONDS."""

    def __init__(self, layers: int, console: Console) -> None:
        # Here, because it takes as long to import as all of the table code.
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        name = TextColumn("{task.fields[layer]}", markup=False)
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), name)
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task("", total=layers, layer="")
        self._timer = threading.Timer(QUIET_SECONDS, self._progress.start)
        self._timer.daemon = True
        self._timer.start()

    def show(self, done: int, layer: str) -> None:
        self._progress.update(self._task, completed=done, layer=layer)

    def stop(self) -> None:
        self._timer.cancel()
        self._timer.join()
        self._progress.stop()


@contextmanager
def _errors_reported() -> Iterator[None]:
    """Turns an error into its messages on stderr and its exit code."""
    try:
        yield
    except InputError as error:
        _say(sys.stderr, *(f"Error: {problem}" for problem in error.problems))
        raise typer.Exit(error.exit_code) from None
    except TpusimError as error:
        _say(sys.stderr, f"Error: {error}")
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _report(stream: TextIO, work: Workload, result: Result) -> None:
    _print(stream, tables.heading(result), "")
    _print_layers(stream, work, result.layers)
    notice = tables.word_notice(result)
    _print(stream, tables.totals(result.total), *([notice] if notice else []), tables.verdict(result.total))


def _print_layers(stream: TextIO, work: Workload, layers: Sequence[LayerResult]) -> None:
    shapes = {layer.name: tables.shape_text(layer) for layer in work.layers}
    console = Console(file=stream)
    width = console.width if console.is_terminal else None
    _print(stream, tables.layer_table(layers, shapes, width), "", tables.LEGEND, "")


def _print(stream: TextIO, *items: RenderableType) -> None:
    """Tables and sentences, fitted to a terminal; in a pipe plain, unwrapped and in full."""
    target, text = Console(file=stream), io.StringIO()
    width = target.width if target.is_terminal else _UNBOUNDED
    console = Console(file=text, force_terminal=target.is_terminal, width=width)
    for item in items:
        console.print(item, markup=False, highlight=False, emoji=False)
    _say(stream, *(line.rstrip(" ") for line in text.getvalue().splitlines()))


def _say(stream: TextIO, *lines: str) -> None:
    """Write lines as they are. A reader that left early (`| head`) does not change the outcome of a run."""
    try:
        stream.write("".join(f"{line}\n" for line in lines))
        stream.flush()
    except OSError as error:
        # Python flushes once more at exit; let it reach something that takes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if stream is sys.stdout and not isinstance(error, BrokenPipeError):
            raise InputError(f"standard output: cannot be written ({error.strerror})") from None


def _source(workload: str) -> str:
    return " ".join(str(open_document(workload, "workloads").data.get("source", "")).split())


def _json_files(json: str | None, out: Path | None) -> list[Path]:
    if json == "-" and isinstance(sys.stdout, _Nowhere):
        raise InputError("--json -: standard output is closed; give a file")
    files = [Path(json)] if json is not None and json != "-" else []
    return files if out is None else [*files, out / RESULT_FILE]


def _probe(file: Path, make_folder: bool = False) -> None:
    """Find out, before the work, whether `file` can be written. Leaves nothing behind."""
    made: list[Path] = []
    with _unwritable(file):
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a directory")
        if _is_device(file):
            return
        try:
            for folder in _missing_folders(file.parent) if make_folder else []:
                folder.mkdir()
                made.append(folder)
            temporary = _temporary(file)
            temporary.touch(exist_ok=False)
            temporary.unlink()
        finally:
            for folder in reversed(made):
                folder.rmdir()


def _write(file: Path, data: bytes) -> None:
    """Replace `file` in one step, so that no reader ever sees half of it."""
    with _unwritable(file):
        if _is_device(file):
            file.write_bytes(data)
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = _temporary(file)
        try:
            temporary.write_bytes(data)
            os.replace(temporary, file.resolve())
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def _unwritable(file: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be written ({getattr(error, 'strerror', error)})") from None


def _is_device(file: Path) -> bool:
    """Whether `file` is a pipe or a device, such as /dev/stdout: written to, never replaced."""
    return file.exists() and not file.is_file()


def _missing_folders(folder: Path) -> list[Path]:
    """`folder` and those above it that do not exist, outermost first."""
    return [each for each in (folder, *folder.parents) if not each.exists()][::-1]


def _temporary(file: Path) -> Path:
    # Beside the file, links resolved: os.replace works within one file system only.
    return file.resolve().with_name(f".tpusim-{secrets.token_hex(8)}.tmp")
