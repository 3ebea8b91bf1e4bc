"""The `tpusim` command.

Exit codes: 0 done; 1 the check failed or the machine deadlocked; 2 bad input, or too little memory; 130 interrupted.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from contextlib import suppress

from tpusim.base.errors import InputError
from tpusim.base.imports import FirstCompilation
from tpusim.base.interruption import interrupted
from tpusim.cli.commands import app
from tpusim.cli.terminal import INTERRUPTED, leave_now, prepare_streams, say


def main() -> None:
    """Entry point of the `tpusim` command. Success ends like other programs; everything else ends at once."""
    try:
        prepare_streams()
        warnings.showwarning = _warned
        code = _exit_code()
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code:
        leave_now(code)


def _exit_code() -> int:
    try:
        app(prog_name="tpusim")
    except InputError as error:
        return _refused(str(error))
    except OSError as error:
        if error.filename is not None:
            return _broken()
        with suppress(InputError):
            # The rest of the output would be tried again at exit.
            say(sys.stdout)
        return _refused(f"standard output: cannot be written ({error.strerror})")
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except Exception as error:
        return INTERRUPTED if interrupted(error) else _broken()
    return 0


def _warned(message: Warning | str, *_: object, **__: object) -> None:
    """Show a warning as a line, without the place in the code that Python adds."""
    say(sys.stderr, f"{'Note' if isinstance(message, FirstCompilation) else 'Warning'}: {message}")


def _refused(message: str) -> int:
    """Print the error that kept Typer from showing help."""
    say(sys.stderr, f"Error: {message}")
    return InputError.exit_code


def _broken() -> int:
    """Show a traceback of the program's own failure."""
    traceback.print_exc()
    return 1
