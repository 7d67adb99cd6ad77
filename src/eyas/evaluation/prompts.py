"""What an evaluation asks: the held-out prompts, or prompt sets of their own."""

from collections import Counter
from itertools import islice

from eyas.config import Config
from eyas.data.conversations import read_conversations
from eyas.data.rows import RowMaker
from eyas.data.tokens import Tokens, prompt_of
from eyas.errors import EyasError
from eyas.stages import tokens_artifact

HELD_OUT = "held out"


def prompt_sets(config: Config) -> dict[str, list[list[int]]]:
    """Token ids of the first evaluation.num_prompts prompts of each set; without sets, of the held-out rows.

    Raises:
        EyasError: a set without prompts.
    """
    number, make = config.evaluation.num_prompts, None
    if not config.evaluation.prompts:
        held_out = Tokens(tokens_artifact(config).directory).held_out_prompts()[:number]
        return {f"{config.data.name}, {HELD_OUT}": held_out}
    sets: dict[str, list[list[int]]] = {}
    for name, source in config.evaluation.prompts.items():
        make = make or RowMaker(config)
        counts: Counter[str] = Counter()
        rows = (row for example in read_conversations(source, counts) for row in make(example, counts)[:1])
        sets[name] = [prompt_of(row.input_ids, row.loss_mask) for row in islice(rows, number)]
        if not sets[name]:
            raise EyasError(f"evaluation.prompts.{name}: {source.path} gives no prompt; expected conversations")
    return sets
