"""The action of `tpusim collective`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TextIO

from tpusim.base.errors import CheckFailed, InputError, Problem, did_you_mean
from tpusim.base.files import probe, write
from tpusim.base.imports import need
from tpusim.base.units import SIZE
from tpusim.cli.json_output import JsonOutput, refuse_replaced, refuse_shared
from tpusim.cli.names import ENGINES
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import say
from tpusim.machines.tpu.slices.checked import check
from tpusim.machines.tpu.slices.collective import OPS
from tpusim.machines.tpu.slices.slice import load_slice
from tpusim.machines.tpu.slices.summary import CollectiveTime, Question, timed_collective
from tpusim.report.tables.collective import curve, one
from tpusim.study.explain.collectives import explain_collective

BYTES_OF = {"f32": 4, "bf16": 2, "f16": 2, "f8": 1, "int8": 1}
"""Bytes of an element of each type."""
_TRACES = (".perfetto-trace", ".pftrace", ".json")
_MOST_SIZES = 64
TORUS_FILE = "torus.png"
"""Picture of the torus, in the folder of --out."""


@dataclass(frozen=True)
class AskedCollective:
    """What the command line asks: of the slice, the op and its bytes, and of what is shown."""

    op: str
    place: str
    changes: Sequence[str]
    size: str
    sizes: str | None
    axes: str | None
    mesh: str | None
    dtype: str
    algorithm: str | None
    engine: str
    explain: bool

    @property
    def question(self) -> Question:
        """The question, of one size or the first of several. Raises InputError with every problem."""
        if self.dtype not in BYTES_OF:
            guess = did_you_mean(self.dtype, BYTES_OF) or ";"
            raise InputError(Problem(f"no type {self.dtype!r}{guess} there is {', '.join(BYTES_OF)}", "--dtype"))
        if self.engine not in ENGINES:
            guess = did_you_mean(self.engine, ENGINES) or ";"
            raise InputError(Problem(f"no engine {self.engine!r}{guess} there is {', '.join(ENGINES)}", "--engine"))
        op = self.op.replace("-", "_")
        if op not in OPS:
            known = [name.replace("_", "-") for name in OPS]
            guess = did_you_mean(self.op, known) or ";"
            raise InputError(Problem(f"no collective {self.op!r}{guess} there is {', '.join(known)}", "OP"))
        place = load_slice(self.place, self.changes)
        axes, mesh = _filled(self.axes, "--axes", "x,y"), _filled(self.mesh, "--mesh", "data=2,tensor=8")
        algorithm = _filled(self.algorithm, "--algorithm", "rotated_pincer")
        named = tuple(each.strip() for each in axes.split(",")) if axes else ()
        asked = Question(place, op, _bytes(self.size, "--bytes"), named, mesh, BYTES_OF[self.dtype], algorithm)
        assert asked.collective, "everything that can be wrong is told before anything is shown"
        return asked

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines that have to agree with that of events."""
        return {"event": (), "simpy": ("simpy",), "register": ("register",)}.get(self.engine, ("simpy", "register"))


def time_and_report(asked: AskedCollective, json: str | None, out: Path | None, trace: Path | None) -> None:
    """Time a collective of one size, or of several, and report it: as JSON, in words, drawn, and as a timeline."""
    question = asked.question
    output = JsonOutput(json, made=out)
    if out:
        probe(out / TORUS_FILE, make_folder=True)
    if trace:
        _probe_trace(trace)
    refuse_replaced([asked.place], {"--json": json, "--trace": trace})
    refuse_shared({"--json": output.file, "--trace": trace, "--out": out and out / TORUS_FILE})
    if asked.sizes is not None:
        sizes = _sizes(asked.sizes)
        if asked.explain or asked.engines or trace or out:
            says = "of one size alone are --explain, --engine, --trace and --out; leave it out, or them"
            raise InputError(Problem(says, "--sizes"))
        _curve(question, sizes, output)
        return
    with Meter(1) as meter:
        meter.show(0, f"{question.collective.group.size:,} chips")
        made = timed_collective(question)
        checked = check(made, asked.engines)
        explained = explain_collective(made) if asked.explain else None
    more = [partial(_draw, made, out, output.words_to)] if out else []
    if trace:
        more.append(partial(_trace, made, trace, output.words_to))
    output.deliver(one(made, checked, explained), *more)
    if checked and checked.wrong:
        raise CheckFailed(f"{checked.wrong} elements are wrong")


def _sizes(text: str) -> list[int]:
    """Return the sizes of "64KiB..1GiB", each twice the last. Raises InputError."""
    first, dots, last = text.partition("..")
    if not (dots and first.strip() and last.strip()):
        raise InputError(Problem(f"{text!r} is no range; write FIRST..LAST, such as 64KiB..1GiB", "--sizes"))
    size, end = _bytes(first, "--sizes"), _bytes(last, "--sizes")
    if size > end or size << _MOST_SIZES < end:
        raise InputError(Problem(f"{first} is more than {last}; write the smaller first", "--sizes"))
    return [size << turn for turn in range(_MOST_SIZES) if size << turn <= end]


def _curve(question: Question, sizes: Sequence[int], output: JsonOutput) -> None:
    questions = [replace(question, size=each) for each in sizes]
    for each in questions:
        assert each.collective, "refused before the first is timed"
    found = []
    with Meter(len(questions)) as meter:
        for number, each in enumerate(questions):
            meter.show(number, f"{each.size:,} B")
            found.append(timed_collective(each))
    output.deliver(curve(found))


def _filled(text: str | None, option: str, such_as: str) -> str:
    """Return what an option says; "" where it is not given. Raises InputError where there is nothing between commas."""
    if text is not None and not all(each.strip() for each in text.split(",")):
        raise InputError(Problem(f"{text!r} leaves a name out; write one such as {such_as}, or no {option}", option))
    return text or ""


def _bytes(text: str, option: str) -> int:
    try:
        return SIZE.parse(text)
    except InputError as error:
        raise InputError(Problem(str(error), option)) from None


def _probe_trace(path: Path) -> None:
    if path.suffix not in _TRACES:
        raise InputError(f"{path}: a timeline is written as {', '.join(_TRACES)}, not as {path.suffix or 'no suffix'}")
    if path.suffix != ".json":
        need(f"a {path.suffix} file", "perfetto", "perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    probe(path)


def _draw(made: CollectiveTime, out: Path, stream: TextIO) -> None:
    # Imported here, because matplotlib takes longer to import than the simulation takes.
    from tpusim.report.plots.torus import torus_picture

    for name, contents in torus_picture(made).files(["png"]):
        write(out / name, contents)
        say(stream, str(out / name))


def _trace(made: CollectiveTime, path: Path, stream: TextIO) -> None:
    from tpusim.report.trace.links import link_timeline

    if path.suffix == ".json":
        from tpusim.report.trace.chrome import ChromeTrace

        write(path, link_timeline(ChromeTrace(), made))
    else:
        from tpusim.report.trace.perfetto import PerfettoTrace

        write(path, link_timeline(PerfettoTrace(), made))
    say(stream, str(path))
