"""Short conversations of various lengths, in a file."""

import json
from pathlib import Path


def write_talks(file: Path, number: int, *, long_every: int = 12) -> Path:
    """Rows of 60 to 180 bytes, and now and then one of 700."""
    with file.open("w") as lines:
        for n in range(number):
            text = f"{n} plus 7 is {n + 7}." + " Count on." * (60 if n % long_every == 0 else n % 12)
            turns = [{"role": "user", "content": f"What is {n} plus 7?"}, {"role": "assistant", "content": text}]
            lines.write(json.dumps({"messages": turns}) + "\n")
    return file
