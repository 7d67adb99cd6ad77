"""Greedy speculative decoding with a chain: the draft proposes k tokens, the verifier checks them in one forward.

The output is the verifier's own greedy output, whatever the draft says; a better draft only makes it come in fewer
forwards. Shapes: N new positions, L captured layers, H hidden size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from eyas.capture.tap import Tap
from eyas.draft.model import Draft
from eyas.evaluation.why import Tried


class CachedVerifier:
    """The verifier with a key-value cache over what it has read so far."""

    def __init__(self, model: PreTrainedModel, tap: Tap) -> None:
        self.model, self.tap = model, tap
        self.restart()

    def restart(self) -> None:
        self.cache = DynamicCache()
        self.num_read = 0

    def read(self, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Read N tokens in one forward: (logits [N, V], captured states [N, L, H])."""
        ids_1N = torch.tensor([tokens], device=self.model.device)
        with self.tap:
            logits_NV = self.model(input_ids=ids_1N, past_key_values=self.cache, use_cache=True).logits[0]
            hidden_1NLH, _ = self.tap.take()
        self.num_read += len(tokens)
        return logits_NV, hidden_1NLH[0].to(self.model.device)  # where the draft is

    def forget(self, count: int) -> None:
        """Drop the last `count` tokens from the cache."""
        if count:
            self.num_read -= count
            self.cache.crop(-count)


class Drafter:
    """The draft with a key-value cache of its own: true history first, its guesses on top, for one proposal at a time."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.restart()

    def restart(self) -> None:
        self.cache = DynamicCache()
        self.num_read = 0

    def read(self, tokens: Sequence[int], hidden_NLH: Tensor) -> None:
        """Read true history: the verifier's state of each position with the token that followed it."""
        guessed = self.cache.get_seq_length() - self.num_read
        if guessed:
            self.cache.crop(-guessed)
        self._decode(tokens, self.draft.fuse(hidden_NLH))
        self.num_read += len(tokens)

    def propose(self, k: int) -> list[int]:
        """k tokens of the verifier's vocabulary, each the draft's most likely after the ones before."""
        proposal = [self._greedy()]
        while len(proposal) < k:
            self._decode(proposal[-1:], self.hidden_1H)
            proposal.append(self._greedy())
        return proposal

    def _greedy(self) -> int:
        return int(self.draft.draft_ids_D[self.draft.head(self.normed_1H)[0].argmax()])

    def _decode(self, tokens: Sequence[int], hidden_NH: Tensor) -> None:
        device, past = hidden_NH.device, self.cache.get_seq_length()
        position_N = torch.arange(past, past + len(tokens), device=device)
        back = position_N[:, None] - torch.arange(past + len(tokens), device=device)
        visible = (back >= 0) & (back < (self.draft.window or len(back[0]) + 1))
        hidden_NH, normed_NH = self.draft.decode(
            torch.tensor(tokens, device=device), hidden_NH, position_N, visible[None, None], self.cache
        )
        self.hidden_1H, self.normed_1H = hidden_NH[-1:], normed_NH[-1:]


@dataclass
class Decoded:
    """One prompt's continuation and what it took."""

    tokens: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    """For each verifier forward after the prefill: how many of the k drafted tokens were right."""
    tried: list[Tried] = field(default_factory=list)
    """Each drafted token up to the first wrong one of its forward."""
    gaps: list[float] = field(default_factory=list)
    """For each token: how far the verifier's best logit was above its second best."""
    hidden: list[Tensor] = field(default_factory=list)
    """Captured states of each forward [N, L, H]: of every token but the last."""


@torch.inference_mode()
def decode_plain(verifier: CachedVerifier, prompt: Sequence[int], max_tokens: int, stop_ids: Sequence[int]) -> Decoded:
    """The verifier's greedy continuation, token by token."""
    verifier.restart()
    decoded = Decoded()
    tokens = prompt
    while True:
        logits_NV, hidden_NLH = verifier.read(tokens)
        decoded.hidden.append(hidden_NLH)
        best = logits_NV[-1].float().topk(2)
        decoded.gaps.append(float(best.values[0] - best.values[1]))
        decoded.tokens.append(int(best.indices[0]))
        if len(decoded.tokens) == max_tokens or decoded.tokens[-1] in stop_ids:
            return decoded
        tokens = decoded.tokens[-1:]


@torch.inference_mode()
def decode_speculatively(
    verifier: CachedVerifier, drafter: Drafter, prompt: Sequence[int], k: int, max_tokens: int, stop_ids: Sequence[int]
) -> Decoded:
    """The same continuation, k drafted tokens at a time."""
    verifier.restart()
    drafter.restart()
    logits_NV, hidden_NLH = verifier.read(prompt)
    decoded = Decoded(tokens=[int(logits_NV[-1].argmax())])
    drafter.read([*prompt[1:], decoded.tokens[0]], hidden_NLH)
    while len(decoded.tokens) < max_tokens and not any(token in stop_ids for token in decoded.tokens):
        proposal = drafter.propose(k)
        logits_NV, hidden_NLH = verifier.read([decoded.tokens[-1], *proposal])
        said = logits_NV.argmax(-1).tolist()
        right = leading(proposal, said[:-1])
        verifier.forget(k - right)
        drafter.read(said[: right + 1], hidden_NLH[: right + 1])
        decoded.tokens += said[: right + 1]
        decoded.accepted.append(right)
        looked_at = min(right + 1, k)
        for place, entropy in enumerate(entropies(logits_NV[:looked_at])):
            decoded.tried.append(Tried(place, said[place], place < right, entropy))
    decoded.tokens = _cut(decoded.tokens, max_tokens, stop_ids)
    return decoded


@torch.inference_mode()
def right_at_every_start(
    verifier: CachedVerifier, draft: Draft, prompt: Sequence[int], plain: Decoded, k: int
) -> list[int]:
    """How many of k drafted tokens are right at each place in a greedy answer where a chain could start, in order.

    Those are after its first token (the prefill's), after its second, ..., and before its last. Every one has k targets:
    past the end of the answer they are what the verifier says next, after a stop token too, since `decode_speculatively`
    counts them so. So no start is left out, and none has fewer tokens to be right about: the mean has no bias from the end.

    All starts at once, in one pass per drafted token: up to the first wrong one, what a chain has drafted is the answer.

    Args:
        plain: What `decode_plain` has just written after the prompt: `verifier` goes on from there.
    """
    tokens = [*prompt, *plain.tokens]
    assert verifier.num_read == len(tokens) - 1, "the verifier has read something else since"
    num_starts, num_positions = len(plain.tokens) - 1, len(tokens) - 2
    if not num_starts:
        return []
    for _ in range(k - 1):
        logits_NV, _ = verifier.read(tokens[-1:])
        tokens.append(int(logits_NV[-1].argmax()))
    token_T = torch.tensor(tokens, device=draft.draft_ids_D.device)
    position_N = torch.arange(num_positions, device=token_T.device)
    hidden_NH = draft.fuse(torch.cat(plain.hidden)[:num_positions])
    cache, right_N = DynamicCache(), torch.ones(num_starts, dtype=torch.bool, device=token_T.device)
    counts_N = torch.zeros(num_starts, dtype=torch.long, device=token_T.device)
    for step in range(k):
        back = position_N[:, None] - torch.arange(num_positions, device=token_T.device)
        history = (back >= 0) & (back + step < (draft.window or num_positions + k))
        own = [torch.eye(num_starts, dtype=torch.bool, device=token_T.device)] * step
        visible = torch.cat([history, *own], dim=1)[None, None]
        hidden_NH, normed_NH = draft.decode(
            token_T[position_N + 1 + step], hidden_NH, position_N + step, visible, cache
        )
        position_N, hidden_NH = position_N[-num_starts:], hidden_NH[-num_starts:]
        drafted_N = draft.draft_ids_D[draft.head(normed_NH[-num_starts:]).argmax(-1)]
        right_N &= drafted_N == token_T[position_N + 2 + step]
        counts_N += right_N
    counts: list[int] = counts_N.tolist()
    return counts


def leading(proposal: Sequence[int], said: Sequence[int]) -> int:
    """How many drafted tokens are right before the first wrong one; `said` is what the verifier says in their places."""
    pairs = zip(proposal, said, strict=True)
    return next((i for i, (drafted, token) in enumerate(pairs) if drafted != token), len(proposal))


def entropies(logits_NV: Tensor) -> list[float]:
    """Of each row's distribution, in nats."""
    logarithms_NV = logits_NV.float().log_softmax(-1)
    found: list[float] = (-(logarithms_NV.exp() * logarithms_NV).sum(-1)).tolist()
    return found


def _cut(tokens: list[int], max_tokens: int, stop_ids: Sequence[int]) -> list[int]:
    """A forward can overshoot: keep what plain decoding would have written."""
    stop = next((i for i, token in enumerate(tokens) if token in stop_ids), len(tokens))
    return tokens[: min(stop + 1, max_tokens)]
