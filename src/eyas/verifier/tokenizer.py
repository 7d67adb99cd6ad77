"""The verifier's tokenizer, its chat template and the tokens that end an answer."""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from eyas.errors import EyasError
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.schema import VerifierConfig

if TYPE_CHECKING:  # an identity needs no transformers
    from transformers import PreTrainedTokenizerBase

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",  # its stop tokens end the supervised spans
)

VOCABULARY_FILES = ("tokenizer.json", "*.model", "vocab.*", "*.tiktoken", "tekken.json", "tokenization_*.py")
"""One of these must exist: without any, transformers makes an empty tokenizer of a model type it knows."""


def tokenizer_directory(verifier: VerifierConfig, checkpoint: Checkpoint) -> Path:
    """`verifier.tokenizer.path`, else the checkpoint's own directory.

    Raises:
        EyasError: no such directory.
    """
    if verifier.tokenizer.path is None:
        return checkpoint.directory
    directory = Path(verifier.tokenizer.path).expanduser()
    if not directory.is_dir():
        raise EyasError(f"verifier.tokenizer.path={verifier.tokenizer.path}: there is no such directory")
    return directory


def tokenizer_identity(verifier: VerifierConfig, checkpoint: Checkpoint) -> str:
    """A hash of the tokenizer, its chat template and the stop tokens."""
    directory = tokenizer_directory(verifier, checkpoint)
    digest = hashlib.sha256(json.dumps(verifier.stop_token_ids).encode())
    for file in [*(directory / name for name in TOKENIZER_FILES), *_template(verifier)]:
        if file.exists():
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def load_tokenizer(verifier: VerifierConfig, checkpoint: Checkpoint) -> "PreTrainedTokenizerBase":
    """The tokenizer, with `verifier.chat.template` as its template where that is set.

    Raises:
        EyasError: no tokenizer, or one whose code is not trusted.
    """
    from transformers import AutoTokenizer

    directory = tokenizer_directory(verifier, checkpoint)
    if not any(file for pattern in VOCABULARY_FILES for file in directory.glob(pattern)):
        raise EyasError(f"{directory} holds no tokenizer ({', '.join(VOCABULARY_FILES)}): set verifier.tokenizer.path")
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            directory, trust_remote_code=verifier.trust_remote_code.tokenizer
        )
    except Exception as error:  # a tokenizer is code of many hands; what it raises where a file is missing is anything
        raise EyasError(
            f"the tokenizer in {directory} can't be loaded: {str(error).strip().splitlines()[0]} "
            "(verifier.tokenizer.path names another; verifier.trust_remote_code.tokenizer: true lets its code run)"
        ) from error
    for template in _template(verifier):
        tokenizer.chat_template = template.read_text()
    return tokenizer


def stop_token_ids(verifier: VerifierConfig, checkpoint: Checkpoint, tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """The tokens that end an answer: as declared, else from generation_config.json, the config and the tokenizer."""
    if verifier.stop_token_ids is not None:
        return sorted(verifier.stop_token_ids)
    ids = {tokenizer.eos_token_id}
    generation = checkpoint.directory / "generation_config.json"
    for config in (json.loads(generation.read_text()) if generation.exists() else {}, checkpoint.config):
        eos = config.get("eos_token_id")
        ids.update(eos if isinstance(eos, list) else [eos])
    return sorted(token for token in ids if token is not None)


def _template(verifier: VerifierConfig) -> list[Path]:
    if verifier.chat.template is None:
        return []
    file = Path(verifier.chat.template).expanduser()
    if not file.is_file():
        raise EyasError(f"verifier.chat.template={verifier.chat.template}: there is no such file")
    return [file]
