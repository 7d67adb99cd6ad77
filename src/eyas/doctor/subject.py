"""What the doctor examines, and how an error becomes one of its rows."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eyas.config import Config
from eyas.doctor.findings import Finding, Verdict
from eyas.errors import EyasError
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.facts import VerifierFacts
from eyas.verifier.library import Entry
from eyas.verifier.schema import VerifierConfig


@dataclass(frozen=True)
class Subject:
    """What is examined."""

    config: Config
    checkpoint: Checkpoint
    facts: VerifierFacts
    library: Sequence[Entry]

    @property
    def verifier(self) -> VerifierConfig:
        return self.config.verifier


Check = Callable[[Subject], Finding]

EXPECTED = {
    "p01_config_path": "verifier.config.path leads to the one language model whose logits are wanted",
    "p02_keys": "exactly one of the declared names of the embedding, the norm and the head exists, in the declared shape",
    "p03_tied": "verifier.tied is true exactly when no key begins like the head",
    "p04_plain_floats": "embedding, norm and head are plain floats, or a dequantiser is declared",
    "p05_norm": "the norm and head have a bias exactly where one is declared",
    "p06_scales": "every scale of the logits that the config states is applied",
    "p10_vocabulary": "ids of the tokenizer fit the embedding, and no padded id can enter the draft vocabulary",
    "p11_num_layers": "as many layers as the weights hold",
    "p13_draft_shape": "head counts that divide, and a width worth training",
    "p20_mask": "what the verifier wrote is supervised, up to the token that ends it, and nothing else",
    "p22_template": "the reasoning that the verifier writes, and the same template and arguments when training and serving",
    "p23_tokenizer": "one tokenizer and one template from the tokens to serving",
    "p28_rows": "no more bad rows than data.max_bad_rows",
    "p29_overlap": "no held-out prompt is trained on",
    "p50_round_trip": "an exported draft is the live one, tensor by tensor",
    "p51_vllm_config": "vLLM's own class reads the exported config as it is meant",
    "p52_verifier_path": "a draft beside the verifier that it was trained for",
    "export_formats": "formats that can hold this draft",
}


def failure(name: str, error: EyasError) -> Finding:
    """An error as a row; its last clause is its fix, where it says what to do."""
    message = str(error)
    _, *clauses = re.split(r"[;:] (?=(?:set|take|name|choose|read|merge|download|pip|trainer|expected)\b)", message)
    fix = clauses[-1] if clauses else ""
    return Finding(name=name, verdict=Verdict.fail, found=message, expected=EXPECTED.get(name, ""), fix=fix)
