"""`python -m eyas.doctor.preflight CONFIG`: the cheap checks, before step 1 of every training. Prints what is worth reading."""

from pathlib import Path

from eyas.config import load_config
from eyas.doctor.data_checks import examine_data
from eyas.doctor.data_sample import reads_files_only
from eyas.doctor.draft_checks import examine_handover
from eyas.doctor.facts_checks import examine_facts
from eyas.doctor.findings import Verdict
from eyas.doctor.training_checks import examine_training
from eyas.errors import EyasError
from eyas.process import child_main
from eyas.verifier.library import read_library
from eyas.verifier.locate import locate


def main(config_file: Path) -> None:
    config = load_config(config_file)
    findings = [*examine_facts(config, locate(config.verifier), read_library()), *examine_training(config)]
    if not any(it.verdict is Verdict.fail for it in findings):
        findings += examine_handover(config)
    # Another process has the whole data before it; what would take long to import is left to that one.
    if reads_files_only(config) and not any(it.verdict is Verdict.fail for it in findings):
        findings += examine_data(config)
    for it in findings:
        if it.verdict is Verdict.warn:
            print(f"doctor   warning, {it.name}: {it.found}{f' (fix: {it.fix})' if it.fix else ''}", flush=True)
    failed = [it for it in findings if it.verdict is Verdict.fail]
    if failed:
        rest = f" (and {len(failed) - 1} more: eyas doctor shows them all)" if len(failed) > 1 else ""
        fix = "" if failed[0].fix in failed[0].found else f": {failed[0].fix}"
        raise EyasError(f"{failed[0].found}{fix}{rest}")
    print(f"doctor   {sum(it.verdict is Verdict.ok for it in findings)} checks passed", flush=True)


if __name__ == "__main__":
    child_main(main)
