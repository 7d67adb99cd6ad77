"""A proof of loss masks that does not ask how they were made: where the texts of the conversations come out.

Each answer must stand in the supervised spans, in order, and each question in the others. White space is left out of the
comparison, since templates trim and some tokenizers' decoders do.
"""

from dataclasses import dataclass

from eyas.data.conversations import Conversation, PlainText, TokenRow
from eyas.data.render import Row
from eyas.data.report import plural
from eyas.data.rows import split_by_mask
from eyas.data.spans import END_OF_REASONING
from eyas.doctor.data_sample import Rendered, Sample


@dataclass
class Proof:
    """What the texts of the supervised spans show."""

    num_answers: int = 0
    num_questions: int = 0
    num_rewritten: int = 0
    """Texts that the template does not write as they are, so that nothing is shown by them."""
    problem: str = ""

    @property
    def summary(self) -> str:
        if not self.num_answers:
            return ""
        answers, questions = plural(self.num_answers, "answer"), plural(self.num_questions, "question")
        said = f"of {answers} all the text is supervised, of {questions} none"
        return (
            f"{said} ({plural(self.num_rewritten, 'text')} rewritten by the template)" if self.num_rewritten else said
        )


def prove(it: Sample) -> Proof:
    """Look for each answer in the supervised spans, and for each question in the others."""
    proof = Proof()
    for one in it.rendered:
        if isinstance(one.dealt.example, Conversation):
            for row, turns in _turns(one, one.dealt.example, last_only=it.config.data.last_turn_only):
                _prove_row(it, proof, row, one.dealt.example, turns)
    return proof


def _turns(one: Rendered, example: Conversation, *, last_only: bool) -> list[tuple[Row, list[int]]]:
    """Each row with the turns that it supervises; none where that isn't known, since a row was left out."""
    turns = [turn for turn, message in enumerate(example.messages) if message["role"] == "assistant"]
    turns = turns[-1:] if last_only else turns
    if not one.row_per_turn:
        return [(row, turns) for row in one.whole]
    return list(zip(one.whole, ([turn] for turn in turns), strict=True)) if len(one.whole) == len(turns) else []


def _prove_row(it: Sample, proof: Proof, row: Row, example: Conversation, turns: list[int]) -> None:
    spans = [(_squeezed(it.text(ids)), supervised) for ids, supervised in split_by_mask(row)]
    # A line break, of which none is left in the spans, so that nothing is found across two of them.
    learned, context = ("\n".join(text for text, side in spans if side is wanted) for wanted in (True, False))
    everything, position = _squeezed(it.text(row.input_ids)), 0
    for turn, message in enumerate(example.messages[: turns[-1] + 1]):
        text = str(message["content"]).rpartition(END_OF_REASONING)[2] if turn in turns else str(message["content"])
        if not text.strip() or not (turn in turns or message["role"] == "user"):
            continue
        end = _end(it, text, learned, position) if turn in turns else _end(it, text, context)
        if end:
            proof.num_answers += turn in turns
            proof.num_questions += turn not in turns
            position = end if turn in turns else position
        elif message.get("tool_calls") or not _end(it, text, everything):
            proof.num_rewritten += 1  # some templates leave out what is said beside a call
        else:
            what = "of the answer is not" if turn in turns else "of the user is"
            proof.problem = proof.problem or f"{example.where}: text {what} supervised, turn {turn + 1}: {text[:40]!r}"


def _end(it: Sample, text: str, inside: str, position: int = 0) -> int:
    """Where the text ends in the other one, as it is or as the tokenizer normalises it; 0 where it is not there."""
    start = inside.find(own := _squeezed(text), position)
    if start < 0:
        own = _squeezed(it.text(it.make.tokenizer.encode(text, add_special_tokens=False, verbose=False)))
        start = inside.find(own, position) if own else -1
    return start + len(own) if start >= 0 else 0


def _squeezed(text: str) -> str:
    return "".join(text.split())


@dataclass(frozen=True)
class Closing:
    """How the answers end that the verifier ended itself."""

    ends: list[list[int]]
    """Their ids."""
    closed: list[int]
    """The stop tokens that end them."""
    missed: list[str]
    """Where a conversation has an answer's stop token behind what is supervised."""

    def summary(self, it: Sample) -> str:
        if not self.ends:
            return ""
        stops = ", ".join(map(it.token, sorted({*self.closed}) or it.make.stop_ids))
        if not self.closed:
            return f"the first answer ends in {it.text(self.ends[0][-6:])!r}, the stop tokens are {stops}"
        return f"{len(self.closed)} of {plural(len(self.ends), 'uncut answer')} ended by {stops}"


def closing_of(it: Sample) -> Closing:
    """How the answers end, those that were cut at a length limit left out."""
    stops, missed = it.make.stop_ids, []
    ends: list[list[int]] = []
    for one in it.rendered:
        for ids, following in _uncut_answers(one):
            ends.append(ids)
            if ids[-1] not in stops and following in stops and isinstance(one.dealt.example, Conversation):
                missed.append(one.where)
    return Closing(ends, [ids[-1] for ids in ends if ids[-1] in stops], missed)


def _uncut_answers(one: Rendered) -> list[tuple[list[int], int | None]]:
    """Each supervised span that the verifier has ended itself, and the token that follows it."""
    example = one.dealt.example
    if isinstance(example, PlainText):
        return []
    found: list[tuple[list[int], int | None]] = []
    for row in one.whole:
        spans = split_by_mask(row)
        following = [*(ids[0] for ids, _ in spans[1:]), None]
        found += [(ids, then) for (ids, supervised), then in zip(spans, following, strict=True) if supervised]
    cut = isinstance(example, Conversation) and example.cut and example.messages[-1]["role"] == "assistant"
    return found[:-1] if cut else found


def num_rows_without_prompt(it: Sample) -> int:
    """Of ids that somebody else has tokenised; 0 where any of them has a prompt."""
    rows = [row for one in it.rendered if isinstance(one.dealt.example, TokenRow) for row in one.whole]
    return len(rows) if all(all(row.loss_mask) for row in rows) else 0
