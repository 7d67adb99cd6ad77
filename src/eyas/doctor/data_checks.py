"""The doctor's rows about the data: p20 to p23, p28, p29 and `doubled_bos`, from the first conversations that are dealt.

So what the tokens stage would refuse is known before it has read everything, and the masks are proved by the text that they
leave supervised. Rows p24 to p27 are about hidden states: the store and the capture refuse those themselves.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from eyas.artifact import read_manifest
from eyas.config import Config, to_dict
from eyas.data.conversations import Conversation, PlainText
from eyas.data.formats import Reason
from eyas.data.report import plural
from eyas.data.rows import RowMaker, split_by_mask
from eyas.data.spans import END_OF_REASONING
from eyas.doctor.data_sample import Rendered, Sample, take_sample
from eyas.doctor.findings import Finding, Verdict
from eyas.doctor.mask_proof import closing_of, num_rows_without_prompt, prove
from eyas.doctor.subject import EXPECTED, failure
from eyas.errors import EyasError
from eyas.run import Run
from eyas.stages import store
from eyas.verifier.locate import locate
from eyas.verifier.schema import Renderer
from eyas.verifier.tokenizer import tokenizer_identity

ROWS_BEFORE_A_SHARE = 1000
"""The tokens stage judges a share of bad rows no earlier."""
SERVED_KWARGS = "--default-chat-template-kwargs"
EMPTY_REASONING = re.compile(
    r"<([^<>]*think[^<>]*|reasoning|thought)>\s*</\1>|\[THINK\]\s*\[/THINK\]|<\|START_THINKING\|>\s*<\|END_THINKING\|>"
    rf"|\A\s*{END_OF_REASONING}"  # the generation prompt has opened it
)

Check = Callable[[Sample], Finding]
Problem = tuple[Verdict, str, str]
"""Verdict, what was found, the fix."""


def examine_data(config: Config) -> list[Finding]:
    """Every row; where there is no tokenizer, that one fails and the others have nothing to look at."""
    try:
        make = RowMaker(config)
    except EyasError as error:
        return [
            failure(name, error) if name == "p23_tokenizer" else _nothing(name, "needs the tokenizer") for name in ROWS
        ]
    sample = take_sample(config, make)
    return [check(sample) for check in ROWS.values()]


def mask(it: Sample) -> Finding:
    """The answers are supervised to their closing tokens, and the questions are not: by their texts."""
    name = "p20_mask"
    if it.untold is not None:
        return failure(name, it.untold)
    if not it.rendered:
        return _nothing(name, it.nothing)
    rows = [row for one in it.rendered for row in one.rows]
    num_tokens, num_supervised = sum(len(row.input_ids) for row in rows), sum(sum(row.loss_mask) for row in rows)
    if not num_supervised:
        longest = max((len(row.input_ids) for one in it.rendered for row in one.whole), default=0)
        found = f"not one supervised token in {_conversations(it)}; the longest row has {longest:,} tokens"
        fix = (
            f"data.max_length={it.config.data.max_length} may end before the answers begin; else look at what they hold"
        )
        return Finding(name=name, verdict=Verdict.fail, found=found, expected=EXPECTED[name], fix=fix)
    proof, closing = prove(it), closing_of(it)
    problems: list[Problem] = []
    missed = f"{closing.missed[0]}: the stop token behind an answer is not supervised" if closing.missed else ""
    if wrong := proof.problem or missed:
        fix = "report it with this conversation and the chat template: the mask is wrong"
        problems.append((Verdict.fail, wrong, fix))
    elif closing.ends and not closing.closed:
        fix = "verifier.stop_token_ids=[id of the token that ends an answer]; where that is the role of the next turn, as "
        fix += "in GLM's templates, conversations of several turns"
        problems.append((Verdict.warn, f"none of {plural(len(closing.ends), 'answer')} ends with a stop token", fix))
    if proof.num_rewritten and not proof.num_answers:
        fix = f"look at the rows yourself: eyas prepare data={it.config.data.name}"
        problems.append((Verdict.warn, "the template writes none of the answers as the data has it", fix))
    if number := num_rows_without_prompt(it):
        fix = "zeros in `loss_mask` where the prompt is"
        problems.append((Verdict.warn, f"in all {plural(number, 'row')} of ids each token is supervised", fix))
    found = f"{num_supervised / num_tokens:.0%} of {num_tokens:,} tokens supervised"
    for part in (proof.summary, closing.summary(it)):
        found += f"; {part}" if part else ""
    return _row(name, problems, found)


def stability(it: Sample) -> Finding:
    """Where history is rewritten, a conversation is a row per answer; that is handled, and no fault."""
    if not it.rendered:
        return _nothing("p21_stability", it.nothing)
    rewritten = [one for one in it.rendered if one.row_per_turn]
    several = sum(_num_answers(one) > 1 for one in it.rendered)
    found = f"{several} of {plural(len(it.rendered), 'conversation')} have several answers"
    if rewritten:
        found += f"; {len(rewritten)} of these are a row per answer, since the template rewrites history "
        found += f"(first {rewritten[0].where})"
    elif several:
        found += ", and are one row each: the template keeps history"
    return Finding(name="p21_stability", verdict=Verdict.ok, found=found)


def _num_answers(one: Rendered) -> int:
    example = one.dealt.example
    return isinstance(example, Conversation) and sum(it["role"] == "assistant" for it in example.messages)


def template(it: Sample) -> Finding:
    """No empty reasoning is learned, and serving renders with the same template and arguments."""
    name, verifier = "p22_template", it.config.verifier
    kwargs = verifier.chat.kwargs
    own = it.make.tokenizer.chat_template if verifier.chat.renderer is Renderer.tokenizer else None
    problems: list[Problem] = []
    spans = [(one, ids) for one in it.rendered for row in one.whole for ids, learned in split_by_mask(row) if learned]
    if empty := [one for one, ids in spans if EMPTY_REASONING.search(it.text(ids))]:
        found = f"{len(empty)} of {plural(len(spans), 'answer')} supervise an empty reasoning (first {empty[0].where})"
        fix = "answers with their reasoning_content; or data.reasoning=false; or, where the template reads it, "
        fix += "verifier.chat.kwargs={enable_thinking: false}, which puts the empty block into the prompt"
        problems.append((Verdict.warn, found, fix))
    if unread := [key for key in kwargs if own is not None and not re.search(rf"\b{re.escape(key)}\b", str(own))]:
        found = f"verifier.chat.kwargs: the template never reads {', '.join(unread)}"
        problems.append((Verdict.warn, found, f"correct the spelling of {unread[0]}, or remove it"))
    args = [*verifier.vllm.args, *it.config.server.args]
    served, unclear = served_kwargs(args)
    if unclear:
        problems.append((Verdict.warn, unclear, f"{SERVED_KWARGS} with a JSON object"))
    elif served != kwargs:
        used = f"{SERVED_KWARGS} {json.dumps(served)}" if served else f"no {SERVED_KWARGS}"
        found = f"rendered with verifier.chat.kwargs={json.dumps(kwargs)}, served with {used}"
        fix = f"add {SERVED_KWARGS} and '{json.dumps(kwargs)}' to verifier.vllm.args"
        problems.append((Verdict.warn, found, fix if kwargs else f"verifier.chat.kwargs={json.dumps(served)}"))
    other = dict(_options(args)).get("--chat-template", verifier.chat.template)
    if other != verifier.chat.template:
        found = f"rendered with verifier.chat.template={verifier.chat.template or 'null'}, served with {other}"
        problems.append((Verdict.warn, found, f"verifier.chat.template={other}"))
    if not it.rendered and not problems:
        return _nothing(name, it.nothing)
    how = f"arguments {json.dumps(kwargs)}, as served" if kwargs else "no arguments"
    return _row(name, problems, f"no empty reasoning among {plural(len(spans), 'answer')}; {how}")


def served_kwargs(args: list[str]) -> tuple[dict[str, Any], str]:
    """The template's arguments that a command line of `vllm serve` sets, and what can't be understood of them."""
    served: dict[str, Any] = {}
    for name, value in _options(args):
        if name != SERVED_KWARGS and not name.startswith(f"{SERVED_KWARGS}."):
            continue
        try:
            parsed = json.loads(value)
        except json.JSONDecodeError:
            parsed = value
        if name != SERVED_KWARGS:  # --option.key value
            served[name.removeprefix(f"{SERVED_KWARGS}.")] = parsed
        elif isinstance(parsed, dict):
            served |= parsed
        else:
            return {}, f"verifier.vllm.args or server.args has {name} {value!r}"
    return served, ""


def _options(args: list[str]) -> Iterator[tuple[str, str]]:
    """(name, value) of each option, its name with dashes, as vLLM reads it."""
    for index, argument in enumerate(args):
        if argument.startswith("--"):
            name, given, value = argument.partition("=")
            head, *keys = name.split(".")
            following = args[index + 1] if index + 1 < len(args) else ""
            yield ".".join([head.replace("_", "-"), *keys]), value if given else following


def tokenizer(it: Sample) -> Finding:
    """Which tokenizer and template, and whether a run of this name was made with another."""
    name, verifier = "p23_tokenizer", it.config.verifier
    identity, own = tokenizer_identity(verifier, locate(verifier)), it.make.tokenizer.chat_template
    if verifier.chat.template is not None:
        used = f"verifier.chat.template={verifier.chat.template}"
    else:
        used = "no chat template" if own is None else "with its own chat template"
    found = f"{identity[:8]}, {used}"
    run = Run.of(it.config)
    before = _tokens_fields(it.config, run)
    if before is None:
        told = "the fingerprints of tokens, states and run cover both"
        return Finding(name=name, verdict=Verdict.ok, found=f"{found}; {told}")
    now = {"tokenizer": identity, "chat": to_dict(verifier.chat)}
    different = [key for key, value in now.items() if before.get(key) != value]
    if not different:
        return Finding(name=name, verdict=Verdict.ok, found=f"{found}; as in {run.directory}")
    what = " and ".join({"tokenizer": "tokenizer or template", "chat": "verifier.chat"}[key] for key in different)
    return Finding(
        name=name,
        verdict=Verdict.fail,
        found=f"{found}; {run.directory} was made with another {what} ({str(before.get('tokenizer'))[:8]})",
        expected=EXPECTED[name],
        fix=f"name={it.config.name}-2 for a run of its own, or the tokenizer and template of then",
    )


def _tokens_fields(config: Config, run: Run) -> dict[str, Any] | None:
    """What the tokens of the run of this name were made of; None where there is no such run, or its tokens are gone."""
    if not run.exists():
        return None
    identity = yaml.safe_load(run.identity_file.read_text())
    fingerprint = str(identity["data"]["tokens"])
    fields: dict[str, Any] | None = read_manifest(store(config) / "tokens" / fingerprint[:16]).get("fields")
    return fields


def doubled_bos(it: Sample) -> Finding:
    """The BOS comes once: not from the template and the text, and not from neither."""
    name, bos = "doubled_bos", it.make.tokenizer.bos_token_id
    if not it.rendered:
        return _nothing(name, it.nothing)
    if bos is None:
        return _nothing(name, "the tokenizer has no BOS")
    begins = [(one, row.input_ids) for one in it.rendered for row in one.whole]
    doubled = [one for one, ids in begins if ids[:2] == [bos, bos]]
    token, expected = it.token(bos), "one BOS where the verifier expects it"
    if doubled:
        found = f"{len(doubled)} of {len(begins)} rows begin with {token} twice (first {doubled[0].where})"
        fix = f"remove {token} from the beginning of the texts, or from the template (verifier.chat.template=FILE)"
        return Finding(name=name, verdict=Verdict.fail, found=found, expected=expected, fix=fix)
    chats = [ids for one, ids in begins if isinstance(one.dealt.example, Conversation)]
    without = [ids for ids in chats if ids[0] != bos]
    plain: list[int] = it.make.tokenizer("a", verbose=False)["input_ids"]
    if without and plain[:1] == [bos]:
        found = f"the tokenizer puts {token} before plain text, the template begins {len(without)} of {len(chats)} rows without"
        fix = f"if the verifier was trained with {token}, a template that writes it: verifier.chat.template=FILE"
        return Finding(name=name, verdict=Verdict.warn, found=found, expected=expected, fix=fix)
    once = sum(ids[:1] == [bos] for _, ids in begins)
    return Finding(name=name, verdict=Verdict.ok, found=f"{once} of {len(begins)} rows begin with {token}, none twice")


def bad_rows(it: Sample) -> Finding:
    """No more rows are unusable than data.max_bad_rows allows."""
    name, sources = "p28_rows", it.data.sources
    if it.unreadable is not None:
        return failure(name, it.unreadable)
    reasons = {reason: it.counts[f"bad_rows_{reason.name}"] for reason in Reason}
    reasons[Reason.template] += len(it.refused)
    num_bad, num_rows = sum(reasons.values()), it.counts["rows"]
    if not num_bad:
        return Finding(name=name, verdict=Verdict.ok, found=f"{num_rows:,} rows read, none bad")
    first = it.first_bad or it.refused[0][1]
    said = ", ".join(f"{number} {reason.value}" for reason, number in reasons.items() if number)
    found = f"{num_bad} of {num_rows:,} rows read are bad: {said}; first {first}"
    limits = ", ".join(f"{limit:g}" for limit in sorted({source.max_bad_rows for source in sources.values()}))
    fix = f"mend them, or raise data.max_bad_rows={limits}"
    if any(_too_many_refused(it, source) for source in sources):
        return Finding(name=name, verdict=Verdict.fail, found=found, expected=EXPECTED[name], fix=fix)
    shares = [source.max_bad_rows for source in sources.values() if source.max_bad_rows < 1]
    if shares and num_bad > max(shares) * num_rows:  # so few rows decide nothing yet
        return Finding(name=name, verdict=Verdict.warn, found=found, expected=EXPECTED[name], fix=fix)
    return Finding(name=name, verdict=Verdict.ok, found=f"{found} (data.max_bad_rows={limits})")


def _too_many_refused(it: Sample, source: str) -> bool:
    """As the tokens stage judges it; reading has judged the others itself."""
    limit = it.data.sources[source].max_bad_rows
    num_dealt = sum(dealt.source == source for dealt in it.dealt)
    num_rows = num_dealt if it.all_read else max(num_dealt, ROWS_BEFORE_A_SHARE)
    return sum(name == source for name, _ in it.refused) > (limit if limit >= 1 else limit * num_rows)


def overlap(it: Sample) -> Finding:
    """No held-out prompt is trained on: by the tokens of the rows, where `deal` goes by the messages."""
    name = "p29_overlap"
    prompts: dict[bool, dict[str, Rendered]] = {True: {}, False: {}}
    for one in it.rendered:
        if one.whole:
            prompts[one.dealt.held_out].setdefault(_prompt(it, one), one)
    held_out, trained = prompts[True], prompts[False]
    left_out = f"{it.counts['like_held_out']} that open like a held-out one are left out"
    if not held_out or not trained:
        side = "held out" if held_out else "for training"
        return _nothing(name, f"all of {_conversations(it)} are {side}; {left_out}" if it.rendered else it.nothing)
    both = [prompt for prompt in held_out if prompt in trained]
    found = f"{plural(len(held_out), 'held-out prompt')}, {len(trained)} of training, {len(both)} of both; {left_out}"
    if not both:
        return Finding(name=name, verdict=Verdict.ok, found=found)
    places = f"{held_out[both[0]].where} is held out, {trained[both[0]].where} is not"
    fix = f"remove {trained[both[0]].where} and its like from the data"
    return Finding(name=name, verdict=Verdict.fail, found=f"{found} (first {places})", expected=EXPECTED[name], fix=fix)


def _prompt(it: Sample, one: Rendered) -> str:
    """What stands before the first answer, however it is spaced or capitalised; of plain text all of it."""
    row = one.whole[0]
    start = 0 if isinstance(one.dealt.example, PlainText) else row.loss_mask.index(True)
    return " ".join(it.text(row.input_ids[:start] if start else row.input_ids).split()).casefold()


def _row(name: str, problems: list[Problem], found: str) -> Finding:
    """All problems as one row, which is as bad as the worst."""
    if not problems:
        return Finding(name=name, verdict=Verdict.ok, found=found)
    verdict = Verdict.fail if any(problem[0] is Verdict.fail for problem in problems) else Verdict.warn
    what, fix = "; ".join(what for _, what, _ in problems), "; ".join(fix for *_, fix in problems)
    return Finding(name=name, verdict=verdict, found=f"{what} ({found})", expected=EXPECTED[name], fix=fix)


def _conversations(it: Sample) -> str:
    return f"the first {plural(len(it.dealt), 'conversation')}"


def _nothing(name: str, why: str) -> Finding:
    return Finding(name=name, verdict=Verdict.na, found=why)


ROWS: dict[str, Check] = {
    "p20_mask": mask,
    "p21_stability": stability,
    "p22_template": template,
    "p23_tokenizer": tokenizer,
    "doubled_bos": doubled_bos,
    "p28_rows": bad_rows,
    "p29_overlap": overlap,
}
