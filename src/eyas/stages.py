"""What each stage's artifact is made of; torch-free, so that the supervisor knows in an instant what is already there.

conversations -> tokens -> states -> run (checkpoints, metrics) -> draft -> evaluation
"""

from pathlib import Path
from typing import Any

from eyas.artifact import Artifact, fingerprint, sha256_of
from eyas.config import Config, Engine, to_dict
from eyas.data.mixture import mixture_identity
from eyas.draft.shape import Shape, resolve_shape
from eyas.errors import EyasError
from eyas.verifier.facts import VerifierFacts, resolve
from eyas.verifier.locate import locate
from eyas.verifier.tokenizer import tokenizer_identity


def tokens_artifact(config: Config) -> Artifact:
    """`input_ids` and `loss_mask` of every row: determined by the conversations, the tokenizer and the chat template."""
    checkpoint = locate(config.verifier)
    fields = {
        "conversations": mixture_identity(config.data),
        **{key: getattr(config.data, key) for key in ("max_length", "last_turn_only", "reasoning")},
        "tokenizer": tokenizer_identity(config.verifier, checkpoint),
        "chat": to_dict(config.verifier.chat),
        "vocab_size": verifier_facts(config).vocab_size,
    }
    return Artifact(store=store(config), stage="tokens", fields=fields)


def states_artifact(config: Config) -> Artifact:
    """The verifier's hidden states for every token: determined by its weights, the layers, and how it is run."""
    fields = {
        "verifier": locate(config.verifier).identity,
        "layer_ids": draft_shape(config).layer_ids,
        "last": config.verifier.target.name,
        "modules": to_dict(config.verifier.transformers),
        "capture": to_dict(config.capture),
    }
    return Artifact(
        store=store(config), stage="states", fields=fields, inputs={"tokens": tokens_artifact(config).fingerprint}
    )


def parity_file(config: Config) -> Path:
    """Stands in the states' directory once parity has been proved for this reading of the verifier.

    The states themselves do not depend on it: a corrected norm needs no second capture, but a second proof.
    """
    reading = fingerprint("parity", _reading(verifier_facts(config)), {})
    return states_artifact(config).directory / f"parity-{reading[:12]}.json"


def run_identity(config: Config) -> dict[str, Any]:
    """The values that change what a run learns; `trainer`, `logger`, `evaluation` and the length do not."""
    values = to_dict(config)
    for key in ("name", "group", "outputs", "trainer", "logger", "evaluation"):
        del values[key]
    for key in (
        "max_steps",
        "epochs",
        "log_every_n_steps",
        "validate_every_n_steps",
        "checkpoint_every_n_steps",
        "keep_checkpoints",
    ):
        del values["training"][key]
    # Content, not places: a moved file is the same data, a changed one is not; a YAML that says the same in other words too.
    for source in (values["data"], *values["data"]["mixture"].values()):
        for key in ("path", "split", "config", "revision", "max_bad_rows"):
            del source[key]
    del values["data"]["num_processes"]
    values["verifier"] = {
        "weights": locate(config.verifier).identity,
        **_reading(verifier_facts(config)),
        **{key: values["verifier"][key] for key in ("draft", "chat", "stop_token_ids")},
    }
    if config.draft.init is not None and Path(config.draft.init).is_dir():
        values["draft"]["init"] = {file.name: sha256_of(file) for file in sorted(Path(config.draft.init).glob("*.*"))}
    values["data"]["tokens"] = tokens_artifact(config).fingerprint
    return values


def _reading(facts: VerifierFacts) -> dict[str, Any]:
    """How the teacher is made of the checkpoint."""
    return {"arithmetic": to_dict(facts.arithmetic), "tensors": [stored.key for stored in facts.tensors]}


def check_engines(config: Config) -> None:
    """Refuse an engine that this version does not drive.

    Raises:
        EyasError: capture or evaluation by vLLM.
    """
    for group in ("capture", "evaluation"):
        engine = getattr(config, group).engine
        if engine not in (None, Engine.transformers):
            raise EyasError(
                f"{group}={engine.name}: this version of Eyas runs the verifier in transformers only; set {group}=transformers"
            )


def verifier_facts(config: Config) -> VerifierFacts:
    return resolve(config.verifier, locate(config.verifier))


def draft_shape(config: Config) -> Shape:
    return resolve_shape(config, verifier_facts(config))


def store(config: Config) -> Path:
    return Path(config.outputs) / "store"
