"""A workload file that is read once, and resized: entries stay as they were read, but for those that sizes reach."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tpusim.base.errors import InputError
from tpusim.input.document import Document
from tpusim.input.scalars import path_of
from tpusim.network.entries import LOWERING, MOST_LAYERS, HandedOn, Read, Wiring, count_of, read_layers
from tpusim.network.workload import Workload, are_sound, names_in, sizes_named, with_sizes
from tpusim.network.workload_file import CACHES, WEIGHTS, in_network_order, wiring_of, workload_of

_WORD = re.compile(r"[^\W\d]\w*")
_Kept = tuple[tuple[list[int | None], list[HandedOn]], Read, Mapping[str, HandedOn]]
"""All that the reading of an entry depends on, what was read, and what the entry and the inputs hand on."""


class Template:
    """A workload of any sizes that its file names."""

    def __init__(self, document: Document, batch: int) -> None:
        """Raise InputError with every problem of the file."""
        self._document, self._batch = document, batch
        self._ops = document.data.get("ops", "all")
        self._stored = tuple(document.data.get(key, "computed") for key in (WEIGHTS, CACHES))
        self._whole, self._wiring = workload_of(document, batch, "all"), wiring_of(document, batch)
        self.work = self._whole.with_ops(self._ops)
        """The workload with the sizes of the file."""
        self._entries: Sequence[Mapping[str, Any]] = document.data["layers"]
        self._words = [tuple(dict.fromkeys(_WORD.findall(repr(entry)))) for entry in self._entries]
        self._places = [document.place(path_of(("layers", at, LOWERING)))[0] for at in range(len(self._entries))]
        self._kept: dict[int, _Kept] = {}

    def at(self, sizes: Mapping[str, int]) -> Workload:
        """Return the workload with other sizes. Raises InputError as `load_workload` does."""
        document = with_sizes(self._document, sizes)
        names, wiring = names_in(document, self._batch), self._wiring.anew()
        several = sum(count_of(entry, names) for entry in self._entries if "count" in entry)
        if not are_sound(document) or several > MOST_LAYERS:
            return workload_of(document, self._batch)
        try:
            read = [self._read(index, names, wiring) for index in range(len(self._entries))]
        except InputError:
            # What is wrong is told with its line by whoever reads the whole file.
            return workload_of(document, self._batch)
        layers, own, edges, biases = in_network_order(read, self._places)
        now = tuple((name, names[name]) for name in sizes_named(document))
        found = replace(self._whole, layers=layers, lowerings=own, edges=edges, biases=biases, sizes=now)
        return found.with_stored(*self._stored).with_ops(self._ops)

    def _read(self, index: int, names: Mapping[str, int], wiring: Wiring) -> Read:
        """Return an entry for sizes of these `names`, whose `wiring` knows it afterwards."""
        entry = self._entries[index]
        given = [names.get(word) for word in self._words[index]], wiring.read_by(entry)
        if index not in self._kept or self._kept[index][0] != given:
            self._kept[index] = given, read_layers(entry, names, wiring), wiring.known(entry["name"])
        else:
            wiring.know(entry["name"], self._kept[index][2])
        return self._kept[index][1]
