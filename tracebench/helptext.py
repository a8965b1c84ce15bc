"""The help page, made from the schema and from the config files, so that it cannot fall behind them."""

from __future__ import annotations

import dataclasses
import itertools
import textwrap
from pathlib import Path
from typing import Any

from omegaconf import MISSING, OmegaConf

from tracebench import config, probes
from tracebench.status import OUTCOMES

_WIDTH = 98
_INTRO = """\
tracebench captures a PyTorch model as a graph, in one of several ways, and tells whether the
capture is right, how much of the model it holds, and how fast it is against eager.

  python -m tracebench model=resnet50 frontend=dynamo            one case
  python -m tracebench -m model=resnet18,vit_b_16 frontend=dynamo,jit_trace,fx,hook    a sweep
  python -m tracebench experiment=front_ends                     a sweep that comes with it
  python -m tracebench model=file model.path=FILE.py             a model of your own
  python -m tracebench.report results/NAME                       table, plots and page again
"""
_OUTRO = """\
Exit code: 0 every case got a verdict, 1 a case crashed, timed out, ran out of memory or hit an
error of the harness (or fail_on= says so), 2 the request makes no sense.
  --cfg job       print the composed configuration and stop
  --hydra-help    flags of Hydra, which reads the command line
  tracebench -sc install=bash    prints shell completion: eval "$(tracebench -sc install=bash)"
"""


def choices(group: str) -> list[str]:
    """Return the names of the choices of a config group."""
    return sorted(path.stem for path in (config.config_folder() / group).glob("*.yaml"))


def all_choices(group: str) -> list[str]:
    """Return the names of the choices of a config group and of the groups within it: ``pitfalls/print_in_loop``."""
    folder = config.config_folder() / group
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))


def needs_a_key(group: str, name: str) -> bool:
    """Return whether a choice says nothing without another key, as ``model=file`` without ``model.path=FILE.py``."""
    return MISSING in (config.config_folder() / group / f"{name}.yaml").read_text(encoding="utf-8").split()


def help_page() -> str:
    """Return the text of ``--help``."""
    parts = [_INTRO, "CHOICES (GROUP=NAME)"]
    parts.append("  model: what is captured")
    parts += [_entry(name, _summary(name)) for name in choices("model")]
    if pitfalls := choices("model/pitfalls"):
        told = f"{len(pitfalls)} small models that each show one pitfall of graph capture; all: experiment=pitfalls"
        parts.append(_entry("pitfalls/NAME", told))
    parts.append("  frontend: what captures it")
    parts += [_entry(name, _first_line(schema)) for name, schema in config.FRONT_END_SCHEMAS.items()]
    parts.append("  executor: what runs the captured graphs")
    parts += [_entry(name, text) for name, text in config.EXECUTORS.items()]
    parts.append("  experiment: a ready-made sweep; further keys win over what it sets")
    parts += [_entry(name, _comment("experiment", name)) for name in choices("experiment")]
    parts.append("  controls: what the front end is told about pieces of the model")
    parts += [_entry(name, _comment("controls", name)) for name in choices("controls")]
    parts.append("\nKEYS (KEY=VALUE)")
    for field in dataclasses.fields(config.Config):
        nested = config.SECTIONS.get(field.name)
        if nested is None:
            parts.append(_key(field, ""))
        else:
            parts += [_key(inner, f"{field.name}.") for inner in dataclasses.fields(nested)]
    for name, schema in config.FRONT_END_SCHEMAS.items():
        own = [inner for inner in dataclasses.fields(schema) if inner.name != "name"]
        if own:
            parts.append(f"\n  with frontend={name}:")
            parts += [_key(inner, "frontend.") for inner in own]
    for title, words in (
        ("PROBES (use: these make the verdict)", probes.USE),
        ("PROBES (lifecycle: reported beside the verdict)", probes.LIFECYCLE),
        ("ASPECTS of a call that are compared", probes.ASPECTS),
    ):
        parts.append(f"\n{title}")
        parts += [_entry(name, meaning) for name, meaning in words.items()]
    parts.append("\nVERDICTS AND FAILURES")
    parts += [_entry(word.name, word.meaning) for word in OUTCOMES.values()]
    return "\n".join([*parts, "", _OUTRO])


def _entry(name: str, text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent=f"    {name:<24} ", subsequent_indent=" " * 29)


def _key(field: Any, prefix: str) -> str:
    default = field.default_factory() if field.default is dataclasses.MISSING else field.default
    if dataclasses.is_dataclass(default) or default == MISSING:
        shown = ""
    else:
        shown = f" [{'null' if default is None else _plain(default)}]"
    return _entry(f"{prefix}{field.name}", field.metadata["help"] + shown)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _summary(model: str) -> str:
    path: Path = config.config_folder() / "model" / f"{model}.yaml"
    loaded = OmegaConf.load(path)
    return str(OmegaConf.select(loaded, "summary", default=""))


def _comment(group: str, name: str) -> str:
    """Return the comment that the file of a choice begins with."""
    path: Path = config.config_folder() / group / f"{name}.yaml"
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if "@package" not in line]
    # What stands below an empty line of the comment is for readers of the file.
    said = itertools.takewhile(lambda line: line.startswith("# "), lines)
    return " ".join(line.lstrip("# ") for line in said)


def _first_line(schema: Any) -> str:
    return str(schema.__doc__).splitlines()[0]
