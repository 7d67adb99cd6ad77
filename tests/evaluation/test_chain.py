"""Speculative decoding on a real model: the same output whatever the draft, and the states it was trained on."""

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from eyas.capture.modules import find_modules
from eyas.capture.tap import Tap
from eyas.cli.compose import compose
from eyas.data.positions import shift
from eyas.draft.model import Draft, draft_config
from eyas.draft.shape import resolve_shape
from eyas.evaluation.chain import (
    CachedVerifier,
    Drafter,
    decode_plain,
    decode_speculatively,
    leading,
    right_at_every_start,
)
from eyas.evaluation.starts import walk
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.facts import resolve

K = 3


@pytest.fixture
def verifier(tiny_checkpoint: Checkpoint) -> CachedVerifier:
    config = compose(["verifier=tiny_llama"], [])
    model = AutoModelForCausalLM.from_pretrained(tiny_checkpoint.directory, dtype=torch.float32).eval()
    return CachedVerifier(model, Tap(find_modules(model, config.verifier, 8), [2, 4, 5], config.verifier))


def draft(checkpoint: Checkpoint, *overrides: str) -> Draft:
    config = compose(["verifier=tiny_llama", *overrides], [])
    facts = resolve(config.verifier, checkpoint)
    shape = resolve_shape(config, facts)
    torch.manual_seed(0)
    draft = Draft(draft_config(config.draft, shape, verifier="here", unroll_steps=K), torch.arange(128) * 2)
    draft.embed_tokens.weight.data = checkpoint.tensor(facts.embedding.key)
    draft.lm_head.weight.data = checkpoint.tensor(facts.head.key)[draft.draft_ids_D]
    return draft.eval()


PROMPTS = [list(range(40, 60)), [7], list(range(100, 220, 3))]


@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
@pytest.mark.parametrize("k", [1, 3, 5])
def test_output_is_the_verifiers_own(
    verifier: CachedVerifier, tiny_checkpoint: Checkpoint, prompt: list[int], k: int
) -> None:
    drafter = Drafter(draft(tiny_checkpoint))
    plain = decode_plain(verifier, prompt, 40, [])
    speculative = decode_speculatively(verifier, drafter, prompt, k, 40, [])
    assert speculative.tokens == plain.tokens
    whole = verifier.model(torch.tensor([[*prompt, *plain.tokens]])).logits[0].argmax(-1)
    assert whole[len(prompt) - 1 : -1].tolist() == plain.tokens


class Oracle(Drafter):
    """A draft that knows the answer, and says something else at every third position."""

    answer: list[int]

    def propose(self, k: int) -> list[int]:
        start = self.num_read - self.prompt_length + 1
        guess = [*self.answer[start : start + k], *([0] * k)][:k]
        return [token if (start + i) % 3 else token + 1 for i, token in enumerate(guess)]


def test_right_guesses_are_accepted_and_counted(verifier: CachedVerifier, tiny_checkpoint: Checkpoint) -> None:
    prompt = PROMPTS[0]
    plain = decode_plain(verifier, prompt, 31, [])
    oracle = Oracle(draft(tiny_checkpoint))
    oracle.answer, oracle.prompt_length = plain.tokens, len(prompt)
    speculative = decode_speculatively(verifier, oracle, prompt, K, 31, [])
    assert speculative.tokens == plain.tokens
    # Positions 1, 2 are right, 3 is wrong (and corrected), 4, 5 right, 6 wrong, ...: 2 of 3 accepted every time.
    assert speculative.accepted == [2] * 10


def test_a_stop_token_ends_both_at_the_same_place(verifier: CachedVerifier, tiny_checkpoint: Checkpoint) -> None:
    prompt = PROMPTS[2]
    stop = decode_plain(verifier, prompt, 40, []).tokens[11]
    plain = decode_plain(verifier, prompt, 40, [stop])
    oracle = Oracle(draft(tiny_checkpoint))
    oracle.answer, oracle.prompt_length = decode_plain(verifier, prompt, 60, []).tokens, len(prompt)
    speculative = decode_speculatively(verifier, oracle, prompt, 5, 40, [stop])
    assert speculative.tokens == plain.tokens
    assert plain.tokens[-1] == stop


def taught(draft: Draft, verifier: CachedVerifier, tokens: list[int]) -> Draft:
    """The draft, after it has seen this text so often that it is right here and there."""
    verifier.restart()
    _, hidden = verifier.read(tokens[:-2])
    positions = torch.arange(len(tokens) - 2)
    seen = (positions[:, None] >= positions)[None, None]
    targets = (torch.tensor(tokens[2:])[:, None] == draft.draft_ids_D).float()
    optimizer = torch.optim.Adam(draft.parameters(), lr=3e-3)
    for _ in range(12):
        _, normed = draft.decode(torch.tensor(tokens[1:-1]), draft.fuse(hidden), positions, seen, DynamicCache())
        (-(targets * draft.head(normed).log_softmax(-1)).sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return draft


def right_one_after_the_other(drafter: Drafter, hidden: Tensor, tokens: list[int], starts: range, k: int) -> list[int]:
    """The draft, asked at each start as a chain asks it."""
    drafter.restart()
    right = []
    with torch.no_grad():
        for start in starts:
            done = drafter.num_read
            drafter.read(tokens[done + 1 : start], hidden[done : start - 1])
            right.append(leading(drafter.propose(k), tokens[start : start + k]))
    return right


@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("stops", [False, True], ids=["at most so many", "until a stop token"])
@pytest.mark.parametrize("window", ["null", 16])
def test_chains_accept_what_is_right_at_their_starts(
    verifier: CachedVerifier, tiny_checkpoint: Checkpoint, prompt: list[int], k: int, stops: bool, window: str | int
) -> None:
    longer = [*prompt, *decode_plain(verifier, prompt, 60, []).tokens]
    drafter = Drafter(taught(draft(tiny_checkpoint, f"draft.sliding_window={window}"), verifier, longer))
    stop_ids = longer[len(prompt) + 13 :][:1] if stops else []
    plain = decode_plain(verifier, prompt, 41, stop_ids)
    right = right_at_every_start(verifier, drafter.draft, prompt, plain, k)
    verifier.restart()
    _, hidden = verifier.read(longer)
    starts = range(len(prompt) + 1, len(prompt) + len(plain.tokens))
    assert right == right_one_after_the_other(drafter, hidden, longer, starts, k)
    assert len({*right}) > 1, "wrong everywhere or right everywhere shows nothing"
    speculative = decode_speculatively(verifier, drafter, prompt, k, 41, stop_ids)
    assert walk(right) == speculative.accepted


def test_an_answer_of_one_token_has_no_start(verifier: CachedVerifier, tiny_checkpoint: Checkpoint) -> None:
    plain = decode_plain(verifier, PROMPTS[0], 1, [])
    assert right_at_every_start(verifier, draft(tiny_checkpoint), PROMPTS[0], plain, K) == []


@pytest.mark.parametrize("window", [None, 16])
def test_the_chain_sees_what_the_unroll_trained_on(
    verifier: CachedVerifier, tiny_checkpoint: Checkpoint, window: int | None
) -> None:
    """The same tokens through the chain with its cache and through the unroll: the same states, to 1e-5."""
    tokens = torch.randint(0, 250, (24,), generator=torch.Generator().manual_seed(3)).tolist()
    _, hidden = verifier.read(tokens)
    windowed = f"draft.sliding_window={'null' if window is None else window}"
    unrolled, chained = draft(tiny_checkpoint, windowed), draft(tiny_checkpoint, windowed)
    ids, positions = torch.tensor(tokens), torch.arange(24)
    back = torch.arange(24)[:, None] - torch.arange(24)
    with torch.no_grad():
        cache, state, rows = DynamicCache(), unrolled.fuse(hidden), []
        for step in range(K):
            seen = (back >= 0) & (back + step < (window or 100))
            mask = torch.cat([seen, *[back == 0] * step], dim=1)[None, None]
            state, normed = unrolled.decode(shift(ids, 1 + step), state, positions + step, mask, cache)
            rows.append(normed)
        for i in (0, 5, 20):
            drafter = Drafter(chained)
            drafter.read(tokens[1 : i + 2], hidden[: i + 1])
            for step in range(K):
                assert torch.allclose(drafter.normed_1H[0], rows[step][i], atol=1e-5)
                drafter._decode([tokens[(i + 2 + step) % 24]], drafter.hidden_1H)
