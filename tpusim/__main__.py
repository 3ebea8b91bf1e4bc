"""The command `tpusim`, and `python -m tpusim`."""

import os

_INTERRUPTED = 130


def main() -> None:
    """Ctrl-C while the command is still being imported ends it without a traceback."""
    try:
        from tpusim.cli import app as cli
    except KeyboardInterrupt:
        os._exit(_INTERRUPTED)
    cli.main()


if __name__ == "__main__":
    main()
