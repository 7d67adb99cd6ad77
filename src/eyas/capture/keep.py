"""`python -m eyas.capture.keep RUN_DIR`: after an on-line training, its states into the store or off the disk."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

from eyas.artifact import remove
from eyas.capture.parity import Parity
from eyas.capture.schema import Keep
from eyas.capture.stage import capture
from eyas.config import Config, load_config
from eyas.data.store import Document, plan_shards, shard_name
from eyas.data.tokens import Tokens
from eyas.data.window import Window
from eyas.process import child_main
from eyas.progress import Progress
from eyas.run import Run
from eyas.stages import parity_file, states_artifact, tokens_artifact


def main(directory: Path) -> None:
    run = Run(directory)
    config = load_config(run.config_file)
    tokens = Tokens(tokens_artifact(config).directory)
    window = Window(run.window, tokens)
    if config.capture.keep is Keep.all:
        missing = tokens.num_rows - len({*window.rows(), *rows_in_shards(config, tokens)})
        if missing:
            print(
                f"capture  {missing:,} of {tokens.num_rows:,} rows were not needed; the others stay in {run.window}, where a "
                "longer training of this run finds them",
                flush=True,
            )
            return

        @contextmanager
        def captured(*_: object) -> Iterator[Captured]:
            yield Captured(window, run.directory / parity_file(config).name)

        capture(config, captured, moves=True)
    remove(run.window)


def rows_in_shards(config: Config, tokens: Tokens) -> list[int]:
    """What an interrupted start of this has moved into the store."""
    partial = states_artifact(config).directory.with_suffix(".partial")
    shards = plan_shards(tokens.lengths, config.capture.tokens_per_shard)
    return [row for index, rows in enumerate(shards) if (partial / shard_name(index)).exists() for row in rows]


@dataclass(frozen=True)
class Captured:
    """Stands in for the verifier: its states are all in the window."""

    window: Window
    proof: Path

    def prove(self) -> Parity:
        said = json.loads(self.proof.read_text())
        return Parity(**{field.name: said[field.name] for field in fields(Parity)})

    def shards(self, missing: Mapping[int, range], progress: Progress) -> Iterator[tuple[int, list[Document]]]:
        for index, rows in missing.items():
            documents = [self.window.read(row) for row in rows]
            progress.advance(sum(len(document.input_ids_T) for document in documents))
            yield index, documents
            for row in rows:  # the shard is written
                self.window.remove(row)


if __name__ == "__main__":
    child_main(main)
