"""Faults p01 to p13, planted one by one: each is a row of the doctor that fails (or warns), and says what to do.

The checkpoints are tiny, random, and of several families; a plant changes a copy of one, or the YAML it is read with.
"""

import json
import logging
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer
from transformers.utils import logging as transformers_logging

from conformance import tiny
from conftest import run
from eyas.cli.auto import verifier_composer
from eyas.cli.compose import compose
from eyas.config import Config, config_yaml
from eyas.doctor import __main__ as doctor
from eyas.doctor import model_checks
from eyas.doctor.facts_checks import ROWS, examine_facts
from eyas.doctor.findings import Finding, Verdict
from eyas.doctor.model_checks import examine_model
from eyas.errors import EyasError
from eyas.stages import run_identity, states_artifact
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.detect import detect
from eyas.verifier.facts import resolve
from eyas.verifier.library import read_library
from eyas.verifier.teacher import normalise

Tensors = dict[str, Tensor]
Values = dict[str, Any]

LIBRARY = read_library()
composed = verifier_composer([])


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Checkpoint) -> Callable[[str], Path]:
    """The directory of a random checkpoint of a model type; `tiny_llama` is the one with a tokenizer, and 8 layers."""
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)

    @cache
    def build(model_type: str) -> Path:
        if model_type == "tiny_llama":
            return tiny_checkpoint.directory
        directory = tmp_path_factory.mktemp(model_type)
        tiny.save(tiny.build(model_type), directory)
        return directory

    return build


@pytest.fixture(autouse=True)
def undisturbed() -> Iterator[None]:
    """The doctor switches gradients off, and libraries warn: nothing of it reaches another test."""
    logging.disable()
    with torch.set_grad_enabled(torch.is_grad_enabled()):
        yield
    logging.disable(logging.NOTSET)


@cache
def base_config() -> Config:
    return compose(["verifier=tiny_llama", "draft.vocab_size=null", "draft.layer_ids=[1,2,3]"], [])


def configured(directory: Path, option: str, values: Values) -> Config:
    """A configuration whose verifier is `option` with `values`; `draft.` in front means the group draft."""
    draft = {key.removeprefix("draft."): value for key, value in values.items() if key.startswith("draft.")}
    values = {key.removeprefix("verifier."): value for key, value in values.items() if not key.startswith("draft.")}
    verifier = composed(option, {"name": "it", "path": str(directory), **values})
    base = base_config()
    return replace(base, verifier=verifier, draft=replace(base.draft, **draft))


def examined(config: Config, *, by_model: bool) -> dict[str, Finding]:
    """The doctor's rows, by name, as `eyas doctor` has them."""
    assert config.verifier.path is not None
    checkpoint = Checkpoint(Path(config.verifier.path), config.verifier.files.config, config.verifier.files.weights)
    findings = examine_facts(config, checkpoint, LIBRARY)
    if by_model:
        findings += examine_model(config, checkpoint, resolve(config.verifier, checkpoint))
    return {it.name: it for it in findings}


def edit(directory: Path, config: Values, tensors: Callable[[Tensors], None] | None) -> None:
    """Change values of config.json by dotted path (`...`: delete), and the tensors."""
    file = directory / "config.json"
    content = json.loads(file.read_text())
    for path, value in config.items():
        *parents, leaf = path.split(".")
        node = content
        for parent in parents:
            node = node[parent]
        if value is ...:
            del node[leaf]
        else:
            node[leaf] = value
    file.write_text(json.dumps(content))
    if tensors is not None:
        stored = load_file(directory / "model.safetensors")
        tensors(stored)
        save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})


def renamed(old: str, new: str) -> Callable[[Tensors], None]:
    def plant(tensors: Tensors) -> None:
        tensors[new] = tensors.pop(old)

    return plant


def beside(**more: Tensor) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({key.replace("__", "."): value for key, value in more.items()})


def with_head(**parts: Tensor) -> Callable[[Tensors], None]:
    """The head in other parts: `lm_head.` before each name."""

    def plant(tensors: Tensors) -> None:
        del tensors["lm_head.weight"]
        tensors.update({f"lm_head.{name}": part for name, part in parts.items()})

    return plant


def int32(*shape: int) -> Tensor:
    return torch.randint(0, 2**31 - 1, shape, dtype=torch.int32)


GPTQ = with_head(qweight=int32(8, 128), scales=torch.rand(4, 128).half(), qzeros=int32(4, 16), g_idx=int32(64))
AWQ = with_head(qweight=int32(64, 16), scales=torch.rand(4, 128).half(), qzeros=int32(4, 16))
PACKED = with_head(weight_packed=int32(128, 8), weight_scale=torch.rand(128, 2), weight_shape=torch.tensor([128, 64]))
FP8 = with_head(weight=torch.randn(128, 64).to(torch.float8_e4m3fn), weight_scale=torch.rand(128, 1))
FP8_ALONE = with_head(weight=torch.randn(128, 64).to(torch.float8_e4m3fn))
NO_SCALE = {"config": None, "value": 1e-6}


def padded(rows: int) -> Callable[[Tensors], None]:
    def plant(tensors: Tensors) -> None:
        for key in ("model.embed_tokens.weight", "lm_head.weight"):
            tensors[key] = torch.cat([tensors[key], torch.zeros(rows, tensors[key].shape[1])])

    return plant


def without_last_layer(tensors: Tensors) -> None:
    for key in [key for key in tensors if ".layers.7." in key]:
        del tensors[key]


def with_mtp_layer(tensors: Tensors) -> None:
    """A multi-token prediction layer, numbered after the last layer as DeepSeek-V3 and GLM do."""
    for key in [key for key in tensors if ".layers.7." in key]:
        tensors[key.replace(".7.", ".8.")] = tensors[key].clone()
    for name in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"model.layers.8.{name}.weight"] = torch.ones(32)
    tensors["model.layers.8.eh_proj.weight"] = torch.randn(32, 64)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A checkpoint, what is changed of it or of its YAML, and how the doctor must answer."""

    id: str
    row: str
    says: tuple[str, ...]
    """What `found` and `fix` must contain."""
    of: str = "llama"
    option: str = "arch/llama"
    values: Values = field(default_factory=dict)
    config: Values = field(default_factory=dict)
    tensors: Callable[[Tensors], None] | None = None
    by_model: bool = False
    """Only the loaded model shows it."""
    verdict: Verdict = Verdict.fail
    also: tuple[str, ...] = ()
    """Other rows that rightly fail with it."""


FAULTS = [
    # p01: the numbers of another level of the config
    Fault(
        id="nested-config-read-at-the-top",
        row="p01_config_path",
        of="llava",
        values={"config.path": ""},
        says=("has no 'hidden_size'", "text_config", "verifier.config.path"),
    ),
    Fault(
        id="config-path-absent",
        row="p01_config_path",
        values={"config.path": "thinker_config.text_config"},
        says=("has no thinker_config there", "seems to be at ''", "set verifier.config.path"),
    ),
    Fault(
        id="two-language-models",
        row="p01_config_path",
        of="llava",
        config={"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 4},
        says=("verifier.config.path", "at the top level and at 'text_config'", "set it to the one"),
    ),
    Fault(
        id="no-language-model",
        row="p01_config_path",
        config={"vocab_size": ...},
        says=("describes no language model", "verifier.config.path"),
    ),
    Fault(
        id="width-of-another-level",
        row="p02_keys",
        of="llava",
        values={"config.path": ""},
        config={"vocab_size": 128, "hidden_size": 32, "num_hidden_layers": 4, "rms_norm_eps": 1e-2},
        says=("embed_tokens.weight has shape [128, 64]", "says [128, 32]", "verifier.config points at another number"),
    ),
    # p02: another tower's tensors
    Fault(
        id="only-the-talker-has-it",
        row="p02_keys",
        tensors=renamed("model.norm.weight", "talker.model.norm.weight"),
        says=("verifier.keys.norm", "none of", "similar keys are: talker.model.norm.weight"),
    ),
    Fault(
        id="only-the-mtp-layer-has-it",
        row="p02_keys",
        tensors=renamed("model.embed_tokens.weight", "mtp.embed_tokens.weight"),
        says=("verifier.keys.embedding", "similar keys are: mtp.embed_tokens.weight"),
    ),
    Fault(
        id="two-of-the-names-exist",
        row="p02_keys",
        tensors=beside(language_model__model__norm__weight=torch.ones(64)),
        says=(
            "model.norm.weight and language_model.model.norm.weight",
            "name the one that is meant",
            "verifier.keys.norm",
        ),
    ),
    # p03: tied or not
    Fault(
        id="tied-but-a-head-exists",
        row="p03_tied",
        values={"tied": True},
        says=("holds a head, lm_head.weight", "set verifier.tied: false"),
    ),
    Fault(
        id="untied-but-no-head-exists",
        row="p03_tied",
        tensors=lambda tensors: tensors.pop("lm_head.weight"),
        says=("nothing in the checkpoint begins with lm_head.", "set verifier.tied: true"),
    ),
    *(
        Fault(
            id=f"a-head-in-{name}-is-not-tied",
            row="p03_tied",
            values={"tied": True},
            tensors=tensors,
            says=(f"holds a head, lm_head.{part}", "set verifier.tied: false"),
        )
        for name, part, tensors in (("gptq", "", GPTQ), ("awq", "", AWQ), ("compressed-tensors", "weight_", PACKED))
    ),
    # p04: what is no plain float
    *(
        Fault(
            id=f"a-head-in-{name}",
            row="p04_plain_floats",
            tensors=tensors,
            says=("verifier.keys.head", "lm_head.qweight", "quantised", "take a checkpoint that leaves it unquantised"),
        )
        for name, tensors in (("gptq", GPTQ), ("awq", AWQ))
    ),
    Fault(
        id="a-packed-head",
        row="p04_plain_floats",
        tensors=PACKED,
        says=("lm_head.weight_packed", "set verifier.quantization.dequantize: packed_int4"),
    ),
    Fault(
        id="an-fp8-head-read-as-plain-floats",
        row="p04_plain_floats",
        tensors=FP8,
        says=("F8_E4M3 with lm_head.weight_scale", "set verifier.quantization.dequantize: fp8"),
    ),
    Fault(
        id="an-fp8-head-without-a-scale",
        row="p04_plain_floats",
        tensors=FP8_ALONE,
        values={"quantization.dequantize": "fp8"},
        says=("F8_E4M3 with no scale beside it", "take a checkpoint that leaves it unquantised"),
    ),
    # p05: the norm
    Fault(
        id="one-plus-w-read-as-w",
        row="parity",
        of="gemma2",
        option="arch/gemma2",
        values={"tied": True, "norm.kind": "rms"},
        by_model=True,
        says=("the reading `norm rms_plus_one` is nearer", "YAML"),
    ),
    Fault(
        id="w-read-as-one-plus-w",
        row="parity",
        option="arch/rms_plus_one",
        by_model=True,
        says=("the reading `norm rms` is nearer", "YAML"),
    ),
    Fault(
        id="rms-where-the-mean-is-taken-off",
        row="parity",
        of="cohere",
        option="arch/cohere",
        values={"tied": True, "norm.kind": "rms"},
        by_model=True,
        says=("the reading `norm layernorm` is nearer",),
    ),
    Fault(
        id="the-norms-weight-is-left-out",
        row="p05_norm",
        values={"norm.kind": "rms_no_weight"},
        says=("rms_no_weight", "the checkpoint holds model.norm.weight", "set the kind that uses it"),
    ),
    Fault(
        id="the-norms-bias-is-dropped",
        row="p05_norm",
        of="gpt_neox",
        option="arch/layernorm",
        values={"norm.kind": "layernorm"},
        says=("holds gpt_neox.final_layer_norm.bias", "set verifier.norm.kind: layernorm_bias"),
    ),
    Fault(
        id="the-heads-bias-is-dropped",
        row="p05_norm",
        of="phi",
        option="arch/layernorm",
        says=("holds lm_head.bias", "set verifier.keys.head_bias: [lm_head.bias]"),
    ),
    Fault(
        id="another-epsilon",
        row="p05_epsilon",
        values={"norm.eps": NO_SCALE},
        by_model=True,
        says=("1e-06 by the YAML, 0.01 in the model", "verifier.norm.eps"),
        also=("parity",),
    ),
    Fault(
        id="another-epsilon-where-the-logits-do-not-show-it",
        row="p05_epsilon",
        of="tiny_llama",
        values={"norm.eps": {"config": None, "value": 1.1e-6}},
        by_model=True,
        says=("1.1e-06 by the YAML, 1e-06 in the model", "verifier.norm.eps"),
    ),
    Fault(
        id="the-epsilons-key-does-not-exist",
        row="p06_scales",
        values={"norm.eps": {"config": "layer_norm_eps"}},
        says=("verifier.norm.eps", "has no 'layer_norm_eps'"),
    ),
    # p06: scales of the logits
    Fault(
        id="granite-read-as-llama",
        row="p06_scales",
        of="granite",
        says=("embedding_multiplier=3.0, logits_scaling=4.0", "verifier/arch/granite.yaml", "verifier.ignored_scales"),
    ),
    Fault(
        id="granites-logits_scaling-forgotten",
        row="p06_scales",
        of="granite",
        option="arch/granite",
        values={"post_head": []},
        says=("states logits_scaling=4.0", "{config: logits_scaling}", "verifier.ignored_scales: [logits_scaling]"),
    ),
    Fault(
        id="granites-embedding_multiplier-forgotten",
        row="p06_scales",
        of="granite",
        option="arch/granite",
        values={"embedding": []},
        says=(
            "states embedding_multiplier=3.0",
            "verifier.embedding: [{op: multiply, by: {config: embedding_multiplier}}]",
        ),
    ),
    Fault(
        id="cohere-read-as-layernorm",
        row="p06_scales",
        of="cohere",
        option="arch/cohere",
        values={"tied": True, "post_head": []},
        says=("logit_scale=0.25", "verifier.post_head: [{op: multiply, by: {config: logit_scale}}]"),
    ),
    Fault(
        id="gemma2-without-its-cap",
        row="p06_scales",
        of="gemma2",
        option="arch/gemma",
        values={"tied": True},
        says=("final_logit_softcapping=2.0", "[{op: softcap, by: {config: final_logit_softcapping}}]"),
    ),
    Fault(
        id="minicpms-divisor-forgotten",
        row="p06_scales",
        of="minicpm3",
        option="arch/minicpm",
        values={"tied": True, "pre_head": []},
        says=("dim_model_base=32", "verifier.pre_head: [{op: divide, by: {config: hidden_size, per: dim_model_base}}]"),
    ),
    Fault(
        id="granite-ignored-on-purpose",
        row="parity",
        of="granite",
        values={"ignored_scales": ["logits_scaling", "embedding_multiplier"], "embedding": None},
        by_model=True,
        says=("verifier.post_head",),
    ),
    Fault(
        id="multiplied-where-it-divides",
        row="parity",
        of="granite",
        option="arch/hyperclovax",
        by_model=True,
        says=("the reading `without multiply 4` is nearer",),
    ),
    Fault(
        id="an-operation-too-many",
        row="parity",
        values={"post_head": [{"op": "softcap", "by": {"value": 3.0}}]},
        by_model=True,
        says=("the reading `without softcap 3` is nearer",),
    ),
    Fault(
        id="the-embedding-is-multiplied",
        row="embedding",
        of="gemma2",
        option="arch/gemma2",
        values={"tied": True, "embedding": []},
        by_model=True,
        says=("differs by", "verifier.embedding lacks an operation"),
    ),
    # p07: before or after the norm
    Fault(
        id="the-state-after-the-norm",
        row="p08_modules",
        values={"transformers.norm": "lm_head"},
        by_model=True,
        says=("lm_head does not read what the last layer writes", "verifier.transformers.norm"),
    ),
    Fault(
        id="the-norm-of-a-layer",
        row="p08_modules",
        values={"transformers.norm": "model.layers.3.post_attention_layernorm"},
        by_model=True,
        says=("post_attention_layernorm does not", "verifier.transformers.norm"),
    ),
    Fault(
        id="declared-without-a-norm",
        row="p05_norm",
        values={"norm.kind": "none"},
        says=("verifier.norm.kind is none", "the checkpoint holds model.norm.weight"),
    ),
    Fault(
        id="layers-that-are-none",
        row="p08_modules",
        values={"transformers.layers": "model.layers.0"},
        by_model=True,
        says=("verifier.transformers.layers=model.layers.0 is a LlamaDecoderLayer", "expected the 4 decoder layers"),
    ),
    Fault(
        id="layers-of-the-vision-tower",
        row="p08_modules",
        of="llava",
        values={"transformers.layers": "model.vision_tower.encoder.layers"},
        by_model=True,
        says=("of 2 layers, expected the 4 decoder layers",),
    ),
    Fault(
        id="a-module-that-is-not-there",
        row="p08_modules",
        values={"transformers.head": "model.output"},
        by_model=True,
        says=(
            "verifier.transformers.head=model.output: LlamaForCausalLM has no such module; it has: model,",
            "lm_head",
        ),
    ),
    # p02, p11: what transformers would fill in at random
    Fault(
        id="a-tensor-of-a-layer-is-missing",
        row="p08_modules",
        tensors=lambda tensors: tensors.pop("model.layers.3.mlp.up_proj.weight"),
        by_model=True,
        says=("model.layers.3.mlp.up_proj.weight", "at random"),
    ),
    Fault(
        id="a-tensor-of-a-layer-has-another-shape",
        row="p08_modules",
        config={"intermediate_size": 80},
        by_model=True,
        says=("mlp.down_proj.weight", "shape"),
    ),
    # p08: several streams
    Fault(
        id="several-streams-declared-as-one",
        row="p08_modules",
        of="deepseek_v4",
        values={"keys.head": ["head.weight"], "draft": {"intermediate_size": 128}},
        by_model=True,
        says=("final norm", "verifier.target: head_input"),
    ),
    Fault(
        id="several-streams-declared-as-one-at-the-head",
        row="p08_modules",
        of="deepseek_v4",
        option="arch/hyper_connections",
        values={"stream": "single", "draft": {"intermediate_size": 128}},
        by_model=True,
        says=("needs verifier.stream: multiple",),
    ),
    Fault(
        id="one-stream-declared-as-several",
        row="p08_modules",
        values={"stream": "multiple", "target": "head_input"},
        by_model=True,
        says=("verifier.stream is multiple, but a layer reads", "verifier.stream: single"),
    ),
    # p09: layer ids
    *(
        Fault(
            id=f"layer-ids-{name}",
            row="p09_layer_ids",
            of="tiny_llama",
            values={"draft.layer_ids": ids},
            says=(f"draft.layer_ids={ids}", "distinct ids in ascending order from 0 to 7", "entering layer i"),
        )
        for name, ids in (("unsorted", [4, 2, 6]), ("twice", [2, 4, 4]), ("n", [2, 4, 8]), ("negative", [-1, 2, 4]))
    ),
    Fault(
        id="layer-ids-of-sglang",
        row="p09_layer_ids",
        of="tiny_llama",
        values={"draft.layer_ids": [1, 3, 4]},
        verdict=Verdict.warn,
        says=("[1, 3, 4] of 8", "SGLang", "draft.layer_ids=[2, 4, 5]"),
    ),
    # p10: sizes of the vocabulary
    Fault(
        id="the-draft-vocabulary-reaches-into-the-padding",
        row="p10_vocabulary",
        of="tiny_llama",
        values={"draft.vocab_size": 270},
        config={"vocab_size": 288},
        tensors=padded(288 - 259),
        says=("tokenizer 259, rows 288, draft 270", "draft.vocab_size=259 at most"),
    ),
    Fault(
        id="declared-padding",
        row="p10_vocabulary",
        of="tiny_llama",
        option="arch/inkling",
        values={"draft.vocab_size": 256, "pre_head": []},
        config={"unpadded_vocab_size": 250},
        says=("draft 256", "draft.vocab_size=250 at most"),
    ),
    Fault(
        id="the-draft-vocabulary-is-larger-than-all",
        row="p10_vocabulary",
        of="tiny_llama",
        values={"draft.vocab_size": 1000},
        says=("draft.vocab_size=1000 is larger than the vocabulary", "259"),
    ),
    # p11: the number of layers
    Fault(
        id="a-doubled-number",
        row="p11_num_layers",
        of="tiny_llama",
        values={"config.num_layers": {"config": "num_hidden_layers", "times": 2}},
        says=("16 by the config, 8 in the weights", "verifier.config.num_layers"),
    ),
    Fault(
        id="the-mtp-layer-counted-by-the-config",
        row="p11_num_layers",
        of="tiny_llama",
        config={"num_hidden_layers": 9},
        says=("9 by the config, 8 in the weights", "MTP layers counted"),
    ),
    Fault(
        id="the-mtp-layer-counted-by-config-and-weights",
        row="p11_num_layers",
        of="tiny_llama",
        config={"num_hidden_layers": 9, "num_nextn_predict_layers": 1},
        tensors=with_mtp_layer,
        says=("9 by the config, 8 in the weights", "MTP"),
    ),
    Fault(
        id="a-layer-is-missing",
        row="p11_num_layers",
        of="tiny_llama",
        tensors=without_last_layer,
        says=("8 by the config, 7 in the weights", "incomplete"),
    ),
    Fault(
        id="no-whole-number",
        row="p11_num_layers",
        values={"config.num_layers": {"config": "num_hidden_layers", "times": 0.3}},
        says=("verifier.config.num_layers", "is 1.2, expected a positive integer"),
    ),
    # p12: remote code
    Fault(
        id="remote-code-needed-and-not-allowed",
        row="p12_remote_code",
        config={"model_type": "baichuan_m9", "auto_map": {"AutoModelForCausalLM": "modeling_baichuan.M"}},
        says=(
            "does not know model type baichuan_m9",
            "read the code",
            "verifier.trust_remote_code={config: true, model: true}",
        ),
    ),
    Fault(
        id="remote-code-needed-and-half-allowed",
        row="p12_remote_code",
        config={"model_type": "baichuan_m9", "auto_map": {"AutoModelForCausalLM": "modeling_baichuan.M"}},
        values={"trust_remote_code.config": True},
        says=("not allowed to run", "model: true"),
    ),
    Fault(
        id="remote-code-allowed-but-none-is-shipped",
        row="p12_remote_code",
        values={"trust_remote_code.model": True},
        verdict=Verdict.warn,
        says=("may run (model), but it ships none", "verifier.trust_remote_code.model=false"),
    ),
    # p13: the draft's shape
    Fault(
        id="heads-of-latent-attention",
        row="p13_draft_shape",
        of="deepseek_v3",
        verdict=Verdict.warn,
        says=("4 heads of 8", "latent attention", "verifier.draft: {head_dim: 128"),
    ),
    Fault(
        id="the-ffn-of-an-expert",
        row="p13_draft_shape",
        config={"intermediate_size": 32},
        verdict=Verdict.warn,
        says=("FFN 32", "narrower than the model (64)", "verifier.draft"),
    ),
    Fault(
        id="narrow-attention",
        row="p13_draft_shape",
        values={"draft": {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}},
        verdict=Verdict.warn,
        says=("attention is 16 wide in a model of 64",),
    ),
    Fault(
        id="heads-that-do-not-divide",
        row="p13_draft_shape",
        values={"draft": {"num_key_value_heads": 3}},
        says=("4 attention heads are no multiple of 3 key-value heads", "verifier.draft"),
    ),
    Fault(
        id="an-odd-head-can-not-be-rotated",
        row="p13_draft_shape",
        values={"draft": {"num_attention_heads": 12, "num_key_value_heads": 12, "head_dim": 5}},
        says=("head_dim", "5", "even"),
    ),
    Fault(
        id="no-ffn-to-copy",
        row="p13_draft_shape",
        of="deepseek_v4",
        option="arch/hyper_connections",
        says=("has no intermediate_size", "set verifier.draft.intermediate_size"),
    ),
]


@pytest.mark.parametrize("fault", [pytest.param(it, id=f"{it.row[:3]}-{it.id}") for it in FAULTS])
def test_a_planted_fault_is_a_row(fault: Fault, built: Callable[[str], Path], tmp_path: Path) -> None:
    directory = built(fault.of)
    if fault.config or fault.tensors:
        directory = Path(shutil.copytree(directory, tmp_path / "it"))
        edit(directory, fault.config, fault.tensors)
    rows = examined(configured(directory, fault.option, fault.values), by_model=fault.by_model)
    row = rows[fault.row]
    assert row.verdict is fault.verdict, row
    for phrase in fault.says:
        assert phrase in f"{row.found} | {row.fix}", phrase
    assert row.fix.count("(") == row.fix.count(")"), f"a fragment, not a fix: {row.fix}"
    failed = {it.name for it in rows.values() if it.verdict is Verdict.fail}
    expected = {fault.row} if fault.verdict is Verdict.fail else set()
    if fault.id in SEEN_WITHOUT_WEIGHTS:
        expected.add("model_type")
    assert failed - set(fault.also) == expected


SEEN_WITHOUT_WEIGHTS = {
    "one-plus-w-read-as-w", "w-read-as-one-plus-w", "rms-where-the-mean-is-taken-off", "granite-read-as-llama",
    "granites-logits_scaling-forgotten", "cohere-read-as-layernorm", "gemma2-without-its-cap", "minicpms-divisor-forgotten",
    "granite-ignored-on-purpose", "multiplied-where-it-divides", "an-operation-too-many", "several-streams-declared-as-one",
    "several-streams-declared-as-one-at-the-head", "one-stream-declared-as-several",
}  # fmt: skip
"""Faults that the library contradicts: caught also where the model is too large to run."""


def test_the_library_contradicts_another_arithmetic_and_says_how(built: Callable[[str], Path]) -> None:
    row = examined(configured(built("gemma2"), "arch/llama", {"tied": True}), by_model=False)["model_type"]
    assert row.verdict is Verdict.fail
    assert "gemma2 is listed by verifier/arch/gemma2.yaml" in row.found
    assert "norm.kind is rms, there rms_plus_one" in row.found
    assert "post_head is [], there [softcap final_logit_softcapping]" in row.found
    assert row.fix == "extend arch/gemma2, or claim the type in your own YAML: model_types: [gemma2]"
    own = {"tied": True, "model_types": ["gemma2"]}
    assert examined(configured(built("gemma2"), "arch/llama", own), by_model=False)["model_type"].verdict is Verdict.ok


CLEAN = [
    "cohere", "deepseek_v3", "deepseek_v4", "falcon_h1", "gemma2", "gpt_neox", "granite", "llama", "llava", "minicpm3",
    "nemotron", "olmo", "openai-gpt", "phi", "tiny_llama",
]  # fmt: skip


@pytest.mark.parametrize("model_type", CLEAN)
def test_nothing_fails_on_a_clean_checkpoint(model_type: str, built: Callable[[str], Path]) -> None:
    checkpoint = Checkpoint(built(model_type))
    reading = detect(checkpoint, "it", LIBRARY, composed)
    config = configured(checkpoint.directory, reading.option, reading.values)
    if model_type in ("deepseek_v4", "openai-gpt"):
        config.verifier.draft.intermediate_size = 128
        config.verifier.draft.num_attention_heads = 4
    rows = examined(config, by_model=True)
    assert [it for it in rows.values() if it.verdict is Verdict.fail] == []
    assert rows["parity"].verdict is Verdict.ok
    assert "argmax 100.0%" in rows["parity"].found


def test_copies_in_other_towers_are_not_read(built: Callable[[str], Path], tmp_path: Path) -> None:
    directory = Path(shutil.copytree(built("llama"), tmp_path / "it"))
    more = {
        name: torch.full((128, 64) if "norm" not in name else (64,), torch.nan)
        for name in (
            "talker.model.embed_tokens.weight",
            "talker.model.norm.weight",
            "talker.lm_head.weight",
            "mtp.embed_tokens.weight",
            "mtp.norm.weight",
            "model.embed_norm.weight",
        )
    }
    edit(directory, {}, lambda tensors: tensors.update(more))
    row = examined(configured(directory, "arch/llama", {}), by_model=False)["p02_keys"]
    assert row.verdict is Verdict.ok
    assert row.found.startswith("model.embed_tokens.weight, model.norm.weight, lm_head.weight")


def test_the_weights_decide_whether_the_head_is_tied(built: Callable[[str], Path], tmp_path: Path) -> None:
    directory = Path(shutil.copytree(built("llama"), tmp_path / "it"))
    edit(directory, {"tie_word_embeddings": True}, None)
    row = examined(configured(directory, "arch/llama", {}), by_model=False)["p03_tied"]
    assert row.verdict is Verdict.ok
    assert "tie_word_embeddings says True; the weights decide" in row.found


def test_layers_for_prediction_beside_the_model_are_not_counted(built: Callable[[str], Path], tmp_path: Path) -> None:
    directory = Path(shutil.copytree(built("tiny_llama"), tmp_path / "it"))
    edit(directory, {"num_nextn_predict_layers": 1}, with_mtp_layer)
    row = examined(configured(directory, "arch/llama", {}), by_model=False)["p11_num_layers"]
    assert row.verdict is Verdict.ok, row


def test_states_after_the_norm_are_told_from_those_before_it(
    built: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A capture that delivers what the norm wrote: the teacher would norm it a second time."""
    true_logits = model_checks.own_logits
    config = configured(built("llama"), "arch/llama", {})
    checkpoint = Checkpoint(built("llama"))
    facts = resolve(config.verifier, checkpoint)
    norm_H = checkpoint.tensor("model.norm.weight")

    def faulty(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        first_NH, state_NH, own_NV = true_logits(*arguments)
        return first_NH, normalise(state_NH, norm_H, None, facts.arithmetic), own_NV

    monkeypatch.setattr(model_checks, "own_logits", faulty)
    row = examined(config, by_model=True)["parity"]
    assert row.verdict is Verdict.fail
    assert "the reading `norm left out` is nearer" in row.fix


def test_several_streams_before_the_norm_can_not_be_composed() -> None:
    with pytest.raises(EyasError, match=r"set verifier\.target: head_input"):
        composed("arch/llama", {"name": "it", "stream": "multiple"})


def test_a_tokenizer_larger_than_the_embedding(built: Callable[[str], Path], tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(built("tiny_llama"))
    tokenizer.add_tokens(["<one>", "<two>"])
    tokenizer.save_pretrained(tmp_path / "other")
    config = configured(built("tiny_llama"), "arch/llama", {"tokenizer.path": str(tmp_path / "other")})
    row = examined(config, by_model=False)["p10_vocabulary"]
    assert row.verdict is Verdict.fail
    assert "tokenizer 261, rows 259" in row.found
    assert "set verifier.tokenizer.path" in row.fix


def test_a_directory_without_a_tokenizer_has_none(built: Callable[[str], Path], tmp_path: Path) -> None:
    """transformers makes an empty tokenizer of a type it knows, which would turn every text into unknown tokens."""
    (tmp_path / "template.jinja").write_text("{{ messages }}")
    config = configured(
        built("gemma2"), "arch/gemma2", {"tied": True, "chat.template": str(tmp_path / "template.jinja")}
    )
    row = examined(config, by_model=False)["p10_vocabulary"]
    assert row.verdict is Verdict.na
    assert re.search(r"no tokenizer.*verifier\.tokenizer\.path", row.found)


def test_after_a_failure_the_other_rows_are_not_reached(built: Callable[[str], Path]) -> None:
    rows = examined(configured(built("llama"), "arch/llama", {"tied": True}), by_model=False)
    assert list(rows) == list(ROWS)
    assert {name for name, it in rows.items() if it.verdict is Verdict.fail} == {"p03_tied"}
    assert {it.verdict for name, it in rows.items() if name != "p03_tied"} == {Verdict.na}


def test_a_lora_merged_in_place_is_another_verifier_and_another_run(
    built: Callable[[str], Path], tmp_path: Path
) -> None:
    merged = Path(shutil.copytree(built("tiny_llama"), tmp_path / "merged"))
    same = Path(shutil.copytree(built("tiny_llama"), tmp_path / "same"))

    def merge(tensors: Tensors) -> None:
        a, b = torch.randn(2, 32) * 1e-3, torch.randn(32, 2) * 1e-3
        tensors["model.layers.5.self_attn.q_proj.weight"] += b @ a

    edit(merged, {}, merge)
    before, moved, after = (
        configured(directory, "tiny_llama", {}) for directory in (built("tiny_llama"), same, merged)
    )
    assert run_identity(before) == run_identity(moved)
    assert run_identity(before) != run_identity(after)
    assert run_identity(before)["verifier"]["weights"] != run_identity(after)["verifier"]["weights"]
    assert states_artifact(before).fingerprint == states_artifact(moved).fingerprint
    assert states_artifact(before).fingerprint != states_artifact(after).fingerprint


def written(outputs: Path) -> list[dict[str, str]]:
    """doctor.json, whose form is stated."""
    rows: list[dict[str, str]] = json.loads((outputs / "doctor.json").read_text())
    assert all(list(row) == ["name", "verdict", "found", "expected", "fix"] for row in rows)
    assert {row["verdict"] for row in rows} <= {"pass", "warn", "fail", "not applicable"}
    assert {row["name"][:3] for row in rows} >= {f"p{number:02}" for number in range(1, 14)}
    return rows


def test_without_a_failure_it_ends_quietly(
    built: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = replace(configured(built("tiny_llama"), "tiny_llama", {}), outputs=str(tmp_path / "outputs"))
    (tmp_path / "config.yaml").write_text(config_yaml(config))
    doctor.main(tmp_path / "config.yaml")
    rows = written(tmp_path / "outputs")
    assert [row for row in rows if row["verdict"] == "fail"] == []
    printed = capsys.readouterr().out
    assert f"it: {len(rows)} checks, 0 failed" in printed
    for row in rows:
        assert re.search(rf"^{row['name']} +{row['verdict']} ", printed, re.MULTILINE)


def test_the_command_says_by_its_exit_code_that_something_failed(tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    arguments = ["doctor", "verifier=tiny_llama", "verifier.norm.kind=rms_plus_one", f"outputs={tmp_path}"]
    done = run("-m", "eyas.cli.main", *arguments)
    assert done.returncode == 2
    assert done.stderr == ""
    rows = written(tmp_path)
    assert {row["name"] for row in rows if row["verdict"] == "fail"} == {"model_type", "parity"}
    assert f"{len(rows)} checks, 2 failed" in done.stdout
    assert re.search(r"fix +the reading `norm rms` is nearer to this model: correct the YAML", done.stdout)
