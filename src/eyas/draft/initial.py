"""`draft.init`: starting from an existing draft, in speculators' format or the raw Eagle3 one."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eyas.config import Config
from eyas.draft.model import Draft
from eyas.draft.schema import DraftVocabulary
from eyas.draft.shape import Shape
from eyas.draft.stored import read_stored
from eyas.errors import EyasError


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
    where = f"draft.init={config.draft.init}"
    stored = read_stored(str(config.draft.init), where)
    keep = config.draft.init_vocabulary is DraftVocabulary.keep

    found: dict[str, Any] = dict(stored.flags)
    found["layer_ids"] = stored.layer_ids or shape.layer_ids
    found["sliding_window"] = stored.sliding_window
    found["verifier vocabulary"] = stored.verifier_vocab_size
    wanted: dict[str, Any] = {flag: getattr(config.draft, flag) for flag in stored.flags}
    wanted |= {"layer_ids": shape.layer_ids, "verifier vocabulary": shape.verifier_vocab_size}
    wanted["sliding_window"] = config.draft.sliding_window
    for key in ("hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size", "head_dim"):
        found[key], wanted[key] = stored.layer.get(key, getattr(shape, key)), getattr(shape, key)
    if keep:
        found["vocab_size"], wanted["vocab_size"] = len(stored.draft_ids_D), shape.draft_vocab_size
    conflicts = [f"draft.{key}={wanted[key]} but it has {found[key]}" for key in wanted if wanted[key] != found[key]]
    if conflicts:
        hint = (
            "; draft.init_vocabulary=remap takes another vocabulary"
            if any("draft.vocab_size" in conflict for conflict in conflicts)
            else ""
        )
        raise EyasError(f"{where} contradicts the configuration: {'; '.join(conflicts)}{hint}")
    return InitialDraft(where, stored.tensors, stored.draft_ids_D, keeps_vocabulary=keep)
