"""An example -> the rows that are trained on: rendered or tokenised, cut to length; what is lost is counted."""

import sys
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from eyas.config import Config
from eyas.data.conversations import Conversation, Example, PlainText
from eyas.data.render import Row, render, truncate
from eyas.data.server_render import RenderIds, render_by_ids
from eyas.errors import EyasError
from eyas.stages import verifier_facts
from eyas.verifier.locate import locate
from eyas.verifier.tokenizer import load_tokenizer, stop_token_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MIN_SUPERVISED = 2
"""The first answer token is input only: it takes two to have a target."""


class RowMaker:
    """Makes rows with the verifier's tokenizer; one for each process."""

    def __init__(self, config: Config, render_ids: RenderIds | None = None, *, whole: bool = False) -> None:
        """Args:
        render_ids: How the server renders, where it does (`verifier.chat.renderer`).
        whole: Cut nothing: not for rows to train on.
        """
        self.render_ids = render_ids
        self.max_length = sys.maxsize if whole else config.data.max_length
        checkpoint = locate(config.verifier)
        self.data, self.chat_kwargs = config.data, config.verifier.chat.kwargs
        self.vocab_size = verifier_facts(config).vocab_size
        self.tokenizer: PreTrainedTokenizerBase = load_tokenizer(config.verifier, checkpoint)
        self.stop_ids = stop_token_ids(config.verifier, checkpoint, self.tokenizer)

    def __call__(self, example: Example, counts: Counter[str]) -> list[Row]:
        """The example's rows, each with something to learn.

        `counts` gets `row_per_turn_conversations`, `cut_rows`, `cut_answers` and `unsupervised_rows`.

        Raises:
            RefusedError: the template refuses the turns.
            EyasError: no template, spans that can't be told, or ids that the verifier doesn't have.
        """
        kept: list[Row] = []
        for whole in self._whole_rows(example, counts):
            if max(whole.input_ids, default=0) >= self.vocab_size:
                raise EyasError(
                    f"{example.where}: token id {max(whole.input_ids)}, but the verifier's embedding has {self.vocab_size} rows: "
                    "tokenizer and verifier don't belong together"
                )
            row, inside_answer = truncate(whole, self.max_length)
            if sum(row.loss_mask) < MIN_SUPERVISED:
                counts["unsupervised_rows"] += 1
                continue
            counts["cut_rows"] += len(row.input_ids) < len(whole.input_ids)
            counts["cut_answers"] += inside_answer
            kept.append(row)
        return kept

    def _whole_rows(self, example: Example, counts: Counter[str]) -> list[Row]:
        if isinstance(example, Conversation):
            rows = self.rendered(example)
            counts["row_per_turn_conversations"] += len(rows) > 1
            return rows
        if isinstance(example, PlainText):
            return self._text_rows(example.text)
        return [Row(example.input_ids, example.loss_mask)]

    def rendered(self, conversation: Conversation) -> list[Row]:
        """A conversation's rows, uncut.

        Raises:
            RefusedError: the template refuses the turns.
            EyasError: no template, or spans that can't be told.
        """
        last_turn_only = self.data.last_turn_only
        if self.render_ids is not None:
            return render_by_ids(self.render_ids, conversation, self.stop_ids, last_turn_only=last_turn_only)
        if self.tokenizer.chat_template is None:
            raise EyasError(
                f"{conversation.where}: a conversation, but the tokenizer has no chat template: set verifier.chat.template to "
                "a Jinja file, or verifier.chat.renderer=server where vLLM renders it"
            )
        return render(
            self.tokenizer,
            conversation,
            self.chat_kwargs,
            self.stop_ids,
            last_turn_only=last_turn_only,
            reasoning=self.data.reasoning,
        )

    def _text_rows(self, text: str) -> list[Row]:
        """Every token is supervised but a BOS, which no verifier writes; a long text becomes several rows."""
        ids: list[int] = self.tokenizer(text, return_attention_mask=False, verbose=False)["input_ids"]
        mask = [position > 0 or token != self.tokenizer.bos_token_id for position, token in enumerate(ids)]
        bounds = [*range(0, len(ids), self.max_length), len(ids)]
        return [Row(ids[start:end], mask[start:end]) for start, end in pairwise(bounds)]


def split_by_mask(row: Row) -> list[tuple[list[int], bool]]:
    """The row's ids in runs of the same side."""
    edges = [position for position, (a, b) in enumerate(pairwise(row.loss_mask), start=1) if a != b]
    bounds = [0, *edges, len(row.input_ids)]
    return [(row.input_ids[start:end], row.loss_mask[start]) for start, end in pairwise(bounds)]
