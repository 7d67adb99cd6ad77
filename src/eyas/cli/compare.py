"""`eyas compare RUN... | SWEEP_DIR | wandb:ENTITY/PROJECT[/GROUP]`: which draft is better, and how sure that is."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from eyas.compare.outputs import as_csv, as_json, as_markdown, print_comparison
from eyas.compare.page import as_html
from eyas.compare.read import read_entries
from eyas.compare.table import Comparison, compare_entries
from eyas.errors import EyasError

WRITERS: dict[str, Callable[[Comparison, Path], str]] = {
    "csv": lambda comparison, file: as_csv(comparison),
    "markdown": lambda comparison, file: as_markdown(comparison),
    "json": lambda comparison, file: as_json(comparison),
    "html": as_html,
}
"""What a comparison can be written as, by the option that names the file."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise EyasError(f"eyas compare: {message}; {' '.join(self.format_usage().split())}")


def compare(arguments: list[str]) -> None:
    """Print the tables, and write them where asked.

    Raises:
        EyasError: nothing to compare, an option that there isn't, or a file that can't be written.
    """
    parser = _Parser(prog="eyas compare", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "places", nargs="+", metavar="RUN", help="run directory, directory of runs, wandb:ENTITY/PROJECT"
    )
    for kind in WRITERS:
        parser.add_argument(f"--{kind}", metavar="FILE", type=Path)
    asked = parser.parse_args(arguments)
    comparison = compare_entries(read_entries(asked.places))
    print_comparison(comparison)
    for kind, write in WRITERS.items():
        if (file := getattr(asked, kind)) is not None:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(write(comparison, file))
            except OSError as error:
                raise EyasError(f"--{kind} {file}: can't be written ({error.strerror})") from None
            print(f"compare  {file}")
