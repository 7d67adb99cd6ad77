"""The draft: speculators' EAGLE-3 model, with our own forward.

Modules, configuration and file format are speculators', so that vLLM loads what we save. Three things differ: the
teacher is not part of the draft, what is frozen is held outside the module tree (so that sharded parameters = trained
parameters), and `forward` is the unroll of `draft/unroll.py`.
"""

from collections.abc import Callable
from typing import Any

import torch
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from torch import Tensor
from torch.nn.functional import embedding, linear
from transformers import DynamicCache, LlamaConfig, PretrainedConfig, Qwen3Config

from eyas.data.positions import Rows, UnrollPlan, shift
from eyas.draft.judge import Judged, judge
from eyas.draft.layers import FirstUnrolledLayer, UnrolledLayer, Unrolling
from eyas.draft.loss import PositionLoss
from eyas.draft.schema import DraftArchitecture, DraftConfig
from eyas.draft.shape import Shape
from eyas.draft.unroll import Unrolled, unroll
from eyas.draft.vocabulary import to_mappings
from eyas.verifier.teacher import Targets

DECODING_ATTENTION = "sdpa"
"""Of `Draft.decode`; the unroll has its own."""


class Draft(Eagle3DraftModel):
    """EAGLE-3 draft. T positions, L captured layers, H hidden size, V verifier vocabulary, D draft vocabulary."""

    def __init__(self, config: Eagle3SpeculatorConfig, draft_ids_D: Tensor) -> None:
        super().__init__(config)
        del self.verifier_norm, self.verifier_lm_head
        self.draft_ids_D = draft_ids_D
        self.load_vocab_mappings(*reversed(to_mappings(draft_ids_D, config.transformer_layer_config.vocab_size)))
        self.frozen: dict[str, Tensor] = {}
        self.recompute = False
        """Whether training makes activations again in the backward, instead of keeping them."""

    @property
    def window(self) -> int | None:
        """How many positions attention sees, its own included; None: all."""
        window: int | None = self.sliding_window if self.uses_sliding_window_attn else None
        return window

    def freeze(self, *, trainable_head: bool) -> None:
        """Take what isn't trained out of the module tree; `attach` puts it back."""
        for name in ("embed_tokens",) if trainable_head else ("embed_tokens", "lm_head"):
            self.frozen[name] = getattr(self, name).weight.detach()
            delattr(self, name)
        self.requires_grad_(True)

    def attach(self) -> None:
        """Undo `freeze`, for saving."""
        for name, weight in self.frozen.items():
            rows, columns = weight.shape
            module = (
                torch.nn.Embedding(rows, columns, _weight=weight)
                if name == "embed_tokens"
                else torch.nn.Linear(columns, rows, bias=False)
            )
            module.weight = torch.nn.Parameter(weight, requires_grad=False)
            setattr(self, name, module)
        self.frozen = {}

    def compile_parts(self) -> None:
        """Compile what consists of many small operations, in place: norms and feed-forward networks."""
        for layer in self.layers:
            for name, part in layer.named_children():
                if name != "self_attn":
                    part.compile(dynamic=True)
        self.norm.compile(dynamic=True)

    def move_frozen(self, device: torch.device, dtype: torch.dtype) -> None:
        """Modules move with the model; what is outside the tree is moved here, in the type it is used in."""
        self.frozen = {name: weight.to(device, dtype) for name, weight in self.frozen.items()}
        self.draft_ids_D = self.draft_ids_D.to(device)

    def forward(
        self,
        *,
        input_ids_T: Tensor,
        hidden_TLH: Tensor,
        position_ids_T: Tensor,
        plan: UnrollPlan,
        targets: Callable[[slice], Targets],
        loss: PositionLoss,
        weight_K: Tensor,
    ) -> Unrolled:
        """Unroll over one packed row (see `draft/unroll.py`); `targets` are the teacher's for a slice of the plan's."""
        token_TH = embedding(shift(input_ids_T, 1), self._weight("embed_tokens")).to(hidden_TLH.dtype)
        how = Unrolling(self.window, self.recompute)
        first = FirstUnrolledLayer(self.layers[0], how, token_TH, plan.steps[0])
        layers = [first, *(UnrolledLayer(layer, how) for layer in self.layers[1:])]
        rotary_T = self._rotary(position_ids_T, hidden_TLH)

        def draft_step(state: Tensor, rows: Rows, step: int) -> tuple[Tensor, Tensor]:
            rotary_N = self._rotary(position_ids_T[rows.positions_N] + step, state)
            for layer in layers:
                state = layer(state, rows, rotary_N, step, rotary_T)
            normed_NH: Tensor = self.norm(state)
            return (normed_NH if self.config.norm_output else state), normed_NH

        def judged(state_RH: Tensor) -> Judged:
            return judge(state_RH, self._weight("lm_head"), targets, plan, loss, weight_K)

        return unroll(draft_step, judged, self.fuse(hidden_TLH), plan)

    def fuse(self, hidden_TLH: Tensor) -> Tensor:
        """The captured states of L layers -> one state [T, H]."""
        if self.fc_norm is not None:
            hidden_TLH = torch.stack(
                [norm(state) for norm, state in zip(self.fc_norm, hidden_TLH.unbind(1), strict=True)], dim=1
            )
        hidden = hidden_TLH.flatten(1)
        fused_TH: Tensor = self.fc(hidden if self.input_norm is None else self.input_norm(hidden))
        return fused_TH

    def decode(
        self, tokens_T: Tensor, hidden_TH: Tensor, position_ids_T: Tensor, attention_mask: Tensor, cache: DynamicCache
    ) -> tuple[Tensor, Tensor]:
        """One pass through the draft's layers; their keys are appended to `cache`.

        Returns (hidden for the next step, normalised state for the head), both [T, H].
        """
        state = torch.cat([embedding(tokens_T, self._weight("embed_tokens")).to(hidden_TH.dtype), hidden_TH], dim=-1)[
            None
        ]
        positions = position_ids_T[None]
        rotary = self.rotary_emb(state, positions)
        for layer in self.layers:
            state = layer(
                state,
                attention_mask=attention_mask,
                position_ids=positions,
                past_key_values=cache,
                position_embeddings=rotary,
            )
        normed_TH: Tensor = self.norm(state[0])
        return (normed_TH if self.config.norm_output else state[0]), normed_TH

    def head(self, state_NH: Tensor) -> Tensor:
        """Logits over the draft vocabulary [N, D]."""
        return linear(state_NH, self._weight("lm_head"))

    def _rotary(self, position_ids_N: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        cos_1Nd, sin_1Nd = self.rotary_emb(like, position_ids_N[None])
        return cos_1Nd[0, :, None], sin_1Nd[0, :, None]

    def _weight(self, name: str) -> Tensor:
        frozen = self.frozen.get(name)
        weight: Tensor = getattr(self, name).weight if frozen is None else frozen
        return weight


def draft_config(draft: DraftConfig, shape: Shape, *, verifier: str, unroll_steps: int) -> Eagle3SpeculatorConfig:
    """speculators' configuration of a draft: the contract with vLLM."""
    architectures: dict[DraftArchitecture, type[PretrainedConfig]] = {
        DraftArchitecture.llama: LlamaConfig,
        DraftArchitecture.qwen3: Qwen3Config,
    }
    layer: dict[str, Any] = {
        "vocab_size": shape.verifier_vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": draft.num_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_parameters": dict(shape.rope_parameters),
        "max_position_embeddings": shape.max_position_embeddings,
        "tie_word_embeddings": False,
    }
    if draft.sliding_window is not None:  # vLLM and speculators read it so, for either architecture
        layer |= {"sliding_window": draft.sliding_window, "use_sliding_window": True}
        layer["layer_types"] = ["sliding_attention"] * draft.num_layers
    layer_config = architectures[draft.architecture](**layer)
    layer_config._attn_implementation = DECODING_ATTENTION
    return Eagle3SpeculatorConfig(
        architectures=["Eagle3DraftModel"],
        transformer_layer_config=layer_config,
        draft_vocab_size=shape.draft_vocab_size,
        eagle_aux_hidden_state_layer_ids=list(shape.layer_ids),
        norm_before_residual=draft.norm_before_residual,
        norm_before_fc=draft.norm_before_fc,
        fc_norm=draft.fc_norm,
        norm_output=draft.norm_output,
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=unroll_steps)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=verifier, architectures=[]),
        ),
    )
