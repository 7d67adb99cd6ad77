"""Large files of conversations: single turns that differ, from the demo's own words."""

import json
import random
from pathlib import Path

DEMO = Path(__file__).parents[1] / "conf" / "data" / "demo.jsonl"


def write_conversations(file: Path, num_bytes: int, *, unused: float = 0.0, seed: int = 0) -> int:
    """Write about so many bytes as JSON lines, a share of them in a column that nobody reads; returns how many lines."""
    lines = map(json.loads, DEMO.read_text().splitlines())
    words = " ".join(turn["content"] for line in lines for turn in line["conversations"]).split()
    chance = random.Random(seed)
    number = written = 0
    with file.open("w") as stream:
        while written < num_bytes:
            first, length = chance.randrange(len(words) - 400), chance.randrange(50, 400)
            question = f"Question {number}: {' '.join(words[first : first + 12])}?"
            answer = " ".join(words[first + 12 : first + length])
            messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            other = "x" * int(unused / (1 - unused) * (len(question) + len(answer)))
            written += stream.write(json.dumps({"messages": messages, "other": other}) + "\n")
            number += 1
    return number
