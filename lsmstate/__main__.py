"""``python -m lsmstate``."""

from lsmstate.cli.main import main

if __name__ == "__main__":
    main()
