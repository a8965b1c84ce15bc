"""The schema of the configuration: every key, its type, its default and what it means, in one place.

Imports no torch: the command line must answer at once. The help page is made from these fields.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from omegaconf import MISSING, OmegaConf

from tracebench.case import DTYPES, Case, ModelSpec
from tracebench.controls.vocabulary import CONTROLS, wishes
from tracebench.errors import RequestError, unknown_choice
from tracebench.executor_settings import MODES as COMPILER_MODES
from tracebench.executor_settings import checked
from tracebench.hookspec import own_hook
from tracebench.probes import ASPECTS, GROUPS, PROBES
from tracebench.running.launch import ISOLATIONS
from tracebench.running.limits import Limits
from tracebench.running.sweep import RERUNS, Request
from tracebench.status import OPTIONAL_STAGES, STATUSES, VERDICTS

OPTIMIZERS = ("sgd", "adamw", "none")
MODES = ("auto", "inference", "training")
#: The word for the largest batch that fits, and how far it is looked for.
LARGEST, BATCH_LIMIT = "max", 1024
#: Words that fail_on= takes.
FAIL_ON = (*VERDICTS, *(status for status in STATUSES if status != "done"), "unexpected")


def _key(default: Any, text: str) -> Any:
    """A field with its help text."""
    if callable(default):
        return field(default_factory=default, metadata={"help": text})
    return field(default=default, metadata={"help": text})


@dataclass
class ModelConfig:
    """What is captured."""

    name: str = _key(MISSING, "name in tables and records")
    summary: str = _key("", "one line about the model")
    path: str = _key(MISSING, "the model's file; with model=file, your own")
    options: dict[str, Any] = _key(dict, "parameters of the model file's functions, by name")


@dataclass
class EagerConfig:
    """The null front end: captures nothing."""

    name: str = _key("eager", "name of the front end")


@dataclass
class DynamoConfig:
    """TorchDynamo (torch.compile) with a backend that sees every graph."""

    name: str = _key("dynamo", "name of the front end")
    fullgraph: bool = _key(False, "refuse instead of breaking the graph (also lets torch capture scalars)")
    dynamic: bool | None = _key(None, "dynamic shapes from the start: true, false, or null for torch's own choice")


ON_REFUSAL = ("refuse", "exclude")
ON_GUARD_FAILURE = ("raise", "eager", "retrace")
_ON_REFUSAL = "refuse, or exclude: leave to Python the submodules that refuse, and capture the rest"


@dataclass
class JitTraceConfig:
    """torch.jit.trace."""

    name: str = _key("jit_trace", "name of the front end")
    check_trace: bool = _key(True, "let torch run the trace again and refuse if it differs")
    strict: bool = _key(True, "refuse mutable containers as outputs")
    on_refusal: str = _key("refuse", _ON_REFUSAL)


@dataclass
class FxConfig:
    """torch.fx.symbolic_trace."""

    name: str = _key("fx", "name of the front end")
    on_refusal: str = _key("refuse", _ON_REFUSAL)


@dataclass
class HookConfig:
    """A tape of the ATen ops of one run; or a function of your own that returns a callable."""

    name: str = _key("hook", "name of the front end")
    hook: str | None = _key(None, "your own: path/to/file.py:function or pkg.mod:function; null: the built-in tape")
    on_guard_failure: str = _key(
        "raise",
        "raise; eager: run the model itself on a call that the tape does not hold for; or retrace: record it again, as "
        "a branch of the same tape where it begins alike",
    )
    retrace_limit: int = _key(16, "tapes at most under on_guard_failure=retrace, which is eager from then on")


FRONT_END_SCHEMAS = {
    schema().name: schema for schema in (DynamoConfig, JitTraceConfig, FxConfig, HookConfig, EagerConfig)
}


#: What each executor does, for the help page.
EXECUTORS = {
    "replay": "runs graphs as captured, without a compiler: what is left against eager is the front end's cost",
    "inductor": "lowers every front end's graphs through the same compiler, torch's Inductor",
    "native": (
        "what users of the front end deploy: torch.compile's defaults (dynamo), the trace frozen and optimised for "
        "inference (jit_trace), fx's own code (fx), replay, on an NVIDIA GPU under CUDA graphs (hook)"
    ),
}


@dataclass
class ExecutorConfig:
    """What runs the captured graphs."""

    name: str = _key(MISSING, "name of the executor")
    mode: str = _key("default", f"executor=inductor: {', '.join(COMPILER_MODES)}")
    options: dict[str, Any] = _key(
        dict, "executor=inductor: options of torch._inductor.config by name, over the mode's"
    )
    cuda_graphs: bool = _key(False, "executor=replay: replay graphs under CUDA graphs; needs an NVIDIA GPU")


def _controls() -> list[tuple[str, Any, Any]]:
    """Return a field for each control, empty by default."""
    kinds: dict[str, Any] = {"pieces": list[str], "word": str}
    found: list[tuple[str, Any, Any]] = []
    for name, control in CONTROLS.items():
        kind = kinds.get(control.kind, dict[Any, Any])
        empty: Any = {"pieces": list, "word": ""}.get(control.kind, dict)
        found.append((name, kind, _key(empty, f"{control.meaning} ({', '.join(control.by)})")))
    return found


ControlsConfig = dataclasses.make_dataclass(
    "ControlsConfig",
    [
        ("name", str, _key("none", "name of the preset")),
        ("ablation", bool, _key(True, "capture without each control, too, and say what it did")),
        *_controls(),
    ],
    namespace={"__doc__": "Instructions about pieces of the model.", "__module__": __name__},
)


@dataclass
class CaptureConfig:
    """What is kept of a capture."""

    dump: bool = _key(False, "write the graphs as text and code, and torch's trace log (for tlparse), to graphs/KEY/")
    save: bool = _key(False, "save the artifact to artifacts/KEY.pt (.ts: TorchScript) and load it in another process")


@dataclass
class SoundnessConfig:
    """How a capture is judged."""

    probes: list[str] = _key(lambda: list(GROUPS), f"which of {', '.join(PROBES)} are made")
    aspects: list[str] = _key(lambda: list(ASPECTS), f"which of {', '.join(ASPECTS)} count")
    blame_seconds: float = _key(20.0, "how long to look for the line and the submodule at fault; 0: not at all")
    lifecycle_seconds: float = _key(20.0, "how long to try changes after capture (probes of lifecycle)")


@dataclass
class ThroughputConfig:
    """How speed is measured."""

    seconds: float = _key(10.0, "measuring budget of a case; less is used when the interval is tight")
    roofline: bool = _key(True, "place the case under the roof of its device, whose peaks are measured (half a second)")
    compile: bool | None = _key(
        None, "take compile times, cold and warm, in two processes more; null: where the executor compiles"
    )
    optimizer: str = _key("sgd", f"whose step is part of a call in training: {', '.join(OPTIMIZERS)}")


@dataclass
class LimitsConfig:
    """What a case may take before it is ended."""

    seconds: float = _key(1800.0, "wall time of a case")
    memory_gb: float | None = _key(None, "resident memory of a case in 10^9 bytes; null: 90 % of what is free")
    isolation: str = _key("auto", f"how a case gets its own process: {', '.join(ISOLATIONS)}")


@dataclass
class Config:
    """One case, and where its record goes."""

    model: ModelConfig = _key(ModelConfig, "what is captured")
    frontend: Any = _key(MISSING, "what captures it")
    executor: ExecutorConfig = _key(ExecutorConfig, "what runs the captured graphs")
    controls: ControlsConfig = _key(ControlsConfig, "instructions about pieces of the model")  # type: ignore[valid-type]
    mode: str = _key("auto", "inference, training (a call includes backward), or auto: what the model's file says")
    device: str = _key("auto", "cpu, cuda, cuda:1, mps, xpu, or auto: the accelerator if there is one")
    dtype: str = _key("auto", "float32, bfloat16, float16, float64, or auto: as the model is built")
    batch_size: Any = _key(
        None, "samples in the example; max: the largest that fits in memory; null: as the model's file gives it"
    )
    batch_limit: int | None = _key(None, f"with batch_size=max: no larger one is tried; null: {BATCH_LIMIT}")
    seed: int = _key(0, "seed of weights, inputs and random ops")
    stages: list[str] = _key(lambda: list(OPTIONAL_STAGES), f"which of {', '.join(OPTIONAL_STAGES)} run")
    capture: CaptureConfig = _key(CaptureConfig, "what is kept of a capture")
    soundness: SoundnessConfig = _key(SoundnessConfig, "how a capture is judged")
    throughput: ThroughputConfig = _key(ThroughputConfig, "how speed is measured")
    limits: LimitsConfig = _key(LimitsConfig, "what a case may take before it is ended")
    name: str | None = _key(
        None, "results go to RESULTS_DIR/NAME, finished cases there are skipped; null: a new folder"
    )
    results_dir: str = _key("results", "where the folders of results are")
    rerun: str = _key("failed", f"with name=: which cases run again although they have a record: {', '.join(RERUNS)}")
    fail_on: list[str] = _key(list, f"outcomes that make the exit code 1, of {', '.join(FAIL_ON)}")


#: Keys of ``Config`` that hold keys themselves, of one schema whatever is chosen.
SECTIONS: dict[str, Any] = {
    "model": ModelConfig,
    "executor": ExecutorConfig,
    "controls": ControlsConfig,
    "capture": CaptureConfig,
    "soundness": SoundnessConfig,
    "throughput": ThroughputConfig,
    "limits": LimitsConfig,
}


def config_folder() -> Path:
    """Return the folder of Hydra's config groups: the packaged copy if there is one, else the checkout's."""
    return _data_folder("_configs", "configs")


def models_folder() -> Path:
    """Return the folder of the model files that come with the package."""
    return _data_folder("_models", "models")


def _data_folder(packaged: str, checkout: str) -> Path:
    here = Path(__file__).resolve().parent
    return here / packaged if (here / packaged).is_dir() else here.parent / checkout


def register() -> None:
    """Tell Hydra the schema and OmegaConf the resolver ``${models_dir:}``."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    store.store(group="schema", name="config", node=Config)
    for name, schema in FRONT_END_SCHEMAS.items():
        store.store(group="schema/frontend", name=name, node=schema)
    OmegaConf.register_new_resolver("models_dir", lambda: str(models_folder()), replace=True)
    OmegaConf.register_new_resolver("scratch_dir", _scratch_folder, replace=True)


@functools.cache
def _scratch_folder() -> str:
    """A folder for what Hydra insists on writing; removed at exit."""
    folder = tempfile.mkdtemp(prefix="tracebench-hydra-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def to_request(config: Any) -> Request:
    """Turn a composed configuration into a case with its limits.

    Raises:
        RequestError: a value that makes no sense.
    """
    for option in config.model.options:
        if OmegaConf.is_missing(config.model.options, option):
            raise RequestError(f"model.options.{option} is missing. The model is {config.model.summary}.")
    plain = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))
    _known_keys(plain)
    model = plain["model"]
    _one_of("dtype", plain["dtype"], DTYPES)
    _one_of("mode", plain["mode"], MODES)
    _some_of("stages", plain["stages"], OPTIONAL_STAGES)
    _some_of("fail_on", plain["fail_on"], FAIL_ON)
    _some_of("soundness.probes", plain["soundness"]["probes"], PROBES)
    _some_of("soundness.aspects", plain["soundness"]["aspects"], tuple(ASPECTS))
    _one_of("throughput.optimizer", plain["throughput"]["optimizer"], OPTIMIZERS)
    _one_of("rerun", plain["rerun"], RERUNS)
    _one_of("limits.isolation", plain["limits"]["isolation"], ISOLATIONS)
    _check_batch(plain["batch_size"], plain["batch_limit"])
    for name in ("throughput.seconds", "limits.seconds", "limits.memory_gb"):
        value = OmegaConf.select(config, name)
        if value is not None and not value > 0:
            raise RequestError(f"{name}={value} must be greater than 0.")
    for name in ("blame_seconds", "lifecycle_seconds"):
        if plain["soundness"][name] < 0:
            raise RequestError(f"soundness.{name} must not be negative; 0 turns it off.")
    if "on_refusal" in plain["frontend"]:
        _one_of("frontend.on_refusal", plain["frontend"]["on_refusal"], ON_REFUSAL)
    if "on_guard_failure" in plain["frontend"]:
        _one_of("frontend.on_guard_failure", plain["frontend"]["on_guard_failure"], ON_GUARD_FAILURE)
        if plain["frontend"]["retrace_limit"] < 1:
            limit = plain["frontend"]["retrace_limit"]
            raise RequestError(f"frontend.retrace_limit={limit} must be at least 1, the tape of the example.")
    own_file = model["name"] == "file"
    if own_file and model["path"] == "???":
        raise RequestError("model=file needs the file: add model.path=FILE.py.")
    path = Path(model["path"])
    if not path.is_file():
        raise RequestError(f"there is no model file {path}. Give one with model=file model.path=FILE.py.")
    options, executor = dict(plain["frontend"]), dict(plain["executor"])
    settings = checked(executor["name"], {name: value for name, value in executor.items() if name != "name"})
    controls = {name: value for name, value in plain["controls"].items() if name in CONTROLS and value}
    wishes(controls, options["name"])
    front_end = options.pop("name")
    if front_end == HookConfig.name:
        options = own_hook(options, {f.name: f.default for f in dataclasses.fields(HookConfig)}, controls)
    case = Case(
        model=ModelSpec(path.stem if own_file else model["name"], str(path.resolve()), model["options"]),
        frontend=front_end,
        frontend_options=options,
        executor=executor.pop("name"),
        executor_settings=settings,
        mode=plain["mode"],
        device=plain["device"],
        dtype=plain["dtype"],
        batch_size=plain["batch_size"] if plain["batch_size"] != LARGEST else None,
        batch_limit=(plain["batch_limit"] or BATCH_LIMIT) if plain["batch_size"] == LARGEST else None,
        seed=plain["seed"],
        controls=controls,
        controls_preset=_preset(plain["controls"]["name"], controls),
        ablation=plain["controls"]["ablation"],
        stages=tuple(stage for stage in OPTIONAL_STAGES if stage in plain["stages"]),
        capture=plain["capture"],
        soundness=plain["soundness"],
        throughput=plain["throughput"],
    )
    return Request(case, Limits(plain["limits"]["seconds"], plain["limits"]["memory_gb"]), plain)


def _check_batch(size: Any, limit: int | None) -> None:
    """See that ``batch_size`` is a positive number, ``max`` or null, and ``batch_limit`` has an effect.

    Raises:
        RequestError: they are not.
    """
    number = isinstance(size, int) and not isinstance(size, bool)
    if number and size <= 0:
        raise RequestError(f"batch_size={size} must be greater than 0.")
    if not (number or size in (None, LARGEST)):
        raise RequestError(f"batch_size={size} must be a number of samples, {LARGEST} or null.")
    if limit is not None and size != LARGEST:
        raise RequestError(f"batch_limit={limit} has no effect without batch_size={LARGEST}.")
    if limit is not None and limit <= 0:
        raise RequestError(f"batch_limit={limit} must be greater than 0.")


def _preset(name: str, controls: dict[str, Any]) -> str | None:
    """Return ``name`` if ``controls`` are what the preset of that name holds, and None if they were added to."""
    path = config_folder() / "controls" / f"{name}.yaml"
    own: Any = OmegaConf.to_container(OmegaConf.load(path)) if path.is_file() else {}
    return name if {key: value for key, value in own.items() if key in CONTROLS} == controls else None


def results_folder(config: Any, stamp: str) -> Path:
    """Return the folder that results go to: RESULTS_DIR/NAME, or RESULTS_DIR/STAMP.

    Raises:
        RequestError: a name that is no plain folder name.
    """
    name = config.name
    if name is not None and (not name or name in (".", "..") or set(name) & set('/\\:*?"<>|\0')):
        raise RequestError(
            f"name={name!r} must be a plain folder name, without path separators. "
            "To put results elsewhere use results_dir=FOLDER."
        )
    return Path(config.results_dir) / (name or stamp)


def valid_keys(path: str, front_ends: Iterable[str] = FRONT_END_SCHEMAS) -> list[str]:
    """Return the keys that exist next to ``path`` (dotted) under ``front_ends``, with their dots."""
    parent = path.rpartition(".")[0]
    schemas: dict[str, list[Any]] = {
        "": [Config],
        "frontend": [FRONT_END_SCHEMAS[name] for name in front_ends if name in FRONT_END_SCHEMAS],
        **{name: [schema] for name, schema in SECTIONS.items()},
    }
    found = {f.name for schema in schemas.get(parent, [Config]) for f in dataclasses.fields(schema)}
    if not parent:
        found.add("experiment")  # leaves no key of its own behind
    prefix = f"{parent}." if parent in schemas and parent else ""
    return sorted(prefix + name for name in found)


def _known_keys(plain: dict[str, Any]) -> None:
    """Refuse keys that were forced in with ``+``: nothing would read them.

    Raises:
        RequestError: a key that is not in the schema, or a name that no front end or executor has.
    """
    front_end = plain["frontend"].get("name", "")
    _one_of("front end", front_end, tuple(FRONT_END_SCHEMAS))
    _one_of("executor", plain["executor"].get("name", ""), tuple(EXECUTORS))
    for group in ("", "frontend", *SECTIONS):
        prefix = f"{group}." if group else ""
        valid = valid_keys(f"{prefix}x", [front_end])
        for name in plain[group] if group else plain:
            if prefix + name not in valid:
                raise unknown_choice("key", prefix + name, valid)


def _one_of(what: str, given: str, choices: tuple[str, ...]) -> None:
    if given not in choices:
        raise unknown_choice(what, given, choices)


def _some_of(what: str, given: list[str], choices: tuple[str, ...]) -> None:
    for entry in given:
        if entry not in choices:
            raise unknown_choice(f"entry of {what}", entry, choices)
