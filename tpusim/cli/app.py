"""The `tpusim` command.

Exit codes: 0 done; 1 the check failed or the machine deadlocked; 2 bad input, or too little memory; 130 interrupted.
"""

from __future__ import annotations

from tpusim.cli.commands import app
from tpusim.cli.terminal import INTERRUPTED, leave_now, prepare_streams


def main() -> None:
    """Entry point of the `tpusim` command."""
    prepare_streams()
    try:
        app(prog_name="tpusim")
    except KeyboardInterrupt:
        leave_now()
    except SystemExit as exit_:
        if exit_.code == INTERRUPTED:
            leave_now()
        raise
