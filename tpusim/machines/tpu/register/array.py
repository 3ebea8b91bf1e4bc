"""The array's units: PEs, the way of the weights down to them, and the de-serializers below.

Activations move right, sums down. Each unit knows of the others only what is on the wires.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

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
    copy,
    part,
    spare_of,
)

RIGHT, DOWN, QUIET = range(3)
"""Heads of windows that slide to the right and down, and the cycles in which nothing has entered."""


class PeArray(NamedTuple):
    """Registers of PEs; a PE multiplies with the weight buffer that its activation names.

    Activations and their tags [array, plane, row, col]: all columns that a wavefront crosses in a cycle see the same.
    Sums [array, plane, group, col], of groups of rows whose products are added up in a cycle. All of them are seen
    through windows: columns from `at[RIGHT]` on, groups from `at[DOWN]` on. `odd` counts the odd tags of a row, [array,
    plane, row]: if all are, or none is, the row needs only one of its weight buffers. `way` is the cycles of an
    activation and its sum through the array: when nothing has entered for longer, all is zero.
    """

    activations: Floats
    tags: Tags
    sums: Floats
    odd: Counts
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
        right, down = spare_of(cols, across), spare_of(groups)
        pes, way = (arrays, planes, rows, right + cols), groups + -(-cols // crossed)
        sums = np.zeros((arrays, planes, down + groups, cols), number)
        odd, at = np.zeros(wires.activation.shape, np.int64), np.array([right, down, way])
        return cls(np.zeros(pes, number), np.zeros(pes, np.int8), sums, odd, at, across, cols, way)

    @property
    def window(self) -> Tags:
        """Tags [array, plane, row, col] of the activations that are in the PEs."""
        return self.tags[..., self.at[RIGHT] : self.at[RIGHT] + self.cols]

    @property
    def working(self) -> int:
        """PEs that hold an activation."""
        return int(np.count_nonzero(self.window.any(axis=1)))


@part
def sample_array(own: PeArray, wires: Wires) -> None:
    """Work out the next contents of the registers; the bottom row, which other units see, is not touched.

    While all registers are zero and stay so, nothing is done.
    """
    at = own.at
    at[QUIET] = 0 if wires.any[ENTERING] else at[QUIET] + 1
    if at[QUIET] <= own.way:
        _multiply(
            own.activations, own.tags, own.sums, own.odd, at[RIGHT] - own.across, at[DOWN] - 1, own.across,
            wires.crossed, wires.activation, wires.activation_tag, wires.weights, wires.biases,
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
            bottom = own.sums[array, plane, down + (rows - 1) // wires.crossed]
            for col in range(cols):
                wires.sums[array, plane, col] = bottom[col]
                wires.sums_tag[array, plane, col] = own.tags[array, plane, rows - 1, right + col]
    # A window that has reached the first cell is copied once, to the far end.
    if right == 0:
        at[RIGHT] = cells - cols
        for array in range(arrays):
            for plane in range(planes):
                for row in range(rows):
                    for col in range(cols):
                        own.activations[array, plane, row, at[RIGHT] + col] = own.activations[array, plane, row, col]
                        own.tags[array, plane, row, at[RIGHT] + col] = own.tags[array, plane, row, col]
    if down == 0:
        of = (rows - 1) // wires.crossed + 1
        at[DOWN] = groups - of
        for array in range(arrays):
            for plane in range(planes):
                for group in range(of):
                    copy(own.sums[array, plane, at[DOWN] + group], own.sums[array, plane, group])


@part
def _multiply(
    activations: Floats, tags: Tags, sums: Floats, odd: Counts, right: int, down: int, across: int, crossed: int,
    entering: Floats, entering_tag: Tags, weights: Floats, biases: Floats,
) -> None:  # fmt: skip
    """In the windows that begin at `right` and `down`: the sum from above plus activation times weight, row by row of
    the `crossed` ones; what enters is in the `across` first columns at once.
    """
    _, buffers, rows, cols = weights.shape
    arrays, planes, _ = entering.shape
    for array in range(arrays):
        for plane in range(planes):
            tags[array, plane, 0, right : right + across] = entering_tag[array, plane, 0]
            for col in range(cols):
                # The sum starts from the bias that came with the weights the element is meant for.
                one, other = biases[array, 0, col], biases[array, buffers - 1, col]
                sums[array, plane, down, col] = one if tags[array, plane, 0, right + col] & 1 else other
            for row in range(rows):
                activation = activations[array, plane, row, right : right + cols]
                tag = tags[array, plane, row, right : right + cols]
                activation[:across], tag[:across] = entering[array, plane, row], entering_tag[array, plane, row]
                total = sums[array, plane, down + row // crossed]
                first, last = weights[array, 0, row], weights[array, buffers - 1, row]
                # Counted as elements enter and leave the row: mostly all are meant for one buffer, and the loop needs
                # no choice.
                odd[array, plane, row] += across * (tag[0] & 1)
                for col in range(right + cols, right + cols + across):
                    odd[array, plane, row] -= tags[array, plane, row, col] & 1
                if 0 < odd[array, plane, row] < cols:
                    for col in range(cols):
                        # Both are loaded before one is chosen: without a branch the loop runs on vector registers.
                        one, other = first[col], last[col]
                        total[col] += activation[col] * (one if tag[col] & 1 else other)
                else:
                    all_of = first if odd[array, plane, row] else last
                    for col in range(cols):
                        total[col] += activation[col] * all_of[col]


class WeightRegisters(NamedTuple):
    """Weight registers, one or two in every PE, whose outputs are wires to the multiplier.

    Beside them one moving register, and its tag, for each weight that enters a column in a cycle, in each group of rows
    that a weight reaches in the same cycle. They move by turning: group `i` has row `at[DOWN] + i`, counted around, of
    `moving` and `tags`, [group, (array, chain, col)]. So a weight stays in its cell, and reaches its PE at a turn that
    is known as it enters. When nothing has entered for as many cycles as there are groups, nothing is on its way.

    Attributes:
        due: the first cell whose weight is at its PE when group 0 has each row; `other`: the next such cell, or -1.
        cells: `moving`, one row behind the other.
        place: where the weight of each cell goes, among `weights`, all weight registers one behind the other.
        group: the group of each row of the array.
    """

    moving: Floats
    tags: Ints
    due: Counts
    other: Counts
    cells: Floats
    place: Counts
    weights: Floats
    group: Counts
    at: Counts

    @classmethod
    def of(cls, wires: Wires) -> WeightRegisters:
        """The moving registers, all empty."""
        group = np.arange(wires.weights.shape[2]) // wires.crossed
        groups = int(group[-1]) + 1
        cells = groups, wires.weight.size
        due, (other, place) = np.full(groups, -1), np.zeros((2, groups * wires.weight.size), np.int64)
        moving, tags = np.zeros(cells, wires.sums.dtype), np.full(cells, -1, np.int32)
        weights = wires.weights.reshape(-1)
        return cls(moving, tags, due, other, moving.reshape(-1), place, weights, group, np.array([0, 0, groups]))

    @property
    def under_way(self) -> int:
        """Weights on their way."""
        return int(np.count_nonzero(self.tags >= 0))


@part
def sample_weights(own: WeightRegisters, wires: Wires) -> None:
    """Take in the weights and tags at the top of every column."""
    at, groups = own.at, len(own.due)
    at[QUIET] = 0 if wires.any[LOADING] else at[QUIET] + 1
    if at[QUIET] > groups:
        return
    (arrays, chains, cols), (_, buffers, rows, _) = wires.weight.shape, wires.weights.shape
    entry, column = (at[DOWN] if at[DOWN] else groups) - 1, 0
    for array in range(arrays):
        for chain in range(chains):
            for col in range(cols):
                tag = wires.weight_tag[array, chain, col]
                own.moving[entry, column], own.tags[entry, column] = wires.weight[array, chain, col], tag
                row = tag >> 1
                if 0 <= row < rows:
                    turn, cell = entry - own.group[row], entry * own.moving.shape[1] + column
                    turn += groups if turn < 0 else 0
                    # Cells that are due at the same turn make a list, so that a turn looks at these alone.
                    own.other[cell], own.due[turn] = own.due[turn], cell
                    own.place[cell] = ((array * buffers + (tag & 1)) * rows + row) * cols + col
                column += 1


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
    head, column = at[DOWN], 0
    for array in range(arrays):
        for _ in range(chains):
            for col in range(cols):
                tag = own.tags[head, column]
                if tag >> 1 == rows:
                    wires.biases[array, tag & 1, col] = own.moving[head, column]
                elif tag >> 1 == 0:
                    wires.biases[array, tag & 1, col] = 0
                column += 1
    cell, own.due[head] = own.due[head], -1
    while cell >= 0:
        own.weights[own.place[cell]] = own.cells[cell]
        cell = own.other[cell]


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
        word, held = np.zeros((arrays, cols, elements), wires.sums.dtype), np.zeros((arrays, cols), np.int64)
        return cls(word, held, wires.sums.copy(), wires.sums_tag.copy(), np.zeros(1, np.int64))


@part
def sample_sums(own: Deserializers, wires: Wires) -> None:
    """Look at the bottom of the array."""
    own.any[0] = wires.any[SUMMING]
    if own.any[0]:
        arrays, planes, cols = own.sums.shape
        for array in range(arrays):
            for plane in range(planes):
                for col in range(cols):
                    own.sums[array, plane, col] = wires.sums[array, plane, col]
                    own.tags[array, plane, col] = wires.sums_tag[array, plane, col]


@part
def commit_sums(own: Deserializers, wires: Wires) -> None:
    """Sums join their words, plane by plane; a full word goes to the vector unit."""
    if not own.any[0]:
        return
    arrays, cols, places, elements = wires.results.shape
    for array in range(arrays):
        for col in range(cols):
            for plane in range(own.tags.shape[1]):
                tag = own.tags[array, plane, col]
                if tag:
                    own.word[array, col, own.held[array, col]] = own.sums[array, plane, col]
                    own.held[array, col] += 1
                # The tag of a word's last element is the only one above LAST.
                if tag > LAST:
                    place = wires.complete[array, col] % places
                    for element in range(elements):
                        wires.results[array, col, place, element] = own.word[array, col, element]
                    wires.complete[array, col] += 1
                    own.held[array, col] = 0
