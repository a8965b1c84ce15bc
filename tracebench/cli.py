"""The command line. Hydra composes the cases; then they are run one after the other and reported.

Imports no torch, so that ``--help``, ``--cfg job`` and completion answer at once.
"""

from __future__ import annotations

import fnmatch
import os
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf import OmegaConf

from tracebench import config
from tracebench.controls.vocabulary import CONTROLS, FORMS
from tracebench.errors import RequestError, unknown_choice
from tracebench.helptext import all_choices, choices, help_page, needs_a_key
from tracebench.record import Record
from tracebench.running.launch import ServerDied, make_launcher
from tracebench.running.sweep import Step, run_sweep
from tracebench.status import as_expected, outcome

#: Flags with which Hydra answers a question instead of running anything.
_NO_RUN = ("--cfg", "-c", "--info", "-i", "--shell-completion", "-sc", "--hydra-help", "--version")
_HELP_HINT = "See python -m tracebench --help."
#: Configurations composed so far. Hydra's jobs only collect: a request is checked as a whole before any of it runs.
_COLLECTED: list[Any] = []


def main(argv: list[str] | None = None) -> NoReturn:
    """Run the command line and end the process with its exit code (see the help page)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _main(arguments)
    except (RequestError, ServerDied) as error:
        print(f"tracebench: {error}", file=sys.stderr)
        code = 2 if isinstance(error, RequestError) else 1
    except BrokenPipeError:
        # Whoever read the output has left, as head does; Python must not complain of it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except KeyboardInterrupt:
        print("tracebench: interrupted; finished cases are kept", file=sys.stderr)
        code = 130
    sys.exit(code)


def _main(arguments: list[str]) -> int:
    if {"--help", "-h"} & set(arguments):
        print(help_page())
        return 0
    _compose(arguments)
    if not _COLLECTED:
        return 0
    requests = [config.to_request(composed) for composed in _COLLECTED]
    first = _COLLECTED[0]
    for key in ("name", "results_dir", "rerun", "fail_on", "limits.isolation"):
        if any(OmegaConf.select(other, key) != OmegaConf.select(first, key) for other in _COLLECTED):
            raise RequestError(f"{key}= holds for a whole sweep, so it cannot be swept over. Give it one value.")
    folder = config.results_folder(first, datetime.now().strftime("%Y-%m-%d_%H-%M-%S_%f"))
    launcher = make_launcher(first.limits.isolation)
    records: list[Record] = []
    problems: list[str] = []
    try:
        for step in run_sweep(requests, folder, first.rerun, launcher):
            records.append(step.record)
            print(_progress(step), flush=True)
            if _is_bad_request(step.record):
                print(f"tracebench: {_bad_request(step.record)}", file=sys.stderr)
            if step.problem is not None:
                problems.append(step.problem)
                print(f"tracebench: {step.problem}", file=sys.stderr)
    finally:
        launcher.close()
        # A table of nothing but a bad request would only repeat it.
        if not all(map(_is_bad_request, records)):
            problems += _report(folder)
    return exit_code(records, problems, set(first.fail_on))


def exit_code(records: list[Record], problems: list[str], fail_on: set[str]) -> int:
    """Return 0 if every case got its answer, 1 if one failed, 2 if one was a request that makes no sense."""
    if any(map(_is_bad_request, records)):
        return 2
    outcomes = {outcome(record.status, record.verdict) for record in records}
    if any(as_expected(record.status, record.verdict, record.expected) is False for record in records):
        outcomes.add("unexpected")
    failed = any(record.status != "done" for record in records)
    return 1 if failed or problems or outcomes & fail_on else 0


def _is_bad_request(record: Record) -> bool:
    return record.error is not None and record.error.type == RequestError.__name__


def _bad_request(record: Record) -> str:
    assert record.error is not None
    where = record.error.user_location
    return record.error.message + (f"\nUser code: {where}" if where else "")


def _report(folder: Path) -> list[str]:
    from tracebench.report import build, terminal_width, use_colour

    report = build(folder, terminal_width(), use_colour(sys.stdout))
    print()
    print(report.table)
    for problem in report.problems:
        print(f"tracebench: {problem}", file=sys.stderr)
    print(f"\nResults: {folder}/ (records/, summary.csv, plots/, report.html)")
    return list(report.problems)


def _progress(step: Step) -> str:
    record = step.record
    word = outcome(record.status, record.verdict)
    if record.error is not None and record.status != "done":
        word += f" in stage {record.error.stage}"
    speedup = record.throughput.speedup if record.throughput is not None else None
    if speedup is not None:
        word += f", {speedup.ratio:.2f}x" + ("" if speedup.significant else " (not significant)")
    left = "" if not step.seconds_left else f", about {_duration(step.seconds_left)} left"
    took = "kept from before" if step.reused else f"{_duration(record.wall_s)}{left}"
    return f"[{step.number}/{step.total}] {step.label}: {word} ({took})"


def _duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _collect(composed: Any) -> None:
    _COLLECTED.append(composed)


def _compose(arguments: list[str]) -> None:
    """Let Hydra compose every case of ``arguments``.

    Raises:
        RequestError: what Hydra cannot compose, in words that name the valid choices.
    """
    _COLLECTED.clear()
    config.register()
    # Have Hydra raise its errors instead of printing them.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    entry = hydra.main(config_path=str(config.config_folder()), config_name="config", version_base="1.3")(_collect)
    before = sys.argv
    asked = arguments if _only_answers(arguments) else _with_sweep_of_experiment(arguments)
    sys.argv = ["tracebench", *map(_rewritten, asked)]
    try:
        entry()
    except Exception as error:
        # Collecting cannot fail, so this is about what was asked.
        raise _explained(error, asked) from None
    finally:
        sys.argv = before
    if not _COLLECTED and not _only_answers(arguments):
        raise RequestError(f"the sweep has no cases: a glob that matches nothing, or an empty list.\n{_HELP_HINT}")


def _only_answers(arguments: list[str]) -> bool:
    """Whether Hydra only answers a question."""
    return any(argument.startswith(_NO_RUN) for argument in arguments)


def _with_sweep_of_experiment(arguments: list[str]) -> list[str]:
    """Put what an ``experiment=`` sweeps over before it, without the keys that the other arguments give themselves.

    Hydra would not do so: it runs the product of both, each case once for every value that was overridden. A group
    chosen on the command line also takes the place of what the experiment sets within it.

    Raises:
        RequestError: there is no such experiment.
    """
    values = dict(argument.lstrip("+").split("=", 1) for argument in arguments if "=" in argument)
    name = values.get("experiment")
    if name is None:
        return arguments
    if name not in choices("experiment"):
        raise unknown_choice("experiment choice", name, choices("experiment"), _HELP_HINT)
    file = OmegaConf.load(config.config_folder() / "experiment" / f"{name}.yaml")
    swept = OmegaConf.select(file, "hydra.sweeper.params", default={})
    kept = [f"{key}={value}" for key, value in swept.items() if not {key, key.partition(".")[0]} & set(values)]
    at = next(i for i, argument in enumerate(arguments) if argument.lstrip("+") == f"experiment={name}")
    return [*arguments[:at], "hydra.sweeper.params=null", *kept, *arguments[at:]]


def _rewritten(argument: str) -> str:
    """Say to Hydra what it would not understand as a user means it.

    ``model.options`` holds whatever the model's functions take, so its keys may be new; the loader checks them. Keys of
    a front end may be new to the default one, which Hydra composes before a sweep, and a control may be a mapping, as
    the executor's options are, of which Hydra misses the keys; ``to_request`` checks them. A glob over a group reaches
    into the groups within it.
    """
    if argument.startswith(("model.options.", "frontend.", "controls.", "executor.options")):
        return f"++{argument}"
    found = re.fullmatch(r"(model|frontend|executor|controls)=glob\(([^(),\[\]]+)\)", argument)
    if found is None:
        return argument
    group, pattern = found.groups()
    # As in a shell, a star does not reach into a group within.
    chosen = [
        name
        for name in all_choices(group)
        if fnmatch.fnmatch(name, pattern) and name.count("/") == pattern.count("/") and not needs_a_key(group, name)
    ]
    if not chosen:
        raise RequestError(f"{argument} matches nothing. Valid choices: {', '.join(all_choices(group))}.")
    return f"{group}={','.join(chosen)}"


def _explained(error: Exception, arguments: list[str]) -> RequestError:
    """Say what Hydra could not compose in words that name the valid choices."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.removesuffix(".yaml").rpartition("/")
        return unknown_choice(f"{group} choice", name, choices(group), _HELP_HINT)
    if isinstance(error, OverrideParseException):
        said = str(error).splitlines()[0]
        return RequestError(f"cannot read the argument {error.override!r}: {said}\n{_HELP_HINT}")
    said = f"{error}\n{error.__cause__ or ''}"
    unknown = re.search(r"Could not override '([^'@]+)|Key '([^']+)' (?:is )?not in", said)
    if unknown:
        key = unknown[1] or unknown[2]
        valid = config.valid_keys(key, _front_ends(arguments))
        if key not in valid:
            return unknown_choice("key", key, valid, _HELP_HINT)
    bad_value = re.search(r"Error merging override (?P<override>\S+)", said)
    if bad_value:
        section, _, name = bad_value["override"].lstrip("+").partition("=")[0].partition(".")
        if section == "controls" and name in CONTROLS:
            return RequestError(f"{bad_value['override']} must be {FORMS[CONTROLS[name].kind]}.\n{_HELP_HINT}")
        why = str(error.__cause__ or "").splitlines()[0].rstrip(".")
        return RequestError(f"{bad_value['override'].lstrip('+')}: {why}.\n{_HELP_HINT}")
    return RequestError(f"{said.strip().splitlines()[0]}\n{_HELP_HINT}")


def _front_ends(arguments: list[str]) -> list[str]:
    """The front ends an argument list asks for."""
    asked = [argument.removeprefix("frontend=") for argument in arguments if argument.startswith("frontend=")]
    return asked[-1].split(",") if asked else ["dynamo"]
