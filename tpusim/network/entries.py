"""The entries of a workload file: each is a layer, as often as it says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.input.fields import NAMES, Name, whole
from tpusim.input.form import Form, validated
from tpusim.input.scalars import show
from tpusim.network.foreign import instead_of
from tpusim.network.ops import OPS, Op

MOST_LAYERS = 100_000
EXAMPLE = "{name: fc, op: gemm, m: batch, n: 1000, k: 512}"
LOWERING = "lowering"
"""The key of a layer that says by which lowering it is to become passes; which there are, machines know."""
Read = tuple[tuple[Op, ...], str | None]
"""The layers of an entry of a file, and the lowering that it names."""


def read_layers(entry: object, names: Mapping[str, int]) -> Read:
    """The layer of a file, as often as its `count` says, and its lowering; sizes may be worked out from `names`.

    Raises InputError whose problems' `where` is the key inside the layer, or None for the layer itself.
    """
    if not isinstance(entry, Mapping):
        raise InputError(f"{show(entry)} is not a layer; write e.g. {EXAMPLE}")
    op, ops = entry.get("op"), ", ".join(OPS)
    if "op" not in entry:
        raise InputError(Problem(f"required key is missing; add op: with one of {ops}", "op"))
    if not isinstance(op, str) or op not in OPS:
        instead = "" if str(op).casefold() in OPS else instead_of(str(op))
        hint = f"{instead};" if instead else did_you_mean(str(op), OPS) or ";"
        raise InputError(Problem(f"unknown op {show(op)}{hint} ops: {ops}", "op"))
    sizes = {key: value for key, value in entry.items() if key not in ("op", *_AROUND)}
    wrong: list[Problem] = []
    try:
        layer = _FORMS[op].build(sizes, {NAMES: names})
    except InputError as error:
        wrong += error.problems
    try:
        around = _around(entry, names, _AROUND)
    except InputError as error:
        wrong += error.problems
    if wrong:
        raise InputError(wrong)
    if around.count == 1:
        return (layer,), around.lowering
    return tuple(replace(layer, name=name) for name in numbered(layer.name, around.count)), around.lowering


@validated
class _Around:
    """What an entry of a file says beside its operation."""

    count: Annotated[int, whole(MOST_LAYERS)] = 1
    lowering: Annotated[str | None, Name()] = None


_AROUND = ("count", LOWERING)
_AROUND_FORM = Form(_Around)
_FORMS = {name: Form(kind, f" for {name}", ["op", *_AROUND]) for name, kind in OPS.items()}


def _around(entry: Mapping[str, object], names: Mapping[str, int], keys: Iterable[str]) -> _Around:
    return _AROUND_FORM.build({key: entry[key] for key in keys if key in entry}, {NAMES: names})


def numbered(name: str, count: int) -> Iterator[str]:
    """The names of the layers of an entry that comes `count` times."""
    return (f"{name}_{number}" for number in range(1, count + 1))


def count_of(entry: object, names: Mapping[str, int]) -> int:
    """The count of an entry, 1 where it is none: what is wrong with it is told with the entry."""
    try:
        return _around(entry, names, ["count"]).count if isinstance(entry, Mapping) else 1
    except InputError:
        return 1
