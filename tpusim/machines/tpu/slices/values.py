"""Values of an exchange: the memory of every chip, and what messages read from one and put into another."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.slices.exchange import Exchange, ExchangeLog, Messages, MovedPiece
from tpusim.machines.tpu.slices.torus import Place

Values = NDArray[np.float64]


class Memories:
    """The memory of every chip; places that hold no operand are zero."""

    def __init__(self, exchange: Exchange, operands: Mapping[Place, Values]) -> None:
        self._exchange = exchange
        self._held = {place: np.zeros(exchange.memory) for place in operands}
        for place, operand in operands.items():
            start, stop, where = exchange.holds(exchange.rank(place))
            self._held[place][where : where + stop - start] = operand[start:stop]

    def read(self, place: Place, piece: MovedPiece) -> Values:
        """Return the elements of a piece as they are now."""
        return self._held[place][piece.start : piece.stop].copy()

    def put(self, place: Place, piece: MovedPiece, values: Values) -> None:
        """Store or add what has arrived."""
        memory, many = self._held[place], piece.stop - piece.start
        if piece.stored is not None:
            memory[piece.stored : piece.stored + many] = values
        if piece.added is not None:
            memory[piece.added : piece.added + many] += values

    def result(self, place: Place) -> Values:
        """Return what a chip has in the end."""
        ranges = self._exchange.leaves(self._exchange.rank(place))
        return np.concatenate([self._held[place][start:stop] for start, stop in ranges])


def executed(
    exchange: Exchange, messages: Messages, log: ExchangeLog, operands: Mapping[Place, Values]
) -> dict[Place, Values]:
    """Return every chip's result, where messages are read and put when a log says so; `messages` are those of every
    chip.
    """
    memories = Memories(exchange, operands)
    steps = messages.steps
    # What arrives in a cycle is there for what is read in it, as in the register engine.
    events = [(end, 0, message) for message, end in enumerate(log.ends)]
    events += [(starts[0], 1, message) for message, starts in enumerate(log.starts)]
    carried: dict[int, Values] = {}
    for _, reads, message in sorted(events):
        place, step = messages.places[message // steps], exchange.steps[message % steps]
        if reads:
            carried[message] = memories.read(place, step.piece(place))
        else:
            memories.put(step.way.to(place), step.piece(place), carried.pop(message))
    return {place: memories.result(place) for place in messages.places}
