"""Encoding without offsets gives what the tokenizer itself gives, or isn't used."""

from typing import Any

from transformers import PreTrainedTokenizerFast

from eyas.data.boundaries import PROBE, tokenize
from eyas.verifier.make import byte_tokenizer


class Lower(PreTrainedTokenizerFast):
    """Does something to the text before its engine sees it, as the code of some checkpoints does."""

    def __call__(self, text: Any, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(text.lower(), *args, **kwargs)


def test_the_engine_is_asked_only_where_it_is_all_there_is() -> None:
    plain = byte_tokenizer()
    lower = Lower(tokenizer_object=plain.backend_tokenizer)
    for tokenizer in (plain, lower):
        ids, _ = tokenize(tokenizer, "Any TEXT at all", [], "here")
        assert ids == tokenizer("Any TEXT at all", add_special_tokens=False)["input_ids"]
    assert tokenize(plain, PROBE, [], "here") != tokenize(lower, PROBE, [], "here")


def test_what_a_file_says_of_cutting_and_padding_is_not_done() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(4)
    tokenizer.backend_tokenizer.enable_padding(length=64)
    assert len(tokenize(tokenizer, "a text of some length", [], "here")[0]) == 21
