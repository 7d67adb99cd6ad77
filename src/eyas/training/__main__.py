"""`python -m eyas.training RUN_DIR`: trains; Lightning starts this same command again for its other ranks."""

from pathlib import Path

from eyas.process import child_main
from eyas.run import Run
from eyas.training.fit import fit


def main(directory: Path) -> None:
    fit(Run(directory))


if __name__ == "__main__":
    child_main(main)
