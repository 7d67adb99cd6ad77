"""Small checkpoints in the layouts that as many teams would bring: `python -m tests.distributed.new_verifiers.checkpoints DIR`.

Random weights, a byte tokenizer, names on disk as they are published. `DIR/llama.safetensors` holds what the Llama
behind `packed` and `consolidated` computes: `state` [N, H] before its final norm, `logits` [N, V].
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.conformance import tiny
from tests.distributed.new_verifiers.modeling_inhouse import InhouseForCausalLM
from torch import Tensor
from transformers import PreTrainedModel

from eyas.verifier.make import byte_tokenizer

HERE = Path(__file__).parent
VOCABULARY = 320
PER_INT32, GROUP = 8, 32


def save(model: PreTrainedModel, directory: Path) -> dict[str, Tensor]:
    """The checkpoint as transformers writes it, with a tokenizer; its tensors."""
    model.save_pretrained(directory)
    byte_tokenizer().save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)  # of the tokenizer's stop tokens it knows nothing
    return load_file(directory / "model.safetensors")


def rewrite(directory: Path, tensors: dict[str, Tensor], name: str = "model.safetensors") -> None:
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, directory / name, {"format": "pt"})


def change_config(directory: Path, **values: object) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}, indent=2))


def kimi_k25(directory: Path) -> None:
    """Kimi-K2.5 with all of its layers, each a few numbers wide: what its YAML says of layers holds."""
    kimi_finetune(directory, num_layers=61)


def kimi_finetune(directory: Path, num_layers: int = 8) -> None:
    """Kimi-K2.5's wrapper: vision tower, `language_model.`, DeepSeek-V3's layers under the type kimi_k2, a head of its own."""
    config: Any = tiny.tiny_config("kimi_k25")
    config.tie_word_embeddings = False  # as published; the class's default is true
    config.text_config.num_nextn_predict_layers = 0
    config.text_config.num_hidden_layers = num_layers
    model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    tiny.randomize(model)
    published = {"lm_head.": "language_model.lm_head.", "language_model.model.blocks.": "language_model.model.layers."}
    tensors = {}
    for key, tensor in save(model, directory).items():
        old = next((it for it in published if key.startswith(it)), "")
        tensors[published.get(old, "") + key.removeprefix(old)] = tensor
    rewrite(directory, tensors)
    inner = json.loads((directory / "config.json").read_text())["text_config"]
    change_config(directory, text_config={**inner, "model_type": "kimi_k2"})


def qwen3_next(directory: Path) -> None:
    save(tiny.build("qwen3_next"), directory)


def gemma3_vlm(directory: Path) -> None:
    save(tiny.build("gemma3"), directory)


def inhouse(directory: Path) -> None:
    """Code in the checkpoint, and names that no library knows."""
    torch.manual_seed(0)
    model = InhouseForCausalLM(InhouseForCausalLM.config_class(vocab_size=VOCABULARY))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.2)
    save(model, directory)
    classes = {
        "AutoConfig": "configuration_inhouse.InhouseConfig",
        "AutoModelForCausalLM": "modeling_inhouse.InhouseForCausalLM",
    }
    change_config(directory, auto_map=classes)
    for name in ("configuration_inhouse.py", "modeling_inhouse.py"):
        shutil.copy(HERE / name, directory)


def llama() -> PreTrainedModel:
    return tiny.build("llama")


def packed(directory: Path) -> None:
    """compressed-tensors' pack-quantized int4 in the layers; embedding, norms and head stay floats."""
    tensors = save(llama(), directory)
    for key in [key for key in tensors if key.endswith("proj.weight")]:
        weight = tensors.pop(key)
        groups = weight.unflatten(1, (-1, GROUP))
        scale = groups.abs().amax(-1) / 7
        nibbles = ((groups / scale[..., None]).round().flatten(1) + 8).int().unflatten(1, (-1, PER_INT32))
        tensors[f"{key}_packed"] = (nibbles << torch.arange(0, 32, 4, dtype=torch.int32)).sum(-1).int()
        tensors[f"{key}_scale"] = scale.bfloat16()
        tensors[f"{key}_shape"] = torch.tensor(weight.shape)
    rewrite(directory, tensors)
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
    block = {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"]}
    change_config(
        directory,
        quantization_config={**block, "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}},
    )


CONSOLIDATED = {
    "model.embed_tokens": "tok_embeddings",
    "model.norm": "norm",
    "lm_head": "output",
    "model.": "",
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
}


def consolidated(directory: Path) -> None:
    """Mistral's own layout; nothing of transformers' beside it but a tokenizer."""
    model = llama()
    tensors = {}
    for key, tensor in save(model, directory).items():
        for theirs, ours in CONSOLIDATED.items():
            key = key.replace(theirs, ours)
        tensors[key] = tensor
    rewrite(directory, tensors, "consolidated.safetensors")
    for name in ("config.json", "model.safetensors"):
        (directory / name).unlink()
    config = model.config
    parameters = {
        "dim": config.hidden_size,
        "n_layers": config.num_hidden_layers,
        "head_dim": config.head_dim,
        "hidden_dim": config.intermediate_size,
        "n_heads": config.num_attention_heads,
        "n_kv_heads": config.num_key_value_heads,
        "norm_eps": config.rms_norm_eps,
        "vocab_size": config.vocab_size,
        "rope_theta": 10000.0,
    }
    (directory / "params.json").write_text(json.dumps(parameters, indent=2))


@torch.no_grad()
def reference(file: Path) -> None:
    model, states = llama(), []
    model.model.norm.register_forward_pre_hook(lambda _, args: states.append(args[0][0]))
    logits = model(torch.arange(10, 40)[None]).logits[0]
    save_file({"state": states[0].contiguous(), "logits": logits.contiguous()}, file)


def main(directory: Path) -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    # The byte tokenizer must fit, its end of an answer be the model's, and EAGLE-3's default layers be there.
    tiny.TEXT.update(vocab_size=VOCABULARY, eos_token_id=byte_tokenizer().eos_token_id, num_hidden_layers=8)
    tiny.PER_TYPE["qwen3_next"] = {"layer_types": ["linear_attention", "full_attention"] * 4}
    tiny.PER_TYPE["gemma3"] = {"text_config": {"layer_types": ["sliding_attention", "full_attention"] * 4}}
    for make in (kimi_k25, kimi_finetune, qwen3_next, gemma3_vlm, inhouse, packed, consolidated):
        make(directory / make.__name__)
    reference(directory / "llama.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
