"""``python -m lsmstate``."""

from lsmstate.cli import main

if __name__ == "__main__":
    main()
