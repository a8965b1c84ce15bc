"""``python -m tracebench``."""

from tracebench.cli import main

if __name__ == "__main__":
    main()
