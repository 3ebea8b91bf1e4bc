"""Errors that tpusim raises on purpose, each with its exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Protocol


@dataclass(frozen=True)
class Problem:
    """A single thing that is wrong with the input.

    `message` says what was given, what is allowed and what to do; `where` is its place
    ("file.yaml:12: array.rows", "--set clock=3"), or is None; `line` (from 1; 0: none) only orders problems.
    """

    message: str
    where: str | None = None
    line: int = 0

    def __str__(self) -> str:
        return self.message if self.where is None else f"{self.where}: {self.message}"


class TpusimError(Exception):
    """Base of every deliberate error; `exit_code` is what the command line returns."""

    exit_code: ClassVar[int] = 1


class InputError(TpusimError, ValueError):
    """The input cannot be used. Carries every problem found, not only the first.

    Takes one message, one Problem, or an iterable of Problems.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, problems: str | Problem | Iterable[Problem]) -> None:
        given = Problem(problems) if isinstance(problems, str) else problems
        self.problems: tuple[Problem, ...] = (given,) if isinstance(given, Problem) else tuple(given)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type[InputError], tuple[tuple[Problem, ...]]]:
        # Sweep workers send errors back pickled; the default would rebuild from the joined text.
        return type(self), (self.problems,)


class CapacityError(InputError):
    """A layer cannot fit the vector memories, or a network HBM; the message says what would fit."""


class UnsuitableError(CapacityError):
    """A lowering is not made for ops of that kind, on whatever machine."""


class CheckFailed(TpusimError):
    """An output element differs from the reference, or two engines disagree."""


class PortConflict(TpusimError):
    """A register or a port of the machine was asked to do two things at once."""


class DeadlockError(TpusimError):
    """The machine stopped with work left; the message names who waits for whom."""


def did_you_mean(given: object, allowed: Iterable[str]) -> str:
    """`"; did you mean word_elements?"`, or an empty string when nothing allowed comes close."""
    names = list(allowed)
    text = str(given)
    folded = text.casefold()
    same = [name for name in names if name.casefold() == folded or name.casefold().endswith(f".{folded}")]
    close = same or difflib.get_close_matches(text, names, n=1)
    return f"; did you mean {close[0]}?" if close else ""


class NamedLayers(Protocol):
    """A layer, or several."""

    @property
    def name(self) -> str: ...


@contextmanager
def failures_named(layer: NamedLayers) -> Iterator[None]:
    """Name the layer in failures of the machine."""
    try:
        yield
    except (CheckFailed, DeadlockError, PortConflict) as error:
        raise type(error)(f"layer {layer.name}: {error}") from None
