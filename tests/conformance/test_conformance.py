"""One model type of each mathematical class, built and opened by YAML alone; and the table of the last whole run is true."""

import pytest
from tests.conformance import tiny
from tests.conformance.run import compose, conform, library, quiet, results
from tests.conformance.table import DOCUMENT, MARK, generated

CLASSES = {
    "llama": "plain RMSNorm",
    "kimi_k25": "nested, names under language_model.",
    "qwen3_vl": "nested, names under model.language_model.",
    "olmo2": "weight applied in float32",
    "qwen3_next": "1 + w",
    "gemma": "1 + w, scaled embedding",
    "gemma2": "1 + w, scaled embedding, soft cap",
    "gemma3": "1 + w, null cap, tied, nested",
    "gemma4": "w, scaled embedding, soft cap",
    "gemma3n_text": "four streams",
    "deepseek_v4": "hyper-connections",
    "qwen4_exp_text": "streams side by side, no norm of its own",
    "granite": "divided logits",
    "hyperclovax": "multiplied logits",
    "falcon_h1": "multiplied logits, final_layernorm",
    "minicpm3": "a divisor before the head",
    "inkling_text": "a divisor before the head, padded vocabulary",
    "muse_glimmer": "multiplied, then capped",
    "cohere": "LayerNorm without bias, multiplied logits",
    "cohere2_vision": "a scale in the config that is not used",
    "gpt_neox": "LayerNorm with bias",
    "phi": "head bias",
    "gpt2": "learned positions, n_embd",
    "bloom": "normalised embedding",
    "nemotron": "LayerNorm with 1 + w",
    "olmo": "LayerNorm without weight",
    "nanochat": "RMSNorm without weight, captured at the head",
    "openai-gpt": "no final norm",
    "modernbert-decoder": "a dense layer before the head",
    "nemotron_h": "layers counted by a list",
    "longcat_flash": "double layers",
    "moshi": "more embedding rows than logits",
}


@pytest.mark.parametrize("model_type", CLASSES, ids=str)
def test_the_teacher_is_the_models_own_arithmetic(model_type: str) -> None:
    with quiet():
        outcome = conform(model_type, with_trial=False)
    assert outcome.verdict == "passed", outcome.reason or f"the logits differ by {outcome.difference}"


@pytest.mark.parametrize("model_type", ["gemma2", "bloom"])
def test_an_unlisted_type_is_found_by_trial(model_type: str) -> None:
    with quiet():
        outcome = conform(model_type)
    assert outcome.tried_and_found, outcome.tried


@pytest.mark.parametrize("model_type", ["hrm_text", "mllama", "chameleon"])
def test_what_cannot_be_a_verifier_is_refused_with_the_reason(model_type: str) -> None:
    with quiet():
        outcome = conform(model_type)
    assert outcome.verdict == "refused"
    assert compose(outcome.option, {"name": "it"}).refused in outcome.reason


def test_the_table_covers_every_registered_type_and_none_is_wrong() -> None:
    outcomes = results()
    assert [it.model_type for it in outcomes] == sorted(tiny.model_types())
    assert not [it for it in outcomes if it.verdict == "failed" or it.tried.startswith("WRONG")]


def test_the_document_shows_the_last_run() -> None:
    assert DOCUMENT.read_text().partition(MARK)[2] == generated(), "run `make conformance`"


def test_the_readme_says_what_was_measured() -> None:
    in_scope = [it for it in results() if it.verdict != "out of scope"]
    passed = sum(it.verdict == "passed" for it in in_scope)
    readme = (DOCUMENT.parents[1] / "README.md").read_text()
    assert f"Of the {len(in_scope)} decoder-only" in readme
    assert f"{passed} are covered so" in readme.replace("\n", " ")
    named = sum(not entry.option.startswith("arch/") for entry in library)
    assert f"{named} named verifiers" in readme


def test_every_model_type_is_listed_once() -> None:
    listed = [model_type for entry in library for model_type in entry.model_types]
    assert len(listed) == len(set(listed)), sorted({it for it in listed if listed.count(it) > 1})
