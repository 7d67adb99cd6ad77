"""`python -m eyas.training RUN_DIR`: trains and exports; Lightning starts this same command again for its other ranks."""

from pathlib import Path

from eyas.artifact import full_disk_explained
from eyas.draft.export import export
from eyas.process import child_main
from eyas.run import Run
from eyas.training.fit import fit


def main(directory: Path) -> None:
    run = Run(directory)
    with full_disk_explained(directory):
        if fit(run):  # here rather than in a process of its own, which would take as long to start as to export
            export(run)


if __name__ == "__main__":
    child_main(main)
