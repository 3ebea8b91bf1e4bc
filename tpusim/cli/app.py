"""The `tpusim` command.

Exit codes: 0 done; 1 the check failed or the machine deadlocked; 2 bad input, or too little memory; 130 interrupted.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from tpusim.base.errors import InputError
from tpusim.cli.commands import app
from tpusim.cli.terminal import INTERRUPTED, leave_now, prepare_streams, say


def main() -> None:
    """Entry point of the `tpusim` command."""
    prepare_streams()
    try:
        app(prog_name="tpusim")
    except KeyboardInterrupt:
        leave_now()
    except InputError as error:
        sys.exit(_refused(str(error)))
    except OSError as error:
        if error.filename is not None:
            raise
        with suppress(InputError):
            # What is left of it would be tried again at exit.
            say(sys.stdout)
        sys.exit(_refused(f"standard output: cannot be written ({error.strerror})"))
    except SystemExit as exit_:
        if exit_.code == INTERRUPTED:
            leave_now()
        raise


def _refused(message: str) -> int:
    """Say what kept help, which Typer writes itself, from being shown."""
    say(sys.stderr, f"Error: {message}")
    return InputError.exit_code
