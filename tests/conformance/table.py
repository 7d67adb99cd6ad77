"""docs/verifiers.md: the guide's words, and the tables that come from the YAML library and the last conformance run."""

from collections.abc import Sequence
from pathlib import Path

import transformers
from tests.conformance.run import Outcome, results

from eyas.verifier.library import Entry, inherited, parents, read_library

DOCUMENT = Path(__file__).parents[2] / "docs" / "verifiers.md"
MARK = "<!-- generated from here by `make conformance` -->\n"


def write_table() -> None:
    """Replace what follows the mark."""
    words = DOCUMENT.read_text().partition(MARK)[0]
    DOCUMENT.write_text(words + MARK + generated())


def generated() -> str:
    """The tables."""
    outcomes, library = results(), read_library()
    in_scope = [it for it in outcomes if it.verdict != "out of scope"]
    counts = {
        verdict: sum(it.verdict == verdict for it in in_scope)
        for verdict in ("passed", "resolved", "refused", "failed")
    }
    tried = sum(it.tried_and_found for it in outcomes)
    wrong = sum(it.tried.startswith("WRONG") for it in outcomes)
    lines = [
        "",
        "## Every model type, measured",
        "",
        f"transformers {transformers.__version__} registers {len(outcomes)} causal and image-text model types; "
        f"{len(in_scope)} write text from left to right with a decoder of their own.",
        "",
        "| | types |",
        "|--|--|",
        f"| passed by a YAML: the teacher's logits are the model's own, to 1e-5 in float32 | {counts['passed']} |",
        f"| of these, found by `auto` alone when no YAML lists the type | {tried} |",
        f"| resolved: config and names only, since the model can't be built here | {counts['resolved']} |",
        f"| refused, with the true reason | {counts['refused']} |",
        f"| wrong | {counts['failed'] + wrong} |",
        "",
        "| model type | | YAML | captured | largest difference |",
        "|--|--|--|--|--|",
        *(_row(it) for it in in_scope if it.verdict in ("passed", "failed")),
        "",
        "Not passed:",
        "",
        "| model type | | reason |",
        "|--|--|--|",
        *(
            f"| {it.model_type} | {it.verdict} | {_cell(it.reason)} |"
            for it in in_scope
            if it.verdict not in ("passed", "failed")
        ),
        "",
        "Out of scope:",
        "",
        *(f"- {reason}: {', '.join(types)}" for reason, types in _by_reason(outcomes).items()),
        "",
        "## Named verifiers",
        "",
        "| `verifier=` | extends | hidden x layers | vocabulary | head | vLLM EAGLE-3 | evidence |",
        "|--|--|--|--|--|--|--|",
        *(_named(library, entry) for entry in library if not entry.option.startswith("arch/")),
    ]
    return "\n".join(lines) + "\n"


def _row(it: Outcome) -> str:
    difference = "" if it.difference is None else "0" if it.difference == 0 else f"{it.difference:.0e}"
    return f"| {it.model_type} | {it.verdict} | {it.option} | {it.target} | {difference} |"


def _by_reason(outcomes: Sequence[Outcome]) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for it in outcomes:
        if it.verdict == "out of scope":
            reasons.setdefault(it.reason, []).append(it.model_type)
    return reasons


def _named(library: Sequence[Entry], entry: Entry) -> str:
    sizes = [inherited(library, entry, "published", key) or "?" for key in ("hidden_size", "num_layers", "vocab_size")]
    extends = next((it.option for it in parents(library, entry)), "")
    served = {True: "yes", False: "no", None: "untried"}[inherited(library, entry, "vllm", "eagle3")]
    head = "tied" if inherited(library, entry, "tied") else "own"
    evidence = str(inherited(library, entry, "evidence")).replace("_", " ")
    return f"| {entry.option} | {extends} | {sizes[0]} x {sizes[1]} | {sizes[2]} | {head} | {served} | {evidence} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("verifier it (DIR): ", "")
