"""What each stage's artifact is made of; torch-free, so that the supervisor knows in an instant what is already there.

conversations -> [responses] -> tokens -> states -> run (checkpoints, metrics) -> draft -> evaluation
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from eyas.artifact import Artifact, fingerprint, read_manifest, sampled_identity
from eyas.capture.schema import CaptureEngine
from eyas.config import Config, to_dict
from eyas.data.mixture import mixture_identity, split_identity
from eyas.data.schema import DataConfig, Responses, SourceConfig
from eyas.data.shapes import Shape as RowShape
from eyas.data.sources import Files, find_source
from eyas.draft.given import content, find_draft
from eyas.draft.shape import Shape, resolve_shape
from eyas.errors import EyasError
from eyas.evaluation.schema import Engine
from eyas.training.schema import Accelerator
from eyas.verifier.facts import VerifierFacts, resolve
from eyas.verifier.locate import locate
from eyas.verifier.schema import Renderer
from eyas.verifier.tokenizer import tokenizer_identity

OF_NO_RUN = (
    "name",
    "group",
    "outputs",
    "serve",
    "trainer",
    "logger",
    "evaluation",
    "server",
    "export",
    "plan",
    "sweep",
)
"""Groups and keys of the root that don't change what a run learns."""
LENGTHS = ("max_steps", "epochs", "patience")
"""Keys of `training` that say how long it is: a longer one continues a shorter one."""
INTERVALS = ("log_every_n_steps", "validate_every_n_steps", "checkpoint_every_n_steps", "keep_last", "keep_best")
"""Keys of `training` that say what is looked at and kept on the way."""
OF_NO_STATE = ("path", "workers", "device_map", "online", "keep", "window_tokens")
"""Keys of `capture` that change no state."""


def responses_artifact(config: Config) -> Artifact:
    """The verifier's own answers: determined by the questions, its weights, and how it is asked.

    Raises:
        EyasError: answers are added to some that are not known to be its own.
    """
    checkpoint = locate(config.verifier)
    adds = config.data.responses is Responses.add
    if foreign := [it for it in config.data.sources.values() if adds and not _is_own(it, config)]:
        raise EyasError(
            f"data.responses=add: the answers of {foreign[0].path} are not known to be {config.verifier.name}'s; set "
            f"data.answers_by={config.verifier.name} if they are, or data.responses=regenerate"
        )
    fields = {
        "conversations": mixture_identity(config.data),
        "verifier": checkpoint.identity,
        "tokenizer": tokenizer_identity(config.verifier, checkpoint),
        "chat": to_dict(config.verifier.chat),
        "stop_token_ids": config.verifier.stop_token_ids,
        "generation": to_dict(config.generation),
        **({"kept": True} if adds else {}),
    }
    return Artifact(store=store(config), stage="responses", fields=fields)


def canary_file(config: Config) -> Path:
    """What a server of this verifier said first: every stage that serves it compares with the same."""
    return store(config) / f"canary-{locate(config.verifier).identity[:16]}.json"


def probe_file(config: Config) -> Path:
    """Stands once an untrained draft of this shape was served beside this verifier, by this vLLM and with these arguments."""
    server = to_dict(config.server)
    fields = {
        "verifier": locate(config.verifier).identity,
        "draft": {"layer_ids": draft_shape(config).layer_ids, **to_dict(config.draft)},
        "chat": to_dict(config.verifier.chat),
        "vllm": to_dict(config.verifier.vllm),
        "server": {key: server[key] for key in ("endpoints", "command", "args", "env", "kv_cache_dtype")},
        "evaluation": {"k": config.evaluation.k, "dtype": config.evaluation.dtype.name},
    }
    return store(config) / "probe" / f"{fingerprint('probe', fields, {})[:16]}.json"


def regenerates(config: Config) -> bool:
    """Whether the verifier answers anew (`data.responses`)."""
    if config.data.responses is not Responses.auto:
        return config.data.responses is not Responses.keep
    return not all(_is_own(source, config) for source in config.data.sources.values())


def may_be_unanswered(config: Config) -> bool:
    """Whether rows may be questions alone, as no answer of theirs is learnt."""
    return regenerates(config) and config.data.responses is not Responses.add


def _is_own(source: SourceConfig, config: Config) -> bool:
    """Whether a source's answers are known to be the verifier's own: by its name, or by its weights where Eyas made them."""
    if source.answers_by == config.verifier.name:
        return True
    found = find_source(source)
    manifest = read_manifest(found.files[0].parent) if isinstance(found, Files) else {}
    return manifest.get("stage") == "responses" and manifest["fields"]["verifier"] == locate(config.verifier).identity


def answered_data(config: Config) -> DataConfig:
    """The data whose answers are learnt: as configured, or, where the verifier answers anew, the responses artifact."""
    if not regenerates(config):
        return config.data
    anew: dict[str, Any] = dict.fromkeys(("split", "config", "revision", "weight", "max_conversations"))
    anew |= {"path": str(responses_artifact(config).directory), "shape": RowShape.messages, "columns": {}}
    # Of what is set aside there are no answers.
    return replace(config.data, **anew, mixture={}, sample=1.0, max_bad_rows=0.0, set_aside=0)


def tokens_artifact(config: Config) -> Artifact:
    """`input_ids` and `loss_mask` of every row: determined by the conversations, the tokenizer and the chat template."""
    checkpoint = locate(config.verifier)
    anew = {"responses": responses_artifact(config).fingerprint} if regenerates(config) else {}
    fields = {
        **({} if anew else {"conversations": mixture_identity(config.data)}),
        **split_identity(config.data),
        **{key: getattr(config.data, key) for key in ("max_length", "last_turn_only", "reasoning")},
        "tokenizer": tokenizer_identity(config.verifier, checkpoint),
        "chat": to_dict(config.verifier.chat),
        "vocab_size": verifier_facts(config).vocab_size,
    }
    return Artifact(store=store(config), stage="tokens", fields=fields, inputs=anew)


def states_artifact(config: Config) -> Artifact:
    """The verifier's hidden states for every token: determined by its weights, the layers, and how it is run."""
    fields = {
        "verifier": locate(config.verifier).identity,
        "layer_ids": draft_shape(config).layer_ids,
        "last": config.verifier.target.name,
        "modules": to_dict(config.verifier.transformers),
        "capture": _how_captured(config),
    }
    if config.capture.engine is CaptureEngine.vllm:  # a cache in fp8 makes other states
        fields["kv_cache_dtype"] = config.server.kv_cache_dtype
    if config.capture.engine is CaptureEngine.files:
        fields["files"] = sampled_identity(state_files(config))
    return Artifact(
        store=store(config), stage="states", fields=fields, inputs={"tokens": tokens_artifact(config).fingerprint}
    )


def is_online(config: Config) -> bool:
    """Whether training reads states from a capture beside it; where they are in the store already, it reads those."""
    return config.capture.online and not states_artifact(config).exists()


def _how_captured(config: Config) -> dict[str, Any]:
    """What of the group `capture` the states depend on; not where they are, when and on which devices they come, or how long
    they are kept."""
    return {key: value for key, value in to_dict(config.capture).items() if key not in OF_NO_STATE}


def num_capture_workers(config: Config) -> int:
    """Processes that capture=transformers has: as many as are asked for, or one for each device."""
    if config.capture.workers is not None:
        return config.capture.workers
    one = config.capture.device_map is not None or config.trainer.accelerator is Accelerator.cpu
    return 1 if one else config.trainer.devices


def state_files(config: Config) -> list[Path]:
    """The files of capture=files.

    Raises:
        EyasError: there are none.
    """
    found = sorted(Path(config.capture.path or "").glob("*.safetensors"))
    if not found:
        raise EyasError(
            f"capture.path={config.capture.path}: no *.safetensors there; expected hs_<row>.safetensors for each row of the "
            "tokens artifact (docs/capture_files.md)"
        )
    return found


def parity_file(config: Config) -> Path:
    """Stands in the states' directory once parity has been proved for this reading of the verifier.

    The states themselves do not depend on it: a corrected norm needs no second capture, but a second proof.
    """
    reading = fingerprint("parity", _reading(verifier_facts(config)), {})
    return states_artifact(config).directory / f"parity-{reading[:12]}.json"


def run_identity(config: Config) -> dict[str, Any]:
    """The values that change what a run learns; `trainer`, `logger`, `evaluation`, `export`, `plan`, `sweep` and the length do not."""
    values = to_dict(config)
    for key in OF_NO_RUN:
        del values[key]
    for key in (*LENGTHS, *INTERVALS):
        del values["training"][key]
    # Content, not places: a moved file is the same data, a changed one is not; a YAML that says the same in other words too.
    for source in (values["data"], *values["data"]["mixture"].values()):
        for key in ("path", "split", "config", "revision", "answers_by", "max_bad_rows"):
            del source[key]
    values["capture"] = _how_captured(config)
    del values["data"]["num_processes"], values["data"]["responses"], values["generation"]
    values["verifier"] = {
        "weights": locate(config.verifier).identity,
        **_reading(verifier_facts(config)),
        **{key: values["verifier"][key] for key in ("draft", "chat", "stop_token_ids")},
    }
    if config.draft.init is not None and Path(config.draft.init).is_dir():
        values["draft"]["init"] = content(Path(config.draft.init), config.draft.init)
    values["data"]["tokens"] = tokens_artifact(config).fingerprint
    return values


def measurement_identity(config: Config) -> dict[str, Any]:
    """The values that an evaluation of a given draft (`draft.init`) stands for; how it is measured is not part of it."""
    draft = str(config.draft.init)
    return {
        "draft": content(find_draft(draft, draft), draft),
        "verifier": {"weights": locate(config.verifier).identity, **_reading(verifier_facts(config))},
        "tokens": None if config.evaluation.prompts else tokens_artifact(config).fingerprint,
    }


def _reading(facts: VerifierFacts) -> dict[str, Any]:
    """How the teacher is made of the checkpoint."""
    return {"arithmetic": to_dict(facts.arithmetic), "tensors": [stored.key for stored in facts.tensors]}


def served_stages(config: Config) -> dict[str, str]:
    """What needs the verifier in a vLLM server, each with the setting that does without."""
    stages: dict[str, str] = {}
    if regenerates(config):
        stages["answers of the verifier's own"] = "data.responses=keep (if the answers that are there are its own)"
    if config.verifier.chat.renderer is Renderer.server:
        stages["verifier.chat.renderer=server"] = "verifier.chat.renderer=tokenizer"
    if config.capture.engine is CaptureEngine.vllm:
        stages["capture=vllm"] = "capture=transformers"
    if config.evaluation.engine is Engine.vllm:
        stages["evaluation=vllm"] = "evaluation=transformers"
    return stages


def check_server(config: Config) -> None:
    """Whether vLLM is there, where a stage needs it.

    Raises:
        EyasError: it isn't, with the two ways out.
    """
    stages = served_stages(config)
    if not stages or config.server.endpoints is not None or shutil.which(config.server.command[0]):
        return
    raise EyasError(
        f"vLLM is needed for {', '.join(stages)}, but server.command: there is no program {config.server.command[0]}; install "
        "vLLM (in an environment of its own if you like: server.command=[/path/to/bin/vllm,serve]) or use servers that run "
        f"(server=endpoints, for all but evaluation=vllm); without vLLM: {' '.join(stages.values())}"
    )


def verifier_facts(config: Config) -> VerifierFacts:
    return resolve(config.verifier, locate(config.verifier))


def draft_shape(config: Config) -> Shape:
    return resolve_shape(config, verifier_facts(config))


def store(config: Config) -> Path:
    return Path(config.outputs) / "store"
