"""The first conversations that are dealt, rendered as they will be trained: what the doctor's rows about data look at."""

import io
import re
import sys
from collections import Counter
from contextlib import redirect_stdout
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import islice

from eyas.config import Config
from eyas.data.mixture import Dealt, deal
from eyas.data.render import Row
from eyas.data.rows import RowMaker
from eyas.data.schema import DataConfig
from eyas.data.sources import Files, find_source
from eyas.data.spans import RefusedError
from eyas.errors import EyasError
from eyas.stages import answered_data, may_be_unanswered, regenerates, responses_artifact
from eyas.verifier.schema import Renderer

NUM_CONVERSATIONS = 64
MAX_CHARACTERS = 1 << 20
"""Fewer conversations where they are this long together: rendering them is what takes time."""
LEAST_SAMPLE = 0.01
"""A smaller data.sample is raised to this: else whole files would be read before so many conversations are found."""


@dataclass(frozen=True)
class Rendered:
    """A conversation, or a text, and its rows."""

    dealt: Dealt
    rows: list[Row]
    """As they are trained."""
    whole: list[Row]
    """Before they are cut to data.max_length: what can be proved of a mask does not depend on where a row is cut."""
    row_per_turn: bool

    @property
    def where(self) -> str:
        return self.dealt.example.where


@dataclass
class Sample:
    """What the checks look at."""

    config: Config
    make: RowMaker
    data: DataConfig
    """Whose answers are learnt."""
    dealt: list[Dealt] = field(default_factory=list)
    rendered: list[Rendered] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    first_bad: str = ""
    refused: list[tuple[str, str]] = field(default_factory=list)
    """(source, message) of conversations that the chat template refuses."""
    unreadable: EyasError | None = None
    """What stopped reading."""
    untold: EyasError | None = None
    """The first conversation whose mask can't be told, which would stop the tokens stage."""
    all_read: bool = False
    """There are no more conversations than these."""
    nothing: str = "no row to look at"
    """Why nothing is rendered."""

    def text(self, ids: list[int]) -> str:
        return str(self.make.tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    def token(self, index: int) -> str:
        return str(self.make.tokenizer.convert_ids_to_tokens(index))


def take_sample(config: Config, make: RowMaker) -> Sample:
    """Read and render the first conversations; what goes wrong is kept, for the row that it belongs to."""
    it, printed, size = Sample(config, make, config.data), io.StringIO(), 0
    to_be_answered = False
    try:
        if regenerates(config):
            answered = responses_artifact(config).exists()
            to_be_answered = may_be_unanswered(config) and not answered
            it.data = answered_data(config) if answered else config.data
        with redirect_stdout(printed):  # it says where the first bad row stands; the tokens stage will print it all
            examples = deal(_readable(it.data), it.counts, unanswered=to_be_answered)
            for dealt in islice(examples, NUM_CONVERSATIONS):
                it.dealt.append(dealt)
                size += len(str(dealt.example))
                if size > MAX_CHARACTERS:
                    break
        it.all_read = size <= MAX_CHARACTERS and len(it.dealt) < NUM_CONVERSATIONS
    except EyasError as error:
        it.unreadable = error
    it.first_bad = next(iter(re.findall(r"^bad row +(.*)", printed.getvalue(), re.MULTILINE)), "")
    if to_be_answered:
        it.nothing = "the verifier answers anew first (data.responses)"
        return it
    if config.verifier.chat.renderer is Renderer.server:
        it.nothing = "the server renders (verifier.chat.renderer), in the tokens stage"
        return it
    uncut = copy(make)
    uncut.data = replace(make.data, max_length=sys.maxsize)
    for dealt in it.dealt:
        counts: Counter[str] = Counter()
        try:
            rows, whole = make(dealt.example, it.counts), uncut(dealt.example, counts)
        except RefusedError as error:
            it.refused.append((dealt.source, str(error)))
        except EyasError as error:
            it.untold = it.untold or error
        else:
            it.rendered.append(Rendered(dealt, rows, whole, counts["row_per_turn_conversations"] > 0))
    return it


def _readable(data: DataConfig) -> DataConfig:
    mixture = {name: replace(it, sample=max(it.sample, LEAST_SAMPLE)) for name, it in data.mixture.items()}
    return replace(data, mixture=mixture, sample=max(data.sample, LEAST_SAMPLE))


def reads_files_only(config: Config) -> bool:
    """Whether the data is read without the library `datasets`, whose import takes seconds."""
    try:
        return all(isinstance(find_source(source), Files) for source in config.data.sources.values())
    except EyasError:
        return True  # a row says so
