"""The command `tpusim`, and `python -m tpusim`."""

import gc
import os
import signal

from tpusim.base.interruption import ENDING, heard, interrupted

_INTERRUPTED = 130


def main() -> None:
    """Ctrl-C while the command is still being imported, or has ended, shows no traceback.

    SIGTERM, by which batch systems and `kill` end a job, and SIGHUP, which comes when a terminal is closed, count as
    Ctrl-C, so that nothing is left half-written.
    """
    heard()
    # Layers are checked side by side, on threads of ours; each of OpenBLAS takes memory, without which it ends.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Pydantic would read the metadata of every package that is installed, to look for plugins that nobody has.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        from tpusim.base.memory import look_seldom

        look_seldom()
        from tpusim.cli import app as cli
    except BaseException as error:
        if not interrupted(error):
            raise
        os.write(2, b"Interrupted; no file was written.\n")
        os._exit(_INTERRUPTED)
    cli.main()
    # All went well and is said; what is left is the interpreter's own end.
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)
    # The interpreter would look through everything for cycles once more.
    gc.freeze()


if __name__ == "__main__":
    main()
