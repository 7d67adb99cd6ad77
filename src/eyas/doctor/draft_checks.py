"""The doctor's rows about what leaves Eyas: p50 to p53, `export_formats` and `deployment`. None needs a training.

`examine_handover` reads files and values only, so it runs before every training. `examine_export` writes a draft of this
configuration and has vLLM, where it is installed, read its config: half a minute.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from eyas.config import Config
from eyas.doctor.deployment import deployment
from eyas.doctor.findings import Finding, Verdict
from eyas.doctor.subject import failure
from eyas.draft.handover import check_provenance
from eyas.draft.schema import ExportFormat
from eyas.draft.shape import Shape, check_raw, misfits
from eyas.errors import EyasError
from eyas.evaluation.schema import Engine
from eyas.run import Run, read_metrics
from eyas.stages import draft_shape
from eyas.verifier.locate import locate

Check = Callable[[Config], Finding]

SMALL = {"hidden_size": 64, "verifier_vocab_size": 192, "num_attention_heads": 4, "num_key_value_heads": 2}
"""Sizes of the draft that is written for p50; its architecture, norms, layers and positions are the configuration's."""

SERVED_TO_TRAINED = 1 / 3
"""A draft served keeps at least this share of its teacher-forced acceptance at position 1, also on other people's prompts."""

READ_BACK = """
import json, pathlib, sys
try:
    from vllm.transformers_utils.configs.speculators import SpeculatorsConfig
except ImportError as error:
    sys.exit(f"no vLLM: {error}")
directory = sys.argv[1]
read = SpeculatorsConfig.from_pretrained(directory)
method = SpeculatorsConfig.extract_vllm_speculative_config(json.loads(pathlib.Path(directory, "config.json").read_text()))
wanted = json.loads(sys.argv[2])
found = {key: getattr(read, key, None) for key in wanted} | {"method": method.get("method")}
print("READ " + json.dumps(found, default=str))
"""


def examine_handover(config: Config) -> list[Finding]:
    """The rows that cost nothing."""
    return _examine(HANDOVER, config)


def examine_export(config: Config) -> list[Finding]:
    """The rows that write a draft, or start another Python."""
    return _examine(EXPORT, config)


def _examine(rows: dict[str, Check], config: Config) -> list[Finding]:
    findings = []
    for name, check in rows.items():
        try:
            findings.append(check(config))
        except EyasError as error:
            belongs_elsewhere = error.check not in ("", name)
            elsewhere = Finding(name=name, verdict=Verdict.na, found=f"see {error.check}")
            findings.append(elsewhere if belongs_elsewhere else failure(name, error))
    return findings


def round_trip(config: Config) -> Finding:
    """A small draft of this configuration, written as an exported one is, and read back tensor by tensor."""
    import torch

    from eyas.draft.export import compare, save
    from eyas.draft.model import Draft, draft_config
    from eyas.draft.raw import compare_raw, save_raw

    shape = small(draft_shape(config))
    torch.manual_seed(0)
    ids_D = torch.arange(shape.draft_vocab_size) * (shape.verifier_vocab_size // shape.draft_vocab_size)
    draft = Draft(draft_config(config.draft, shape, verifier="somewhere", unroll_steps=1), ids_D)
    for parameter in draft.parameters():
        parameter.data = torch.randn(parameter.shape)
    draft.freeze(trainable_head=config.draft.trainable_head)
    draft.attach()
    raw = ExportFormat.sglang in config.export.formats and not misfits(config.draft, shape)
    with tempfile.TemporaryDirectory(prefix="eyas-") as directory:
        save(draft, Path(directory, "draft"))
        compare(draft, Path(directory, "draft"))
        if raw:
            whole = replace(config, draft=replace(config.draft, layer_ids=shape.layer_ids))
            save_raw(draft, Path(directory, "raw"))
            compare_raw(whole, shape, draft, Path(directory, "raw"))
    count = len(draft.state_dict())
    found = f"{count} tensors of a small draft written and read back equal{', in both formats' if raw else ''}"
    return Finding(name="p50_round_trip", verdict=Verdict.ok, found=found)


def small(shape: Shape) -> Shape:
    """The same kind of draft, of a size that costs nothing; a draft vocabulary stays smaller than the verifier's."""
    whole = shape.draft_vocab_size == shape.verifier_vocab_size
    sizes: dict[str, Any] = {**SMALL, "draft_vocab_size": SMALL["verifier_vocab_size"] // (1 if whole else 3)}
    return replace(shape, **sizes, head_dim=16, intermediate_size=128)


def vllm_config(config: Config) -> Finding:
    """The config.json that would be exported, read by vLLM's own class in the Python that serves."""
    from eyas.draft.build import exported_config
    from eyas.draft.export import tidy_config

    name = "p51_vllm_config"
    python = server_python(config)
    if python is None:
        found = f"no Python of vLLM's found by server.command={config.server.command}"
        if config.server.endpoints is not None:
            found = "vLLM runs elsewhere (server.endpoints)"
        return Finding(name=name, verdict=Verdict.na, found=found)
    exported = exported_config(config)
    exported.architectures = ["Eagle3DraftModel"]
    with tempfile.TemporaryDirectory(prefix="eyas-") as directory:
        exported.save_pretrained(directory)
        tidy_config(Path(directory))
        read, problem = read_by_vllm(python, Path(directory), wanted := as_vllm_reads(config))
    if not read:
        return Finding(name=name, verdict=Verdict.na, found=problem)
    return judge_vllm_config(wanted, read)


def as_vllm_reads(config: Config) -> dict[str, Any]:
    """What vLLM must find in the config of this configuration's draft, by its own names."""
    shape, draft = draft_shape(config), config.draft
    sizes = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size")
    return {
        "eagle_aux_hidden_state_layer_ids": list(shape.layer_ids),
        "draft_vocab_size": shape.draft_vocab_size,
        "vocab_size": shape.verifier_vocab_size,
        "num_hidden_layers": draft.num_layers,
        **{key: getattr(shape, key) for key in sizes},
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_parameters": dict(shape.rope_parameters),
        **{key: getattr(draft, key) for key in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")},
        "method": "eagle3",
    }


def read_by_vllm(python: str, directory: Path, wanted: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """(what vLLM reads for these keys, ""), or ({}, why there is nothing).

    Raises:
        EyasError: vLLM is there and refuses the config.
    """
    command = [python, "-c", READ_BACK, str(directory), json.dumps(wanted)]
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, cwd=directory)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {}, f"{python} gives no answer ({type(error).__name__})"
    lines = [line for line in done.stdout.splitlines() if line.startswith("READ ")]
    if lines:
        read: dict[str, Any] = json.loads(lines[-1].removeprefix("READ "))
        return read, ""
    said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
    if said.startswith("no vLLM"):
        return {}, f"{python} has {said}"
    raise EyasError(f"vLLM does not read the config that would be exported: {said}")


def judge_vllm_config(wanted: dict[str, Any], read: dict[str, Any]) -> Finding:
    name = "p51_vllm_config"
    different = [key for key in wanted if read.get(key) != wanted[key]]
    if not different:
        found = (
            f"vLLM reads layers {read['eagle_aux_hidden_state_layer_ids']} and {len(wanted) - 1} other values as meant"
        )
        return Finding(name=name, verdict=Verdict.ok, found=found)
    return Finding(
        name=name,
        verdict=Verdict.fail,
        found="; ".join(f"vLLM reads {key}={read.get(key)}" for key in different),
        expected=", ".join(f"{key}={wanted[key]}" for key in different),
        fix="this vLLM knows another version of the format: install the one that Eyas names (pip install 'eyas[vllm]')",
    )


def server_python(config: Config) -> str | None:
    """The Python in which `server.command` runs vLLM; None where that can't be told."""
    if config.server.endpoints is not None:
        return None
    program = shutil.which(config.server.command[0])
    if program is None:
        return None
    if Path(program).name.startswith("python"):
        return str(Path(program).absolute())
    beside = [path.parent / name for path in (Path(program), Path(program).resolve()) for name in ("python", "python3")]
    found = next((path for path in beside if path.exists()), None) if Path(program).name == "vllm" else None
    return None if found is None else str(found.absolute())


def verifier_path(config: Config) -> Finding:
    checkpoint = locate(config.verifier)
    check_provenance(config, Run.of(config))
    where = checkpoint.hub or str(checkpoint.directory.absolute())
    found = f"the draft names {where}, and records weights {checkpoint.identity[:12]}"
    return Finding(name="p52_verifier_path", verdict=Verdict.ok, found=found)


def train_and_serve(config: Config) -> Finding:
    """Once it is measured: what was promised teacher-forced, against what was accepted."""
    name, run = "p53_train_and_serve", Run.of(config)
    report = run.evaluation() if run.exists() else {}
    last = {key: value for row in read_metrics(run.metrics_file) for key, value in row.items()}
    trained = last.get("val/acceptance_0")
    if not report or trained is None:
        return Finding(name=name, verdict=Verdict.na, found="nothing is measured yet")
    served, engine = report["acceptance"][0], report["setting"]["engine"]
    found = f"{trained:.0%} right teacher-forced, {served:.0%} accepted in {engine}, at position 1"
    if served >= SERVED_TO_TRAINED * trained:
        return Finding(name=name, verdict=Verdict.ok, found=found)
    other = Engine.vllm if engine == Engine.transformers.name else Engine.transformers
    return Finding(
        name=name,
        verdict=Verdict.warn,
        found=found,
        expected="a third at least: what is trained is what is served",
        fix=f"eyas evaluate {run.directory} evaluation={other.name}: if it accepts as little, states or masks are wrong "
        "(eyas doctor), else what is served is another verifier or another reading of the draft",
    )


def export_formats(config: Config) -> Finding:
    name = "export_formats"
    if ExportFormat.sglang not in config.export.formats:
        return Finding(name=name, verdict=Verdict.ok, found="vllm")
    check_raw(config.draft, draft_shape(config))
    newer = [f"draft.{key}=true" for key in ("fc_norm", "norm_output") if getattr(config.draft, key)]
    if newer:
        return Finding(
            name=name,
            verdict=Verdict.warn,
            found=f"sglang with {', '.join(newer)}, which an older SGLang leaves out without a word",
            expected="a raw Eagle3 draft that every SGLang reads alike",
            fix=f"{' '.join(it.replace('true', 'false') for it in newer)}, or an SGLang that knows EAGLE-3.1",
        )
    return Finding(name=name, verdict=Verdict.ok, found="vllm, and sglang (written and read back, not served)")


HANDOVER: dict[str, Check] = {
    "p52_verifier_path": verifier_path,
    "p53_train_and_serve": train_and_serve,
    "export_formats": export_formats,
    "deployment": deployment,
}
EXPORT: dict[str, Check] = {"p50_round_trip": round_trip, "p51_vllm_config": vllm_config}
