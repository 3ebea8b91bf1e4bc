"""`python -m tpusim` is `tpusim`."""

from tpusim.cli import main

if __name__ == "__main__":
    main()
