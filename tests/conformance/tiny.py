"""A tiny random checkpoint of every decoder-only model type that transformers registers.

`python -m tests.conformance.tiny TYPE DIR` saves one; `--all OUT.jsonl` tries all of them and writes a line for each.
"""

import dataclasses
import inspect
import json
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

CAUSAL, IMAGE_TEXT = "AutoModelForCausalLM", "AutoModelForImageTextToText"

_ENCODER = "encoder with an MLM head (dense, activation and norm before the vocabulary)"
_SEQ2SEQ = "encoder-decoder: its decoder is not a language model alone"


def _each(names: str, reason: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


OUT_OF_SCOPE: dict[str, str] = {
    **_each(
        "bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert reformer rembert roberta "
        "roberta-prelayernorm roc_bert roformer xlm-roberta xlm-roberta-xl xmod",
        "encoder: attends both ways unless `is_decoder` is set",
    ),
    "xlm": "encoder: attends both ways unless `causal` is set",
    "xlnet": "permutation language model: attends both ways unless `attn_type` is uni",
    **_each(
        "bart bigbird_pegasus blenderbot blenderbot-small florence2 marian mbart mvp pegasus pix2struct plbart "
        "pp_formulanet prophetnet t5gemma2 trocr udop vision-encoder-decoder whisper",
        "encoder-decoder, or its decoder half with cross-attention",
    ),
    "blip": "encoder-decoder: a BERT decoder with cross-attention to the image",
    **_each("musicgen musicgen_melody", "audio decoder with cross-attention and a head for each codebook"),
    **_each("gemma4_assistant gemma4_unified_assistant", "draft 'assistant' model, fed with another model's states"),
    "blt": "byte patches: it predicts bytes, and its global states are one a patch",
    "diffusion_gemma": "block diffusion, not autoregressive",
    "pi0": "robot policy: its output is actions",
}

NOT_BUILT: dict[str, str] = {
    **_each("fast_vlm gemma3n perception_lm", "its vision tower is a timm model, and timm is not installed"),
    "evolla": "library bug: its config is registered as type EvollaModel, which AutoModelForImageTextToText lacks",
}

# Built, saved and run, but `from_pretrained` does not give the same model back.
_NESTED = {"model.language_model.embed_tokens.weight": [128, 64], "model.language_model.norm.weight": [64]}
SAVED_KEYS: dict[str, dict[str, list[int]]] = {
    "gemma3n": _NESTED,
    "fast_vlm": {**_NESTED, "lm_head.weight": [128, 64]},
    "perception_lm": {**_NESTED, "lm_head.weight": [128, 64]},
    "evolla": {"model.embed_tokens.weight": [128, 64], "model.norm.weight": [64], "lm_head.weight": [128, 64]},
}
"""The tensors of those types as their classes name them, for what can be resolved without a model."""

NOT_RELOADED: dict[str, str] = {
    "kosmos-2": "library bug: loading zeroes the embedding's row of the padding token",
    "shieldgemma2": "library bug: it saves `model.language_model.model.*`, names that its own class does not load",
}

TEXT: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "n_embd": 64,
    "n_layer": 4,
    "n_head": 4,
    "n_inner": 96,
    "d_model": 64,
    "n_layers": 4,
    "n_heads": 4,
    "num_layers": 4,
    "num_heads": 4,
    "ffn_dim": 96,
    "word_embed_proj_dim": 64,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32,
    "num_experts": 4,
    "moe_num_experts": 4,
    "moe_k": 2,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "top_k_experts": 2,
    "n_group": 1,
    "topk_group": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "qk_head_dim": 24,
    "max_position_embeddings": 128,
    "max_seq_len": 128,
    "n_positions": 128,
    "n_ctx": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "vocab_size_per_layer_input": 128,
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 0,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
    "sliding_window": 16,
    "mamba_num_heads": 4,
    "mamba_head_dim": 32,
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_d_ssm": 128,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "n_groups": 1,
    "ssm_state_size": 8,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "attention_hidden_size": 64,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "index_topk": 8,
    "expert_ffn_hidden_size": 32,
    "ffn_hidden_size": 96,
    "zero_expert_num": 2,
    "moe_topk": 2,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 16,
    "swa_v_head_dim": 16,
    "global_head_dim": 16,
    "num_global_key_value_heads": 2,
    "use_cache": False,
}

# Shrunk even where the class leaves them to be filled in.
NEEDED = ("head_dim", "num_key_value_heads", "num_experts_per_tok")

# Values that do something: with the default of 1 (or none) a formula that forgets them would pass.
SCALES: dict[str, Any] = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 4.0,
    "logit_scale": 0.25,
    "lm_head_multiplier": 0.5,
    "final_logit_softcapping": 2.0,
    "logits_soft_cap": 2.0,
    "output_logit_soft_cap": 2.0,
    "scale_emb": 5.0,
    "dim_model_base": 32,
    "logits_mup_width_multiplier": 3.0,
    "output_multiplier": 0.5,
    "residual_multiplier": 0.5,
    "mup_enabled": True,
    "lm_head_bias": True,
    "rms_norm_eps": 1e-2,
    "layer_norm_eps": 1e-2,
    "layer_norm_epsilon": 1e-2,
    "layernorm_epsilon": 1e-2,
    "norm_eps": 1e-2,
    "norm_epsilon": 1e-2,
}

TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_heads": 2,
    "depth": 2,
    "embed_dim": 32,
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "num_layers": 2,
    "mlp_dim": 32,
    "num_global_layers": 1,
}

_MOE = ["dense", "sparse", "sparse", "sparse"]


def _mrope(*sections: int, **others: object) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": list(sections), **others}
    return {"rope_parameters": rope}


_COMPASS = {
    "logit_scale": 0.25,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "rope_parameters": {name: _mrope(3, 3, 2)["rope_parameters"] for name in ("sliding_attention", "full_attention")},
}
_QWEN4 = {
    "hc_lowrank": 8,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 8,
    "indexer_compress_ratio": 2,
}
_CAP = {"final_logit_softcapping": 2.0}
_GEMMA3N = {"intermediate_size": [96] * 4, "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0], "laurel_rank": 8}
_KOSMOS = {"embed_dim": 64, "layers": 4, "attention_heads": 4}
_QFORMER = {"encoder_hidden_size": 32, "vocab_size": 128}
_BLIP = {"num_query_tokens": 4, "image_token_index": 127, "qformer_config": _QFORMER}
_VQ = {"base_channels": 32, "num_embeddings": 16, "channel_multiplier": [1, 1]}
_INKLING_TOWER = {"text_hidden_size": 64, "patch_size": 4, "num_hidden_layers": 4}  # scipy picks fewer layers than 4

# What some types need besides, nested as their configs are. `...`: leave it to the class.
PER_TYPE: dict[str, dict[str, Any]] = {
    "blip-2": _BLIP,
    "chameleon": {"vocabulary_map": {"<image>": 120, "IMGIMGAZ": 121, "IMGIMGBZ": 122}, "vq_config": _VQ},
    "codegen": {"rotary_dim": 8},
    "cohere_compass": {"text_config": _COMPASS},
    "cohere_compass_text": _COMPASS,
    "cosmos3_edge": {"projector_hidden_size": 32, "text_config": _mrope(4, 2, 2)},
    "cpmant": {"dim_head": 16, "dim_ff": 96, "eps": 1e-2},
    "dbrx": {
        "attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 32, "moe_top_k": 2},
    },
    "deepseek_ocr2": {
        "vision_config": {"sam_config": {"downsample_channels": [16, 32]}},
        "text_config": {"mlp_layer_types": _MOE, "head_dim": 16},
    },
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1},
    "emu3": {
        "vocabulary_map": {"<|extra_200|>": 120, "<image>": 121},
        "vq_config": {"base_channels": 32, "codebook_size": 16},
    },
    "ernie4_5_vl_moe": {"text_config": {"moe_intermediate_size": [32, 16], **_mrope(3, 3, 2)}},
    "evolla": {"aligner_num_add_layers": 2, "resampler_depth": 1, "resampler_num_latents": 4},
    **{key: {"text_config": _CAP} for key in ("gemma4", "gemma4_unified")},
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text"), _CAP),
    "gemma3n": {"text_config": _GEMMA3N},
    "gemma3n_text": _GEMMA3N,
    "glm46v": {"text_config": _mrope(2, 3, 3)},
    "glm4v": {"text_config": _mrope(2, 3, 3)},
    "glm4v_moe": {"text_config": _mrope(1, 1, 2, partial_rotary_factor=0.5)},
    "glm5_next": {
        "text_config": {
            "qk_rope_head_dim": 0,
            "head_dim": 0,
            "index_kpool": 2,
            "indexer_types": ["full"] * 4,
            "linear_head_dim": 16,
            "linear_num_heads": 4,
        },
        "vision_config": {"projection_intermediate_size": 32},
    },
    "glm_ocr": {"text_config": _mrope(2, 3, 3)},
    "glmga": {"text_config": _mrope(2, 3, 3)},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "gptj": {"rotary_dim": 8},
    "granite4_vision": {
        "text_config": {"model_type": "granite4_vision_text"},
        "downsample_rate": "1/2",
        "deepstack_layer_map": [[-1, 1]],
        "spatial_target_layers": [0, 1, 2, 3],
        "qformer_config": {"encoder_hidden_size": 32},
    },
    "hunyuan_vl": {"text_config": _mrope(2, 2, 2, 2), "vision_config": {"text_hidden_size": 64}},
    "inkling_mm_model": {"audio_config": {"text_hidden_size": 64}, "vision_config": _INKLING_TOWER},
    "instructblip": _BLIP,
    "instructblipvideo": {**_BLIP, "video_token_index": 126},
    "janus": {
        "vision_config": {"projection_dim": 64},
        "vq_config": {**_VQ, "projection_dim": 64, "image_token_embed_dim": 64},
    },
    "kimi_linear": {
        "num_local_experts": 4,
        "n_shared_experts": 1,
        "n_group": 1,
        "linear_head_dim": 16,
        "linear_num_heads": 4,
    },
    "kosmos-2": {"text_config": _KOSMOS, "latent_query_num": 4},
    "kosmos-2.5": {"text_config": _KOSMOS, "vision_config": {"head_dim": 16}, "latent_query_num": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1},
    "llama4": {
        "vision_config": {"vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32},
    },
    "mamba2": {"num_heads": 4, "head_dim": 32, "state_size": 8, "chunk_size": 16},
    "muse_glimmer": {
        "out_hidden_size": 128,
        "projector_hidden_size": 32,
        "text_config": {"layer_rope_theta": [10000.0, 0, 10000.0, 0]},
    },
    "nemotron_h_omni": {
        "vision_config": {"video_temporal_patch_size": 2},
        "vision_hidden_size": 32,
        "projector_hidden_size": 32,
    },
    "paddleocr_vl": {"text_config": _mrope(2, 3, 3)},
    "qwen2_5_omni_thinker": {"vision_start_token_id": 151652, "text_config": _mrope(2, 3, 3)},
    "qwen2_5_vl": {"text_config": _mrope(2, 3, 3)},
    "qwen2_vl": {"text_config": _mrope(2, 3, 3), "vision_config": {"hidden_size": 64}},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 151652, "text_config": _mrope(2, 3, 3)},
    "qwen4_exp": {"text_config": _QWEN4},
    "qwen4_exp_text": _QWEN4,
    "step3p7": {"text_config": {"sliding_window": 16, "share_expert_dim": 32, "mlp_layer_types": _MOE}},
    "zamba": {"attention_hidden_size": 128, "attention_head_dim": 32, "num_key_value_heads": 4},
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 16},
}

_LISTS = ("layer_types", "mlp_layer_types", "layers_block_type", "no_rope_layers")


def model_types() -> dict[str, str]:
    """Every registered causal and image-text type, and the auto class that loads all of it."""
    types: dict[str, str] = {}
    for name in [*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES]:
        # A wrapper in both maps is there as a causal model only for its text part, or as the same class.
        types[name] = IMAGE_TEXT if name in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES else CAUSAL
    return types


def in_scope() -> list[str]:
    """The types that are decoder-only language models."""
    return [name for name in model_types() if name not in OUT_OF_SCOPE]


def build(model_type: str) -> PreTrainedModel:
    """A tiny model in float32 whose every parameter is random, norms and biases too."""
    torch.manual_seed(0)
    config = tiny_config(model_type)
    model: PreTrainedModel = _auto(model_type).from_config(config, dtype=torch.float32)
    randomize(model)
    model.eval()
    return model


def _auto(model_type: str) -> Any:
    return getattr(transformers, model_types()[model_type])


def tiny_config(model_type: str) -> PreTrainedConfig:
    """The type's default config, shrunk, with its scales set to something that shows."""
    default = CONFIG_MAPPING[model_type]()
    return _shrunk(default, default.get_text_config(decoder=True), PER_TYPE.get(model_type, {}))


def _shrunk(default: PreTrainedConfig, text: PreTrainedConfig, extra: dict[str, Any]) -> PreTrainedConfig:
    is_text = default is text
    if "model_type" in extra:  # the wrapper's default is another type than its checkpoints have
        default = CONFIG_MAPPING[extra["model_type"]]()
    small = {**TEXT, **SCALES} if is_text else TOWER
    arguments: dict[str, Any] = {}
    for field in dataclasses.fields(default):
        name, value = field.name, vars(default).get(field.name)
        if isinstance(value, PreTrainedConfig):
            arguments[name] = _shrunk(value, text, extra.get(name, {}))
        elif name in extra:
            pass
        elif name in small and (isinstance(value, int | float) or (name in NEEDED and is_text)):
            arguments[name] = small[name]
        elif name in _LISTS and is_text and isinstance(value, list | tuple) and value:
            kinds = list(dict.fromkeys(value))
            arguments[name] = [kinds[layer % len(kinds)] for layer in range(4)]
    if "kv_lora_rank" in arguments:
        arguments["num_key_value_heads"] = 4
        if "head_dim" in arguments:
            arguments["head_dim"] = 8
    if "out_hidden_size" in vars(default) and not is_text:
        arguments["out_hidden_size"] = 64
    more = {name: value for name, value in extra.items() if name not in arguments and name != "model_type"}
    return type(default)(**arguments, **{name: value for name, value in more.items() if value is not ...})


def randomize(model: PreTrainedModel) -> None:
    """Random matrices, and vectors away from their ones and zeros: `w`, `1 + w` and a lost bias all differ then."""
    tables = {id(module.weight) for module in _tables(model)}
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim <= 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:
                # Embedding and head are larger: logits then reach into a soft cap.
                parameter.normal_(0, 0.3 if id(parameter) in tables else 0.05)
        saved = model.state_dict()
        for name, buffer in model.named_buffers():
            if name in saved and buffer.is_floating_point() and buffer.ndim <= 1:
                buffer.add_(torch.rand_like(buffer) * 0.2)


def head_of(model: PreTrainedModel) -> nn.Module | None:
    """The module that makes logits."""
    head: nn.Module | None = model.get_output_embeddings()
    if head is None:  # nemotron_h_omni does not say
        head = next((module for name, module in model.named_modules() if name.endswith("lm_head")), None)
    return head


def _tables(model: PreTrainedModel) -> list[nn.Module]:
    modules = (model.get_input_embeddings(), head_of(model))
    return [module for module in modules if module is not None and isinstance(module.weight, Tensor)]


def text_inputs(model: PreTrainedModel) -> dict[str, Tensor]:
    """One sequence of ten ordinary tokens; where a type insists on an image, a black one that the text does not see."""
    config = model.config
    ids = ordinary_tokens(config, 10)[None]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    accepted = inspect.signature(model.forward).parameters
    inputs = {name: value for name, value in inputs.items() if name in accepted}
    if config.model_type in ("blip-2", "instructblip", "instructblipvideo", "idefics"):
        size = config.vision_config.image_size
        images = (1,) if config.model_type in ("idefics", "instructblipvideo") else ()
        inputs["pixel_values"] = torch.zeros(1, *images, 3, size, size)
    if config.model_type == "idefics":
        inputs["image_attention_mask"] = torch.zeros(1, ids.shape[1], 1, dtype=torch.long)
    if config.model_type.startswith("instructblip"):
        inputs["qformer_input_ids"] = ids
    if config.model_type == "kosmos-2":
        inputs["image_embeds"] = torch.zeros(1, 0, config.text_config.embed_dim)
        inputs["image_embeds_position_mask"] = torch.zeros_like(ids)
    return inputs


def ordinary_tokens(config: PreTrainedConfig, count: int) -> Tensor:
    """Ids that no entry of the config names, in no order."""
    named: set[int] = set()

    def collect(value: object, inside: bool) -> None:
        if isinstance(value, dict):
            for name, item in value.items():
                collect(item, inside or bool(re.search(r"token_(id|index)|vocabulary_map", str(name))))
        elif isinstance(value, list | tuple):
            for item in value:
                collect(item, inside)
        elif inside and isinstance(value, int):
            named.add(value)

    collect(config.to_dict(), False)
    order = torch.randperm(TEXT["vocab_size"], generator=torch.Generator().manual_seed(0)).tolist()
    return torch.tensor([token for token in order if token > 4 and token not in named][:count])


def save(model: PreTrainedModel, directory: Path) -> None:
    """As the model saves itself, with whatever names its type has on disk."""
    model.save_pretrained(directory)


def shapes(directory: Path) -> dict[str, list[int]]:
    """The shape of every tensor of a checkpoint."""
    found: dict[str, list[int]] = {}
    for file in sorted(directory.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            found |= {name: list(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    return found


def module_name(model: nn.Module, module: nn.Module | None) -> str | None:
    """What a model calls one of its modules."""
    return next((name for name, other in model.named_modules() if other is module), None)


def layer_list(model: PreTrainedModel, embedding: str) -> str | None:
    """The name of the list of layers that is nearest to the embedding."""
    parent = embedding
    while parent:
        parent = parent.rpartition(".")[0]
        lists = [
            name
            for name, module in model.get_submodule(parent).named_modules(prefix=parent)
            if isinstance(module, nn.ModuleList)
            and len(module) > 1
            and not re.search(r"\.\d+\.|expert|vision|visual|image|audio", name.removeprefix(parent))
        ]
        if lists:
            usual = ("layers", "h", "blocks")
            nearest: str = min(lists, key=lambda name: (name.rpartition(".")[2] not in usual, name.count(".")))
            return nearest
    return None


def parts(model: PreTrainedModel) -> dict[str, str | None]:
    """The names at run time of embedding, layers, the norm before the head, and the head."""
    head, embedding = head_of(model), module_name(model, model.get_input_embeddings())
    layers = layer_list(model, embedding or "")
    seen: list[tuple[str, Tensor]] = []
    head_inputs: list[Tensor] = []
    handles = [
        module.register_forward_hook(lambda _m, _i, out, name=name: seen.append((name, out)))
        for name, module in model.named_modules()
        if re.search(r"norm|ln_f|ln_out", name.rpartition(".")[2]) and not (layers and name.startswith(layers + "."))
    ]
    if head is not None:
        handles.append(head.register_forward_hook(lambda _m, args, _o: head_inputs.append(args[0])))
    with torch.no_grad():
        model(**text_inputs(model))
    for handle in handles:
        handle.remove()
    equal = [n for n, out in seen if head_inputs and isinstance(out, Tensor) and torch.equal(out, head_inputs[-1])]
    norm = equal[-1] if equal else (seen[-1][0] + " (not the head's input)" if seen else None)
    return {"embedding": embedding, "layers": layers, "norm": norm, "head": module_name(model, head)}


def report(model_type: str) -> dict[str, Any]:
    """Build, run and save one type: what is on its disk outside the layers, and what its modules are called."""
    started = time.monotonic()
    model = build(model_type)
    with torch.no_grad():
        output = model(**text_inputs(model))
    logits = output.logits
    with tempfile.TemporaryDirectory() as directory:
        save(model, Path(directory))
        again = _auto(model_type).from_pretrained(directory, dtype=torch.float32).eval()
        with torch.no_grad():
            reloaded = again(**text_inputs(again)).logits
        on_disk = shapes(Path(directory))
        config = json.loads((Path(directory) / "config.json").read_text())
    return {
        "model_type": model_type,
        "auto_class": model_types()[model_type],
        "class": type(model).__name__,
        "seconds": round(time.monotonic() - started, 2),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "logits": list(logits.shape),
        "finite": bool(torch.isfinite(logits).all()),
        "reload_difference": (logits - reloaded).abs().max().item(),
        "logits_std": round(logits.float().std().item(), 3),
        "renamed": sorted(set(on_disk) - set(model.state_dict()))[:3],
        "buffers": sorted({re.sub(r"\.\d+\.", ".N.", n) for n, b in model.named_buffers() if n in model.state_dict()}),
        "keys": {name: shape for name, shape in on_disk.items() if not re.search(r"\.\d+\.", "." + name)},
        **parts(model),
        "config": config,
    }


@contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def report_all(out: Path, names: list[str]) -> None:
    """A line for every type in scope, built or not."""
    with out.open("w") as lines:
        for name in names:
            try:
                with _time_limit(40):
                    line = report(name)
            except Exception as error:
                line = {"model_type": name, "error": f"{type(error).__name__}: {error}"[:300]}
                line["where"] = traceback.format_exc()[-400:]
            lines.write(json.dumps(line) + "\n")
            lines.flush()


def main(arguments: list[str]) -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if arguments[0] == "--all":
        report_all(Path(arguments[1]), arguments[2:] or in_scope())
    else:
        save(build(arguments[0]), Path(arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
