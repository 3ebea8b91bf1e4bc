"""The cut that Google's compiler makes: passes are filled with taps of what is resident, across filter rows.

Read off the instruction counts of 86 convolutions that it compiled for one core of a TPU v2 (docs/validation.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from tpusim.machines.tpu.lowering.dense import Dense, Row
from tpusim.machines.tpu.lowering.geometry import padded
from tpusim.machines.tpu.lowering.reduction import Chunk, Tap, portions_within
from tpusim.machines.tpu.lowering.tiles import channels_in_lanes, images_in_lanes, taps_on_chip

DENSE = "dense", "dense_rows"
"""Ways of `mapping.multi_tile` that fill passes so."""


@dataclass(frozen=True)
class DenseTaps(Dense):
    """T resident taps of c channels take ceil(T c / R) passes; ceil(T / floor(R / c)) where c is at most R / 2.

    c is C_I rounded up to whole words of weights. Up to R / 2 no tap is split; above, passes of R channels of a tap
    come first, and what is left of the channels is packed tap after tap, wherever one ends. Where weights lie with
    their input channels in lanes, none of at least R / 2 shares a pass.

    So the code; what the compiler expects before it writes it (`dense_rows`) is less and more: taps are split wherever
    a pass is full, but from R / 2 channels on none shares a pass with one of another filter row, unless images lie in
    lanes, and where weights lie with their input channels in lanes, none with any other.

    What passes have in common comes from HBM once, and is written to every lane that has a use for it.
    """

    @property
    def transposed(self) -> bool:
        """Where images lie in lanes."""
        return images_in_lanes(self.shape, self.hardware) and not self.hardware.banked

    @property
    def groups(self) -> int:
        """Passes."""
        return len(self._rows)

    row_folds = groups

    @cached_property
    def per_fold(self) -> float:
        """Channels for each place, if all came at once."""
        return self.shape.channels / len(self._whole.places)

    @cached_property
    def multi_tile(self) -> int:
        """Taps in a pass, at most."""
        return max(len({run.tap for run in each.runs}) for each in self._whole.passes)

    @property
    def stacked(self) -> str:
        """What is told of the taps of a pass."""
        split = any(len(run.channels) < self.shape.channels for each in self._whole.passes for run in each.runs)
        words = f"up to {self.multi_tile} stacked in a pass{', split where it is full' if split else ''} (dense)"
        told = [words] if self.multi_tile > 1 else []
        told += ["weights lie with their input channels in lanes: no two taps share a pass"] if self._alone else []
        return "; ".join([*told, *(["images lie in lanes, and are transposed"] if self.transposed else [])])

    def chunks(self, groups: int, folds: int) -> tuple[Chunk, ...]:
        """`groups` passes at a time; what comes for one place is there for all."""
        chunks = super().chunks(groups, folds)
        return chunks if self.by_tap else tuple(replace(chunk, scattered=len(chunk.places) > 1) for chunk in chunks)

    @cached_property
    def _whole(self) -> Chunk:
        (chunk,) = self.chunks(self.groups, 1)
        return chunk

    @cached_property
    def _rows(self) -> list[list[Row]]:
        """The rows of every pass: portions of the channels outside, windows of taps inside."""
        shape, given = self.shape, self.hardware.mapping.block.given
        taps = [(at // shape.col.kernel, at % shape.col.kernel) for at in range(shape.taps)]
        windows = portions_within(shape.taps, taps_on_chip(shape, self.hardware), self._stacked_taps)
        portions = portions_within(shape.channels, None, given.get("in_channels", shape.channels))
        return [
            rows
            for channels, window in product(portions, windows)
            for rows in self._passes(taps[window.start : window.stop], channels)
        ]

    @property
    def _expected(self) -> bool:
        """Whether passes are those of the compiler's estimate, not of its code."""
        return self.hardware.mapping.multi_tile == "dense_rows"

    @property
    def _many_channels(self) -> bool:
        return self.shape.channels >= self.hardware.array.rows / 2

    @property
    def _alone(self) -> bool:
        """Whether no tap shares a pass, as weights lie with their input channels in lanes."""
        return channels_in_lanes(self.shape, self.hardware) and (self._many_channels or self._expected)

    @property
    def _stacked_taps(self) -> int:
        """Taps among which passes are filled: all, or those of a filter row; one column counts as a row."""
        row = self.shape.col.kernel if self.shape.col.kernel > 1 else self.shape.taps
        return row if self._expected and self._many_channels and not self.transposed else self.shape.taps

    def _passes(self, taps: list[Tap], channels: range) -> Iterator[list[Row]]:
        """The passes of some taps over some channels."""
        array = self.hardware.array.rows
        parts = [channels[part.start : part.stop] for part in portions_within(len(channels), None, array)]
        rest = parts.pop() if len(parts[-1]) < array else range(0)
        for tap, part in product(taps, parts):
            yield [(tap, channel) for channel in part]
        rows = [(tap, channel) for tap in taps for channel in rest]
        size = self._pass_rows(len(taps), len(rest), whole=not parts) if rest else 1
        yield from (rows[at : at + size] for at in range(0, len(rows), size))

    def _pass_rows(self, taps: int, channels: int, whole: bool) -> int:
        """Rows a pass, where so many taps of so many channels are stacked, `whole` ones if several fit.

        Of the numbers that need no more passes than they must, the one with the fewest places.
        """
        array = self.hardware.array.rows
        held = min(padded(channels, self.hardware.vector_memory.word_elements), array)
        if self._alone:
            return channels
        if whole and held <= array / 2 and not self._expected:
            return array // held * channels
        passes, every = -(-taps * held // array), taps * channels
        sizes = range(-(-every // passes), min(array, every) + 1)
        return min(sizes, key=lambda size: len({number * size % channels for number in range(passes)}))
