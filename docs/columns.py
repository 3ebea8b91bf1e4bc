"""What the package says of columns of tables and files, of the JSON of a run, and of its commands."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import typer
from pydantic import TypeAdapter

import tpusim
from docs.fields import REQUIRED, attributes, summary, text_of
from tpusim import load_hardware, load_workload, simulate
from tpusim.cli.app import app
from tpusim.machines.family import family_named
from tpusim.machines.lowered import unheard
from tpusim.report.shown import Column, CommandAnswer, Table
from tpusim.report.tables import compare, explain, hardware, validation
from tpusim.report.tables import run as run_table
from tpusim.report.tables.compared import compared_results
from tpusim.report.tables.run import use_table
from tpusim.report.tables.scaling import scaling_table
from tpusim.report.tables.step import alike_collectives, collective_table, parts_table
from tpusim.report.tables.sweep import layer_columns, point_columns
from tpusim.result import records
from tpusim.result.records import OpUse, Result, by_op
from tpusim.result.vocabulary.figures import COLUMNS, LAYER, LESS, MORE, Figure
from tpusim.result.vocabulary.runs import COLUMN, LOWERING
from tpusim.result.vocabulary.states import STEP_PARTS
from tpusim.study.explain.bottleneck import alternatives, explain_layer
from tpusim.study.explain.relaxation import Setup
from tpusim.study.scaling import ScaledSlice, Scaling

WORDS = {
    "workload": "name of the network",
    "batch": "images at a time",
    "position": "place of the layer in the network, from 0 on",
    "name": "name of the layer",
    "op": "kind of operation",
    COLUMN: LOWERING.meaning,
    "error": "why the point could not be simulated; empty where it was",
    "pareto": "whether no other point beats this one in all goals of the sweep",
    "goals": "goals of the sweep, the same for every point",
    "setup": "machine of all points with what was set of it, unless it is an axis, and their phase",
}
"""Columns of a sweep's files that hold no figure."""


RUN_WORDS = {
    "layer": "name of the layer",
    "n": run_table._ALIKE,
    "shape": "shape of the layer in short; the [ops](ops.md) say how that of each is to be read",
    "lowered by": LOWERING.meaning,
    "out": run_table._CHECKED,
}
"""Columns of `tpusim run` that hold no figure, and no share of the cycles."""


COMMAND_WORDS: Mapping[str, Mapping[str, str]] = {
    "tpusim run": {
        "op": "kind of operation", "layers": "layers of the op", "cycles": "cycles of these layers together",
        "time": "time of these layers together", "share": "share of the run's cycles",
    },
    "tpusim run --slice": {
        "collective": "name of what chips exchange, of the first of them where several are alike",
        "algorithm": "algorithm that the compiler takes", "cycles": "cycles of one of them, or of a part of the step",
        "time": "time of these cycles", "part": "what a chip does in the step", "share": "share of the step",
    },
    "tpusim scale": {
        "slice": "name of the slice", "chips": "chips of the slice", "images a second": "what all chips make",
        "a chip": "what a chip makes in a second",
        **{each.label: f"share of the step: {each.meaning[:1].lower()}{each.meaning[1:-1]}"
           for each in STEP_PARTS.values()},
    },
    "tpusim explain": {
        "gain": "how many times as fast the layer is with one thing made easier",
        "same plan": "the gain with the present blocks and passes; -: the present plan does not suit the change",
        "cycles": "cycles with the change, or by the lowering", "with": "what is made easier",
        "that is": "the change, as options set it", "lowering": "lowering; * marks the present one",
    },
    "tpusim compare": {
        "input": "what differs in what was asked", "A": "value of the first run", "B": "value of the second run",
        "layer": "name of the layer", "A cycles": "cycles of the first run", "B cycles": "cycles of the second run",
        "A PE %": "PE utilisation of the first run",
    },
    "tpusim area": {
        "part": "part of the machine", "mm2": "area", "%": "share of the whole area",
        "known by": "whether the area is a model's or published", "of what": "what the area is worked out from",
        "word": "elements of a word", "bits": "bits of a word", "pitch": "area of a lane by the pitch of its cells",
        "CACTI": "area of a lane by compiled macros", "of the least": "area over the least of the column before",
    },
    "tpusim dram": {
        "channel": "channel of the DRAM, or all", "last": "when the last data is there",
        "refreshes": "refreshes that came due",
    },
    "tpusim validate": {
        "set": "set of numbers", "machine": "machine that is simulated", "cases": "cases of the set",
        "network": "network that the set is of", "said": "how the numbers are known",
        "operations": "operations that are compared, of all", "tpusim cycles": "cycles of these, simulated",
        "their cycles": "cycles of these in the set", "error": "the difference, of theirs",
        "left out, their cycles": "cycles of operations that are not compared",
    },
}  # fmt: skip
"""Heads of commands' tables that the tables themselves do not explain."""
_UNITS = ("us", "ns", "B", "bytes", "%", "mm2")
"""Last lines of heads, which depend on how large values are."""


@cache
def command_tables() -> dict[str, dict[str, str]]:
    """The columns of commands' tables by their heads, of runs of small layers; a sweep's are figures and axes."""
    work, machine = load_workload("tiny", batch=2), load_hardware("tiny_4x4", "mapping.search=estimate")
    one = simulate(work, machine, check=False)
    other = simulate(work, machine.with_overrides({"array.size": 2}), check=False)
    exchanged = records.CollectiveResult("sum", "all_reduce", 8, ("data",), "ring", 4, 2, 0, 4, 4)
    step = records.StepResult("v6e_2x2", "", 4, {"data": 4}, 8, 1e-5, {"compute": 4, "links": 4}, (exchanged,) * 2,
                              "images", 4.0, 1.0)  # fmt: skip
    scaled = ScaledSlice("v6e_2x2", 4, 4, replace(one, step=replace(step, parts=dict.fromkeys(STEP_PARTS, 1))))
    ops, area = use_table("op", by_op(one.layers)), family_named("tpu").area(machine)
    assert ops is not None
    assert area is not None
    setup = Setup(work.layers[-1], work.batch, machine, "channel_first")
    explained = explain.explained(explain_layer(setup, unheard), work, None, *alternatives(setup, unheard))
    columns: dict[str, Iterable[Column[Any]]] = {
        "tpusim run": ops.columns,
        "tpusim run --slice": (*collective_table(alike_collectives(step), step).columns, *parts_table(step).columns),
        "tpusim scale": scaling_table(Scaling(one.workload, one.machine, (scaled,))).columns,
        "tpusim explain": _columns(explained),
        "tpusim compare": _columns(compare.runs_compared(compared_results(one, other), ["A", "B"], "change")),
        "tpusim area": _columns(hardware.area(machine, area)),
        "tpusim dram": hardware._CHANNEL,
        "tpusim validate": (*validation._SUMMARY, *validation._TOTALS),
    }
    return {name: dict(_told(name, each) for each in held if each.header) for name, held in columns.items()}


def _columns(shown: CommandAnswer) -> Iterator[Column[Any]]:
    for paragraph in shown.paragraphs:
        for content in paragraph:
            yield from content.columns if isinstance(content, Table) else ()


def _told(name: str, column: Column[Any]) -> tuple[str, str]:
    """The head of a column without its unit, and what it means."""
    *first, last = column.header.strip().split("\n")
    head = " ".join(first if first and last in _UNITS else [*first, last])
    return head, column.legend.partition(": ")[2] or COMMAND_WORDS[name].get(head, "")


def figure_meaning(figure: Figure) -> str:
    """The label, and what it means where that says more."""
    return f"{figure.label}: {figure.meaning}" if figure.meaning else figure.label


def unit_of(figure: Figure) -> str:
    """The unit in which files hold a figure."""
    return "ratio" if figure.style == "percent" else figure.units[-1][0]


def better(figure: Figure) -> str:
    """Which way is better, where one is."""
    return {LESS: "lower", MORE: "higher"}.get(figure.better, "")


def file_columns() -> dict[str, dict[str, tuple[str, str]]]:
    """The columns of points.csv and of layers.csv: the type of each, and its meaning."""
    axis = {"array.size": [64]}
    kinds = {"points.csv": point_columns(axis, True), "layers.csv": layer_columns(axis)}
    told = {"array.size": "each axis of the sweep, as it was written", **WORDS}
    told |= {key: figure_meaning(each) for key, each in COLUMNS.items()}
    return {name: {key: (kind.__name__, told[key]) for key, kind in held.items()} for name, held in kinds.items()}


def run_schema() -> dict[str, Any]:
    """The JSON schema of what `Result.to_json` writes."""
    schema = TypeAdapter(Result).json_schema(mode="serialization")
    definitions = schema["$defs"]
    use = TypeAdapter(OpUse).json_schema(mode="serialization")
    definitions["OpUse"] = use
    for name, made in {"Result": schema, **definitions}.items():
        kind = getattr(records, name)
        made["description"] = summary(kind)
        for key, held in made["properties"].items():
            held["description"] = meaning_of(kind, key)
            held.pop("title", None)
        made["additionalProperties"] = False
    layer, total = definitions["LayerResult"], definitions["Total"]
    for key in records._OF_LAYERS_ALONE:
        del total["properties"][key]
    schema["properties"] |= {
        "checked": {"type": "boolean", "description": "whether every output of every layer was checked"},
        "correct": {"anyOf": [{"type": "boolean"}, {"type": "null"}], "description":
                    "whether all that was checked is right; null where nothing was checked"},
        "notes": {"type": "array", "items": {"type": "string"}, "description":
                  "what to know beside any figure: that the run is of a chip's share of a network, or on a core of "
                  "a chip; left out where there is nothing"},
        "by_op": {"type": "object", "additionalProperties": {"$ref": "#/$defs/OpUse"},
                  "description": "layers, cycles and time of each kind of op, the costliest first"},
        "by_phase": {"type": "object", "additionalProperties": {"$ref": "#/$defs/OpUse"},
                     "description": "layers, cycles and time of each phase of a training step; left out of other runs"},
    }  # fmt: skip
    for made, sometimes in (
        (schema, (*records._WHERE_ANY, "chips", "notes", "by_phase")), (layer, records._OF_LAYERS_WHERE_ANY),
        (total, ()), (use, ()),
    ):  # fmt: skip
        made["required"] = [key for key in made["properties"] if key not in sometimes]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"run.json of tpusim {tpusim.__version__}",
        **schema,
    }


def meaning_of(record: type, key: str) -> str:
    """What a key of a record is: by its class, else by the vocabulary of figures."""
    return attributes(record).get(key) or figure_meaning(LAYER[key])


# ---- commands


@dataclass(frozen=True)
class Parameter:
    """An option or an argument: how it is written, its default, and what help says of it."""

    written: str
    default: str
    help: str


@dataclass(frozen=True)
class Command:
    """A command: how it is called, and what it says of itself."""

    usage: str
    help: str
    example: str
    parameters: Sequence[Parameter]


def commands() -> dict[str, Command]:
    """Every command by its name, and those of `tpusim` itself under "tpusim"."""
    group: Any = typer.main.get_command(app)
    found = {"tpusim": group, **{f"tpusim {name}": group.commands[name] for name in group.commands}}
    return {name: _command(name, each) for name, each in found.items()}


def _command(name: str, made: Any) -> Command:
    parameters = [_parameter(each) for each in made.params if not getattr(each, "hidden", False)]
    text = re.sub(r"\n(?!\n)(?<!\n\n)", " ", inspect.cleandoc(made.help or ""))
    arguments = [each.metavar for each in made.params if each.param_type_name == "argument"]
    usage = " ".join([name, "[OPTIONS]", *arguments, *(["COMMAND ..."] if hasattr(made, "commands") else [])])
    return Command(usage, text, (made.epilog or "").removeprefix("Example: "), parameters)


def _parameter(made: Any) -> Parameter:
    metavar, default = made.metavar or "", made.default
    if made.param_type_name == "argument":
        return Parameter(metavar or made.name.upper(), REQUIRED if made.required else "", made.help or "")
    names = " / ".join([", ".join(made.opts), *made.secondary_opts])
    shown = "" if default in (None, False, ()) or callable(default) or not made.show_default else text_of(default)
    if made.secondary_opts and isinstance(default, bool):
        shown = made.opts[0] if default else made.secondary_opts[0]
    if made.name == "workers":
        shown = ""
    return Parameter(f"{names} {metavar}".strip(), shown, made.help or "")
