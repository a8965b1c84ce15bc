"""Controls: instructions about one piece, under every front end, and what each of them did."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional as F

import tracebench
from tracebench.case import Case, ModelSpec, key, labels
from tracebench.cli import main
from tracebench.config import config_folder
from tracebench.controls.ablation import differences
from tracebench.controls.targets import resolve
from tracebench.errors import RequestError
from tracebench.executors import Replay
from tracebench.frontends.base import Inputs
from tracebench.frontends.fx import Fx
from tracebench.helptext import choices, help_page
from tracebench.record import ControlEffect, Figures, Record, Speedup
from tracebench.report import facts, plots, render_table, webpage
from tracebench.report.columns import COLUMNS
from tracebench.report.controls import summary

from . import records as make
from .conftest import ROOT
from .test_report import assert_inside

pytestmark = [
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    # Dynamo looks at the gradients of tensors that have none.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]
FRONT_ENDS = ("dynamo", "jit_trace", "fx", "hook")
TRACERS = ("jit_trace", "fx", "hook")


class Branch(nn.Module):
    """One product, on one of two paths that depend on the data: 7 ops. Takes a keyword, returns a nested structure."""

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> dict[str, Any]:
        x = x * 2 if x.sum() > 0 else x - 1
        return {"y": (x @ x * scale, [x + 1]), "rows": 3}


class Around(nn.Module):
    """A linear layer (2 ops) before the branch, a product (1) and two more ops after it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Branch()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.inner(self.lin(x), scale=0.5)
        y: torch.Tensor = found["y"][0] @ x * found["rows"] + found["y"][1][0]
        return y


class Deep(nn.Module):
    """Linear, the above, linear and a last op: 12 + 2 x 2 + 1 ops; no op of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.Sequential(nn.Linear(4, 4), Around(), nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.stages(x)
        return y


def helper(x: torch.Tensor, *, k: int = 2) -> torch.Tensor:
    return x @ x * k


class Uses(nn.Module):
    """Two ops of a linear layer, two of a function, one of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return helper(self.lin(x), k=3) @ x


class Detector(nn.Module):
    """Boxes and scores from a linear layer each, and those boxes that torchvision keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.corner, self.score = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.corner(x).abs()
        boxes = torch.cat([found[:, :2], found[:, :2] + found[:, 2:]], 1)
        return boxes[torchvision.ops.nms(boxes, self.score(x)[:, 0], 0.5)] * 2


class Gate(nn.Module):
    """A branch on data that TorchScript can take."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 0):
            return x @ x
        return x - 1


def run(model: Callable[[], nn.Module], front_end: str, controls: dict[str, Any], **options: Any) -> Record:
    torch.manual_seed(0)
    x = torch.randn(4, 4)
    options = {"stages": ("soundness", "coverage"), "blame_seconds": 0, "lifecycle_seconds": 0, **options}
    return tracebench.run(model().eval(), (x,), front_end, [(x - 3,), (x + 3,)], controls=controls, **options)


def inside(record: Record) -> tuple[int | None, int | None]:
    assert record.coverage is not None, record.error
    return record.coverage.ops_in_graph, record.coverage.ops_total


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_branch_on_data_stays_alive_in_a_disabled_piece(front_end: str) -> None:
    record = run(Around, front_end, {"disable": ["inner"]})
    assert record.verdict == "sound", record.probes
    assert inside(record) == (5, 12)
    assert record.coverage is not None
    # Two of three products, and one product is 2 x 4^3 operations.
    assert (record.coverage.flops_in_graph, record.coverage.flops_total) == (2 * 128, 3 * 128)
    assert record.coverage.ops_missing == record.coverage.ops_extra == 0
    [found] = record.controls
    assert (found.control, found.target) == ("disable", "inner")
    assert found.without is not None
    assert found.without.verdict == {"jit_trace": "unsound", "fx": "refused", "hook": "restricted"}.get(
        front_end, "sound"
    )
    assert found.effect["op_coverage"] == [found.without.op_coverage, 5 / 12]
    if front_end == "fx":
        assert found.effect["captured"] == [False, True]
        assert found.detail.startswith("refused without it: TraceError")
    elif front_end != "dynamo":
        assert found.effect["verdict"] == [found.without.verdict, "sound"]
    assert any("cannot be saved: regions left to Python: inner" in note for note in record.notes) == (
        front_end in ("jit_trace", "hook")
    )


@pytest.mark.parametrize("front_end", TRACERS)
@pytest.mark.parametrize(
    ("names", "counts"),
    [
        (["stages.1.inner", "stages.2"], (8, 17)),
        (["stages.1", "stages.1.inner"], (5, 17)),
        (["**.inner"], (10, 17)),
        (["torch.nn.Linear", "stages.1.inner"], (4, 17)),
    ],
    ids=["two", "one in another", "glob", "class"],
)
def test_pieces_by_path_glob_and_class(names: list[str], counts: tuple[int, int], front_end: str) -> None:
    record = run(Deep, front_end, {"disable": names}, ablation=False)
    assert record.verdict == "sound", record.probes
    assert inside(record) == counts
    assert {found.effect for found in record.controls} == {None}
    assert record.controls[0].detail == "not asked for: controls.ablation=false"


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_gradients_flow_through_a_disabled_piece(front_end: str) -> None:
    record = run(Deep, front_end, {"disable": ["stages.1.inner"]}, mode="training", ablation=False)
    assert record.verdict == "sound", record.probes
    found, total = inside(record)
    assert found is not None
    assert total is not None
    assert 0 < found < total


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_function_of_the_models_file(front_end: str) -> None:
    record = run(Uses, front_end, {"disable": ["helper"]})
    assert record.verdict == "sound", record.probes
    assert inside(record) == (3, 5)
    [found] = record.controls
    # The capture without it was made after the function had got its own name back.
    assert found.effect["op_coverage"] == [1.0, 0.6]
    assert helper.__module__ == __name__


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_function_of_torchvision(front_end: str) -> None:
    record = run(Detector, front_end, {"disable": ["torchvision.ops.nms"]}, ablation=False)
    found, total = inside(record)
    assert record.verdict == "sound", record.probes
    assert (found, total) == ((17, 18) if front_end == "jit_trace" else (13, 14))


def test_a_function_of_torch_under_fx() -> None:
    class Gelu(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.gelu(x) + 1

    record = run(Gelu, "fx", {"disable": ["torch.nn.functional.gelu"]}, ablation=False)
    assert inside(record) == (1, 2)


@pytest.mark.parametrize("front_end", ["fx", "hook"])
def test_an_opaque_piece_is_in_the_graph_as_one_op(front_end: str) -> None:
    record = run(Deep, front_end, {"opaque": ["stages.1.inner"]})
    assert record.verdict == "sound", record.probes
    assert inside(record) == (17, 17)
    [found] = record.controls
    assert found.effect["verdict"] == ["refused" if front_end == "fx" else "restricted", "sound"]
    record = run(Uses, front_end, {"opaque": ["helper"]})
    assert inside(record) == (5, 5)
    assert record.verdict == "sound"


def test_an_opaque_piece_of_a_trace_is_a_script() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), Gate())

    record = run(model, "jit_trace", {"opaque": ["1"]})
    assert record.verdict == "sound", record.probes
    assert record.coverage is not None
    assert record.coverage.ops == 1.0
    [found] = record.controls
    assert found.effect["verdict"] == ["unsound", "sound"]
    # What TorchScript does not take is a refusal, which the control brought.
    [found] = run(Uses, "jit_trace", {"opaque": ["helper"]}).controls
    assert found.effect["captured"] == [True, False]
    assert found.effect["verdict"] == ["sound", "refused"]


def test_a_compiler_that_looks_into_what_is_kept_apart_is_told_of() -> None:
    record = run(Uses, "jit_trace", {"disable": ["lin"]}, executor="inductor", ablation=False, stages=())
    assert any("compiles through the pieces" in note for note in record.notes)


def test_a_compiler_leaves_alone_what_fx_keeps_apart() -> None:
    compiling: list[bool] = []

    class Watched(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            compiling.append(torch.compiler.is_compiling())
            return super().forward(x)

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), Watched(4, 4), nn.ReLU())

    record = run(model, "fx", {"disable": ["1"]}, executor="inductor", ablation=False, stages=("soundness",))
    assert (record.verdict, record.notes) == ("sound", ())
    assert len(compiling) > 3
    assert not any(compiling)


def test_inline_has_fx_look_into_a_leaf() -> None:
    model = Uses().eval()
    inputs = Inputs((torch.ones(4, 4),))
    plain = Fx().capture(model, inputs, Replay())
    assert any(node.op == "call_module" for node in plain.events.graphs[0].graph.nodes)  # type: ignore[union-attr]
    record = run(Uses, "fx", {"inline": ["lin"]})
    assert record.verdict == "sound"
    assert inside(record) == (5, 5)
    [found] = run(Deep, "fx", {"disable": ["stages.1"], "inline": ["stages"]}).controls[1:]
    assert (found.effect, found.detail) == ("none", "fx looks inside without that, too")


class Nothing(nn.Module):
    """Gives every control a reason to do nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = torch.relu
        self.lin, self.unused, self.empty = nn.Linear(4, 4), nn.Linear(4, 4), nn.Identity()
        self.attend = nn.MultiheadAttention(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.kept(self.empty(self.lin(x))) + x.sigmoid() + self.attend(x, x, x)[0]
        return y


def test_why_a_control_did_nothing() -> None:
    pieces = ["torch.relu", "torch.sigmoid", "torch.cos", "unused", "attend.out_proj", "empty", "lin"]
    record = run(Nothing, "fx", {"disable": pieces, "opaque": ["attend"]})
    said = {found.target: found.detail for found in record.controls if found.effect == "none"}
    assert set(said) == {*pieces[:-1], "attend"}
    assert "through a reference of the caller's own" in said["torch.relu"]
    assert "another object, Tensor.sigmoid at " in said["torch.sigmoid"]
    assert "test_controls.py:" in said["torch.sigmoid"]
    assert said["torch.cos"] == "it is never called on the example inputs"
    assert "forward is never called" in said["unused"]
    assert "parameters may be used" in said["attend.out_proj"]
    assert "runs no op of its own" in said["empty"]
    assert said["attend"] == "fx takes it as one op without that, too"
    [works] = [found for found in record.controls if found.effect != "none"]
    assert works.target == "lin"
    assert set(works.effect) == {"op_coverage", "flop_coverage"}
    shown = render_table([record], 100)
    assert "disable=torch.cos: no effect: it is never called on the example inputs" in shown
    assert "disable=lin" in shown
    assert summary(record) == COLUMNS["controls_effect"].get(record)


def test_what_is_outside_already_and_what_lies_in_another() -> None:
    [around, inner] = run(Deep, "hook", {"disable": ["stages.1", "stages.1.inner"]}).controls
    assert around.effect != "none"
    assert (inner.effect, inner.detail) == ("none", "it lies within what disable=stages.1 keeps out already")

    class Left(Uses):
        @torch.compiler.disable
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)

    [found] = run(lambda: nn.Sequential(Left(), nn.Linear(4, 4)), "dynamo", {"disable": ["0.lin"]}).controls
    assert found.effect == "none"
    assert found.detail.startswith("its 2 ops are outside the graph without it, too")


def test_both_refused_alike() -> None:
    [found] = run(Around, "fx", {"disable": ["lin"]}).controls
    assert found.effect == "none"
    assert found.detail.startswith("fx refuses the model with it and without it: TraceError")


def speed(low: float, ratio: float, high: float) -> Speedup:
    return Speedup(ratio, low, high, significant=True)


def test_differences() -> None:
    before = Figures("sound", 1, 0, 5, 10, 0, 1.0, 1.0, 0.9, 0, speed(1.0, 1.1, 1.2))
    assert differences(before, before) == {}
    # Time coverage is noisy, and speeds whose intervals overlap are not told apart.
    near = dataclasses.replace(before, time_coverage=0.8, speedup=speed(1.15, 1.2, 1.3))
    assert differences(before, near) == {}
    far = dataclasses.replace(before, graphs=2, op_coverage=0.5, speedup=speed(0.7, 0.8, 0.9))
    assert differences(before, far) == {"graphs": [1, 2], "op_coverage": [1.0, 0.5], "speedup": [1.1, 0.8]}
    assert differences(before, Figures("sound")) == {}, "what was not measured has not changed"
    unknown = dataclasses.replace(before, speedup=speed(*[float("nan")] * 3))
    assert differences(before, unknown) == {}
    assert differences(Figures(), Figures(refusal="TypeError: no")) == {"captured": [True, False]}


def test_a_name_that_stands_for_nothing() -> None:
    with pytest.raises(RequestError, match=r"no piece 'stages.1.iner'.*Did you mean: stages.1.inner"):
        resolve("stages.1.iner", Deep())
    with pytest.raises(RequestError, match=r"Classes of its modules: .*Linear"):
        resolve("torch.nn.Conv2d", Deep())


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    said = capsys.readouterr()
    assert ended.value.code == 2, said.err
    assert "Traceback" not in said.err
    return said.err


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (
            ["-m", "frontend=dynamo,hook", "controls.inline=[layer1]"],
            ["controls.inline is something that hook cannot express", "dynamo, fx", "Controls of hook: disable"],
        ),
        (["-m", "frontend=dynamo,fx", "controls=break_between_stages"], ["graph_break_after", "fx cannot express"]),
        (["controls.disable=layer1"], ["controls.disable=layer1 must be a list of pieces, such as [layer4.1]"]),
        (["controls.disable={a: 1}"], ["must be a list of pieces"]),
        (["controls.stance=never"], ["valid choices are force_eager"]),
        (["controls.disabel=[a]"], ["unknown key 'controls.disabel'", "Did you mean: controls.disable"]),
        (["controls=disable_layer5"], ["unknown controls choice", "Did you mean: disable_layer4", "none"]),
    ],
    ids=lambda value: value[-1] if "=" in str(value[-1]) else "said",
)
def test_what_makes_no_sense_is_refused_before_anything_runs(
    arguments: list[str], parts: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    said = refused(capsys, *arguments)
    for part in parts:
        assert part in said
    assert list(tmp_path.iterdir()) == []


def test_presets_are_listed_completed_and_swept(
    tracebench: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    page = help_page()
    for name in choices("controls"):
        assert f"    {name} " in page
        text = (config_folder() / "controls" / f"{name}.yaml").read_text(encoding="utf-8")
        assert text.startswith("# ")
        assert f"\nname: {name}\n" in text
    line = "tracebench controls=disable_l"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COMP_LINE": line, "COMP_POINT": str(len(line))}
    done = subprocess.run(
        [sys.executable, "-m", "tracebench", "-sc", "query=bash"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["controls=disable_layer4"]
    done = tracebench(
        "-m", "model=resnet18", "model.options.image_size=32", "frontend=fx", "stages=[coverage]", "name=swept",
        "controls=none,disable_layer4", "controls.opaque=[],[layer4.l]",
    )  # fmt: skip
    assert done.returncode == 2
    assert "no piece 'layer4.l'" in done.stderr
    assert "Did you mean: layer4.1" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "resnet18 fx replay controls=disable_layer4: no verdict" in done.stdout
    for name in ("fx on resnet18, disable_layer4", "no controls", "fx on resnet18, disable=[layer4] opaque=[layer4.l]"):
        assert name in " ".join(done.stdout.split())
    found = [json.loads(path.read_text()) for path in (tmp_path / "results" / "swept" / "records").glob("*.json")]
    good = {record["case"]["controls_preset"]: record for record in found if record["status"] == "done"}
    assert set(good) == {"none", "disable_layer4"}
    assert good["none"]["controls"] == []
    [control] = good["disable_layer4"]["controls"]
    assert control["effect"]["op_coverage"][0] == 1.0
    assert good["disable_layer4"]["stages"]["ablation"] > 0


def test_a_preset_is_a_name_not_another_case(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text("", encoding="utf-8")
    plain = Case(ModelSpec("m", str(path)), "fx", controls={"disable": ["layer4"]})
    named = dataclasses.replace(plain, controls_preset="disable_layer4")
    assert key(plain, {}) == key(named, {}) != key(dataclasses.replace(plain, controls={}), {})
    other = dataclasses.replace(plain, controls={"disable": ["layer3"]})
    assert [label.split(" ", 3)[3] for label in labels([named, other])] == [
        "controls=disable_layer4", "controls=disable=[layer3]",
    ]  # fmt: skip


def settings(frontend: str, model: str = "resnet50", effect: Any = "none") -> list[Record]:
    """Return a sweep over three settings of the controls."""
    found = []
    for name, share, ratio in (("none", 1.0, 1.3), ("disable_layer4", 0.7, 1.1), ("disable_attention", 0.4, 0.9)):
        controls = {} if name == "none" else {"disable": [name]}
        record = make.record(model, frontend, ratio=ratio, controls=controls)
        assert record.coverage is not None
        without = Figures("sound", 1, 0, 9, 1, 0, 1.0, 1.0, None, 0, make.throughput(1.3).speedup)
        told = (ControlEffect("disable", name, effect, "why", without),) if controls else ()
        cover = dataclasses.replace(record.coverage, ops=share, time=share**2)
        case = {**record.case, "controls_preset": name}
        found.append(dataclasses.replace(record, case=case, coverage=cover, controls=told))
    return found


def test_the_plot_joins_the_settings_of_a_model_under_a_front_end() -> None:
    records = [*settings("dynamo"), *settings("fx"), *settings("fx", "vit_b_16")]
    kind, lines = plots.setting_lines(records)
    assert kind == "time"
    assert [(line.row, line.column) for line in lines] == [
        ("resnet50", "dynamo"), ("resnet50", "fx"), ("vit_b_16", "fx"),
    ]  # fmt: skip
    assert [point.setting for point in lines[0].points] == ["disable_attention", "disable_layer4", "no controls"]
    assert [round(point.coverage) for point in lines[0].points] == [16, 49, 100]
    first = records[0]
    assert first.coverage is not None
    records[0] = dataclasses.replace(first, coverage=dataclasses.replace(first.coverage, time=None))
    assert plots.setting_lines(records)[0] == "ops"
    figure = plots.controls(records)
    assert figure is not None
    assert plots.png(figure)
    assert_inside(figure)
    assert plots.controls(records[:1]) is None
    assert plots.controls([dataclasses.replace(record, throughput=None) for record in records]) is None


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
def test_the_table_says_what_each_did(width: int) -> None:
    changed = {"op_coverage": [1.0, 0.7], "speedup": [1.3, 1.1]}
    shown = render_table([*settings("dynamo", effect=changed), *settings("fx"), *settings("hook", effect=None)], width)
    assert all(len(line) <= width for line in shown.splitlines())
    flat = " ".join(shown.split())
    assert "1.30x -> 1.10x" in flat
    assert "100 -> 70.0" in flat
    assert "disable=disable_layer4: no effect: why" in flat
    assert "effect not measured: why" in flat
    assert "resnet50, disable_layer4" in flat or width == 40


def test_the_page_and_the_means_keep_settings_apart() -> None:
    records = settings("dynamo", effect={"op_coverage": [1.0, 0.7]})
    page = webpage.page(records, "title")
    assert "100 -&gt; 70.0" in page
    assert "op_coverage; why" in page
    assert facts.geometric_means(records) == [], "one case of each setting has no mean"
    assert COLUMNS["controls_preset"].get(records[1]) == "disable_layer4"
