"""A workload file that is read once, and resized: a template, whose lengths come later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tpusim.base.errors import InputError
from tpusim.input.document import Document
from tpusim.network.blocks import EntryReader, wiring_of
from tpusim.network.entries import MOST_LAYERS, count_of
from tpusim.network.workload import Workload, are_sound, names_in, with_sizes
from tpusim.network.workload_file import CACHES, WEIGHTS, workload_of


class Template:
    """A workload of any sizes that its file names: entries stay as they were read, but for those that sizes reach."""

    def __init__(self, document: Document, batch: int) -> None:
        """Raise InputError with every problem of the file."""
        self._document, self._batch, self._reader = document, batch, EntryReader(document)
        self._wiring = wiring_of(document, batch)
        self._ops = document.data.get("ops", "all")
        self._stored = tuple(document.data.get(key, "computed") for key in (WEIGHTS, CACHES))
        self._whole = workload_of(document, batch, "all", self._reader)
        self.work = self._whole.with_asked(None, self._ops)
        """The workload with the sizes of the file."""

    def at(self, sizes: Mapping[str, int]) -> Workload:
        """Return the workload with other sizes. Raises InputError as `load_workload` does."""
        document = with_sizes(self._document, sizes)
        names, sound = names_in(document, self._batch), are_sound(document)
        several = sum(count_of(entry, names) for entry in document.data["layers"])
        try:
            if sound and several <= MOST_LAYERS:
                parts = self._reader.parts(self._reader.read(names, self._wiring.anew()))
                now = tuple((name, names[name]) for name, _ in self._whole.sizes)
                found = replace(self._whole, **parts._asdict(), sizes=now)
                return found.with_stored(*self._stored).with_asked(None, self._ops)
        except InputError:
            pass
        # What is wrong is told with its line by whoever reads the whole file.
        return workload_of(document, self._batch)
