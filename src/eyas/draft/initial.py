"""`draft.init`: starting from an existing draft, in speculators' format or the raw Eagle3 one.

The raw format (EAGLE authors, SGLang, SpecForge) calls the layer `midlayer`, and its layer ids are one lower than ours:
it names the layer whose output is read, we name the layer it enters.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from eyas.config import Config, DraftVocabulary
from eyas.draft.model import Draft
from eyas.draft.shape import Shape
from eyas.draft.vocabulary import from_mappings
from eyas.errors import EyasError

FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


@dataclass(frozen=True)
class InitialDraft:
    """An existing draft's tensors by speculators' names, and its vocabulary."""

    where: str
    tensors: dict[str, Tensor]
    draft_ids_D: Tensor
    keeps_vocabulary: bool

    def load_into(self, draft: Draft) -> None:
        """Copy every tensor; with another vocabulary, head rows go by token id and new tokens keep the verifier's row.

        Raises:
            EyasError: tensors missing, left over, or of another shape.
        """
        wanted = {name: tensor for name, tensor in draft.named_parameters() if name != "embed_tokens.weight"}
        given = {name: tensor for name, tensor in self.tensors.items() if name != "embed_tokens.weight"}
        if wanted.keys() != given.keys():
            raise EyasError(
                f"{self.where}: its tensors are not this draft's; missing {sorted(wanted.keys() - given.keys()) or 'none'}, "
                f"left over {sorted(given.keys() - wanted.keys()) or 'none'}"
            )
        for name, tensor in given.items():
            target = wanted[name].data
            if name == "lm_head.weight":
                old_D = torch.isin(self.draft_ids_D, draft.draft_ids_D)
                new_D = torch.searchsorted(draft.draft_ids_D, self.draft_ids_D[old_D])
                target[new_D] = tensor[old_D].float()
            elif tensor.shape != target.shape:
                raise EyasError(
                    f"{self.where}: {name} has shape {list(tensor.shape)}, this draft's has {list(target.shape)}"
                )
            else:
                target.copy_(tensor)


def initial_draft(config: Config, shape: Shape) -> InitialDraft:
    """Read `draft.init`.

    Raises:
        EyasError: no such draft, or one that contradicts the configuration; every contradiction is named.
    """
    directory = _directory(str(config.draft.init))
    where = f"draft.init={config.draft.init}"
    draft = _config(directory, where)
    tensors = _tensors(directory, where)
    raw = "speculators_model_type" not in draft
    layer = draft if raw else draft.get("transformer_layer_config", {})
    vocab_size = layer.get("vocab_size", shape.verifier_vocab_size)
    d2t, t2d = tensors.pop("d2t", None), tensors.pop("t2d", None)
    draft_ids_D = torch.arange(vocab_size) if d2t is None or t2d is None else from_mappings(d2t, t2d, where)
    keep = config.draft.init_vocabulary is DraftVocabulary.keep

    found: dict[str, Any] = {flag: bool(draft.get(flag, False)) for flag in FLAGS}
    found["layer_ids"] = _layer_ids(draft, shape, raw=raw)
    found["verifier vocabulary"] = vocab_size
    wanted: dict[str, Any] = {flag: getattr(config.draft, flag) for flag in FLAGS}
    wanted |= {"layer_ids": shape.layer_ids, "verifier vocabulary": shape.verifier_vocab_size}
    for key in ("hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size", "head_dim"):
        found[key], wanted[key] = layer.get(key, getattr(shape, key)), getattr(shape, key)
    if keep:
        found["vocab_size"], wanted["vocab_size"] = len(draft_ids_D), shape.draft_vocab_size
    conflicts = [f"draft.{key}={wanted[key]} but it has {found[key]}" for key in wanted if wanted[key] != found[key]]
    if conflicts:
        hint = (
            "; draft.init_vocabulary=remap takes another vocabulary"
            if any("draft.vocab_size" in conflict for conflict in conflicts)
            else ""
        )
        raise EyasError(f"{where} contradicts the configuration: {'; '.join(conflicts)}{hint}")
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    return InitialDraft(where, renamed, draft_ids_D, keeps_vocabulary=keep)


def _layer_ids(draft: dict[str, Any], shape: Shape, *, raw: bool) -> list[int]:
    if not raw:
        return list(draft.get("eagle_aux_hidden_state_layer_ids") or shape.layer_ids)
    ids = (draft.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    return [id + 1 for id in ids] if ids else shape.layer_ids


def _directory(path: str) -> Path:
    directory = Path(path).expanduser()
    if directory.is_dir():
        return directory
    if path.count("/") != 1 or path.startswith((".", "/", "~")):
        raise EyasError(f"draft.init={path}: there is no such directory")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(path))
    except Exception as error:  # the hub client raises a dozen kinds: no network, no such repository, no access
        raise EyasError(
            f"draft.init={path} is no local directory, and the hub did not give it ({type(error).__name__})"
        ) from error


def _config(directory: Path, where: str) -> dict[str, Any]:
    file = directory / "config.json"
    if not file.exists():
        raise EyasError(f"{where}: no config.json in it, so it is no draft")
    config: dict[str, Any] = json.loads(file.read_text())
    if config.get("speculators_model_type", "eagle3") != "eagle3":
        raise EyasError(f"{where} is a {config['speculators_model_type']} draft, expected eagle3")
    return config


def _tensors(directory: Path, where: str) -> dict[str, Tensor]:
    for file in sorted(directory.glob("*.safetensors")):
        return load_file(file)
    for file in sorted(directory.glob("pytorch_model.bin")):
        tensors: dict[str, Tensor] = torch.load(file, weights_only=True)
        return tensors
    raise EyasError(f"{where}: neither *.safetensors nor pytorch_model.bin in it")
