"""What goes out with an exported draft: the line that serves it, and README.md, a model card of what is known. Torch-free."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from eyas.artifact import read_manifest, write_file
from eyas.config import Config
from eyas.draft.given import PROVENANCE_FILE
from eyas.draft.shape import Shape
from eyas.errors import EyasError
from eyas.evaluation.schema import Engine
from eyas.run import Run, read_metrics
from eyas.serving.command import draft_args, served_checkpoint, verifier_args
from eyas.stages import draft_shape, tokens_artifact
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.locate import locate
from eyas.verifier.schema import VerifierConfig

CARD = "README.md"
HERE = "."
"""The draft in its own card: right in the draft's directory, wherever that is copied or uploaded to."""


@dataclass(frozen=True, kw_only=True)
class Handover:
    """All that a card says beside the configuration."""

    shape: Shape
    checkpoint: Checkpoint
    provenance: Mapping[str, Any]
    """The draft's eyas.json."""
    metrics: Sequence[Mapping[str, float]]
    """Rows of metrics.csv, up to the exported step."""
    evaluation: Mapping[str, Any]
    """evaluation.json of this draft; empty: not measured."""
    counts: Mapping[str, Any]
    """What the tokens' manifest counted; empty: it is not there any more."""


def serve_line(verifier: VerifierConfig, checkpoint: Checkpoint, draft: Path | str, k: int) -> str:
    """What serves a draft beside its verifier, for a shell.

    What is deployed wins over what was captured. Data types are vLLM's `auto` unless the verifier's YAML sets them, and
    local files are named absolutely, so that only `draft` may depend on where the line is run.
    """
    deployment, verifier = verifier.deployment, _with_absolute_files(verifier)
    served = served_checkpoint(replace(checkpoint, directory=checkpoint.directory.absolute()))
    args = [*([_absolute(deployment.path)] if deployment.path else served), *verifier_args(verifier)]
    if deployment.quantization is not None:
        args += ["--quantization", deployment.quantization]
    if deployment.kv_cache_dtype is not None:
        args += ["--kv-cache-dtype", deployment.kv_cache_dtype]
    variables = [f"{key}={shlex.quote(value)} " for key, value in verifier.vllm.env.items()]
    return "".join(variables) + shlex.join(["vllm", "serve", *args, *draft_args(draft, k)])


def _with_absolute_files(verifier: VerifierConfig) -> VerifierConfig:
    tokenizer, chat = verifier.tokenizer, verifier.chat
    if tokenizer.path is not None:
        tokenizer = replace(tokenizer, path=_absolute(tokenizer.path))
    if chat.template is not None:
        chat = replace(chat, template=_absolute(chat.template))
    return replace(verifier, tokenizer=tokenizer, chat=chat)


def _absolute(path: str) -> str:
    """A local file or directory by its whole path; anything else (a hub id) as it is."""
    local = Path(path).expanduser()
    return str(local.absolute()) if local.exists() else path


def card(config: Config, it: Handover) -> str:
    """README.md: a header for the hub, how to serve it, what was measured, and how it came about; nothing that isn't known."""
    sections = [
        _header(it),
        f"# {config.name}",
        _introduction(config, it),
        "## Serve it",
        _serving(config, it),
        "## Measured",
        _measured(config, it),
        "## Training",
        _table(["", ""], _training(config, it)),
        "## Provenance",
        _table(["", ""], _provenance(config, it)),
    ]
    return "\n\n".join(sections) + "\n"


def raw_card(config: Config, it: Handover) -> str:
    """README.md of draft-sglang/."""
    ids = it.shape.layer_ids
    return (
        "\n\n".join(
            [
                _header(it),
                f"# {config.name}, raw Eagle3 format",
                "The same tensors as in the speculators format (`draft/`), by the names of EAGLE's authors, SpecForge and "
                f"SGLang. Layer ids are one lower: {[id - 1 for id in ids]} here are {ids} there, the same layers. **For SGLang, "
                "not for vLLM**, which would read these ids by its own convention.",
                "**Not served by Eyas.** Every tensor was read back and is equal; no server has run this directory, and no "
                "number here or in `draft/README.md` was measured with it."
                + (
                    " It sets norm_output or fc_norm (EAGLE-3.1), which an older SGLang ignores."
                    if config.draft.norm_output or config.draft.fc_norm
                    else ""
                ),
                "## Provenance",
                _table(["", ""], _provenance(config, it)),
            ]
        )
        + "\n"
    )


def write_card(config: Config, run: Run) -> None:
    """README.md of the draft that is there, with what has been measured so far; the raw format's beside it."""
    for directory in (run.draft, run.raw_draft):
        if (directory / PROVENANCE_FILE).exists():
            record = json.loads((directory / PROVENANCE_FILE).read_text())
            write_file(
                directory / CARD, (card if directory == run.draft else raw_card)(config, gather(config, run, record))
            )


def gather(config: Config, run: Run, provenance: Mapping[str, Any]) -> Handover:
    """Read what a card says."""
    step, evaluation = provenance["step"], run.evaluation()
    return Handover(
        shape=draft_shape(config),
        checkpoint=locate(config.verifier),
        provenance=provenance,
        metrics=[row for row in read_metrics(run.metrics_file) if row["step"] <= step],
        evaluation=evaluation if evaluation and evaluation["draft"]["step"] == step else {},
        counts=read_manifest(tokens_artifact(config).directory).get("counts", {}),
    )


def check_provenance(config: Config, run: Run) -> None:
    """Whether the exported draft, where there is one, was trained for the verifier that is configured now.

    Raises:
        EyasError: it was trained for other weights: tau would only be low, and nothing would say why.
    """
    file = run.draft / PROVENANCE_FILE
    if not file.exists():
        return
    trained_for, there = json.loads(file.read_text())["verifier"], locate(config.verifier).identity
    if trained_for["weights"] != there:
        raise EyasError(
            f"{run.draft} was trained for weights {trained_for['weights'][:12]} ({trained_for['path']}), and the verifier "
            f"{config.verifier.path or config.verifier.name} holds {there[:12]} now; set verifier.path to the one it was trained for"
        )


def _header(it: Handover) -> str:
    repository, _, _ = (it.checkpoint.hub or "").partition("@")
    fields: dict[str, Any] = {"base_model": repository} if repository else {}
    fields |= {"pipeline_tag": "text-generation", "tags": ["eagle3", "speculative-decoding", "speculators", "eyas"]}
    return f"---\n{yaml.safe_dump(fields, sort_keys=False)}---"


def _introduction(config: Config, it: Handover) -> str:
    verifier = it.checkpoint.hub or config.verifier.name
    return (
        f"An EAGLE-3 draft model for **{verifier}**, to make it decode faster: vLLM drafts a few tokens with it, and the "
        "verifier checks them in one forward, so what is written is the verifier's own. It is of use beside exactly this "
        "verifier. It is in the `speculators` format, trained with Eyas."
    )


def _serving(config: Config, it: Handover) -> str:
    line = serve_line(config.verifier, it.checkpoint, HERE, config.evaluation.k)
    notes = [f"Run it in this directory; anywhere else, put this directory or its hub id in the place of `{HERE}`."]
    if it.checkpoint.hub is None or config.verifier.deployment.path is not None:
        notes.append("The verifier is named by its place where this was trained; put yours in.")
    notes.append("Data types are left to vLLM (`auto`); add what your machine needs, such as `--tensor-parallel-size`.")
    return f"```bash\n{line}\n```\n\n{' '.join(notes)}"


def _measured(config: Config, it: Handover) -> str:
    if not it.evaluation:
        return "Nothing yet: this draft has not decoded anything."
    setting = it.evaluation["setting"]
    asked = f"{it.evaluation['num_prompts']} prompts ({setting['prompts']}), up to {setting['max_tokens']} tokens each"
    engine = f"{setting['engine']}, {setting['dtype']}, temperature {setting['temperature']:g}"
    lines = [
        f"Speculative decoding for real: {engine}, chain drafting, {asked}{_chat(setting)}. tau: tokens per forward of the "
        "verifier, accepted + 1.",
        measurement_table(it.evaluation),
        *(f"- {line}" for line in it.evaluation["verdict"][1:]),
    ]
    if any(value is not None for value in vars(config.verifier.deployment).values()):
        lines.append("- measured beside the verifier that was captured, not beside what the line above serves")
    if setting["engine"] == Engine.transformers.name:
        lines.append("- speeds are those of a simple loop in transformers, one sequence at a time, not of a server")
    head, table, *items = lines
    return "\n\n".join([head, table, *(["\n".join(items)] if items else [])])


def _chat(setting: Mapping[str, Any]) -> str:
    kwargs = setting.get("chat", {}).get("kwargs")
    return f", chat template with {json.dumps(kwargs)}" if kwargs else ""


def measurements(evaluation: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One line for each k, prompt set, length and number of requests at a time."""
    setting, rate = evaluation["setting"], evaluation["tokens_per_second"]
    alone = {"prompts": setting["prompts"], "k": setting["k"], "concurrency": 1, **evaluation}
    return evaluation.get("measured") or [{**alone, "speedup": rate["speculative"] / rate["plain"]}]


def measurement_table(evaluation: Mapping[str, Any]) -> str:
    """The measurements, as Markdown."""
    lines = measurements(evaluation)
    lengths = any(line.get("length") for line in lines)
    columns = ["prompts", *(["length"] if lengths else []), "k", "at a time", "tau", "accepted at 1, 2, ... (joint)"]
    rows = []
    for line in lines:
        rate = line["tokens_per_second"]
        shares = "  ".join(f"{share:.0%}" for share in line["acceptance"])
        speeds = [f"{rate[way]:,.1f}" for way in ("speculative", "plain")]
        length = [line.get("length") or ""] if lengths else []
        place = [line["prompts"], *length, f"{line['k']}", f"{line['concurrency']}"]
        rows.append([*place, f"{line['tau']:.2f}", shares, *speeds, f"{rate['speculative'] / rate['plain']:.2f}x"])
    return _table([*columns, "tokens/s", "without", "speed-up"], rows)


def _training(config: Config, it: Handover) -> list[list[str]]:
    shape, training, draft = it.shape, config.training, config.draft
    last = {key: value for row in it.metrics for key, value in row.items()}
    length = (
        f"{it.provenance['step']:,} steps of {training.rows_per_step} packed rows of {training.row_length:,} tokens"
    )
    rows = [["length", length]]
    if it.counts:
        tokens = f"{it.counts['train_tokens']:,} tokens, {it.counts['train_supervised_tokens']:,} of them supervised"
        rows.append(["data", f"{config.data.name}: {tokens}"])
    for key, name in (("train/loss", "loss, training"), ("val/loss", "loss, held out")):
        if key in last:
            rows.append([name, f"{last[key]:.3f} ({training.loss.name} per target)"])
    if "val/tau_sim" in last:
        rows.append(
            ["tau, teacher-forced", f"{last['val/tau_sim']:.2f} on held-out text (an estimate, and it flatters)"]
        )
    flags = [
        flag for flag in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output") if getattr(draft, flag)
    ]
    heads = f"{shape.num_attention_heads} heads of {shape.head_dim}, {shape.num_key_value_heads} key-value heads"
    rows += [
        ["layer ids", f"{shape.layer_ids}: the residual stream entering these layers, as vLLM counts"],
        ["draft vocabulary", f"{shape.draft_vocab_size:,} of {shape.verifier_vocab_size:,} tokens"],
        ["layer", f"{draft.num_layers} x {draft.architecture.name}, {heads}, FFN {shape.intermediate_size:,}"],
        ["norms", ", ".join(flags) or "as in EAGLE-3"],
        ["unrolled", f"{training.unroll_steps} draft steps in training"],
        ["states", f"captured with {config.capture.engine.name} in {config.capture.dtype.name}"],
    ]
    return rows


def _provenance(config: Config, it: Handover) -> list[list[str]]:
    record, versions = it.provenance, it.provenance.get("versions", {})
    rows = [
        ["verifier", f"{it.checkpoint.hub or config.verifier.name}, weights `{record['verifier']['weights'][:16]}`"],
        ["tokens, states", f"`{record['tokens'][:16]}`, `{record['states'][:16]}`"],
        ["versions", ", ".join(f"{name} {version}" for name, version in versions.items())],
    ]
    if record.get("git"):
        rows.append(["git", f"`{record['git'][:12]}`"])
    return [*rows, ["in full", f"`{PROVENANCE_FILE}`"]]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["--"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
