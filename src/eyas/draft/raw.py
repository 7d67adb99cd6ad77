"""The raw Eagle3 format (EAGLE's authors, SpecForge, SGLang), in `draft-sglang/`: written and read back here, not served.

It calls the layer `midlayer`, keeps the layer's numbers at the top level, and names layers by their output: ids are one
lower than ours. `stored.py` reads it.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, PretrainedConfig

from eyas.artifact import write_file
from eyas.config import Config
from eyas.draft.initial import initial_draft
from eyas.draft.model import Draft
from eyas.draft.schema import DraftVocabulary
from eyas.draft.shape import Shape
from eyas.draft.stored import FLAGS
from eyas.errors import EyasError

SAME = ("rope_parameters", "rms_norm_eps", "max_position_embeddings", "hidden_act", "attention_bias")
"""Values of the layer that `draft.init` takes from the configuration, not from the file."""


def save_raw(draft: Draft, directory: Path) -> None:
    """Write config.json and model.safetensors, every tensor of the draft included."""
    directory.mkdir(parents=True)
    tensors = {
        name.replace("layers.0.", "midlayer."): tensor.contiguous() for name, tensor in draft.state_dict().items()
    }
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    write_file(directory / "config.json", json.dumps(raw_config(draft), indent=2) + "\n")


def raw_config(draft: Draft) -> dict[str, Any]:
    """The layer's config at the top level, with rotary positions in the older spelling, which old and new readers take."""
    layer: dict[str, Any] = draft.config.transformer_layer_config.to_dict()
    rope = dict(layer.pop("rope_parameters"))
    theta = rope.pop("rope_theta")
    dtype = str(draft.fc.weight.dtype).removeprefix("torch.")
    for key in PretrainedConfig().to_dict().keys() - {"model_type", "tie_word_embeddings"}:
        layer.pop(key, None)  # labels and the like, which mean nothing to a draft
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        **layer,
        "rope_theta": theta,
        "rope_scaling": None if rope["rope_type"] == "default" else rope,
        "torch_dtype": dtype,
        "draft_vocab_size": draft.config.draft_vocab_size,
        **{flag: bool(getattr(draft.config, flag)) for flag in FLAGS},
        "eagle_config": {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": [id - 1 for id in draft.config.eagle_aux_hidden_state_layer_ids],
        },
    }


def compare_raw(config: Config, shape: Shape, draft: Draft, directory: Path) -> None:
    """Read `directory` as `draft.init` would, and compare it with the live draft.

    Raises:
        EyasError: a tensor, the vocabulary or a number of the layer that isn't the draft's.
    """
    start = replace(config.draft, init=str(directory), init_vocabulary=DraftVocabulary.keep)
    found = initial_draft(replace(config, draft=start), shape)
    live = {name: tensor for name, tensor in draft.state_dict().items() if name not in ("d2t", "t2d")}
    if found.tensors.keys() != live.keys():
        raise EyasError(
            f"export: {sorted(found.tensors.keys() ^ live.keys())} are in the draft or in {directory}, but not in both"
        )
    for name, tensor in live.items():
        if not torch.equal(tensor, found.tensors[name]) or not tensor.isfinite().all():
            raise EyasError(f"export: {name} in {directory} is not the trained tensor")
    if not torch.equal(found.draft_ids_D, draft.draft_ids_D.cpu()):
        raise EyasError(f"export: {directory} has another draft vocabulary")
    read, wanted = LlamaConfig.from_pretrained(directory), draft.config.transformer_layer_config
    for key in SAME:
        if getattr(read, key) != getattr(wanted, key):
            raise EyasError(
                f"export: {key} reads as {getattr(read, key)} from {directory}, expected {getattr(wanted, key)}"
            )
