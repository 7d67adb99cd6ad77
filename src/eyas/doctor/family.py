"""The doctor's row `model_type`: does the verifier's YAML compute as the library says that its model type does?

It needs no weights, so it also guards models that are too large for parity.
"""

from typing import Any

from eyas.doctor.findings import Finding, Verdict
from eyas.doctor.subject import Subject
from eyas.verifier.library import Entry, entry_for, inherited

COMPARED = ("norm.kind", "pre_head", "post_head", "head_transform", "stream", "target")


def model_type(it: Subject) -> Finding:
    """Compare with the YAML that lists the type, unless this one lists it itself."""
    types = [str(config.get("model_type")) for config in (it.checkpoint.config, it.facts.language_config)]
    entry = entry_for(it.library, types[0]) or entry_for(it.library, types[1])
    name = types[0] if entry is None or types[0] in entry.model_types else types[1]
    claimed = name in it.verifier.model_types and (entry is None or it.verifier.model_types != entry.model_types)
    if claimed:
        return Finding(name="model_type", verdict=Verdict.ok, found=f"{name}, which this YAML is right for")
    if entry is None:
        if it.checkpoint.config_file != "config.json":
            return Finding(name="model_type", verdict=Verdict.na, found=f"{it.checkpoint.config_file} states none")
        fix = f"eyas doctor proves the arithmetic by parity; then add model_types: [{name}] to the YAML"
        expected = "a model type that the YAML lists"
        return Finding(
            name="model_type", verdict=Verdict.warn, found=f"{name}: no YAML lists it", expected=expected, fix=fix
        )
    differing = [
        f"{field} is {ours}, there {theirs}"
        for field in COMPARED
        if (ours := _said_here(it, field)) != (theirs := _said_there(it, entry, field))
    ]
    if not differing:
        return Finding(
            name="model_type", verdict=Verdict.ok, found=f"{name}, computed as in verifier/{entry.option}.yaml"
        )
    return Finding(
        name="model_type",
        verdict=Verdict.fail,
        found=f"{name} is listed by verifier/{entry.option}.yaml, and verifier {it.verifier.name} computes otherwise: "
        + "; ".join(differing),
        expected="the arithmetic of the model's family",
        fix=f"extend {entry.option}, or claim the type in your own YAML: model_types: [{name}]",
    )


def _said_here(it: Subject, field: str) -> str:
    value: Any = it.verifier
    for part in field.split("."):
        value = getattr(value, part)
    return (
        _steps([vars(step) | {"op": step.op.name, "by": vars(step.by)} for step in value])
        if isinstance(value, list)
        else value.name
    )


def _said_there(it: Subject, entry: Entry, field: str) -> str:
    value = inherited(it.library, entry, *field.split("."))
    return _steps(value) if isinstance(value, list) else str(value)


def _steps(steps: list[dict[str, Any]]) -> str:
    said = [f"{step['op']} {step['by'].get('config') or step['by'].get('value')}" for step in steps]
    return f"[{', '.join(said)}]"
