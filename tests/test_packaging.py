"""The package works from a wheel in another folder, and as an editable install."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from .conftest import ROOT, records_in


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder into which the project's wheel was installed."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(site: Path | None, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if site is not None:
        environment["PYTHONPATH"] = str(site)
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=True, timeout=200
    )


def test_the_wheel_holds_configs_and_models_and_nothing_at_top_level(site: Path) -> None:
    assert sorted(path.name for path in site.iterdir() if not path.name.endswith(".dist-info")) == ["tracebench"]
    for folder, copy in (("configs", "_configs"), ("models", "_models")):
        there = {path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*.*") if path.suffix != ".pyc"}
        assert there <= {
            path.relative_to(site / "tracebench" / copy) for path in (site / "tracebench" / copy).rglob("*")
        }


def test_a_case_runs_from_the_wheel_in_another_folder(site: Path, tmp_path: Path) -> None:
    where = run(site, tmp_path, "-c", "import tracebench.config as c; print(c.config_folder(), c.models_folder())")
    assert where.stdout.split() == [str(site / "tracebench" / name) for name in ("_configs", "_models")]
    done = run(
        site, tmp_path, "-m", "tracebench", "model=gpt", "model.options.layers=1", "frontend=fx", "stages=[soundness]",
        "name=wheel",
    )  # fmt: skip
    assert "[1/1] gpt fx replay: sound" in done.stdout
    assert list(records_in(tmp_path / "results" / "wheel")) == ["gpt fx"]


def test_the_installed_package_answers_in_another_folder(tmp_path: Path) -> None:
    try:
        importlib.metadata.distribution("tracebench")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("tracebench is not installed in this environment")
    assert "name: resnet50" in run(None, tmp_path, "-m", "tracebench", "--cfg", "job").stdout
    script = Path(sys.executable).with_name("tracebench")
    assert "model: what is captured" in subprocess.run(
        [script, "--help"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout  # fmt: skip
