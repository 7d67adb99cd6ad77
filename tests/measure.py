"""A tokens stage in a process of its own, with its time and its memory."""

import hashlib
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from eyas.config import Config, config_yaml

PEAK = """
import resource, sys
from pathlib import Path
from eyas.data.prepare import main
main(Path(sys.argv[1]))
print(*(1024 * resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
"""


@dataclass(frozen=True)
class Measured:
    """What one run took."""

    seconds: float
    """With the start of Python and the imports."""
    peak_bytes: int
    """Resident memory of the process that needed most: the one that reads, or one that tokenises."""


def config_file(config: Config, directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "config.yaml"
    file.write_text(config_yaml(config))
    return file


def measured(config: Config, directory: Path) -> Measured:
    """Run the tokens stage of a configuration, which is written into `directory`."""
    command = [sys.executable, "-c", PEAK, str(config_file(config, directory))]
    started = time.monotonic()
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return Measured(time.monotonic() - started, max(map(int, output.split()[-2:])))


def content_hash(directory: Path) -> str:
    """Of every file but the manifest, which names the versions of libraries."""
    digest = hashlib.sha256()
    for file in sorted(directory.iterdir()):
        if file.name != "manifest.json":
            digest.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
