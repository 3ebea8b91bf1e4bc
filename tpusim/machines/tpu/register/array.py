"""The array's units: PEs, the way of the weights down to them, and the de-serializers below.

Activations move right, sums down. Each unit knows of the others only what is on the wires.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tpusim.machines.tpu.register.blocks import BLOCK, multiply, multiply_by_two
from tpusim.machines.tpu.register.wires import (
    ENTERING,
    LAST,
    LOADING,
    SUMMING,
    Counts,
    Floats,
    Ints,
    Tags,
    Wires,
    cells,
    copy,
    part,
    spare_of,
)

RIGHT, DOWN, QUIET = range(3)
"""Heads of windows that slide to the right and down, and the cycles in which nothing has entered."""

NAMED, SINCE, BEFORE = range(3)
"""Registers of a row: 1 where the last element that has entered names the first weight buffer, or 0; columns that
elements have crossed since the name last changed; and since the change before that.
"""


class PeArray(NamedTuple):
    """Registers of PEs; a PE multiplies with the weight buffer that its activation names.

    Activations [array, plane, row, col] and their tags [array, plane, col, row]: all columns that a wavefront crosses
    in a cycle see the same. A PE without an activation has a negative tag, and goes on with the buffer that the
    activation before has named. Sums [array, plane, group, col], of groups of rows whose products are added up in a
    cycle. All of them are seen through windows: columns from `at[RIGHT]` on, groups from `at[DOWN]` on. `names` [array,
    plane, from NAMED on, row] follow from the tags in the window: mostly a row needs one of its weight buffers up to
    some column, and the other behind it. `way` is the cycles of an activation and its sum through the array: when
    nothing has entered for longer, all is zero.
    """

    activations: Floats
    tags: Tags
    sums: Floats
    names: Counts
    at: Counts
    across: int
    cols: int
    way: int

    @classmethod
    def of(cls, wires: Wires) -> PeArray:
        """The registers, all zero."""
        _, _, rows, cols = wires.weights.shape
        number, (arrays, planes, _), crossed = wires.sums.dtype, wires.activation.shape, wires.crossed
        groups, across = -(-rows // crossed), min(crossed, cols)
        # Registers move by moving the window over them; spare cells are room for it to move before all is copied back.
        right, down, way = spare_of(across), spare_of(), groups + -(-cols // crossed)
        activations = cells((arrays, planes, rows, right + cols), number)
        tags = cells((arrays, planes, right + cols, rows), np.int8)
        sums = cells((arrays, planes, down + groups, cols), number)
        names, at = np.zeros((arrays, planes, BEFORE + 1, rows), np.int64), np.array([right, down, way])
        names[:, :, SINCE:] = cols
        return cls(activations, tags, sums, names, at, across, cols, way)

    @property
    def window(self) -> Tags:
        """Tags [array, plane, row, col] of the activations that are in the PEs, or 0."""
        found = self.tags[..., self.at[RIGHT] : self.at[RIGHT] + self.cols, :]
        return np.maximum(found, 0).swapaxes(2, 3)

    @property
    def working(self) -> int:
        """PEs that hold an activation."""
        return int(np.count_nonzero(self.window.any(axis=1)))


@part
def sample_array(own: PeArray, wires: Wires) -> None:
    """Work out the next contents of the registers; the bottom row, which other units see, is not touched.

    While all registers are zero and stay so, nothing is done.
    """
    at, (arrays, planes, _) = own.at, wires.activation.shape
    at[QUIET] = 0 if wires.any[ENTERING] else at[QUIET] + 1
    if at[QUIET] > own.way:
        return
    for array in range(arrays):
        for plane in range(planes):
            _enter(
                own.activations[array, plane], own.tags[array, plane], own.names[array, plane], at[RIGHT] - own.across,
                own.across, own.cols, wires.activation[array, plane], wires.activation_tag[array, plane],
            )  # fmt: skip
            _multiply(
                own.activations[array, plane], own.tags[array, plane], own.sums[array, plane], own.names[array, plane],
                at[RIGHT] - own.across, at[DOWN] - 1, wires.crossed, wires.weights[array], wires.biases[array],
            )  # fmt: skip


@part
def commit_array(own: PeArray, wires: Wires) -> None:
    """All registers take their new value: the windows move on."""
    at = own.at
    wires.any[SUMMING] = at[QUIET] <= own.way
    if at[QUIET] > own.way:
        return
    at[RIGHT] -= own.across
    at[DOWN] -= 1
    right, down = at[RIGHT], at[DOWN]
    arrays, planes, rows, cells = own.activations.shape
    groups, cols = own.sums.shape[2], own.cols
    for array in range(arrays):
        for plane in range(planes):
            copy(wires.sums[array, plane], own.sums[array, plane, down + (rows - 1) // wires.crossed])
            # Below, too, a tag moves to the right.
            tag = wires.sums_tag[array, plane]
            for col in range(cols - 1, own.across - 1, -1):
                tag[col] = tag[col - own.across]
            for col in range(own.across):
                tag[col] = max(0, own.tags[array, plane, right, rows - 1])
    # A window that has reached the first cell is copied once, to the far end, and from there on.
    if right == 0:
        at[RIGHT] = cells - cols
        for array in range(arrays):
            for plane in range(planes):
                for row in range(rows):
                    for col in range(cols - 1, -1, -1):
                        own.activations[array, plane, row, at[RIGHT] + col] = own.activations[array, plane, row, col]
                for col in range(cols - 1, -1, -1):
                    copy(own.tags[array, plane, at[RIGHT] + col], own.tags[array, plane, col])
    if down == 0:
        of = (rows - 1) // wires.crossed + 1
        at[DOWN] = groups - of
        for array in range(arrays):
            for plane in range(planes):
                for group in range(of - 1, -1, -1):
                    copy(own.sums[array, plane, at[DOWN] + group], own.sums[array, plane, group])


@part
def _enter(
    activations: Floats, tags: Tags, names: Counts, right: int, across: int, cols: int, entering: Floats,
    entering_tag: Tags,
) -> None:  # fmt: skip
    """Put what enters into the `across` first columns of the window that begins at `right`, and see whether it names
    another weight buffer than what is before it.
    """
    for row in range(len(entering)):
        tag, named = entering_tag[row], names[NAMED, row]
        since, before = names[SINCE, row], names[BEFORE, row]
        name = tag & 1 if tag else named
        if name != named:
            since, before = 0, since
        names[NAMED, row] = name
        names[SINCE, row], names[BEFORE, row] = min(since + across, cols), min(before + across, cols)
        for col in range(right, right + across):
            activations[row, col], tags[col, row] = entering[row], tag if tag else name - 2


@part
def _multiply(
    activations: Floats, tags: Tags, sums: Floats, names: Counts, right: int, down: int, crossed: int, weights: Floats,
    biases: Floats,
) -> None:  # fmt: skip
    """In the windows that begin at `right` and `down`: the sum from above plus activation times weight, row by row of
    the `crossed` ones.
    """
    (buffers, rows, cols), first, group = weights.shape, 0, down
    # The sum starts from the bias that came with the weights the element is meant for.
    since, one = names[SINCE, 0], 0 if names[NAMED, 0] else buffers - 1
    copy(sums[down, :since], biases[one, :since])
    copy(sums[down, since:], biases[buffers - 1 - one, since:])
    if names[BEFORE, 0] < cols:
        for col in range(since, cols):
            sums[down, col] = biases[0 if tags[right + col, 0] & 1 else buffers - 1, col]
    while first < rows:
        for row in range(first, min(first + crossed, rows)):
            since, one = names[SINCE, row], 0 if names[NAMED, row] else buffers - 1
            if names[BEFORE, row] < cols:
                for col in range(cols):
                    buffer = 0 if tags[right + col, row] & 1 else buffers - 1
                    sums[group, col] += activations[row, right + col] * weights[buffer, row, col]
                continue
            _multiply_row(
                sums[group], activations[row, right : right + cols], weights[one, row],
                weights[buffers - 1 - one, row], since,
            )  # fmt: skip
        first, group = first + crossed, group + 1


@part
def _multiply_row(sums: Floats, activations: Floats, weights: Floats, others: Floats, since: int) -> None:
    """Add the products of a row: before column `since` with weights, and from there on with others."""
    col, cols = 0, len(sums)
    while col + BLOCK <= since:
        multiply(sums, activations, weights, col)
        col += BLOCK
    if col + BLOCK <= cols:
        multiply_by_two(sums, activations, weights, others, col, since - col)
        col += BLOCK
    while col + BLOCK <= cols:
        multiply(sums, activations, others, col)
        col += BLOCK
    while col < cols:
        sums[col] += activations[col] * (weights[col] if col < since else others[col])
        col += 1


class WeightRegisters(NamedTuple):
    """Weight registers, one or two in every PE, whose outputs are wires to the multiplier.

    Beside them one moving register, and its tag, for each weight that enters a column in a cycle, in each group of rows
    that a weight reaches in the same cycle. They move by turning: group `i` has row `at[DOWN] + i`, counted around, of
    `moving`, whose cells are [group, (array, chain, col)], one row behind the other. So a weight stays in its cell, and
    reaches its PE at a turn that is known as it enters. When nothing has entered for as many cycles as there are
    groups, nothing is on its way.

    Attributes:
        tags: the tag of each cell and, behind it, the next cell that is due at the same turn, or -1.
        due: the first cell whose weight is at its PE when group 0 has each row.
        weights: all weight registers, one behind the other; `place` is the first of them for each column of cells.
        group: the group of each row of the array.
    """

    moving: Floats
    tags: Ints
    due: Counts
    weights: Floats
    place: Counts
    group: Counts
    at: Counts

    @classmethod
    def of(cls, wires: Wires) -> WeightRegisters:
        """The moving registers, all empty."""
        (_, buffers, rows, cols), (_, chains, _) = wires.weights.shape, wires.weight.shape
        group, column = np.arange(rows) // wires.crossed, np.arange(wires.weight.size)
        groups, place = int(group[-1]) + 1, column // (chains * cols) * buffers * rows * cols + column % cols
        size, weights = groups * wires.weight.size, wires.weights.reshape(-1)
        moving, tags = cells((size,), wires.sums.dtype), np.full(2 * size, -1, np.int32)
        return cls(moving, tags, np.full(groups, -1), weights, place, group, np.array([0, 0, groups]))

    @property
    def under_way(self) -> int:
        """Weights on their way."""
        return int(np.count_nonzero(self.tags[::2] >= 0))


@part
def sample_weights(own: WeightRegisters, wires: Wires) -> None:
    """Take in the weights and tags at the top of every column."""
    at, groups = own.at, len(own.due)
    at[QUIET] = 0 if wires.any[LOADING] else at[QUIET] + 1
    if at[QUIET] > groups:
        return
    arrays, chains, cols = wires.weight.shape
    entry = (at[DOWN] if at[DOWN] else groups) - 1
    cell = entry * wires.weight.size
    for array in range(arrays):
        for chain in range(chains):
            copy(own.moving[cell : cell + cols], wires.weight[array, chain])
            _note_turns(own.tags, own.due, own.group, wires.weight_tag[array, chain], entry, cell)
            cell += cols


@part
def _note_turns(own: Ints, due: Counts, group: Counts, tags: Ints, entry: int, cell: int) -> None:
    """Note tags that enter columns, the first of them in `cell`, and the turn at which each weight is due."""
    for col in range(len(tags)):
        tag = tags[col]
        row = tag >> 1
        own[2 * cell] = tag
        if 0 <= row < len(group):
            turn = entry - group[row]
            turn += len(due) if turn < 0 else 0
            # Cells that are due at the same turn make a list, so that a turn looks at these alone.
            own[2 * cell + 1], due[turn] = due[turn], cell
        cell += 1


@part
def commit_weights(own: WeightRegisters, wires: Wires) -> None:
    """All move down by a group, if there are any; a weight that reaches its row is kept there.

    What comes as if to the row behind the last is where sums begin; with new weights of the first row they begin at
    zero again.
    """
    at, groups = own.at, len(own.due)
    if at[QUIET] > groups:
        return
    (arrays, chains, cols), rows = wires.weight.shape, wires.weights.shape[2]
    at[DOWN] = (at[DOWN] if at[DOWN] else groups) - 1
    head, columns = at[DOWN], wires.weight.size
    cell = head * columns
    for array in range(arrays):
        for _ in range(chains):
            for col in range(cols):
                tag = own.tags[2 * cell]
                if tag >> 1 == rows:
                    wires.biases[array, tag & 1, col] = own.moving[cell]
                elif tag >> 1 == 0:
                    wires.biases[array, tag & 1, col] = 0
                cell += 1
    cell, own.due[head] = own.due[head], -1
    while cell >= 0:
        tag = own.tags[2 * cell]
        row = tag >> 1
        entered = head + own.group[row]
        entered -= groups if entered >= groups else 0
        own.weights[own.place[cell - entered * columns] + ((tag & 1) * rows + row) * cols] = own.moving[cell]
        cell = own.tags[2 * cell + 1]


class Deserializers(NamedTuple):
    """A word register a column; a full word moves on to the vector unit.

    Sums and tags are copies of what others drive: results must not depend on the order in which units are visited;
    `any` tells whether there are any.
    """

    word: Floats
    held: Counts
    sums: Floats
    tags: Tags
    any: Counts

    @classmethod
    def of(cls, wires: Wires) -> Deserializers:
        """The registers, all empty."""
        arrays, cols, _, elements = wires.results.shape
        word, held = cells((arrays, cols, elements), wires.sums.dtype), np.zeros((arrays, cols), np.int64)
        return cls(word, held, wires.sums.copy(), wires.sums_tag.copy(), np.zeros(1, np.int64))


@part
def sample_sums(own: Deserializers, wires: Wires) -> None:
    """Look at the bottom of the array."""
    own.any[0] = wires.any[SUMMING]
    if own.any[0]:
        arrays, planes, _ = own.sums.shape
        for array in range(arrays):
            for plane in range(planes):
                copy(own.sums[array, plane], wires.sums[array, plane])
                copy(own.tags[array, plane], wires.sums_tag[array, plane])


@part
def commit_sums(own: Deserializers, wires: Wires) -> None:
    """Sums join their words, plane by plane; a full word goes to the vector unit."""
    if own.any[0]:
        arrays, planes, _ = own.sums.shape
        for array in range(arrays):
            for plane in range(planes):
                _collect(
                    own.word[array], own.held[array], own.sums[array, plane], own.tags[array, plane],
                    wires.results[array], wires.complete[array],
                )  # fmt: skip


@part
def _collect(word: Floats, held: Counts, sums: Floats, tags: Tags, results: Floats, complete: Counts) -> None:
    """Let the sums of a plane join their words."""
    places = results.shape[1]
    for col in range(len(tags)):
        tag = tags[col]
        if tag:
            word[col, held[col]] = sums[col]
            held[col] += 1
        # The tag of a word's last element is the only one above LAST.
        if tag > LAST:
            place = complete[col] % places
            copy(results[col, place], word[col])
            complete[col] += 1
            held[col] = 0
