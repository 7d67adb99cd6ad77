"""The doctor's rows p01 to p13, from the YAML, the config and the index alone: cheap, so they run before every training.

Each check is a small function of a `Subject`; what `resolve` refuses is one row's failure, and the rows that would need
the facts have nothing to look at.
"""

import re
from collections.abc import Collection, Sequence
from typing import Any

from eyas.capture.schema import CaptureEngine
from eyas.config import Config
from eyas.doctor.family import model_type
from eyas.doctor.findings import Finding, Verdict
from eyas.doctor.subject import EXPECTED, Check, Subject, failure
from eyas.draft.shape import Shape, resolve_shape
from eyas.errors import EyasError
from eyas.evaluation.schema import Engine
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.facts import resolve
from eyas.verifier.library import Entry
from eyas.verifier.schema import Evidence, Stream, Target
from eyas.verifier.tokenizer import load_tokenizer


def examine_facts(config: Config, checkpoint: Checkpoint, library: Sequence[Entry]) -> list[Finding]:
    """Rows p01 to p13; after a failure to resolve, the failing row and the rest as not applicable."""
    try:
        facts = resolve(config.verifier, checkpoint)
    except EyasError as error:
        failed = failure(error.check or "p01_config_path", error)
        return [
            failed if name == failed.name else Finding(name=name, verdict=Verdict.na, found="needs the facts")
            for name in ROWS
        ]
    subject = Subject(config, checkpoint, facts, library)
    return [_run(name, check, subject) for name, check in ROWS.items()]


def _run(name: str, check: Check, subject: Subject) -> Finding:
    try:
        return check(subject)
    except EyasError as error:
        if error.check not in ("", name):
            return Finding(name=name, verdict=Verdict.na, found=f"see {error.check}")
        return failure(name, error)


def config_path(it: Subject) -> Finding:
    kind = it.facts.language_config.get("model_type", "no model_type")
    where = it.verifier.config.path or "the top level"
    if it.facts.language_config is not it.checkpoint.config and not it.verifier.config.path:
        where = "the only nested one"
    found = f"{kind} at {where}: {it.facts.hidden_size} wide, vocabulary {it.facts.vocab_size}"
    return Finding(name="p01_config_path", verdict=Verdict.ok, found=found)


def keys(it: Subject) -> Finding:
    found = f"{', '.join(stored.key for stored in it.facts.tensors)} from {it.checkpoint.layout}"
    return Finding(name="p02_keys", verdict=Verdict.ok, found=found)


def tied(it: Subject) -> Finding:
    flags = [level.get("tie_word_embeddings") for level in (it.checkpoint.config, it.facts.language_config)]
    says = list(dict.fromkeys(flag for flag in flags if flag is not None))
    found = "the head is the embedding" if it.verifier.tied else f"the head is {it.facts.head.key}"
    if any(flag != it.verifier.tied for flag in says):
        found += f" (the config's tie_word_embeddings says {' and '.join(map(str, says))}; the weights decide)"
    return Finding(name="p03_tied", verdict=Verdict.ok, found=found)


def plain_floats(it: Subject) -> Finding:
    described = []
    for stored in it.facts.tensors:
        as_stored = it.checkpoint.header(stored.key).dtype if stored.key in it.checkpoint.file_of else "packed"
        rule = f" by {stored.dequantize.name}" if stored.scale_key else ""
        described.append(f"{stored.key} {as_stored}{rule}")
    return Finding(name="p04_plain_floats", verdict=Verdict.ok, found=", ".join(described))


def norm(it: Subject) -> Finding:
    arithmetic = it.facts.arithmetic
    if arithmetic.target is Target.head_input:
        return Finding(name="p05_norm", verdict=Verdict.na, found="states are captured behind the norm")
    found = f"{arithmetic.norm.name}, eps {arithmetic.eps:g}, rounded {arithmetic.cast.name.replace('_', ' the ')}"
    return Finding(name="p05_norm", verdict=Verdict.ok, found=found)


def scales(it: Subject) -> Finding:
    """Config keys that some YAML of the library reads as a scale, and this one does not."""
    mine = _read_by(vars(it.verifier)) | set(it.verifier.ignored_scales)
    known = set().union(*(_read_by(entry.values) for entry in it.library)) - {"hidden_size"}
    language = it.facts.language_config
    unread = {key: language[key] for key in sorted(known - mine) if language.get(key) not in (None, 1, 1.0, False)}
    before, after = (
        [f"{step.op.name} {step.by:g}" for step in steps]
        for steps in (it.facts.arithmetic.pre_head, it.facts.arithmetic.post_head)
    )
    found = " -> ".join([*before, "head", *after])
    if not unread:
        return Finding(name="p06_scales", verdict=Verdict.ok, found=found)
    stated = ", ".join(f"{key}={value}" for key, value in unread.items())
    return Finding(
        name="p06_scales",
        verdict=Verdict.fail,
        found=f"{it.checkpoint.config_file} states {stated}, which no operation of verifier {it.verifier.name} reads ({found})",
        expected=EXPECTED["p06_scales"],
        fix=f"say what is done with it, as {_as_elsewhere(it.library, unread)}; "
        f"if truly unused: verifier.ignored_scales: [{', '.join(unread)}]",
    )


def last_state(it: Subject) -> Finding:
    what = "before the final norm" if it.facts.arithmetic.target is Target.pre_norm else "at the head's input"
    return Finding(name="p07_last_state", verdict=Verdict.ok, found=f"the last captured slot is taken {what}")


def stream(it: Subject) -> Finding:
    found = "one residual stream" if it.verifier.stream is Stream.single else "several streams; their mean is captured"
    return Finding(name="p08_stream", verdict=Verdict.ok, found=found)


def layer_ids(it: Subject) -> Finding:
    ids, n = resolve_shape(it.config, it.facts).layer_ids, it.facts.num_layers
    found = f"{ids} of {n} (id i: the residual stream entering layer i)"
    if ids == [1, n // 2 - 1, n - 4]:
        return Finding(
            name="p09_layer_ids",
            verdict=Verdict.warn,
            found=found,
            expected="ids by vLLM's convention",
            fix=f"these are the defaults of SGLang and EAGLE, which count one lower; the same layers here are "
            f"draft.layer_ids={[id + 1 for id in ids]}",
        )
    return Finding(name="p09_layer_ids", verdict=Verdict.ok, found=found)


def vocabulary(it: Subject) -> Finding:
    resolve_shape(it.config, it.facts)
    rows, usable = it.facts.vocab_size, it.facts.usable_vocab_size
    try:
        size = len(load_tokenizer(it.verifier, it.checkpoint))
    except EyasError as error:
        return Finding(name="p10_vocabulary", verdict=Verdict.na, found=f"{rows} rows; {error}")
    usable = min(usable or size, size)
    drafted = it.config.draft.vocab_size or rows
    found = f"tokenizer {size}, rows {rows}, draft {drafted}"
    if size > rows:
        fix = "the tokenizer belongs to another checkpoint: set verifier.tokenizer.path, or verifier.path"
    elif usable < drafted < rows:
        fix = f"draft.vocab_size={usable} at most, or null for every row"
    else:
        return Finding(name="p10_vocabulary", verdict=Verdict.ok, found=f"{found}, {rows - usable} rows of padding")
    return Finding(
        name="p10_vocabulary", verdict=Verdict.fail, found=found, expected=EXPECTED["p10_vocabulary"], fix=fix
    )


def num_layers(it: Subject) -> Finding:
    held = index_layers(it.checkpoint, it.facts.embedding.key)
    if held is None:
        return Finding(
            name="p11_num_layers", verdict=Verdict.na, found=f"{it.facts.num_layers}; the weights name no layers"
        )
    stem, count = held
    found = f"{it.facts.num_layers} by the config, {count} in the weights ({stem}.0 to {stem}.{count - 1})"
    extra = it.facts.language_config.get("num_nextn_predict_layers") or it.facts.language_config.get(
        "mtp_num_hidden_layers"
    )
    if count == it.facts.num_layers or (extra and count == it.facts.num_layers + extra):
        return Finding(name="p11_num_layers", verdict=Verdict.ok, found=found)
    return Finding(
        name="p11_num_layers",
        verdict=Verdict.fail,
        found=found,
        expected=EXPECTED["p11_num_layers"],
        fix="verifier.config.num_layers names another number (MTP layers counted, a list, a doubled count?), or the "
        "checkpoint is incomplete",
    )


MTP = r"(.*?\.\d+\.)(eh_proj|enorm|hnorm|shared_head)\."
"""A numbered layer with one of these predicts tokens further ahead, and is no layer of the model."""


def index_layers(checkpoint: Checkpoint, embedding_key: str) -> tuple[str, int] | None:
    """(stem, count) of the numbered layers that stand nearest to the embedding: of several lists, the one with the most tensors."""
    root = embedding_key.rsplit(".", 2)[0] if embedding_key.count(".") > 1 else ""
    numbered: dict[str, set[int]] = {}
    predicting = {match[1] for key in checkpoint.file_of if (match := re.match(MTP, key))}
    tensors: dict[str, int] = {}
    for key in checkpoint.file_of:
        if key.startswith(f"{root}." if root else "") and (match := re.match(r"(.*?)\.(\d+)\.", key)):
            if match[0] in predicting:
                continue
            numbered.setdefault(match[1], set()).add(int(match[2]))
            tensors[match[1]] = tensors.get(match[1], 0) + 1
    if not numbered:
        return None
    stem = min(tensors, key=lambda name: (name.count("."), -tensors[name]))
    return stem, max(numbered[stem]) + 1


def remote_code(it: Subject) -> Finding:
    trusted, shipped = it.verifier.trust_remote_code, it.checkpoint.config.get("auto_map")
    if not shipped:
        allowed = [name for name, value in vars(trusted).items() if value and name != "tokenizer"]
        if allowed:
            fix = f"verifier.trust_remote_code.{allowed[0]}=false"
            found = f"code in the checkpoint may run ({', '.join(allowed)}), but it ships none"
            return Finding(
                name="p12_remote_code", verdict=Verdict.warn, found=found, expected="trust only what is needed", fix=fix
            )
        return Finding(name="p12_remote_code", verdict=Verdict.ok, found="none in the checkpoint, none allowed")
    if trusted.config and trusted.model:
        return Finding(name="p12_remote_code", verdict=Verdict.ok, found="the checkpoint's own code runs, as allowed")
    if it.config.capture.engine is not CaptureEngine.transformers or not it.checkpoint.needs_its_own_code:
        return Finding(name="p12_remote_code", verdict=Verdict.ok, found="shipped, not allowed, and not needed")
    return Finding(
        name="p12_remote_code",
        verdict=Verdict.fail,
        found=f"transformers does not know model type {it.checkpoint.config.get('model_type')}, "
        "and the checkpoint's own code is not allowed to run",
        expected="code is trusted explicitly where it is needed",
        fix="read the code, then set verifier.trust_remote_code={config: true, model: true}",
    )


def draft_shape(it: Subject) -> Finding:
    shape, wanted, own = resolve_shape(it.config, it.facts), it.verifier.draft, it.facts.language_config
    found = (
        f"{shape.num_attention_heads} heads of {shape.head_dim}, {shape.num_key_value_heads} key-value heads, "
        f"FFN {shape.intermediate_size}"
    )
    problem = _thin(shape, mla="kv_lora_rank" in own and wanted.head_dim is None)
    if problem:
        return Finding(
            name="p13_draft_shape",
            verdict=Verdict.warn,
            found=f"{found}: {problem}",
            expected=EXPECTED["p13_draft_shape"],
            fix="set verifier.draft: {head_dim: 128, num_attention_heads: ..., num_key_value_heads: ..., intermediate_size: ...}",
        )
    return Finding(name="p13_draft_shape", verdict=Verdict.ok, found=found)


def _thin(shape: Shape, *, mla: bool) -> str:
    if mla:
        return "copied from latent attention, whose head_dim is not an ordinary one's"
    if shape.num_attention_heads * shape.head_dim < shape.hidden_size // 2:
        return f"attention is {shape.num_attention_heads * shape.head_dim} wide in a model of {shape.hidden_size}"
    if shape.intermediate_size < shape.hidden_size:
        return f"the FFN is narrower than the model ({shape.hidden_size}): an expert's width?"
    return ""


def evidence(it: Subject) -> Finding:
    if it.verifier.evidence is Evidence.class_default:
        return Finding(
            name="evidence",
            verdict=Verdict.warn,
            found=f"the facts of verifier {it.verifier.name} rest on the defaults of a library's config class",
            expected="somebody has looked at a checkpoint",
            fix="eyas inspect DIR on the real one, and correct the YAML",
        )
    if it.facts.warnings:
        return Finding(
            name="evidence", verdict=Verdict.warn, found="; ".join(it.facts.warnings), expected="as published"
        )
    return Finding(name="evidence", verdict=Verdict.ok, found=it.verifier.evidence.name)


def engine(it: Subject) -> Finding:
    engines = {"capture": it.config.capture.engine, "evaluation": it.config.evaluation.engine}
    served = [key for key, chosen in engines.items() if chosen in (CaptureEngine.vllm, Engine.vllm)]
    eagle3 = it.verifier.vllm.eagle3
    if not served:
        return Finding(name="engine", verdict=Verdict.ok, found="transformers")
    if eagle3:
        return Finding(
            name="engine", verdict=Verdict.ok, found="vLLM captures and serves EAGLE-3 for this architecture"
        )
    return Finding(
        name="engine",
        verdict=Verdict.warn if eagle3 is None else Verdict.fail,
        found=f"{' and '.join(served)} by vLLM, which {'may not' if eagle3 is None else 'does not'} support EAGLE-3 for this architecture",
        expected="verifier.vllm.eagle3: true",
        fix="capture=transformers evaluation=transformers"
        if eagle3 is False
        else "try it, then set verifier.vllm.eagle3",
    )


def _as_elsewhere(library: Sequence[Entry], keys: Collection[str]) -> str:
    """What the YAML that reads most of these numbers does with them."""
    entry = max(library, key=lambda it: len(_read_by(it.values) & set(keys)))
    said = []
    for field in ("embedding", "pre_head", "post_head"):
        for step in entry.values.get(field) or []:
            if {step["by"].get("config"), step["by"].get("per")} & set(keys):
                by = ", ".join(f"{name}: {value}" for name, value in step["by"].items())
                said.append(f"verifier.{field}: [{{op: {step['op']}, by: {{{by}}}}}]")
    return f"verifier/{entry.option}.yaml does: {', '.join(said)}"


def _read_by(values: dict[str, Any]) -> set[str]:
    """The config keys that a verifier's operations read."""
    numbers = []
    for field in ("embedding", "pre_head", "post_head"):
        for step in values.get(field) or []:
            numbers.append(vars(step.by) if hasattr(step, "by") else step["by"])
    return {str(number[key]) for number in numbers for key in ("config", "per") if number.get(key)}


ROWS: dict[str, Check] = {
    "p01_config_path": config_path,
    "p02_keys": keys,
    "p03_tied": tied,
    "p04_plain_floats": plain_floats,
    "p05_norm": norm,
    "p06_scales": scales,
    "p07_last_state": last_state,
    "p08_stream": stream,
    "p09_layer_ids": layer_ids,
    "p10_vocabulary": vocabulary,
    "p11_num_layers": num_layers,
    "p12_remote_code": remote_code,
    "p13_draft_shape": draft_shape,
    "model_type": model_type,
    "engine": engine,
    "evidence": evidence,
}
