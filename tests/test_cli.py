"""The command line: what it answers at once, what it refuses and how, what a case and a sweep leave behind."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from tracebench import config
from tracebench.case import Case, ModelSpec
from tracebench.cli import _COLLECTED, _compose, _rewritten, exit_code, main
from tracebench.errors import RequestError, unknown_choice
from tracebench.helptext import all_choices, choices, help_page
from tracebench.probes import LIFECYCLE
from tracebench.record import ErrorInfo, Record
from tracebench.soundness.calls import plan
from tracebench.status import OPTIONAL_STAGES, OUTCOMES
from tracebench.subject import load

from .conftest import ROOT, records_in

ModelFile = Callable[..., Path]
CommandLine = Callable[..., subprocess.CompletedProcess[str]]


def refuse(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run arguments that must be refused; return what was said."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    said = capsys.readouterr()
    assert ended.value.code == 2, said.err
    assert "Traceback" not in said.err
    assert said.err.startswith("tracebench: ")
    return said.err


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["model=resnet5O"], ["unknown model choice 'resnet5O'", "Did you mean: resnet50", "vit_b_16", "--help"]),
        (["frontend=dinamo"], ["unknown frontend choice 'dinamo'", "Did you mean: dynamo", "jit_trace"]),
        (["executor=nativ"], ["unknown executor choice 'nativ'", "Did you mean: native", "inductor, native, replay"]),
        (
            ["executor=inductor", "executor.mode=max-tune"],
            ["unknown executor.mode 'max-tune'", "Did you mean: max-autotune"],
        ),
        (["executor.mode=max-autotune"], ["a setting of executor=inductor, not of replay", "executor=inductor."]),
        (
            ["executor=inductor", "executor.options.max_autotun=true"],
            ["unknown executor option 'max_autotun'", "Did you mean: max_autotune", "list_options"],
        ),
        (
            ["executor=inductor", "executor.options={triton: {cudagraph: 1}}"],
            ["triton.cudagraph'", "triton.cudagraphs"],
        ),
        (["executor=inductor", "executor.cuda_graphs=true"], ["executor.mode=reduce-overhead"]),
        (["executor.cudagraphs=true"], ["unknown key 'executor.cudagraphs'", "Did you mean: executor.cuda_graphs"]),
        (["-m", "model=resnet18,resnet_18"], ["unknown model choice 'resnet_18'", "Did you mean: resnet18"]),
        (["frontnd=fx"], ["unknown key 'frontnd'", "Did you mean: frontend"]),
        (["throughput.secs=3"], ["unknown key 'throughput.secs'", "throughput.seconds"]),
        (["frontend=jit_trace", "frontend.fullgraph=true"], ["unknown key 'frontend.fullgraph'", "check_trace"]),
        (["+extra=1"], ["unknown key 'extra'", "batch_size"]),
        (["+frontend.extra=1"], ["unknown key 'frontend.extra'", "frontend.dynamic"]),
        (["frontend=hook", "frontend.on_guard_failure=eagre"], ["on_guard_failure", "Did you mean: eager"]),
        (["frontend=hook", "frontend.retrace_limit=0"], ["frontend.retrace_limit=0", "at least 1"]),
        (["frontend.name=other"], ["unknown front end 'other'", "dynamo, eager, fx, hook, jit_trace"]),
        (["batch_size=many"], ["batch_size=many must be a number of samples, max or null"]),
        (["batch_size=2.5"], ["batch_size=2.5 must be a number"]),
        (["batch_limit=9"], ["batch_limit=9 has no effect without batch_size=max"]),
        (["batch_size=max", "batch_limit=0"], ["batch_limit=0 must be greater than 0"]),
        (["batch_size=0"], ["batch_size=0 must be greater than 0"]),
        (["soundness.probes=[fresh,bach]"], ["unknown entry of soundness.probes 'bach'", "batch"]),
        (["soundness.aspects=[speed]"], ["unknown entry of soundness.aspects 'speed'", "random_state"]),
        (["soundness.lifecycle_seconds=-1"], ["must not be negative"]),
        (["throughput.seconds=-1"], ["throughput.seconds=-1", "greater than 0"]),
        (["limits.memory_gb=0"], ["limits.memory_gb", "greater than 0"]),
        (["mode=train"], ["unknown mode 'train'", "Did you mean: training", "inference"]),
        (["dtype=float31"], ["unknown dtype 'float31'", "Did you mean: float32", "bfloat16"]),
        (["stages=[sound]"], ["unknown entry of stages 'sound'", "soundness"]),
        (["fail_on=[unsond]"], ["unknown entry of fail_on 'unsond'", "unsound"]),
        (["rerun=never"], ["unknown rerun 'never'", "missing"]),
        (["limits.isolation=vm"], ["unknown limits.isolation 'vm'", "spawn"]),
        (["model=file"], ["model=file needs the file", "model.path=FILE.py"]),
        (["model=file", "model.path=/no/such/file.py"], ["there is no model file /no/such/file.py"]),
        (["name=a/b"], ["name='a/b'", "without path separators", "results_dir=FOLDER"]),
        (["name=.."], ["name='..'", "plain folder name"]),
        (["-m", "model=glob(nothing*)"], ["matches nothing", "resnet50", "pitfalls/print_in_loop"]),
        (["-m", "frontend=glob([x*])"], ["the sweep has no cases"]),
        (["-m", "--cfg", "job"], ["Only one of --run, --multirun, --cfg"]),
        (["-m", "name=a,b"], ["name= holds for a whole sweep"]),
        (
            ["experiment=clasifiers"],
            ["unknown experiment choice 'clasifiers'", "Did you mean: classifiers", "pitfalls"],
        ),
        (["-m", "experiment=detection,pitfalls"], ["unknown experiment choice 'detection,pitfalls'", "front_ends"]),
        (["experimnt=pitfalls"], ["unknown key 'experimnt'", "Did you mean: experiment"]),
        (["experiment=detection", "model=gpt,gpt_2"], ["unknown model choice 'gpt_2'", "Did you mean: gpt"]),
        (["model=torchvision"], ["model.options.arch is missing", "give model.options.arch=NAME"]),
        (["model"], ["cannot read the argument 'model'"]),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) and "=" in str(value[-1]) else "said",
)
def test_what_makes_no_sense_is_refused_at_once(
    arguments: list[str], parts: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    said = refuse(capsys, *arguments)
    for part in parts:
        assert part in said
    assert list(tmp_path.iterdir()) == [], "a refused request leaves nothing behind"


GOOD = """
import torch
def make_model(): return torch.nn.Linear(3, 3)
def example_inputs(): return (torch.ones(2, 3),)
"""


@pytest.mark.parametrize(
    ("content", "asked", "part"),
    [
        ("import nowhere_to_be_found", {}, "does not import: ModuleNotFoundError"),
        ("def broken(:", {}, "does not import: SyntaxError"),
        ("1 / 0", {}, "does not import: ZeroDivisionError"),
        ("def make_model(): ...", {}, "does not define example_inputs()"),
        ("def example_inputs(): ...", {}, "does not define make_model()"),
        ("def make_model(): return 3\ndef example_inputs(): return ()", {}, "returned int, not an nn.Module"),
        (GOOD + "def example_inputs(): return torch.ones(2, 3)", {}, "example_inputs() returned Tensor"),
        (GOOD + "def example_inputs(): raise KeyError('x')", {}, "example_inputs() failed: KeyError"),
        (GOOD + "def other_inputs(): return 4", {}, "other_inputs() returned int"),
        (GOOD + "MODE = 'teaching'", {}, "MODE is 'teaching'"),
        (GOOD + "EXPECT = {'fx': 'sond'}", {}, "unknown outcome in EXPECT"),
        (GOOD + "SHAPES = {'width': 3}", {}, "SHAPES must be a list of mappings"),
        (GOOD + "SHAPES = [{'width': 3}]", {}, "unknown parameter of example_inputs() in SHAPES"),
        (GOOD, {"batch_size": 3}, "takes no batch_size"),
        (GOOD, {"options": {"width": 3}}, "has no option 'width'"),
    ],
)
def test_a_model_file_that_is_not_one(content: str, asked: dict[str, Any], part: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(content, encoding="utf-8")
    spec = ModelSpec("mine", str(path), asked.get("options", {}))
    with pytest.raises(RequestError) as refused:
        load(Case(spec, "fx", batch_size=asked.get("batch_size")))
    assert part in str(refused.value)


def test_declared_shapes_are_probed_and_one_that_cannot_be_made_does_not_apply(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    content = (
        "import torch\nSHAPES = [{'width': 5}, {'width': 5, 'batch_size': 2}, {'width': -1}]\n"
        "def make_model(): return torch.nn.ReLU()\n"
        "def example_inputs(batch_size=3, width=4): return (torch.ones(batch_size, width),)\n"
    )
    path.write_text(content, encoding="utf-8")
    planned = plan(load(Case(ModelSpec("mine", str(path)), "fx", batch_size=4)))
    shapes = {call.name: list(call.inputs.args[0].shape) for call in planned.calls if "shape" in call.name}
    assert shapes == {"shape_width=5": [4, 5], "shape_width=5,batch_size=2": [2, 5]}
    [skipped] = planned.skipped
    assert (skipped.name, skipped.outcome) == ("shape_width=-1", "n/a")
    assert "example_inputs() fails at this shape" in skipped.detail


def test_a_model_file_may_import_what_lies_beside_it(tracebench: CommandLine, tmp_path: Path) -> None:
    folder = tmp_path / "my models"
    folder.mkdir()
    (folder / "sizes_beside.py").write_text("WIDTH = 3", encoding="utf-8")
    text = "from sizes_beside import WIDTH\n" + GOOD.replace("Linear(3, 3)", "Linear(WIDTH, 3)")
    (folder / "mine.py").write_text(text, encoding="utf-8")
    done = tracebench(
        "model=file", "model.path=my models/mine.py", "frontend=fx", "stages=[soundness]", "results_dir=my results",
        "name=first try",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(records_in(tmp_path / "my results" / "first try")) == ["mine fx"]


def test_a_bad_model_file_in_a_sweep_costs_only_its_own_case(
    model_file: ModelFile, tracebench: CommandLine, tmp_path: Path
) -> None:
    broken, picky = tmp_path / "broken.py", tmp_path / "picky.py"
    broken.write_text("import nowhere_to_be_found", encoding="utf-8")
    picky.write_text(GOOD.replace("torch.ones(2, 3)", "torch.ones(2, 5)"), encoding="utf-8")
    done = tracebench(
        "-m", "model=file", f"model.path={broken},{model_file('good')},{picky}", "frontend=fx", "stages=[soundness]",
        "name=kept",
    )  # fmt: skip
    assert done.returncode == 2
    assert "Traceback" not in done.stdout + done.stderr
    assert "broken.py does not import: ModuleNotFoundError" in done.stderr
    assert "User code: " in done.stderr
    assert "raises on its own example inputs" in done.stderr
    records = records_in(tmp_path / "results" / "kept")
    assert records["good fx"]["verdict"] == "sound"
    for name, stage in (("broken", "load"), ("picky", "reference")):
        record = records[f"{name} fx"]
        assert (record["status"], record["error"]["type"]) == ("error", "RequestError")
        assert record["error"]["stage"] == stage
        assert "Traceback" in record["error"]["traceback"]
        assert name in done.stdout


def test_a_device_that_is_not_there(tracebench: CommandLine, tmp_path: Path) -> None:
    done = tracebench("device=cuda:77")
    assert done.returncode == 2
    assert "there is no device 'cuda:77' on this machine. Valid choices: auto, cpu" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_results_folder_that_cannot_be_written_to(tracebench: CommandLine, model_file: ModelFile) -> None:
    path = model_file("good")
    done = tracebench("model=file", f"model.path={path}", f"results_dir={path}", "name=x")
    assert done.returncode == 2
    assert "cannot be written to" in done.stderr
    assert "results_dir=FOLDER" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_line_imports_no_torch() -> None:
    check = "import sys, tracebench.cli; print([m for m in ('torch', 'pandas', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_names_every_choice_key_and_word() -> None:
    page = help_page()
    for group in ("model", "frontend", "executor", "experiment"):
        for name in choices(group):
            assert f"    {name} " in page, name
    for field in dataclasses.fields(config.Config):
        assert field.name in page
        assert field.metadata["help"], field.name
    for word in [*OUTCOMES, *OPTIONAL_STAGES, "frontend.fullgraph", "frontend.check_trace", "throughput.seconds"]:
        assert word in page
    assert all(len(line) <= 100 for line in page.splitlines())


def test_choices_and_schemas_agree() -> None:
    from tracebench.executors import EXECUTORS
    from tracebench.frontends import FRONT_ENDS

    assert set(choices("frontend")) == set(config.FRONT_END_SCHEMAS) == set(FRONT_ENDS)
    assert set(choices("executor")) == set(config.EXECUTORS) == set(EXECUTORS)


@pytest.mark.parametrize("arguments", [["--help"], ["--cfg", "job"], ["-sc", "query=bash"]])
def test_answers_without_running_anything(arguments: list[str], tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COMP_LINE": "tracebench model=res", "COMP_POINT": "20"}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tracebench", *arguments],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip()
    assert "| torch\n" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_completion_offers_the_models(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COMP_LINE": "tracebench model=resnet", "COMP_POINT": "23"}
    done = subprocess.run(
        [sys.executable, "-m", "tracebench", "-sc", "query=bash"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert set(done.stdout.split()) == {"model=resnet18", "model=resnet50"}


def test_one_case_leaves_record_table_summary_and_plots(tracebench: CommandLine, tmp_path: Path) -> None:
    done = tracebench(
        "model=gpt", "model.options.layers=1", "model.options.width=32", "frontend=dynamo", "throughput.seconds=0.5",
        "name=one",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "[1/1] gpt dynamo replay: sound" in done.stdout
    assert "cpu" in done.stdout
    assert all(len(line) <= 100 for line in done.stdout.splitlines())
    folder = tmp_path / "results" / "one"
    [record] = records_in(folder).values()
    assert (record["status"], record["verdict"], record["error"]) == ("done", "sound", None)
    assert record["case"]["options"]["layers"] == 1
    assert (record["case"]["mode"], record["case"]["device"], record["case"]["dtype"]) == (
        "inference",
        "cpu",
        "float32",
    )
    assert record["coverage"]["ops"] == record["coverage"]["flops"] == 1.0
    assert {probe["outcome"] for probe in record["probes"]} <= {"match", "n/a"}
    speedup = record["throughput"]["speedup"]
    assert speedup["ci_low"] <= speedup["ratio"] <= speedup["ci_high"]
    assert len(record["throughput"]["eager"]["samples_ms"]) == len(record["throughput"]["captured"]["samples_ms"])
    assert record["environment"]["device"] == "cpu"
    ran = {"load", "reference", "capture", "soundness", "coverage", "throughput", "lifecycle"}
    assert set(record["stages"]) == ran
    assert {probe["name"] for probe in record["lifecycle"]} == set(LIFECYCLE)
    assert {probe["outcome"] for probe in record["probes"] if probe["name"].startswith("shape_")} == {"match"}
    assert (folder / "summary.csv").is_file()
    assert (folder / "report.html").is_file()
    assert list((folder / "plots").glob("*.png"))
    again = tracebench(
        "model=gpt", "model.options.layers=1", "model.options.width=32", "frontend=dynamo", "throughput.seconds=0.5",
        "name=one",
    )  # fmt: skip
    assert "kept from before" in again.stdout


def test_a_sweep_over_front_ends_has_no_gaps(tracebench: CommandLine, model_file: ModelFile, tmp_path: Path) -> None:
    path = model_file("branches", "if x.sum() > 1e9: x = x + 1")
    done = tracebench(
        "-m", "model=file", f"model.path={path}", "frontend=dynamo,jit_trace,fx,hook,eager",
        "stages=[soundness,coverage]", "name=all",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    records = records_in(tmp_path / "results" / "all")
    assert {name: record["verdict"] for name, record in records.items()} == {
        "branches dynamo": "sound",
        "branches jit_trace": "sound",
        "branches fx": "refused",
        "branches hook": "restricted",
        "branches eager": "sound",
    }
    assert records["branches dynamo"]["capture"]["graphs"] == 2
    [found] = records["branches dynamo"]["capture"]["graph_breaks"]
    assert "branches.py:" in found["location"]
    for line in ("TraceError", "branches.py:", "5 cases: 3 sound, 1 restricted, 1 refused"):
        assert line in done.stdout
    for number in range(1, 6):
        assert f"[{number}/5]" in done.stdout
    strict = tracebench(
        "-m", "model=file", f"model.path={path}", "frontend=fx,eager", "stages=[soundness,coverage]", "name=all",
        "fail_on=[refused]",
    )  # fmt: skip
    assert strict.returncode == 1
    assert strict.stdout.count("kept from before") == 2


def record(status: str, verdict: str | None = None, error: str | None = None) -> Record:
    info = None if error is None else ErrorInfo("load", error, "")
    return Record("k", "", 0.0, {}, status=status, verdict=verdict, error=info)


@pytest.mark.parametrize(
    ("records", "fail_on", "code"),
    [
        ([record("done", "sound"), record("done", "unsound")], set(), 0),
        ([record("done", "refused", "TraceError")], set(), 0),
        ([record("done", None)], set(), 0),
        ([record("done", "sound"), record("crashed")], set(), 1),
        ([record("timeout")], set(), 1),
        ([record("oom")], set(), 1),
        ([record("error", None, "KeyError")], set(), 1),
        ([record("crashed"), record("error", None, "RequestError")], set(), 2),
        ([record("done", "unsound")], {"unsound"}, 1),
        ([record("done", "sound")], {"unsound"}, 0),
    ],
)
def test_exit_codes(records: list[Record], fail_on: set[str], code: int) -> None:
    assert exit_code(records, [], fail_on) == code
    assert exit_code(records, [], {*fail_on, "unexpected"}) == code
    assert exit_code(records, ["the table could not be written"], fail_on) == max(code, 1)


def test_what_a_model_file_does_not_expect_can_fail_a_run() -> None:
    found = dataclasses.replace(record("done", "unsound"), expected=("sound", "refused"))
    assert exit_code([found], [], set()) == 0
    assert exit_code([found], [], {"unexpected"}) == 1
    assert exit_code([dataclasses.replace(found, expected=("unsound",))], [], {"unexpected"}) == 0


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m tracebench --help | head -c 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "t"
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("argument", "some", "none"),
    [
        ("model=glob(*)", {"resnet50", "gpt"}, {"file", "torchvision", "pitfalls/print_in_loop"}),
        ("model=glob(pitfalls/*)", {"pitfalls/print_in_loop", "pitfalls/star_arguments"}, {"resnet50"}),
        ("model=glob(resnet*)", {"resnet18", "resnet50"}, {"gpt"}),
        ("frontend=glob(*)", {"dynamo", "fx"}, {"file"}),
    ],
)
def test_a_glob_means_what_it_means_in_a_shell(argument: str, some: set[str], none: set[str]) -> None:
    group, _, names = _rewritten(argument).partition("=")
    assert group == argument.partition("=")[0]
    assert some <= set(names.split(","))
    assert not none & set(names.split(","))


@pytest.mark.parametrize("name", choices("experiment"))
def test_an_experiment_sweeps_over_choices_that_exist(name: str) -> None:
    path = config.config_folder() / "experiment" / f"{name}.yaml"
    first, told = path.read_text(encoding="utf-8").splitlines()[:2]
    assert first == "# @package _global_"
    assert told.startswith("# ")
    experiment = OmegaConf.load(path)
    assert experiment.hydra.mode == "MULTIRUN"
    for group in ("model", "frontend"):
        _, _, names = _rewritten(f"{group}={experiment.hydra.sweeper.params[group]}").partition("=")
        assert set(names.split(",")) <= set(all_choices(group))


@pytest.mark.parametrize(
    ("arguments", "cases"),
    [
        (["experiment=detection"], ["fasterrcnn_resnet50_fpn dynamo", "retinanet_resnet50_fpn dynamo",
                                    "ssdlite320_mobilenet_v3_large dynamo"]),
        (["-m", "experiment=front_ends", "frontend=fx,eager", "model=gpt"], ["gpt fx", "gpt eager"]),
        (["frontend=fx", "experiment=front_ends", "model=glob(resnet*)"], ["resnet18 fx", "resnet50 fx"]),
        (["experiment=classifiers", "model.options.arch=vgg11,alexnet"], ["vgg11 dynamo", "alexnet dynamo"]),
        (["experiment=classifiers", "model=gpt"], ["gpt dynamo"]),
        (["experiment=detection", "model=gpt", "frontend=fx,jit_trace", "frontend.on_refusal=exclude"],
         ["gpt fx", "gpt jit_trace"]),
    ],
)  # fmt: skip
def test_what_the_command_line_says_wins_over_the_experiment(arguments: list[str], cases: list[str]) -> None:
    _compose(arguments)
    asked = [config.to_request(composed).case for composed in _COLLECTED]
    assert [f"{case.model.name} {case.frontend}" for case in asked] == cases
    assert all(case.frontend_options.get("on_refusal") == "exclude" for case in asked if "exclude" in arguments[-1])


@pytest.mark.parametrize(("arguments", "stages"), [([], ("soundness",)), (["stages=[coverage]"], ("coverage",))])
def test_an_experiment_sets_keys_that_it_does_not_sweep_over(arguments: list[str], stages: tuple[str, ...]) -> None:
    _compose(["experiment=pitfalls", "model=pitfalls/print_in_loop", "frontend=fx,hook", *arguments])
    assert [config.to_request(composed).case.stages for composed in _COLLECTED] == [stages] * 2


def test_an_experiment_runs_and_models_of_torchvision_go_by_their_own_names(
    tracebench: CommandLine, tmp_path: Path
) -> None:
    asked = (
        "experiment=classifiers", "model.options.arch=squeezenet1_1,no_such_net", "frontend=fx", "stages=[soundness]",
        "name=nets",
    )  # fmt: skip
    done = tracebench(*asked)
    assert done.returncode == 2
    assert "arch='no_such_net' is not offered. Valid choices: " in done.stderr
    records = records_in(tmp_path / "results" / "nets")
    assert records["squeezenet1_1 fx"]["verdict"] == "sound"
    assert "[1/2] squeezenet1_1 fx replay: sound" in done.stdout
    again = tracebench(*asked)
    assert "[1/2] squeezenet1_1 fx replay: sound (kept from before)" in again.stdout


def test_unknown_choice_lists_close_ones_first() -> None:
    said = str(unknown_choice("fruit", "aple", ["melon", "apple"], "Buy some."))
    assert said == "unknown fruit 'aple'.\nDid you mean: apple?\nValid choices: apple, melon.\nBuy some."
