"""An in-house model's config, as it ships inside its checkpoint."""

from transformers import PretrainedConfig


class InhouseConfig(PretrainedConfig):
    model_type = "inhouse"

    def __init__(self, vocab_size=320, d_model=64, n_blocks=8, n_heads=4, norm_eps=1e-5, **more):
        self.vocab_size, self.d_model, self.n_blocks, self.n_heads = vocab_size, d_model, n_blocks, n_heads
        self.norm_eps = norm_eps
        super().__init__(**{"tie_word_embeddings": False, **more})
