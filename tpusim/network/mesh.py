"""Meshes: the axes along which chips share a network, as files and people write them, and the sizes that they part."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias, TypeVar

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.input.document import Document
from tpusim.input.form import pairs
from tpusim.input.scalars import INTEGER, show, whole_number
from tpusim.network.ops.op import BATCH

Mesh: TypeAlias = Mapping[str, int]
"""Axes along which chips share a network, each with its number of chips."""
REST = "*"
"""The size of an axis that takes the chips of a slice which the other axes leave."""
MESH, SHARD = "mesh", "shard"
"""The keys of a file that name axes, and the sizes that these part."""
OF_BATCH = "data", "fsdp", "expert"
"""The axes that part the batch of every network."""
STAGE = "stage"
"""The axis along which chips have blocks of their own."""
HOST = "host"
"""The way to the memory of a chip's host, in place of an axis of the mesh."""
MOST_CHIPS = 2**20
"""Most chips that may share a network."""


def mesh_in(document: Document) -> dict[str, int]:
    """Return the mesh of a file. Raises InputError with every problem of it."""
    return dict(_placed(read_mesh, document, MESH))


def shard_in(document: Document) -> dict[str, tuple[str, ...]]:
    """Return which axes part the sizes of a file. Raises InputError with every problem of that."""
    return dict(_placed(read_shard, document, SHARD))


_T = TypeVar("_T")


def _placed(read: Callable[[object], tuple[_T, ...]], document: Document, key: str) -> tuple[_T, ...]:
    """Read what a file has at a key, if anything; what is wrong there has its place."""
    given = document.data.get(key)
    try:
        return read(given) if given is not None else ()
    except InputError as error:
        problems = [document.problem(f"{key}.{each.where}" if each.where else key, each.message)
                    for each in error.problems]  # fmt: skip
        raise InputError(problems) from None


def on_chips(mesh: Mapping[str, int | str], slice: str, chips: int) -> dict[str, Any]:
    """Return a mesh on the chips of a slice, of which an axis of size REST takes those that the other axes leave.

    Sizes that are none stay, for whoever reads the mesh to refuse them. Raises InputError where several axes take the
    rest, or the others do not part the chips evenly.
    """
    taking = [axis for axis, size in mesh.items() if size == REST]
    others = [size for size in mesh.values() if type(size) is int]
    # Of sizes that are none no product can be taken.
    if not taking or len(others) + len(taking) < len(mesh) or min(others, default=1) < 1:
        return {**mesh}
    option = f"--mesh {mesh_text(mesh)}"
    if len(taking) > 1:
        raise InputError(
            Problem(f"{' and '.join(taking)} cannot both take the rest; give one of them a number", option)
        )
    if chips % prod(others):
        says = f"{prod(others):,} chips along the other axes do not part the {chips:,} of {slice} evenly"
        raise InputError(Problem(f"{says}; take a divisor of {chips:,} there", option))
    return {axis: chips // prod(others) if size == REST else size for axis, size in mesh.items()}


def read_mesh(given: object) -> tuple[tuple[str, int], ...]:
    """Read a mesh as files have it, {data: 2, tensor: 8}. Raises InputError with every problem."""
    items = pairs(given, "is no mesh; write each axis with its chips, such as {data: 2, tensor: 8}")
    problems: list[Problem] = []
    for name, chips in items:
        try:
            if chips == REST:
                raise InputError("it takes the chips of a slice that other axes leave; name a slice, or a number")
            whole_number(chips, 1, MOST_CHIPS)
            if not isinstance(name, str) or not name.isidentifier() or name in (BATCH, HOST):
                raise InputError(f"{show(name)} names no axis; write another word, such as tensor")
        except InputError as error:
            problems.append(Problem(str(error), str(name)))
    if problems:
        raise InputError(problems)
    return items


_AXIS = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(\S+)\s*")


def parse_mesh(text: str) -> dict[str, int | str]:
    """Read a mesh as people write it, "data=2,tensor=8", or with an axis of size REST, "tensor=8,fsdp=*".

    Raises InputError for an axis without a size, or one named twice.
    """
    mesh: dict[str, int | str] = {}
    for entry in text.split(","):
        given = _AXIS.fullmatch(entry)
        size = given[2] if given else ""
        if given is None or (size != REST and (not INTEGER.fullmatch(size) or int(size) < 1)):
            says = f"{entry.strip()!r} is no axis with a size; write NAME=N, such as data=2,tensor=8"
            raise InputError(Problem(says, "--mesh"))
        if given[1] in mesh:
            raise InputError(Problem(f"axis {given[1]!r} is named twice; name each once", "--mesh"))
        mesh[given[1]] = size if size == REST else int(size)
    return mesh


def mesh_text(mesh: Mapping[str, int | str]) -> str:
    """Return a mesh as people write it: fsdp=16,tensor=8."""
    return ",".join(f"{axis}={chips}" for axis, chips in mesh.items())


def read_shard(given: object) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Read which sizes the axes of a mesh part, {heads: tensor, experts: [expert, tensor]}, or as they are kept.

    Raises InputError where that names no axes.
    """
    found: list[tuple[str, tuple[str, ...]]] = []
    for name, axes in pairs(given, "parts nothing; write sizes, each with an axis, such as {heads: tensor}"):
        several = (axes,) if isinstance(axes, str) else axes
        if not isinstance(several, list | tuple) or not several or not all(isinstance(each, str) for each in several):
            says = f"{show(axes)} names no axis of a mesh; write one, such as tensor, or a list of several"
            raise InputError(Problem(says, str(name)))
        if len({*several}) < len(several):
            raise InputError(Problem(f"{show([*several])} names an axis twice; name each once", str(name)))
        found.append((str(name), tuple(several)))
    return tuple(found)


def of_a_chip(sizes: Mapping[str, int], document: Document) -> dict[str, int]:
    """Return the sizes of one chip's share by the mesh of `document`, and the mesh's axes among them.

    Raises InputError where an axis does not part a size evenly, or has the name of one.
    """
    mesh, found = mesh_in(document), dict(sizes)
    problems = [document.problem(f"{MESH}.{axis}", f"{axis} is a size of the file, too; name the axis otherwise")
                for axis in mesh if axis in sizes]  # fmt: skip
    for name, axes in shard_in(document).items():
        if name in found:
            found[name] = parted(found[name], name, axes, mesh, problems, document)
        else:
            there = [each for each in found if each != BATCH]
            says = f"there is no size {show(name)}{did_you_mean(name, there) or ';'} "
            says += (
                f"its sizes: {', '.join(there)}"
                if there
                else "name it under sizes:, or part layers by their own shard:"
            )
            problems.append(document.problem(f"{SHARD}.{name}", says))
    if problems:
        raise InputError(problems)
    return {**mesh, **found}


def parted(
    size: int, name: str, axes: Sequence[str], mesh: Mesh, problems: list[Problem], document: Document | None = None
) -> int:
    """Return the part of a size that a chip has; where that is none, a problem is added to `problems`."""
    chips, along = prod(mesh.get(axis, 1) for axis in axes), ", ".join(axis for axis in axes if axis in mesh)
    if size % chips == 0:
        return size // chips
    fits = ", ".join(str(each) for each in range(1, min(2 * chips, MOST_CHIPS) + 1) if size % each == 0)
    says = f"{name} {size:,} is not parted evenly by {chips:,} chips along {along}; take one of {fits} there"
    axis = next(axis for axis in axes if axis in mesh)
    problems.append(document.problem(f"{MESH}.{axis}", says) if document else Problem(says, SHARD))
    return size


def batch_of_a_chip(batch: int, mesh: Mesh) -> int:
    """Return the images of one chip's share of a batch. Raises InputError where a mesh does not part it evenly."""
    axes = [axis for axis in OF_BATCH if axis in mesh]
    chips = prod(mesh[axis] for axis in axes)
    if batch % chips:
        says = f"it is not parted evenly by {chips:,} chips along {', '.join(axes)}; give a multiple of {chips:,}"
        raise InputError(Problem(f"{says}, of all chips together", f"batch {batch}"))
    return batch // chips
