"""The tokens stage on large files: `python -m tests.stress.tokens [MEGABYTES ...]` (1 GB takes a quarter of an hour).

Prints and checks: peak memory stays within 10 % of the smallest file's, any number of processes makes the same bytes.
Without MEGABYTES it runs 50, 200 and 1000 and writes docs/stress.md.
"""

import sys
import tempfile
from pathlib import Path

from tests.measure import content_hash, measured
from tests.synthetic import write_conversations

from eyas.artifact import read_manifest
from eyas.cli.compose import compose
from eyas.cli.train import make_verifier
from eyas.stages import tokens_artifact

PAGE = Path(__file__).parents[2] / "docs" / "stress.md"
HEADER = """# Tokens: large files

`make stress` (this page is its output): single-turn conversations for SmolLM2-135M's tokenizer, {cores} cores.

| file | conversations | tokens | processes | seconds | tokens/s | peak memory of a process |
|--|--|--|--|--|--|--|
"""


def main(sizes: list[int]) -> None:
    lines: list[str] = []
    peaks: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for megabytes in sizes:
            file = Path(temporary) / f"{megabytes}.jsonl"
            number = write_conversations(file, megabytes << 20)
            hashes = set()
            for processes in (2, 1) if megabytes == min(sizes) else (2,):
                outputs = Path(temporary) / f"{megabytes}-{processes}"
                overrides = [
                    "verifier=smollm2_135m",
                    "data=mine",
                    f"data.path={file}",
                    f"outputs={outputs}",
                    "data.responses=keep",
                ]
                config = compose(
                    [*overrides, "data.max_length=4096", f"data.num_processes={processes}", "experiment=none"], []
                )
                make_verifier(config)
                run = measured(config, outputs)
                peaks.setdefault(processes, run.peak_bytes)
                directory = tokens_artifact(config).directory
                hashes.add(content_hash(directory))
                counts = read_manifest(directory)["counts"]
                tokens = counts["train_tokens"] + counts["held_out_tokens"]
                lines.append(
                    f"| {megabytes} MB | {number:,} | {tokens:,} | {processes} | {run.seconds:.0f} | {tokens / run.seconds:,.0f} "
                    f"| {run.peak_bytes / 2**20:.0f} MiB |"
                )
                print(lines[-1], flush=True)
                assert run.peak_bytes <= 1.1 * peaks[processes], "memory grows with the file"
            assert len(hashes) == 1, "the bytes depend on the number of processes"
            file.unlink()
    if sizes == [50, 200, 1000]:
        PAGE.write_text(HEADER.format(cores=2) + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or [50, 200, 1000])
