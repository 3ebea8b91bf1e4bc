"""The pages of the reference, made of the package itself: fields, columns, ops, commands, Python names.

`docs.fields`, `docs.columns` and `docs.answers` gather what the package says; `pages` writes it as Markdown, which
Sphinx reads (`setup`). Nothing of it is kept in the repository.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import tpusim
from docs.answers import schemas
from docs.columns import RUN_WORDS, better, command_tables, commands, figure_meaning, file_columns, run_schema, unit_of
from docs.fields import (
    OF_THE_FILE,
    REQUIRED,
    ROOT,
    Section,
    lowerings,
    machine_sections,
    op_example,
    op_sections,
    sections,
    shipped,
    sweep_sections,
    workload_sections,
)
from tpusim.machines.family import family_named
from tpusim.machines.tpu.slices.slice import ChipSlice, Interconnect
from tpusim.memory.dram.device import Device
from tpusim.network.entries import COMPOSITES
from tpusim.network.ops import OPS
from tpusim.result.vocabulary.figures import COLUMNS, LAYER, OWN
from tpusim.result.vocabulary.states import CLIENTS, ELSEWHERE, ENERGIES, STATES, STEP_PARTS, UNITS
from tpusim.technology.constants import Technology

FOLDER = Path(__file__).parent / "reference"
SCHEMA = "run.schema.json"
TOPS = {
    "README.md": Path("index.md"),
    "CHANGELOG.md": Path("reference/changelog.md"),
    "CONTRIBUTING.md": Path("reference/contributing.md"),
}
"""Pages of the top of the repository, and where the site has them."""


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
    if not rows:
        return ""
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
        "Slice files": ("`tpusim collective` takes one as `--slice`: a shipped name, or a path.",
                        [each for each in sections(ChipSlice, shipped("configs/slices"))
                         if not each.path.startswith("interconnect")]),
        "Interconnect files": ("A slice names one as `interconnect`: a generation, or a path.",
                               sections(Interconnect, shipped("configs/interconnects"))),
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
        others = "Stands for several layers" if op in COMPOSITES else "Takes no time"
        unit = f"Done by the {OPS[op].unit.replace('vector', 'vector unit')}" if op in OPS else others
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
    words = [[code("port"), ", ".join(f"{code(each.key)} ({each.label})" for each in CLIENTS.values())]]
    words += [
        [code(unit), f"what the {name} does in each cycle: busy, idle, or waiting, where that is told"]
        for unit, name in UNITS.items()
    ]
    energies, of_steps = ([[code(key), sentence(f"{each.label}: {each.meaning}")] for key, each in held.items()]
                          for held in (ENERGIES, STEP_PARTS))  # fmt: skip
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
        "## Parts of a step\n\nThe keys of `step.parts`, of a network that several chips share.\n\n"
        f"{table(['Key', 'Meaning'], of_steps)}\n"
    )
    text += "## Tables of commands\n\nColumns that hold no figure and no state.\n"
    for name, told in command_tables().items():
        rows = [[code(head), sentence(meaning)] for head, meaning in told.items()]
        text += f"\n### {name}\n\n{table(['Head', 'Meaning'], rows)}"
    text += "\n"
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


def answers_page() -> str:
    """What the JSON of the other commands holds, key by key."""
    of_a_run = run_schema()["$defs"]
    text = (
        "# The JSON of other commands\n\n`--json FILE` of these commands writes it, and `--json -` prints it. "
        "`tpusim run` has [a page of its own](run_json.md). Files of `tpusim sweep` are told among the "
        "[columns](columns.md); `list` and the other commands write no JSON.\n"
    )
    for name, schema in schemas().items():
        text += f"\n## tpusim {name}\n\n{schema['description']} {{download}}`JSON schema <{name}.schema.json>`.\n\n"
        text += _keys(schema)
        for kind, held in schema["$defs"].items():
            if kind not in of_a_run:
                text += f"\n### {kind}\n\n{held['description']}\n\n{_keys(held)}"
    for kind in of_a_run:
        text = text.replace(f"](#{kind.lower()})", f"](run_json.md#{kind.lower()})")
    return text


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
    return str(held.get("type", "any value")).replace("object", "mapping")


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
    members = {"Answer", "Hardware", "Result", "Workload"}
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
        "json.md": answers_page(),
        "python.md": python_page(),
        SCHEMA: json.dumps(run_schema(), indent=2) + "\n",
        **{f"{name}.schema.json": json.dumps(schema, indent=2) + "\n" for name, schema in schemas().items()},
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
