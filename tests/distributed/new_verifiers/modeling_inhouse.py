"""An in-house model as it ships inside its checkpoint: no name in it is one that transformers' own models use."""

from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from .configuration_inhouse import InhouseConfig


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_heads = config.n_heads
        self.norm_1, self.norm_2 = (nn.RMSNorm(config.d_model, config.norm_eps) for _ in range(2))
        self.qkv = nn.Linear(config.d_model, 3 * config.d_model)
        self.out = nn.Linear(config.d_model, config.d_model)
        self.up, self.down = nn.Linear(config.d_model, 96), nn.Linear(96, config.d_model)

    def forward(self, x):
        q, k, v = (it.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for it in self.qkv(self.norm_1(x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)  # right padding needs no mask
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.silu(self.up(self.norm_2(x))))


class Decoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_blocks))
        self.final_norm = nn.RMSNorm(config.d_model, config.norm_eps)

    def forward(self, input_ids):
        x = self.tokens(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.final_norm(x)


class InhouseForCausalLM(PreTrainedModel):
    config_class = InhouseConfig

    def __init__(self, config):
        super().__init__(config)
        self.model = nn.ModuleDict({"decoder": Decoder(config)})
        self.decoder = nn.ModuleDict({"output_proj": nn.Linear(config.d_model, config.vocab_size)})
        self.post_init()

    def forward(self, input_ids, attention_mask=None, use_cache=False):
        return CausalLMOutputWithPast(logits=self.decoder["output_proj"](self.model["decoder"](input_ids)))
