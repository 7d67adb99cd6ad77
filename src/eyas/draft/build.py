"""Building a run's draft: the verifier's embedding and head rows, and a fresh layer or an existing draft's."""

import torch
from speculators.models.eagle3 import Eagle3SpeculatorConfig

from eyas.config import Config
from eyas.data.tokens import Tokens
from eyas.draft.initial import initial_draft
from eyas.draft.model import Draft, draft_config
from eyas.draft.vocabulary import choose
from eyas.draft.warm import start_from_verifier
from eyas.stages import draft_shape, tokens_artifact, verifier_facts
from eyas.verifier.locate import locate
from eyas.verifier.tensors import read_tensor


def exported_config(config: Config) -> Eagle3SpeculatorConfig:
    """The config.json of this run's draft. It names the verifier by hub id, or by a path that holds from everywhere."""
    checkpoint = locate(config.verifier)
    repository, _, _ = (checkpoint.hub or "").partition("@")
    verifier = repository or str(checkpoint.directory.absolute())
    return draft_config(config.draft, draft_shape(config), verifier=verifier, unroll_steps=config.training.unroll_steps)


def build_draft(config: Config) -> Draft:
    """The draft as training starts it: float32, deterministic for a seed.

    Raises:
        EyasError: `draft.init` names a draft that doesn't fit.
    """
    checkpoint, facts, shape = locate(config.verifier), verifier_facts(config), draft_shape(config)
    start = initial_draft(config, shape) if config.draft.init else None
    if start is not None and start.keeps_vocabulary:
        draft_ids_D = start.draft_ids_D
    else:
        draft_ids_D = choose(Tokens(tokens_artifact(config).directory).counts_V, shape.draft_vocab_size)
    torch.manual_seed(config.seed)
    draft = Draft(exported_config(config), draft_ids_D)
    draft.embed_tokens.weight.data = torch.empty(0)  # of random numbers, as large as the verifier's that comes now
    draft.embed_tokens.weight.data = read_tensor(checkpoint, facts.embedding).float()
    draft.lm_head.weight.data = read_tensor(checkpoint, facts.head)[draft_ids_D].float()
    if config.draft.warm_start:
        start_from_verifier(draft, checkpoint, facts.num_layers)
    if start is not None:
        start.load_into(draft)
    return draft
