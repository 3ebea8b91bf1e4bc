"""`tpusim area`: what it takes, and what it says of itself."""

from __future__ import annotations

from tpusim.cli.options import Changes, Hardware, Json
from tpusim.cli.root import app
from tpusim.cli.terminal import NO_FILE, errors_reported


@app.command(epilog="Example: tpusim area --set vector_memory.word_elements=1")
@errors_reported(NO_FILE)
def area(hardware: Hardware = "tpu_v2", changes: Changes = None, json: Json = None) -> None:
    """Show what each part of a machine takes of a chip.

    Areas are in the machine's technology (--set technology=NAME|PATH); each says whether it is a model's or published.

    Exit code 0: done; 2: bad input.
    """
    from tpusim.cli.actions.hardware import show_area

    show_area(hardware, changes or [], json)
