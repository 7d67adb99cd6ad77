"""Faults p20 to p23, p28 and p29, planted in real files, templates and tokenizers of the tiny verifier: each is a row that
says what to do, and no other row is disturbed by it.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from tokenizers import processors
from transformers import AutoTokenizer

import eyas.data.rows
from eyas.artifact import building, complete, write_file
from eyas.cli.compose import compose
from eyas.config import Config, config_yaml
from eyas.data.prepare import prepare
from eyas.data.render import Row, render
from eyas.data.schema import Responses
from eyas.doctor import preflight
from eyas.doctor.data_checks import ROWS, examine_data, served_kwargs
from eyas.doctor.data_sample import reads_files_only
from eyas.doctor.findings import Finding, Verdict
from eyas.errors import EyasError
from eyas.run import Run
from eyas.stages import responses_artifact, run_identity
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.schema import Renderer

Values = dict[str, Any]

FAMILIES = Path(__file__).parents[1] / "data" / "families"


def user(text: str) -> Values:
    return {"role": "user", "content": text}


def answer(text: str, **more: Any) -> Values:
    return {"role": "assistant", "content": text, **more}


def talk(*messages: Values, **columns: Any) -> Values:
    return {"messages": list(messages), **columns}


TALKS = [
    talk(user("What is a hawk? "), answer("A bird of prey.")),
    talk(user("And an eyas?"), answer("A young one.\n"), user("Whose?"), answer("A falconer's.")),
    talk(user("Tell all."), answer("It begins"), finish_reason="length"),
    talk({"role": "system", "content": "Brief."}, user("Hallo, wie geht es dir?"), answer("Grüß dich! \N{EAGLE}")),
]
THOUGHTS = [
    talk(user("1?"), answer("One.", reasoning_content="hm"), user("2?"), answer("Two.", reasoning_content="so")),
    talk(user("3?"), answer("Three.", reasoning_content="ah")),
]
ROLE_CLOSES = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}{% for m in messages %}<|im_start|>"
    "{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OPENS_REASONING = NO_SYSTEM.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
BOS, CHATML = "<|endoftext|>", NO_SYSTEM.partition("{% endif %}")[2]
SHOUTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | upper }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@cache
def base_config() -> Config:
    return compose(["verifier=tiny_llama", "data.max_length=400"], [])


@pytest.fixture
def examined(tmp_path: Path, tiny_checkpoint: Checkpoint) -> Callable[..., dict[str, Finding]]:
    """The rows about the data, by name, of these lines and with these changes of data and verifier."""
    return lambda *args, **changes: {it.name: it for it in examine_data(configured(tmp_path, *args, **changes))}


def configured(
    directory: Path,
    lines: list[Values | str],
    data: Values | None = None,
    verifier: Values | None = None,
    chat: str = "",
) -> Config:
    file = directory / "data.jsonl"
    file.write_text("".join((it if isinstance(it, str) else json.dumps(it)) + "\n" for it in lines))
    base, values = base_config(), verifier or {}
    if chat:
        template = FAMILIES / chat
        if not chat.endswith(".jinja"):
            template = directory / "template.jinja"
            template.write_text(chat)
        values = {**values, "chat.template": str(template)}
    groups: dict[str, Values] = {}
    for key, value in values.items():
        group, _, leaf = key.rpartition(".")
        groups.setdefault(group, {})[leaf] = value
    changed = {group: replace(getattr(base.verifier, group), **leaves) for group, leaves in groups.items() if group}
    return replace(
        base,
        outputs=str(directory / "outputs"),
        data=replace(base.data, **{"path": str(file), "held_out": 1, **(data or {})}),
        verifier=replace(base.verifier, **groups.get("", {}), **changed),
    )


def test_nothing_is_found_in_clean_data(examined: Callable[..., dict[str, Finding]], tmp_path: Path) -> None:
    rows = examined(TALKS)
    assert list(rows) == list(ROWS)
    assert {name: it.verdict for name, it in rows.items()} == {
        **dict.fromkeys(ROWS, Verdict.ok),
        "doubled_bos": Verdict.na,
    }
    found = {name: it.found for name, it in rows.items()}
    assert (
        "of 5 answers all the text is supervised, of 5 questions none; 4 of 4 uncut answers ended by <|im_end|>"
        in (found["p20_mask"])
    )
    assert found["p21_stability"] == (
        "1 of 4 conversations have several answers, and are one row each: the template keeps history"
    )
    assert found["p22_template"] == "no empty reasoning among 5 answers; no arguments"
    assert found["p23_tokenizer"].endswith(
        "with its own chat template; the fingerprints of tokens, states and run cover both"
    )
    assert found["p28_rows"] == "4 rows read, none bad"
    assert found["p29_overlap"] == (
        "1 held-out prompt, 3 of training, 0 of both; 0 that open like a held-out one are left out"
    )
    assert not (tmp_path / "outputs").exists(), "the doctor writes nothing into the store"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Data, a template or settings with a fault, and how the row must answer."""

    id: str
    row: str
    says: tuple[str, ...]
    """What `found` and `fix` must contain."""
    lines: list[Any] = field(default_factory=lambda: TALKS)
    data: Values = field(default_factory=dict)
    verifier: Values = field(default_factory=dict)
    chat: str = ""
    """A template, or a file of tests/data/families."""
    verdict: Verdict = Verdict.fail
    also: tuple[str, ...] = ()
    """Other rows that rightly have something to say."""


MANY = [talk(user(f"What is {number}?"), answer("Yes.")) for number in range(600)]
FAULTS = [
    # p20: the mask
    Fault(
        id="no-answer-fits",
        row="p20_mask",
        data={"max_length": 20},
        says=("not one supervised token in the first 4 conversations", "data.max_length=20 may end before the answers"),
    ),
    Fault(
        id="the-prompt-opens-a-reasoning-that-the-answers-lack",
        row="p20_mask",
        chat=OPENS_REASONING,
        lines=TALKS[:2],
        says=("data.jsonl:1: the chat template renders the answer of turn 2 differently", "reasoning_content"),
    ),
    Fault(
        id="another-stop-token",
        row="p20_mask",
        verifier={"stop_token_ids": [65]},
        verdict=Verdict.warn,
        says=("none of 4 answers ends with a stop token", "ends in 'rey.<|im_end|>\\n'", "verifier.stop_token_ids=["),
    ),
    Fault(
        id="the-next-role-closes-and-there-is-no-next-turn",
        row="p20_mask",
        lines=[TALKS[0], talk(user("2?"), answer("Two."))],
        chat=ROLE_CLOSES,
        verdict=Verdict.warn,
        says=("none of 2 answers ends with a stop token", "conversations of several turns"),
    ),
    Fault(
        id="a-template-that-changes-every-text",
        row="p20_mask",
        chat=SHOUTS,
        verdict=Verdict.warn,
        says=("the template writes none of the answers as the data has it", "eyas prepare data="),
    ),
    # p22: the template
    Fault(
        id="an-empty-reasoning-is-learned",
        row="p22_template",
        lines=TALKS[:3],
        chat="qwen3.jinja",
        verdict=Verdict.warn,
        says=("4 of 4 answers supervise an empty reasoning (first ", "data.jsonl:1)", "enable_thinking: false"),
    ),
    Fault(
        id="an-argument-that-the-template-does-not-know",
        row="p22_template",
        lines=THOUGHTS,
        chat="qwen3.jinja",
        verifier={
            "chat.kwargs": {"enable_thinkin": False},
            "vllm.args": ["--default-chat-template-kwargs", '{"enable_thinkin": false}'],
        },
        verdict=Verdict.warn,
        says=("the template never reads enable_thinkin", "correct the spelling of enable_thinkin"),
    ),
    Fault(
        id="rendered-with-arguments-and-served-without",
        row="p22_template",
        chat="qwen3.jinja",
        verifier={"chat.kwargs": {"enable_thinking": False}},
        verdict=Verdict.warn,
        says=(
            'rendered with verifier.chat.kwargs={"enable_thinking": false}, served with no --default-chat-template-kwargs',
            "add --default-chat-template-kwargs and '{\"enable_thinking\": false}' to verifier.vllm.args",
        ),
    ),
    Fault(
        id="served-with-arguments-and-rendered-without",
        row="p22_template",
        lines=THOUGHTS,
        chat="qwen3.jinja",
        verifier={"vllm.args": ["--default_chat_template_kwargs.enable_thinking=false"]},
        verdict=Verdict.warn,
        says=('served with --default-chat-template-kwargs {"enable_thinking": false}', "verifier.chat.kwargs={"),
    ),
    Fault(
        id="served-with-what-is-no-json",
        row="p22_template",
        verifier={"vllm.args": ["--default-chat-template-kwargs", "enable_thinking=false"]},
        verdict=Verdict.warn,
        says=("--default-chat-template-kwargs 'enable_thinking=false'", "with a JSON object"),
    ),
    Fault(
        id="served-with-another-template",
        row="p22_template",
        verifier={"vllm.args": ["--chat-template", "other.jinja"]},
        verdict=Verdict.warn,
        says=(
            "rendered with verifier.chat.template=null, served with other.jinja",
            "verifier.chat.template=other.jinja",
        ),
    ),
    # p28: unusable rows
    Fault(
        id="half-a-line",
        row="p28_rows",
        lines=[*TALKS, '{"messages": [{"role": "us'],
        says=("data.jsonl:5: not valid JSON",),
    ),
    Fault(
        id="more-than-the-share",
        row="p28_rows",
        lines=[*TALKS, "{", talk(answer("Nobody asked."))],
        data={"max_bad_rows": 0.1},
        says=(
            "2 of 6 rows are bad",
            "1 not valid JSON (first ",
            "data.jsonl:5)",
            "1 no assistant turn",
            "raise the limit",
        ),
    ),
    Fault(
        id="perhaps-more-than-the-share",
        row="p28_rows",
        lines=["{", *MANY],
        data={"max_bad_rows": 0.01},
        verdict=Verdict.warn,
        says=("1 of 65 rows read are bad: 1 not valid JSON; first ", "data.jsonl:1: ", "raise data.max_bad_rows=0.01"),
    ),
    Fault(
        id="refused-by-the-template",
        row="p28_rows",
        chat=NO_SYSTEM,
        says=("1 of 4 rows read are bad: 1 refused by the chat template; first ", "data.jsonl:4: ", "no system role"),
    ),
    Fault(
        id="no-data",
        row="p28_rows",
        data={"path": "nowhere/data.jsonl"},
        says=("data.path=nowhere/data.jsonl: there is no such file",),
    ),
]


@pytest.mark.parametrize("fault", [pytest.param(it, id=f"{it.row[:3]}-{it.id}") for it in FAULTS])
def test_a_planted_fault_is_a_row(fault: Fault, examined: Callable[..., dict[str, Finding]]) -> None:
    check(fault, examined(fault.lines, fault.data, fault.verifier, fault.chat))


def check(fault: Fault, rows: dict[str, Finding]) -> None:
    row = rows[fault.row]
    assert row.verdict is fault.verdict, row
    for phrase in fault.says:
        assert phrase in f"{row.found} | {row.fix}", phrase
    assert row.expected
    wrong = {it.name for it in rows.values() if it.verdict in (Verdict.warn, Verdict.fail)}
    assert wrong - set(fault.also) == {fault.row}


def changed_masks(change: Callable[[list[bool]], list[bool]]) -> Callable[..., list[Row]]:
    """`render`, with another mask."""
    return lambda *args, **options: [Row(it.input_ids, change(it.loss_mask)) for it in render(*args, **options)]


@pytest.mark.parametrize(
    ("change", "verdict", "says"),
    [
        pytest.param(
            lambda mask: [False, *mask[:-1]],
            Verdict.fail,
            "data.jsonl:1: text of the answer is not supervised, turn 2: 'A bird of prey.'",
            id="one-too-late",
        ),
        pytest.param(
            lambda mask: [*mask[1:], False],
            Verdict.fail,
            "data.jsonl:1: the stop token behind an answer is not supervised",
            id="one-too-early",
        ),
        pytest.param(
            lambda mask: [True] * len(mask),
            Verdict.fail,
            "data.jsonl:1: text of the user is supervised, turn 1: 'What is a hawk? '",
            id="the-prompt-too",
        ),
        pytest.param(
            lambda mask: [not it for it in mask],
            Verdict.fail,
            "data.jsonl:1: text of the user is supervised, turn 1: 'What is a hawk? '",
            id="the-wrong-side",
        ),
        pytest.param(
            lambda mask: [it and 2 * index > len(mask) for index, it in enumerate(mask)],
            Verdict.fail,
            "data.jsonl:2: text of the answer is not supervised, turn 2: 'A young one.\\n'",
            id="the-last-half-only",
        ),
    ],
)
def test_a_wrong_mask_is_found_by_its_text(
    change: Callable[[list[bool]], list[bool]],
    verdict: Verdict,
    says: str,
    examined: Callable[..., dict[str, Finding]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a fault in rendering would make it."""
    monkeypatch.setattr(eyas.data.rows, "render", changed_masks(change))
    row = examined(TALKS[:2])["p20_mask"]
    assert row.verdict is verdict, row
    assert row.found.startswith(f"{tmp_path}/{says} (")


def tokenised(checkpoint: Checkpoint, prompt: str, said: str, mask: tuple[int, int, int]) -> Values:
    """A row of ids with these masks of the prompt, of the answer and of the token that closes it."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint.directory)
    parts = [tokenizer(text)["input_ids"] for text in (prompt, said, "<|im_end|>")]
    return {
        "input_ids": [token for part in parts for token in part],
        "loss_mask": [value for part, value in zip(parts, mask, strict=True) for _ in part],
    }


def test_rows_of_ids(examined: Callable[..., dict[str, Finding]], tiny_checkpoint: Checkpoint) -> None:
    """Nothing proves their masks, but some can't be right."""

    def found(*mask: int) -> Finding:
        return examined([tokenised(tiny_checkpoint, f"{n}? ", "Yes.", mask) for n in range(3)])["p20_mask"]

    assert (clean := found(0, 1, 1)).verdict is Verdict.ok
    assert clean.found == "62% of 24 tokens supervised; 3 of 3 uncut answers ended by <|im_end|>"
    whole = found(1, 1, 1)
    assert whole.verdict is Verdict.warn
    assert whole.found.startswith("in all 3 rows of ids each token is supervised (100% of 24 tokens")
    assert whole.fix == "zeros in `loss_mask` where the prompt is"
    open_end = found(0, 1, 0)
    assert open_end.verdict is Verdict.warn
    assert "none of 3 answers ends with a stop token" in open_end.found


def test_rewritten_history_is_said_and_proved(examined: Callable[..., dict[str, Finding]]) -> None:
    """A template that drops the reasoning of earlier turns: a row per answer, and no fault."""
    rows = examined(THOUGHTS, {}, {}, "qwen3.jinja")
    assert {it.verdict for it in rows.values()} == {Verdict.ok, Verdict.na}
    assert rows["p21_stability"].found.startswith(
        "1 of 2 conversations have several answers; 1 of these are a row per answer, since the template rewrites history (first "
    )
    assert "of 3 answers all the text is supervised, of 4 questions none" in rows["p20_mask"].found


def test_the_next_turns_role_closes_an_answer(
    examined: Callable[..., dict[str, Finding]], tiny_checkpoint: Checkpoint
) -> None:
    """As in GLM's templates: all answers but a conversation's last have a closing token, which is enough."""
    role = AutoTokenizer.from_pretrained(tiny_checkpoint.directory).convert_tokens_to_ids("<|im_start|>")
    row = examined(TALKS[:2], {}, {"stop_token_ids": [role]}, ROLE_CLOSES)["p20_mask"]
    assert row.verdict is Verdict.ok
    assert "1 of 3 uncut answers ended by <|im_start|>" in row.found


def test_arguments_as_served_are_no_fault(examined: Callable[..., dict[str, Finding]]) -> None:
    kwargs = {"chat.kwargs": {"enable_thinking": False}}
    args = {"vllm.args": ["--trust-remote-code", '--default-chat-template-kwargs={"enable_thinking": false}']}
    row = examined(TALKS[:1], {}, {**kwargs, **args}, "qwen3.jinja")["p22_template"]
    assert row.verdict is Verdict.ok, row
    assert row.found == 'no empty reasoning among 1 answer; arguments {"enable_thinking": false}, as served'
    assert served_kwargs(["--default-chat-template-kwargs", '{"a": 1}', "--default-chat-template-kwargs.b", "x"]) == (
        {"a": 1, "b": "x"},
        "",
    )


@pytest.fixture(scope="module")
def with_bos(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Checkpoint) -> str:
    """The tiny tokenizer, with a BOS that it puts before plain text."""
    directory = tmp_path_factory.mktemp("with_bos")
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint.directory)
    tokenizer.bos_token = BOS
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.bos_token_id)]
    )
    tokenizer.save_pretrained(directory)
    return str(directory)


@pytest.mark.parametrize(
    ("chat", "lines", "verdict", "says"),
    [
        (BOS + CHATML, TALKS, Verdict.ok, f"4 of 4 rows begin with {BOS}, none twice"),
        (BOS + BOS + CHATML, TALKS, Verdict.fail, f"4 of 4 rows begin with {BOS} twice (first "),
        ("", TALKS, Verdict.warn, f"puts {BOS} before plain text, the template begins 4 of 4 rows without"),
        ("", [{"text": f"{BOS}A hawk."}, {"text": "Another."}], Verdict.fail, f"1 of 2 rows begin with {BOS} twice"),
    ],
    ids=["once", "by-the-template-twice", "by-the-template-never", "in-the-text"],
)
def test_the_bos_comes_once(
    chat: str,
    lines: list[Any],
    verdict: Verdict,
    says: str,
    examined: Callable[..., dict[str, Finding]],
    with_bos: str,
) -> None:
    rows = examined(lines, {}, {"tokenizer.path": with_bos}, chat)
    row = rows["doubled_bos"]
    assert row.verdict is verdict, row
    assert says in row.found
    if verdict is not Verdict.ok:
        assert f"{BOS} from the beginning of the texts" in row.fix or "a template that writes it" in row.fix
    assert {it.name for it in rows.values() if it.verdict in (Verdict.warn, Verdict.fail)} <= {"doubled_bos"}


def test_bad_rows_within_the_limit_are_said(examined: Callable[..., dict[str, Finding]], tmp_path: Path) -> None:
    row = examined([*TALKS, "{", talk(answer("Nobody asked."))], {"max_bad_rows": 3}, {}, NO_SYSTEM)["p28_rows"]
    assert row.verdict is Verdict.ok
    assert row.found.startswith(
        "3 of 6 rows read are bad: 1 not valid JSON, 1 no assistant turn, 1 refused by the chat template; "
        f"first {tmp_path}/data.jsonl:5: not valid JSON"
    )
    assert row.found.endswith("(data.max_bad_rows=3)")


WITHOUT_SYSTEM = (
    "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_a_held_out_prompt_that_is_trained_on(
    examined: Callable[..., dict[str, Finding]], tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """Of the same messages it can't be: they are left out. A template may make the same prompt of different ones."""
    row = examined([TALKS[0], talk(user("what IS a  hawk?"), answer("Mine.")), TALKS[1]])["p29_overlap"]
    assert row.verdict is Verdict.ok
    assert row.found.endswith("0 of both; 1 that open like a held-out one are left out")
    system = [{"role": "system", "content": f"Be {n}."} for n in range(4)]
    talks = [{"messages": [system[n], user(f"{n % 2}?"), answer(f"Yes {n}.")]} for n in range(4)]
    rows = examined(talks, chat=WITHOUT_SYSTEM)
    row = rows["p29_overlap"]
    assert row.verdict is Verdict.fail
    file = tmp_path / "data.jsonl"
    assert row.found == (
        "1 held-out prompt, 2 of training, 1 of both; 0 that open like a held-out one are left out "
        f"(first {file}:1 is held out, {file}:3 is not)"
    )
    assert row.fix == f"remove {file}:3 and its like from the data"
    assert {it.name for it in rows.values() if it.verdict is Verdict.fail} == {"p29_overlap"}
    row = examined(TALKS, {"held_out": 4})["p29_overlap"]
    assert row.verdict is Verdict.na
    assert row.found.startswith("all of the first 4 conversations are held out")


def test_what_is_set_aside_is_not_looked_at(examined: Callable[..., dict[str, Finding]], tmp_path: Path) -> None:
    rows = examined([TALKS[0], *TALKS], {"set_aside": 1})
    assert rows["p29_overlap"].found.startswith("1 held-out prompt, 2 of training, 0 of both")
    row = examined(TALKS, {"set_aside": 4})["p28_rows"]
    assert row.verdict is Verdict.fail
    assert "data.set_aside=4: nothing remains" in row.found


def test_a_tiny_sample_does_not_read_everything(examined: Callable[..., dict[str, Finding]]) -> None:
    """However small data.sample is, a few thousand rows are enough to find something to look at."""
    rows = examined(MANY, {"sample": 1e-9, "held_out": 0.5})
    assert rows["p28_rows"].found == f"{len(MANY)} rows read, none bad"
    assert rows["p20_mask"].verdict is Verdict.ok


def test_answers_that_will_be_made_anew_are_not_looked_at(
    examined: Callable[..., dict[str, Finding]], tmp_path: Path
) -> None:
    """What they are replaced by is looked at, once it is there; bad rows are bad before."""
    rows = examined([*TALKS, "{"], {"responses": Responses.regenerate}, {}, OPENS_REASONING)
    assert rows.pop("p28_rows").verdict is Verdict.fail
    assert rows.pop("p23_tokenizer").verdict is Verdict.ok
    assert {it.found for it in rows.values()} == {"the verifier answers anew first (data.responses)"}
    config = configured(tmp_path, TALKS, {"responses": Responses.regenerate})
    artifact = responses_artifact(config)
    with building(artifact) as partial:
        assert partial is not None
        write_file(partial / "responses-00000.jsonl", "".join(json.dumps(talk) + "\n" for talk in TALKS[:2]))
        complete(artifact, partial, {})
    rows = {it.name: it for it in examine_data(config)}
    assert rows["p28_rows"].found == "2 rows read, none bad"
    assert "of 3 answers all the text is supervised" in rows["p20_mask"].found


def test_answers_that_others_will_be_added_to_are_looked_at(examined: Callable[..., dict[str, Finding]]) -> None:
    rows = examined(TALKS, {"responses": Responses.add, "answers_by": "tiny_llama"})
    assert rows["p28_rows"].found == f"{len(TALKS)} rows read, none bad"
    assert rows["p20_mask"].verdict is Verdict.ok


def test_what_the_server_renders_is_left_to_it(examined: Callable[..., dict[str, Finding]]) -> None:
    rows = examined(TALKS, {}, {"chat.renderer": Renderer.server})
    assert {rows.pop(name).verdict for name in ("p23_tokenizer", "p28_rows")} == {Verdict.ok}
    assert {it.verdict for it in rows.values()} == {Verdict.na}
    assert "the server renders" in rows["p20_mask"].found


def test_without_a_tokenizer_or_a_template(
    examined: Callable[..., dict[str, Finding]], tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    rows = examined(TALKS, {}, {"tokenizer.path": str(empty)})
    assert rows.pop("p23_tokenizer").verdict is Verdict.fail
    assert {it.verdict for it in rows.values()} == {Verdict.na}
    bare = Path(shutil.copytree(tiny_checkpoint.directory, tmp_path / "bare", ignore=shutil.ignore_patterns("chat_*")))
    rows = examined(TALKS, {}, {"tokenizer.path": str(bare)})
    assert rows["p20_mask"].verdict is Verdict.fail
    assert "the tokenizer has no chat template: set verifier.chat.template to a Jinja file" in rows["p20_mask"].found
    assert {it.name for it in rows.values() if it.verdict is Verdict.fail} == {"p20_mask"}


def test_a_run_of_this_name_with_another_template(tmp_path: Path, tiny_checkpoint: Checkpoint) -> None:
    config = configured(tmp_path, TALKS)
    prepare(config)
    run = Run.of(config)
    run.directory.mkdir()
    run.identity_file.write_text(yaml.safe_dump(run_identity(config), sort_keys=False))
    same, other = (
        {it.name: it for it in examine_data(it)}["p23_tokenizer"]
        for it in (config, configured(tmp_path, TALKS, chat=ROLE_CLOSES))
    )
    assert same.verdict is Verdict.ok
    assert same.found.endswith(f"as in {run.directory}")
    assert other.verdict is Verdict.fail
    assert f"{run.directory} was made with another tokenizer or template and verifier.chat" in other.found
    assert other.fix.startswith(f"name={config.name}-2")


def test_the_preflight_refuses_before_anything_is_made(
    tmp_path: Path,
    tiny_checkpoint: Checkpoint,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("examine_facts", "examine_training", "read_library"):  # tested elsewhere, and they take seconds
        monkeypatch.setattr(preflight, name, lambda *_: [])

    def flown(config: Config) -> str:
        (tmp_path / "config.yaml").write_text(config_yaml(config))
        preflight.main(tmp_path / "config.yaml")
        return capsys.readouterr().out

    printed = flown(configured(tmp_path, TALKS[:3], chat="qwen3.jinja"))
    assert "doctor   warning, p22_template: 4 of 4 answers supervise an empty reasoning" in printed
    assert "data     " not in printed, "the tokens stage says it"
    with pytest.raises(EyasError, match=r"data\.jsonl:5: not valid JSON"):
        flown(configured(tmp_path, [*TALKS, "{"]))
    hub = configured(tmp_path, TALKS, {"path": "owner/name"})
    assert not reads_files_only(hub), "whose library takes seconds to import, once more in the tokens stage"
