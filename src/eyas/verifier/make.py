"""Make a verifier's checkpoint: `python -m eyas.verifier.make CONFIG` (from a GGUF file, or at random for tests)."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedTokenizerFast

from eyas.artifact import claimed, publish, remove
from eyas.config import load_config
from eyas.process import child_main
from eyas.verifier.locate import gguf_file, to_be_made
from eyas.verifier.schema import VerifierConfig

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make(verifier: VerifierConfig) -> None:
    """Write the checkpoint that `verifier.make` describes into the cache, unless it is there."""
    directory = to_be_made(verifier)
    if directory is None or verifier.make is None:
        return
    with claimed(directory, directory.exists) as partial:
        if partial is None:
            return
        try:
            if verifier.make.gguf is not None:
                file = gguf_file(verifier.make.gguf)
                print(f"verifier making {directory} from {file.name}, once", flush=True)
                convert_gguf(file, partial)
            else:
                make_random(verifier.make.random or {}, partial)
            publish(partial, directory)
        except BaseException:
            remove(partial)
            raise


def convert_gguf(file: Path, directory: Path) -> None:
    """Dequantise a GGUF into an ordinary bfloat16 safetensors checkpoint with tokenizer and chat template."""
    unpacked = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, quantization_config=unpacked, dtype=torch.bfloat16
    )
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    # What was loaded is no longer quantised, but transformers would refuse to save it while these say so.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    for name, value in {"hf_quantizer": None, "is_quantized": False, "quantization_method": None}.items():
        setattr(model, name, value)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def make_random(arguments: dict[str, object], directory: Path) -> None:
    """A random checkpoint of any registered causal model type, with a byte tokenizer and a ChatML template."""
    tokenizer = byte_tokenizer()
    config = AutoConfig.for_model(
        **{
            "vocab_size": len(tokenizer),
            "eos_token_id": tokenizer.eos_token_id,
            "bos_token_id": None,
            "pad_token_id": None,
            **arguments,
        }
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, and the three ChatML tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", additional_special_tokens=["<|im_start|>", "<|endoftext|>"]
    )
    tokenizer.chat_template = CHATML
    return tokenizer


def main(config_file: Path) -> None:
    make(load_config(config_file).verifier)


if __name__ == "__main__":
    child_main(main)
