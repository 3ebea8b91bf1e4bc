"""The reference of the site, made of the package itself: fields, columns, ops, commands, Python names.

A class says of each of its fields what it is, in the section Attributes of its docstring; the rest stands beside the
field: what it may be, its default, an example. Figures have their words in `tpusim.result.vocabulary`, options in the
commands. `pages` writes all of it as Markdown, which Sphinx reads (`setup`); nothing here is kept in the repository.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer
import yaml
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

import tpusim
from tpusim.cli.app import app
from tpusim.input.form import Choice, FileSection, Name, Quantity, Rational, Reader
from tpusim.machines.family import FAMILIES, family_named
from tpusim.machines.gpu.description import Gpu
from tpusim.machines.tpu.description import Hardware
from tpusim.memory.dram.device import Device
from tpusim.network import entries, workload_file
from tpusim.network.entries import FREE
from tpusim.network.ops import OPS
from tpusim.report.tables import run as run_table
from tpusim.report.tables.sweep import layer_columns, point_columns
from tpusim.result import records
from tpusim.result.records import OpUse, Result
from tpusim.result.vocabulary.fields import FIELDS
from tpusim.result.vocabulary.figures import COLUMNS, LAYER, LESS, MORE, OWN, Figure
from tpusim.result.vocabulary.runs import COLUMN, LOWERING
from tpusim.result.vocabulary.states import CLIENTS, ELSEWHERE, ENERGIES, STATES, UNITS
from tpusim.study.sweep import reader
from tpusim.technology.constants import Technology

ROOT = Path(__file__).parent.parent
FOLDER = Path(__file__).parent / "reference"
SCHEMA = "run.schema.json"
TOPS = {
    "README.md": Path("index.md"),
    "CHANGELOG.md": Path("reference/changelog.md"),
    "CONTRIBUTING.md": Path("reference/contributing.md"),
}
"""Pages of the top of the repository, and where the site has them."""

REQUIRED = "required"
OF_THE_FILE = "that of its file"


@dataclass(frozen=True)
class Entry:
    """A field of a file, by the path that leads to it; `example` is a line of YAML."""

    path: str
    meaning: str
    allowed: str
    default: str
    unit: str
    example: str


@dataclass(frozen=True)
class Section:
    """Some fields that stand together; `path` is empty where they are a file's own."""

    path: str
    about: str
    entries: Sequence[Entry]


# ---- what docstrings say


def summary(thing: Any) -> str:
    """The docstring without the sections of Google's style, as one paragraph a paragraph."""
    text = re.split(r"^(?:Attributes|Args|Raises|Returns|Examples):\n", inspect.getdoc(thing) or "", flags=re.M)[0]
    kept = (each for each in text.strip().split("\n\n") if not each.startswith("Raises InputError"))
    return "\n\n".join(" ".join(each.split()) for each in kept)


@cache
def attributes(kind: type) -> dict[str, str]:
    """What a class and those above it say of their fields, by name."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        _, _, text = inspect.cleandoc(each.__dict__.get("__doc__") or "").partition("Attributes:\n")
        section = re.match(r"(?:(?: +.*)?\n)*(?: +.*)?", text)
        for name, words in re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", section[0] if section else "", re.M):
            found[name] = " ".join(words.split())
    return found


# ---- fields of files


def fields_in(model: Any) -> dict[str, tuple[str, FieldInfo]]:
    """The fields of a model by their keys in files, each with its name in Python."""
    if not is_dataclass(model):
        return {info.serialization_alias or name: (name, info) for name, info in model.model_fields.items()}
    hints, found = get_type_hints(model, include_extras=True), {}
    for each in fields(model):
        info = FieldInfo.from_annotation(hints[each.name])
        found[each.name] = each.name, info
        if each.default is not MISSING:
            info.default = each.default
    return found


def model_in(info: FieldInfo) -> Any:
    """The model of a field that is a section, a list of sections, or perhaps a section; else None."""
    if any(isinstance(kind, Reader) for kind in info.metadata) and info.annotation != reader.Search | None:
        return None
    found = (info.annotation, *get_args(info.annotation))
    return next((each for each in found if isinstance(each, type) and _is_model(each)), None)


def _is_model(kind: type) -> bool:
    return issubclass(kind, BaseModel) or kind is reader.Search


def sections(model: Any, shipped: Sequence[Mapping[str, Any]] = (), defaults: Mapping[str, str] | None = None,
             at: str = "", units: bool = True) -> Iterator[Section]:  # fmt: skip
    """A model's fields, section by section. Examples are those of the model, else from files that are `shipped`."""
    told, found, inner = attributes(model), [], []
    for key, (name, info) in fields_in(model).items():
        path = f"{at}{key}"
        if below := model_in(info):
            listed = get_origin(info.annotation) is tuple
            inner.append((below, f"{path}[]." if listed else f"{path}."))
            if not listed:
                continue
        default = (defaults or {}).get(path) or default_of(model, key, info)
        unit = FIELDS[path].unit if units and path in FIELDS else ""
        found.append(Entry(path, told.get(name, ""), allowed(info), default, unit, example(key, path, info, shipped)))
    yield Section(at.removesuffix("."), summary(model), found)
    for below, path in inner:
        yield from sections(below, shipped, defaults, path, units)


def default_of(model: Any, key: str, info: FieldInfo) -> str:
    """The default as YAML writes it."""
    if info.default is PydanticUndefined:
        return REQUIRED
    if isinstance(model, type) and issubclass(model, FileSection):
        return text_of(model.model_construct().model_dump(by_alias=True).get(key))
    return text_of(info.default)


def text_of(value: object) -> str:
    """A value as YAML writes it; a pair of two that are alike as one of them."""
    if value is None or value == () or value == {} or value == "":
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple | list):
        return text_of(value[0]) if len(value) == 2 and value[0] == value[1] else f"[{', '.join(map(text_of, value))}]"
    return str(value)


def allowed(info: FieldInfo) -> str:
    """What a field may be, in words."""
    inner = (kind for each in get_args(info.annotation) for kind in getattr(each, "__metadata__", ()))
    for kind in (*info.metadata, *inner):
        if isinstance(kind, Reader):
            return kind.allowed
        if isinstance(kind, Choice):
            words = [code(word) for word in words_of(info.annotation)]
            number = [f"a whole number, 1 to {kind.most}"] * (kind.most > 0)
            *first, last = [*words, *number]
            return f"{', '.join(first)} or {last}" if first else last
        if isinstance(kind, Quantity):
            each = "a list, each " if get_origin(info.annotation) is tuple else ""
            return f"{each}a {kind.unit.kind} with its unit, at most {kind.most}"
        if isinstance(kind, Rational):
            return f"a number, {text_of(float(kind.least))} to {kind.most}"
        if isinstance(kind, Name):
            return "a line of text"
    return "a list of sections" if model_in(info) else "a list" if get_origin(info.annotation) is tuple else "text"


def words_of(annotation: Any) -> tuple[str, ...]:
    """The words of a Literal, or of one among several types."""
    return next(get_args(each) for each in (annotation, *get_args(annotation)) if get_origin(each) is Literal)


def example(key: str, path: str, info: FieldInfo, shipped: Sequence[Mapping[str, Any]]) -> str:
    """A line of YAML: the field's own example, else a value that a shipped file has, else a word that it may be."""
    own = [each for each in info.examples or ()]
    known = [value for file in shipped for value in values_at(file, path) if text_of(value) != text_of(info.default)]
    words = [w for kind in info.metadata if isinstance(kind, Choice) for w in words_of(info.annotation)]
    others = [word for word in words if word != info.default]
    truth = [] if info.default is PydanticUndefined else [not info.default] * isinstance(info.default, bool)
    plain = [] if info.default in (PydanticUndefined, None) else [text_of(info.default)]
    value = next(iter([*own, *known, *others, *truth, *plain]), None)
    return "" if value is None else f"{key}: {flow(value)}"


def values_at(file: Any, path: str) -> Iterator[Any]:
    """What a file has at a path, in which `[]` stands for each of a list."""
    key, _, rest = path.partition(".")
    held = file.get(key.removesuffix("[]")) if isinstance(file, Mapping) else None
    if held is None:
        return
    for each in held if key.endswith("[]") else [held]:
        yield from values_at(each, rest) if rest else [each]


def flow(value: object) -> str:
    """A value on one line of YAML; a text as it stands."""
    if isinstance(value, str):
        return value
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("\n").removesuffix("\n...")


@cache
def shipped(folder: str) -> tuple[Mapping[str, Any], ...]:
    """Every file of a folder, parsed."""
    return tuple(yaml.safe_load(file.read_text()) for file in sorted((ROOT / folder).glob("*.yaml")))


def machine_sections() -> dict[str, list[Section]]:
    """What a file of each kind of machine may hold."""
    files = shipped("configs")
    ours = [each for each in files if each.get("family", "tpu") == "tpu"]
    return {
        "A TPU": list(sections(Hardware, ours, {"name": OF_THE_FILE})),
        "A GPU": list(sections(Gpu, [each for each in files if each not in ours], {"name": OF_THE_FILE})),
    }


def workload_sections() -> list[Section]:
    """What a workload file may hold, and what every entry of its layers."""
    file, *_ = sections(workload_file._File, shipped("workloads"), units=False)
    layers = [layer for each in shipped("workloads") for layer in each["layers"]]
    around, *_ = sections(entries._Around, layers, units=False)
    kinds = Entry("op", "kind of operation; each has a section of its own among the ops.", f"one of {', '.join(OPS)}, "
                  f"{', '.join(FREE)}", REQUIRED, "", "op: conv2d")  # fmt: skip
    read = Entry(entries.INPUTS, "layers that the entry reads, or inputs of the network; where no entry of a file says "
                 "so, each reads the one before it.", "a name, or a list of names", "the entry before", "",
                 next(f"inputs: {flow(each['inputs'])}" for each in layers if "inputs" in each))  # fmt: skip
    return [file, Section("layers[]", summary(entries._Around), [kinds, *around.entries, read])]


def sweep_sections() -> list[Section]:
    """What a sweep's file may hold."""
    given = {key: text_of(value) for key, value in reader.UNLESS_GIVEN.items()}
    defaults = {**given, "workloads": REQUIRED, "axes": REQUIRED, "name": OF_THE_FILE}
    return list(sections(reader.Spec, shipped("configs/sweeps"), defaults, units=False))


def op_sections() -> dict[str, Section]:
    """Every op by its name in files; then what takes no time."""
    layers = [layer for each in shipped("workloads") for layer in each["layers"]]
    kinds = {**{op: OPS[op] for op in OPS}, **FREE}
    alike = {op: [each for each in layers if each["op"] == op] for op in kinds}
    return {op: next(sections(kind, [*alike[op], *layers], units=False)) for op, kind in kinds.items()}


def lowerings() -> dict[str, Mapping[str, str]]:
    """What each lowering is, by its name, of each family of machines."""
    return {name: family_named(name).glosses() for name in FAMILIES}


def op_example(op: str) -> str:
    """An entry of a workload file: what it needs, and rows and columns of its map."""
    kind, held = (OPS[op] if op in OPS else FREE[op]), []
    for key, (_, info) in fields_in(kind).items():
        if info.default is PydanticUndefined or key in ("height", "width"):
            value = (info.examples or [""])[0]
            held.append(f"{key}: {op + '1' if key == 'name' else flow(value)}")
    return f"- {{{', '.join([held[0], f'op: {op}', *held[1:]])}}}"


# ---- columns, and the JSON of a run

WORDS = {
    "workload": "name of the network",
    "batch": "images at a time",
    "position": "place of the layer in the network, from 0 on",
    "name": "name of the layer",
    "op": "kind of operation",
    COLUMN: LOWERING.meaning,
    "error": "why the point could not be simulated; empty where it was",
    "pareto": "whether no other point beats this one in all goals of the sweep",
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
        "by_op": {"type": "object", "additionalProperties": {"$ref": "#/$defs/OpUse"},
                  "description": "layers, cycles and time of each kind of op, the costliest first"},
    }  # fmt: skip
    for made, sometimes in (
        (schema, records._WHERE_ANY), (layer, records._OF_LAYERS_WHERE_ANY), (total, ()), (use, ())
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


# ---- pages


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(each.replace('|', chr(92) + '|') for each in row)} |" for row in lines) + "\n"


def plain(text: str) -> str:
    """Text in which nothing is taken for Markdown."""
    return re.sub(r"([\\`*_<\[])", r"\\\1", text)


def code(text: str) -> str:
    """Text as code; nothing where there is none."""
    return f"`{text}`" if text else ""


def fields_table(section: Section) -> str:
    """The fields of a section, a row each."""
    rows = []
    for each in section.entries:
        unit = f" ({each.unit})" if each.unit else ""
        default = each.default if each.default in (OF_THE_FILE, "none") else code(each.default)
        stated = REQUIRED if each.default == REQUIRED else f"default: {default}"
        values = f"{each.allowed}{unit}<br>{stated}<br>example: {code(each.example)}"
        rows.append([code(each.path), sentence(each.meaning), sentence(values)])
    return f"{indexed(each.path for each in section.entries)}{table(['Field', 'Meaning', 'Values'], rows)}"


def indexed(paths: Iterable[str]) -> str:
    """Main entries of the index, which the search shows first: each path, and the key that it ends with."""
    names = dict.fromkeys(name for path in paths for name in (path, path.rpartition(".")[2]))
    return f"```{{index}} {', '.join(f'! {name}' for name in names)}\n```\n\n"


def sentence(text: str) -> str:
    """The text with a capital, unless it begins with a name such as channel_first."""
    return text if re.match(r"\w*\\?_", text) else text[:1].upper() + text[1:]


def section_text(section: Section, title: str, depth: int = 2) -> str:
    """A heading, what the section is, its fields."""
    return f"{'#' * depth} {title}\n\n{section.about}\n\n{fields_table(section)}"


def machine_page() -> str:
    """Fields of machines, and of the files that they name."""
    more = {
        "DRAM files": ("A machine whose `hbm.model` is `banks` names one as `hbm.device`: a shipped name, or a path.",
                       sections(Device, shipped("configs/dram"))),
        "Technology files": ("A machine names one as `technology`: a shipped name, or a path.",
                             sections(Technology, shipped("configs/technology"))),
    }  # fmt: skip
    text = (
        "# Machine files\n\nA machine is a YAML file; the shipped ones lie in `configs/`. `--set PATH=VALUE` changes "
        "single fields of one (`--set array.rows=64`), and axes of sweeps go over them. `array.size` stands for "
        "`array.rows` and `array.cols` together, and changes `vector_unit.alus` in proportion. Quantities carry their "
        "unit, as in `700 MHz`.\n"
    )
    kinds = {"A TPU": "A file that names no `family` describes a TPU.", "A GPU": "A file with `family: gpu`."}
    for title, found in machine_sections().items():
        text += f"\n## {title}\n\n{kinds[title]}\n\n{fields_table(found[0])}\n"
        text += "\n".join(section_text(each, each.path, 3) for each in found[1:])
    for title, (about, parts) in more.items():
        first, *others = parts
        text += f"\n## {title}\n\n{about}\n\n{fields_table(first)}\n"
        text += "\n".join(section_text(each, f"{each.path}", 3) for each in others)
    return text


def workload_page() -> str:
    """Fields of workload files."""
    file, entry = workload_sections()
    glosses = "".join(
        f"\nLowerings of {family_named(name).title}:\n\n"
        + table(["Lowering", "Meaning"], [[code(each), sentence(plain(gloss))] for each, gloss in held.items()])
        for name, held in lowerings().items()
    )
    return (
        "# Workload files\n\nA network is a YAML file; the shipped ones lie in `workloads/`. tpusim also reads `.onnx` "
        "models and `.csv` topologies of SCALE-Sim, and `tpusim import` writes them as such files.\n\n"
        f"```yaml\nname: my_net\nlayers:\n  {op_example('conv2d')}\n  {op_example('gemm')}\n```\n\n"
        f"{section_text(file, 'The file')}\n"
        "Sizes may be sums and products of whole numbers, of `batch`, and of names among `sizes`: `m: batch*197`.\n\n"
        f"{section_text(entry, 'Every layer')}\n"
        "The other fields of a layer are those of its op: see [ops](ops.md).\n\n## Lowerings\n\nA lowering says how a "
        "layer becomes passes. `lowering` of a layer names one, so does `--lowering` of commands; `auto` takes the "
        f"fastest of each layer.\n{glosses}"
    )


def sweep_page() -> str:
    """Fields of sweeps' files."""
    file, *others = sweep_sections()
    return (
        "# Sweep files\n\nA sweep is a YAML file; the shipped ones lie in `configs/sweeps/`. `tpusim sweep NAME|PATH` "
        f"simulates its points. What to do with them is told in [sweeps](../sweeps.md).\n\n{fields_table(file)}\n"
        + "\n".join(section_text(each, each.path) for each in others)
    )


def ops_page() -> str:
    """Every op with its fields."""
    text = (
        "# Ops\n\nEvery layer of a workload file names an op. Those of the array multiply maps by a filter; the vector "
        "unit does the others by itself. `name` and the fields of [every layer](workload.md#every-layer) may stand "
        "beside those below.\n\nPairs are (height, width); one number stands for both.\n"
    )
    for op, section in op_sections().items():
        unit = f"Done by the {OPS[op].unit.replace('vector', 'vector unit')}" if op in OPS else "Takes no time"
        shape = f" Tables show its shape as {plain(OPS[op].grammar)}." if op in OPS else ""
        entry = fill(op_example(op), 76, subsequent_indent="   ")
        known = Section(section.path, section.about, [each for each in section.entries if each.path != "name"])
        held = fields_table(known) if known.entries else ""
        text += f"\n## {op}\n\n{section.about}\n\n{unit}.{shape}\n\n```yaml\n{entry}\n```\n\n{held}"
    return text


def columns_page() -> str:
    """Columns of tables and files, and what a run's JSON holds."""
    figures = LAYER | {key: each for key, each in COLUMNS.items() if key not in LAYER} | OWN
    rows = [
        [code(key), code(each.head.replace("\n", " ")), sentence(figure_meaning(each)), unit_of(each), better(each)]
        for key, each in figures.items()
    ]
    others_of_a_run = [[code(head), sentence(text.removeprefix(f"{head}: "))] for head, text in RUN_WORDS.items()]
    states = [[code(key), code(each.head), sentence(f"{each.label}: {each.meaning}")] for key, each in STATES.items()]
    others = [[code(key), "", sentence(f"{each.label}: {each.meaning}")] for key, each in ELSEWHERE.items()]
    words = [["port", ", ".join(f"{code(each.key)} ({each.label})" for each in CLIENTS.values())]]
    words += [[unit, f"cycles of the {name}, as far as it tells them apart"] for unit, name in UNITS.items()]
    energies = [[code(key), sentence(f"{each.label}: {each.meaning}")] for key, each in ENERGIES.items()]
    text = (
        "# Columns of tables and files\n\n## Figures\n\nA figure has one key in all files: in `points.csv`, "
        "`layers.csv`, `Result.to_frame()` and the JSON of a run. Narrow tables show its head. A unit is that of "
        f"files; screens choose a larger one.\n\n{indexed(figures)}"
        f"{table(['Key', 'Head', 'Meaning', 'Unit', 'Better'], rows)}\n"
        "`Result.to_frame()` has the other keys of a layer's [JSON](run_json.md#layerresult) as well, by their paths, "
        "such as `blocking.rows`.\n\n"
        f"## Other columns of `tpusim run`\n\n{table(['Head', 'Meaning'], others_of_a_run)}\n"
        "## States of the array\n\nTables of runs show which part of a layer's cycles goes to each state; "
        "`stall_cycles` and `units` of a run's JSON count the cycles. `idle` and `unused` are told in other words of "
        f"machines without an array.\n\n{table(['Key', 'Head', 'Meaning'], [*states, *others])}\n"
        f"## Units\n\nThe keys of `units` in a run's JSON.\n\n{table(['Unit', 'What its cycles are'], words)}\n"
        f"## Parts of energy\n\nThe keys of `energy_use.parts`.\n\n{table(['Key', 'Meaning'], energies)}\n"
    )
    for name, held in file_columns().items():
        listed = [[code(key), kind, sentence(meaning)] for key, (kind, meaning) in held.items()]
        text += f"## {name}\n\n`tpusim sweep` writes it.\n\n{table(['Column', 'Type', 'Meaning'], listed)}\n"
    return text


def json_page() -> str:
    """What a run's JSON holds, key by key."""
    schema = run_schema()
    text = (
        "# The JSON of a run\n\n`tpusim run --json FILE`, `--out DIR` (as `DIR/run.json`) and `Result.to_json()` write "
        f"it. {{download}}`Its JSON schema <{SCHEMA}>` is for programs that check what they read.\n\n## The file\n\n"
    )
    text += _keys(schema)
    for name, held in schema["$defs"].items():
        text += f"\n## {name}\n\n{held['description']}\n\n{_keys(held)}"
    return text.replace("in `tpusim.result.vocabulary.figures`", "among the [columns](columns.md)")


def _keys(held: Mapping[str, Any]) -> str:
    rows = [[code(key), _type(each), sentence(each["description"])] for key, each in held["properties"].items()]
    return table(["Key", "Type", "Meaning"], rows)


def _type(held: Mapping[str, Any]) -> str:
    """The type of a value in a JSON schema, in words."""
    if "anyOf" in held:
        return " or ".join(map(_type, held["anyOf"]))
    if "$ref" in held:
        name = held["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "items" in held:
        return f"list of {_type(held['items'])}"
    inner = held.get("additionalProperties")
    if isinstance(inner, Mapping) and inner:
        return f"mapping to {_type(inner)}"
    return str(held.get("type", "object")).replace("object", "mapping")


def commands_page() -> str:
    """Every command with its options."""
    text = "# Commands\n\n`tpusim COMMAND --help` tells the same of one command.\n"
    for name, each in commands().items():
        rows = [[code(one.written), plain(one.help), code(one.default) if one.default != REQUIRED else REQUIRED]
                for one in each.parameters]  # fmt: skip
        text += f"\n## {name}\n\n{plain(each.help)}\n\n```text\n{each.usage}\n```\n\n"
        text += f"{table(['Option', 'Meaning', 'Default'], rows)}\nExample: `{each.example}`\n"
    return text


def python_page() -> str:
    """The public names, which Sphinx looks up in the package."""
    text = (
        "# Python\n\n`import tpusim` gives these names; all others are the package's own and may change. Errors that a "
        "user makes are `tpusim.base.errors.InputError`, whose text says what is wrong, where, and what to write.\n"
    )
    members = {"Hardware", "Result", "Workload"}
    for name in tpusim.__all__:
        thing = getattr(tpusim, name)
        if inspect.isfunction(thing) or inspect.isclass(thing):
            kind = "class" if inspect.isclass(thing) else "function"
            more = "\n   :members:" if name in members else ""
            text += f"\n## {name}\n\n```{{eval-rst}}\n.. auto{kind}:: tpusim.{name}{more}\n```\n"
            if op := getattr(thing, "op", ""):
                text += f"\nIts fields are those of [{op}](ops.md#{op}).\n"
        else:
            text += f"\n## `{name}`\n\nThe version, as text: `{thing!r}`.\n"
    return text


def from_the_reference(text: str) -> str:
    """A page of the top of the repository, its links as they are seen from the folder of the reference."""
    return re.sub(r"\]\((?!\w+:|#|\.\./)", "](../../", text.replace("](docs/", "](../"))


def pages() -> dict[str, str]:
    """Every page and file of the reference, by its name."""
    found = {
        "machine.md": machine_page(),
        "workload.md": workload_page(),
        "ops.md": ops_page(),
        "sweep.md": sweep_page(),
        "commands.md": commands_page(),
        "columns.md": columns_page(),
        "run_json.md": json_page(),
        "python.md": python_page(),
        SCHEMA: json.dumps(run_schema(), indent=2) + "\n",
    }
    own = {top: path.name for top, path in TOPS.items() if path.parent.name == FOLDER.name and (ROOT / top).exists()}
    return found | {name: from_the_reference((ROOT / top).read_text()) for top, name in own.items()}


def write(folder: Path = FOLDER) -> None:
    """Write the pages; those that are as they were stay untouched, so that Sphinx does not read them again."""
    folder.mkdir(exist_ok=True)
    made = pages()
    for stale in {each.name for each in folder.iterdir()} - made.keys():
        (folder / stale).unlink()
    for name, text in made.items():
        if not (folder / name).exists() or (folder / name).read_text() != text:
            (folder / name).write_text(text)


def linked(text: str) -> str:
    """A page whose links to pages of the top lead to where the site has them."""
    names = "|".join(map(re.escape, TOPS))
    return re.sub(rf"\]\((?:\.\./)+({names})", lambda link: f"](/{TOPS[link[1]].as_posix()}", text)


def setup(sphinx: Any) -> dict[str, Any]:
    """Write the pages before Sphinx looks for them; turn links as it reads them."""

    def read(_: Any, name: str, source: list[str]) -> None:
        source[0] = linked(source[0])

    write()
    sphinx.connect("source-read", read)
    return {"parallel_read_safe": True}
