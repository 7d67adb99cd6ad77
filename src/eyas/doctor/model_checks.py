"""The doctor's rows that need the whole verifier in memory: its modules, its epsilon, and parity.

Shapes: N positions, H hidden size, V verifier vocabulary.
"""

import math
from typing import Any

import psutil
import torch
from torch import Tensor

from eyas.capture.modules import Modules, find_modules
from eyas.capture.parity import TIMES_WORSE, alternatives, compare, confusable, embeds, own_logits
from eyas.capture.tap import load_verifier
from eyas.config import Config
from eyas.doctor.findings import Finding, Verdict
from eyas.doctor.prompts import token_ids
from eyas.doctor.subject import failure
from eyas.errors import EyasError
from eyas.training.schema import Accelerator
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.facts import VerifierFacts
from eyas.verifier.schema import NormKind, Target
from eyas.verifier.teacher import Teacher
from eyas.verifier.tensors import read_tensor

MODEL_ROWS = ("p08_modules", "p05_epsilon", "embedding", "parity")


@torch.no_grad()
def examine_model(config: Config, checkpoint: Checkpoint, facts: VerifierFacts) -> list[Finding]:
    """Load the verifier if it fits, and compare what it does with what the YAML says."""
    dtype = dtype_that_fits(config, checkpoint)
    if dtype is None:
        size = f"{num_parameters(checkpoint) / 1e9:.1f}e9 parameters do not fit into memory here"
        return [Finding(name=name, verdict=Verdict.na, found=size) for name in MODEL_ROWS]
    device = torch.device(config.trainer.accelerator.name)
    try:
        model = load_verifier(checkpoint, config.verifier, dtype, device, config.capture.device_map)
        modules = find_modules(model, config.verifier, facts.num_layers)
        prompts = token_ids(config.verifier, checkpoint, facts.vocab_size)
        states = own_logits(model, modules, config.verifier, prompts)
    except EyasError as error:
        rest = [Finding(name=name, verdict=Verdict.na, found="needs the modules") for name in MODEL_ROWS[1:]]
        return [failure(MODEL_ROWS[0], error), *rest]
    where = ", ".join(f"{what}: {path}" for what, path in modules.paths.items())
    return [
        Finding(
            name="p08_modules", verdict=Verdict.ok, found=f"each layer reads what the one before it writes; {where}"
        ),
        _epsilon(modules, facts),
        *_parity(checkpoint, facts, torch.cat(prompts), states, dtype),
    ]


def num_parameters(checkpoint: Checkpoint) -> int:
    """All parameters, from the headers."""
    return sum(math.prod(checkpoint.header(key).shape) for key in checkpoint.file_of)


def dtype_that_fits(config: Config, checkpoint: Checkpoint) -> torch.dtype | None:
    """float32 if the verifier fits so, else bfloat16, else None; a third of the memory is left to the forward."""
    if config.trainer.accelerator is Accelerator.cuda and torch.cuda.is_available():
        used = 1 if config.capture.device_map is None else torch.cuda.device_count()
        available = sum(torch.cuda.mem_get_info(device)[0] for device in range(used))
    else:
        available = psutil.virtual_memory().available
    size = num_parameters(checkpoint)
    return next((dtype for dtype in (torch.float32, torch.bfloat16) if size * dtype.itemsize < available * 2 / 3), None)


def _epsilon(modules: Modules, facts: VerifierFacts) -> Finding:
    """By value: where states are large, no comparison of logits would see another epsilon."""
    arithmetic, norm = facts.arithmetic, modules.last
    own = next((getattr(norm, key) for key in ("variance_epsilon", "eps", "epsilon") if hasattr(norm, key)), None)
    if arithmetic.target is Target.head_input or arithmetic.norm is NormKind.none or not isinstance(own, float):
        return Finding(name="p05_epsilon", verdict=Verdict.na, found="the norm module states none")
    found = f"{arithmetic.eps:g} by the YAML, {own:g} in the model"
    if math.isclose(own, arithmetic.eps, rel_tol=1e-6):
        return Finding(name="p05_epsilon", verdict=Verdict.ok, found=found)
    return Finding(
        name="p05_epsilon",
        verdict=Verdict.fail,
        found=found,
        expected="the same epsilon",
        fix="verifier.norm.eps must name the key that the model reads, or {config: null, value: x}",
    )


def _parity(
    checkpoint: Checkpoint,
    facts: VerifierFacts,
    ids_N: Tensor,
    states: tuple[Tensor, Tensor, Tensor],
    dtype: torch.dtype,
) -> list[Finding]:
    first_NH, state_NH, own_NV = states
    own_NV = own_NV[:, : facts.vocab_size]
    teacher: Any = Teacher.from_checkpoint(checkpoint, facts, dtype)
    teacher = teacher.to(state_NH.device)
    parity = compare(teacher(state_NH), own_NV, dtype)
    others = alternatives(teacher, state_NH, own_NV)
    near = confusable(others, parity)
    found = f"{parity} ({str(dtype).removeprefix('torch.')})"
    if others:
        closest = min(others, key=lambda it: it.kl)
        found += f"; nearest other reading: {closest.name}, KL {closest.kl:.1e}"
    holds = parity.holds(dtype) and not near
    fix = "verifier.norm, verifier.pre_head, verifier.post_head or verifier.keys is not what this model does"
    if (better := min(others, key=lambda it: it.kl, default=None)) and TIMES_WORSE * better.kl < parity.kl:
        fix = f"the reading `{better.name}` is nearer to this model: correct the YAML"
    row = Finding(name="parity", verdict=Verdict.ok, found=found)
    if not holds:
        expected = "argmax equal everywhere, KL < 1e-3, and every other reading at least five times worse"
        row = Finding(name="parity", verdict=Verdict.fail, found=found, expected=expected, fix=fix)
    return [_embedding(checkpoint, facts, ids_N, first_NH, dtype), row]


def _embedding(
    checkpoint: Checkpoint, facts: VerifierFacts, ids_N: torch.Tensor, first_NH: torch.Tensor, dtype: torch.dtype
) -> Finding:
    if facts.embedding_steps is None:
        return Finding(
            name="embedding", verdict=Verdict.na, found="verifier.embedding is null: not stated, not checked"
        )
    embedding_VH = read_tensor(checkpoint, facts.embedding).to(first_NH.device)
    difference = embeds(embedding_VH, facts.embedding_steps, ids_N.to(first_NH.device), first_NH)
    steps = ", ".join(f"{step.op.name} {step.by:.4g}" for step in facts.embedding_steps) or "as stored"
    found = f"what enters layer 0 differs by {difference:.1e} from the embedding's rows ({steps})"
    if difference < (1e-4 if dtype is torch.float32 else 2e-2):
        return Finding(name="embedding", verdict=Verdict.ok, found=found)
    return Finding(
        name="embedding",
        verdict=Verdict.fail,
        found=found,
        expected="the same rows",
        fix="verifier.keys.embedding names another tensor, or verifier.embedding lacks an operation (null: not stated)",
    )
