"""What a verifier is asked when its logits are checked."""

import torch
from torch import Tensor

from eyas.errors import EyasError
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.schema import VerifierConfig
from eyas.verifier.tokenizer import load_tokenizer

TEXTS = (
    "The hawk was taken from the nest before it could fly, and the falconer trained it for two years.",
    "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\n",
    "Dear Sir or Madam, I am writing to ask whether the train from Prague to Vienna on 3 May is late.",
)


def token_ids(verifier: VerifierConfig, checkpoint: Checkpoint, vocab_size: int) -> list[Tensor]:
    """A few short prompts as ids [S]; without a usable tokenizer, ids spread over the vocabulary."""
    try:
        tokenizer = load_tokenizer(verifier, checkpoint)
    except EyasError:
        generator = torch.Generator().manual_seed(0)
        low = min(8, vocab_size - 1)  # the first ids are special ones in most vocabularies
        return [torch.randint(low, vocab_size, (16,), generator=generator) for _ in TEXTS]
    return [torch.tensor(tokenizer.encode(text)[:48]) for text in TEXTS]
