"""Sizes that a workload file names, such as the length of a sequence: its layers use them, its user may set them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from pydantic import ValidationInfo

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.input.document import Document
from tpusim.input.form import names_of, size
from tpusim.input.scalars import show

BATCH = "batch"
"""The size that every file may use; a run says what it is."""
Sizes: TypeAlias = tuple[tuple[str, int], ...]
"""By name, in the order of the file."""

MOST_SIZE = 2**24
"""Beyond this a size is a slip."""
_KEY = "sizes"


def read_sizes(given: object, info: ValidationInfo) -> Sizes:
    """Sizes as files have them, {side: 224, patches: side//16*14}, each worked out from those before it, or as they are
    kept. Raises InputError with every problem.
    """
    items = tuple(given.items()) if isinstance(given, Mapping) else given
    if not isinstance(items, tuple) or not all(isinstance(each, tuple) and len(each) == 2 for each in items):
        raise InputError(f"{show(given)} names no sizes; write each with its usual value, such as {{seq: 128}}")
    found = [*_worked_out(items, {name: batch for name, batch in names_of(info).items() if name == BATCH})]
    if problems := [each for _, each in found if isinstance(each, Problem)]:
        raise InputError(problems)
    return tuple((name, each) for name, each in found if isinstance(each, int))


def _worked_out(items: Iterable[tuple[object, object]], known: dict[str, int]) -> Iterator[tuple[str, int | Problem]]:
    """Each name with its size, or with what is wrong with it."""
    for name, given in items:
        if not isinstance(name, str) or not name.isidentifier():
            message = f"{show(name)} cannot be used in a sum; name a size by a word, such as seq"
            yield str(name), Problem(message, str(name))
        elif name == BATCH:
            yield name, Problem("batch is what a run says (--batch); name the size otherwise", name)
        else:
            try:
                known[name] = size(given, 1, MOST_SIZE, known)
                yield name, known[name]
            except InputError as error:
                # Those after it are not to be blamed.
                known[name] = 1
                yield name, Problem(str(error), name)


def names_in(document: Document, batch: int) -> dict[str, int]:
    """What layers of `document` may use, for `batch` images; 1 where a size is wrong, which is told with the file."""
    given = document.data.get(_KEY)
    found = _worked_out(given.items(), {BATCH: batch}) if isinstance(given, Mapping) else ()
    return {BATCH: batch, **{name: each if isinstance(each, int) else 1 for name, each in found if name != BATCH}}


def are_sound(document: Document) -> bool:
    """Whether nothing is wrong with the sizes of `document`."""
    given = document.data.get(_KEY, {})
    return isinstance(given, Mapping) and all(
        isinstance(each, int) for _, each in _worked_out(given.items(), {BATCH: 1})
    )


def sizes_named(document: Document) -> list[str]:
    """The names of its sizes."""
    known = document.data.get(_KEY)
    return [str(name) for name in known] if isinstance(known, Mapping) else []


def with_sizes(document: Document, wanted: Mapping[str, int]) -> Document:
    """`document` with other values of the sizes that it names. Raises InputError for one that it does not name."""
    names = sizes_named(document)
    unknown = [_unknown(document, name, number, names) for name, number in wanted.items() if name not in names]
    if unknown:
        raise InputError(unknown)
    for name, number in wanted.items():
        document = document.override(f"{_KEY}.{name}", number, (f"--dim {name}={number}", sys.maxsize))
    return document


def _unknown(document: Document, name: str, number: int, names: list[str]) -> Problem:
    there = f"its sizes: {', '.join(names)}" if names else "it names none; leave --dim out"
    message = f"the workload has no size {show(name)}{did_you_mean(name, names) or ';'} {there}"
    return Problem(message, f"--dim {name}={number}: {document.label}")
