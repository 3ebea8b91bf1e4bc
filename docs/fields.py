"""What the package says of the fields of its files: meaning, allowed values, default, unit, example.

A class says of each of its fields what it is, in the section Attributes of its docstring; the rest stands beside the
field. Examples are the fields' own, or from files that are shipped.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tpusim.input.form import Choice, FileSection, Quantity, Reader
from tpusim.machines.family import FAMILIES, family_named
from tpusim.machines.gpu.description import Gpu
from tpusim.machines.tpu.description import Hardware
from tpusim.network import entries, workload_file
from tpusim.network.entries import COMPOSITES, FREE
from tpusim.network.ops import OPS
from tpusim.result.vocabulary.fields import FIELDS
from tpusim.study.sweep import reader

ROOT = Path(__file__).parent.parent
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
            words = [f"`{word}`" for word in words_of(info.annotation)]
            number = [f"a whole number, 1 to {kind.most}"] * (kind.most > 0)
            *first, last = [*words, *number]
            return f"{', '.join(first)} or {last}" if first else last
        if isinstance(kind, Quantity):
            each = "a list, each " if get_origin(info.annotation) is tuple else ""
            return f"{each}a {kind.unit.kind} with its unit, at most {kind.most}"
    return "a list of sections" if model_in(info) else "a list" if get_origin(info.annotation) is tuple else "text"


def words_of(annotation: Any) -> tuple[str, ...]:
    """The words of a Literal, or of one among several types."""
    return next(get_args(each) for each in (annotation, *get_args(annotation)) if get_origin(each) is Literal)


def example(key: str, path: str, info: FieldInfo, shipped: Sequence[Mapping[str, Any]]) -> str:
    """A line of YAML: the field's own example, else a value that a shipped file has, else a word that it may be."""
    own, usual = info.examples or (), text_of(info.default)
    known = (value for file in shipped for value in values_at(file, path) if text_of(value) != usual)
    words = [w for kind in info.metadata if isinstance(kind, Choice) for w in words_of(info.annotation)]
    others = [word for word in words if word != info.default]
    truth = [] if info.default is PydanticUndefined else [not info.default] * isinstance(info.default, bool)
    plain = [] if info.default in (PydanticUndefined, None) else [text_of(info.default)]
    value = next(chain(own, known, others, truth, plain), None)
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
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return tuple(yaml.load(file.read_text(), loader) for file in sorted((ROOT / folder).glob("*.yaml")))


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
    layers = _layers()
    around, *_ = sections(entries._EntryKeys, layers, units=False)
    kinds = Entry("op", "kind of operation; each has a section of its own among the ops.", f"one of {', '.join(OPS)}, "
                  f"{', '.join((*COMPOSITES, *FREE))}", REQUIRED, "", "op: conv2d")  # fmt: skip
    read = Entry(entries.INPUTS, "layers that the entry reads, or inputs of the network; where no entry of a file says "
                 "so, each reads the one before it.", "a name, or a list of names", "the entry before", "",
                 next(f"inputs: {flow(each['inputs'])}" for each in layers if "inputs" in each))  # fmt: skip
    return [file, Section("layers[]", summary(entries._EntryKeys), [kinds, *around.entries, read])]


def sweep_sections() -> list[Section]:
    """What a sweep's file may hold."""
    given = {key: text_of(value) for key, value in reader.UNLESS_GIVEN.items()}
    defaults = {**given, "workloads": REQUIRED, "axes": REQUIRED, "name": OF_THE_FILE}
    return list(sections(reader.Spec, shipped("configs/sweeps"), defaults, units=False))


@cache
def op_sections() -> dict[str, Section]:
    """Every op by its name in files; then what stands for several layers, and what takes no time."""
    layers = _layers()
    kinds = {op: _kind(op) for op in (*OPS, *COMPOSITES, *FREE)}
    alike = {op: [each for each in layers if each["op"] == op] for op in kinds}
    return {op: next(sections(kind, [*alike[op], *layers], units=False)) for op, kind in kinds.items()}


def _layers() -> list[Any]:
    """Every entry of the shipped workloads, those of blocks among them."""
    found = [layer for each in shipped("workloads") for layer in each["layers"]]
    return [each for layer in found for each in (layer["layers"] if "block" in layer else [layer])]


def _kind(op: str) -> Any:
    """The class of an entry, by its name in files."""
    return OPS[op] if op in OPS else {**COMPOSITES, **FREE}[op]


def lowerings() -> dict[str, Mapping[str, str]]:
    """What each lowering is, by its name, of each family of machines."""
    return {name: family_named(name).glosses() for name in FAMILIES}


def op_example(op: str) -> str:
    """An entry of a workload file: what it needs, and rows and columns of its map."""
    kind, held = _kind(op), []
    for key, (_, info) in fields_in(kind).items():
        if info.default is PydanticUndefined or key in ("height", "width"):
            value = (info.examples or [""])[0]
            held.append(f"{key}: {op + '1' if key == 'name' else flow(value)}")
    return f"- {{{', '.join([held[0], f'op: {op}', *held[1:]])}}}"
