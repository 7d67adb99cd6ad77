"""A draft beside its verifier, in the words of `vllm serve`."""

import json
from pathlib import Path


def draft_args(draft: Path | str, k: int) -> list[str]:
    """The arguments that make the server draft k tokens a time."""
    return ["--speculative-config", json.dumps({"method": "eagle3", "model": str(draft), "num_speculative_tokens": k})]
