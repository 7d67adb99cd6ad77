"""`python -m eyas.capture.worker DIR`: one of several processes that capture; what it needs to know is in DIR (`workers.py`)."""

import math
from pathlib import Path

from eyas.artifact import write_file
from eyas.capture.stage import missing_shards, proof
from eyas.capture.transformers import in_transformers
from eyas.capture.workers import CONFIG, claimed
from eyas.config import load_config
from eyas.data.store import shard_name, write_shard
from eyas.data.tokens import Tokens
from eyas.disk import full_disk_explained
from eyas.process import child_main
from eyas.progress import Progress
from eyas.stages import parity_file, tokens_artifact


def main(orders: Path) -> None:
    config, directory = load_config(orders / CONFIG), orders.parent
    tokens = Tokens(tokens_artifact(config).directory)
    proved = directory / parity_file(config).name
    silent = Progress("capture", None, "tokens", every_seconds=math.inf)  # the stage says how far all of them are
    with full_disk_explained(directory.parent), in_transformers(config, tokens, directory) as engine:
        if not proved.exists():
            write_file(proved, proof(config, engine))
        for index, rows in claimed(missing_shards(config, tokens, directory), orders):
            for _, documents in engine.shards({index: rows}, silent):
                write_shard(directory / shard_name(index), documents)


if __name__ == "__main__":
    child_main(main)
