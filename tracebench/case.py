"""What is asked: one case, and the key its record is kept under."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracebench.errors import RequestError
from tracebench.hookspec import HookSpec
from tracebench.probes import ASPECTS, GROUPS

DTYPES = ("auto", "bfloat16", "float16", "float32", "float64")

_HASHED_FILES: dict[tuple[str, int], str] = {}


@dataclass(frozen=True)
class ModelSpec:
    """A model file and the options handed to its functions."""

    name: str
    path: str
    options: dict[str, Any] = field(default_factory=dict)


def soundness_options(
    probes: Iterable[str] = tuple(GROUPS),
    aspects: Iterable[str] = tuple(ASPECTS),
    blame_seconds: float = 0.0,
    lifecycle_seconds: float = 0.0,
) -> dict[str, Any]:
    """Return the ``soundness`` section of a case; the seconds are budgets, 0 for not at all."""
    return {
        "probes": list(probes),
        "aspects": list(aspects),
        "blame_seconds": blame_seconds,
        "lifecycle_seconds": lifecycle_seconds,
    }


@dataclass(frozen=True)
class Case:
    """One model x front end x executor x mode x device x dtype x batch x controls.

    ``mode``, ``device`` and ``dtype`` may be ``auto`` until the case's process has resolved them:
    the mode the model's file declares, the accelerator if there is one, the dtype the model is built with.
    """

    model: ModelSpec
    frontend: str
    frontend_options: dict[str, Any] = field(default_factory=dict)
    executor: str = "replay"
    #: What the executor is told, apart from what holds anyway; see ``tracebench.executor_settings``.
    executor_settings: dict[str, Any] = field(default_factory=dict)
    mode: str = "auto"
    device: str = "auto"
    dtype: str = "auto"
    batch_size: int | None = None
    #: If given, ``batch_size`` is to be the largest up to here that fits in memory (``batch_size=max``).
    batch_limit: int | None = None
    seed: int = 0
    controls: dict[str, Any] = field(default_factory=dict)
    #: Name of the preset that says just these controls, if one does.
    controls_preset: str | None = None
    #: Whether the case is captured without each of its controls, too.
    ablation: bool = True
    stages: tuple[str, ...] = ("soundness", "coverage", "throughput")
    capture: dict[str, Any] = field(default_factory=lambda: {"dump": False, "save": False})
    soundness: dict[str, Any] = field(default_factory=lambda: soundness_options(probes=("use",)))
    throughput: dict[str, Any] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """Return the ``case`` section of a record."""
        return {
            "model": self.model.name,
            "options": dict(self.model.options),
            "frontend": self.frontend,
            "frontend_options": dict(self.frontend_options),
            "executor": self.executor,
            "executor_settings": dict(self.executor_settings),
            "mode": self.mode,
            "device": self.device,
            "dtype": self.dtype,
            "batch_size": self.batch_size if self.batch_limit is None else "max",
            "seed": self.seed,
            "controls": dict(self.controls),
            "controls_preset": self.controls_preset,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data from which ``from_dict`` makes an equal case."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Case:
        """Inverse of ``to_dict``."""
        return cls(**{**data, "model": ModelSpec(**data["model"]), "stages": tuple(data["stages"])})


def labels(cases: Sequence[Case]) -> list[str]:
    """Return a short name for each case: model, front end, executor, and what else differs between the cases."""
    told = []
    for case in cases:
        fields = case.describe()
        for part in ("options", "frontend_options", "executor_settings"):
            fields |= {f"{part}.{name}": value for name, value in fields.pop(part).items()}
        # A preset's name says as much as what is in it.
        asked = [f"{name}={_text(value)}" for name, value in fields["controls"].items()]
        fields["controls"] = fields.pop("controls_preset") or " ".join(asked) or "none"
        told.append(fields)

    def varies(name: str) -> bool:
        # Different models and front ends have different options, which alone tells nothing.
        owner = {"options": "model", "frontend_options": "frontend"}.get(name.partition(".")[0])
        values: dict[Any, set[str]] = {}
        for fields in told:
            if name in fields:
                values.setdefault(fields[owner] if owner else None, set()).add(repr(fields[name]))
        return any(len(found) > 1 for found in values.values())

    names = dict.fromkeys(name for fields in told for name in fields)
    varying = [name for name in names if name not in ("model", "frontend", "executor") and varies(name)]
    return [
        " ".join(
            [fields["model"], fields["frontend"], fields["executor"]]
            + [f"{name.rpartition('.')[2]}={fields[name]}" for name in varying if name in fields]
        )
        for fields in told
    ]


def _text(value: Any) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, (list, tuple)) else str(value)


def key(case: Case, versions: dict[str, str]) -> str:
    """Return 16 hex digits that name this case: its request, its files' content (model, own hook) and ``versions``.

    The order in which keys were given and the folder the project lies in make no difference.

    Raises:
        RequestError: a file cannot be read.
    """
    content = case.to_dict()
    content["model"]["path"] = _digest(Path(case.model.path))
    del content["controls_preset"]  # what it is called makes no other case
    if (hook := case.frontend_options.get("hook")) is not None:
        content["frontend_options"]["hook"] = HookSpec.parse(hook).identity()
    text = json.dumps([content, versions], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _digest(path: Path) -> str:
    try:
        known = (str(path), path.stat().st_mtime_ns)
        if known not in _HASHED_FILES:
            _HASHED_FILES[known] = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise RequestError(f"cannot read the model file {path}: {error.strerror or error}") from None
    return _HASHED_FILES[known]
