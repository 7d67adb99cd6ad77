"""A draft whose layers begin as the verifier's last ones."""

from collections.abc import Callable

import pytest
import torch

from eyas.config import Config
from eyas.data.prepare import prepare
from eyas.draft.build import build_draft
from eyas.errors import EyasError
from eyas.verifier.checkpoint import Checkpoint


def test_layers_begin_as_the_verifiers_last(tiny: Callable[..., Config], tiny_checkpoint: Checkpoint) -> None:
    config = tiny("draft.warm_start=true", "draft.num_layers=2")
    prepare(config)
    draft = build_draft(config)
    verifier = {key: tiny_checkpoint.tensor(key).float() for key in tiny_checkpoint.file_of}
    first, second = draft.layers
    hidden_size = draft.fc.weight.shape[0]
    for name, own in (("q_proj", first.self_attn.q_proj), ("v_proj", first.self_attn.v_proj)):
        assert torch.equal(own.weight[:, hidden_size:], verifier[f"model.layers.6.self_attn.{name}.weight"])
        assert own.weight[:, :hidden_size].std() > 0, "the token's half keeps its start"
    assert torch.equal(first.hidden_norm.weight, verifier["model.layers.6.input_layernorm.weight"])
    for name, parameter in second.named_parameters():
        assert torch.equal(parameter, verifier[f"model.layers.7.{name}"]), name
    state_TLH = torch.randn(5, 3, hidden_size)
    draft.input_norm = None
    torch.testing.assert_close(draft.fuse(state_TLH), state_TLH[:, -1])


def test_layers_of_other_shapes_are_refused(tiny: Callable[..., Config]) -> None:
    config = tiny("draft.warm_start=true", "verifier.draft.intermediate_size=48")
    prepare(config)
    with pytest.raises(EyasError, match=r"layers.7.mlp.gate_proj.weight has shape \[64, 32\], .* needs \[48, 32\]"):
        build_draft(config)
