"""A wheel, built and installed into a folder of its own, works from another folder than the clone's."""

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

SCRIPT = """
import numpy as np
import einsum_engine, einsum_engine.kernels, einsum_engine.planners, einsum_engine.bench
for module in (einsum_engine, einsum_engine.kernels, einsum_engine.planners, einsum_engine.bench):
    assert module.__file__.startswith({target!r}), module.__file__
a = np.arange(60.0).reshape(3, 4, 5)
b = np.arange(40.0).reshape(5, 4, 2)
c = einsum_engine.einsum("ijk,kjl->il", a, b)
assert c.shape == (3, 2) and np.array_equal(c, np.einsum("ijk,kjl->il", a, b)), c
f = einsum_engine.compile("ijk,kjl->il", a, b)
assert np.array_equal(f(a, b), c)
print("right", einsum_engine.__version__)
"""


def pip(*arguments, cwd):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=280)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Path of a wheel built from a copy of the sources, so that no build folder is left in the clone."""
    if importlib.util.find_spec("pip") is None:
        pytest.skip("pip is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    names = ("einsum_engine", "kernels", "planners", "bench", "pyproject.toml", "README.md", "LICENSE")
    source.mkdir()
    for name in names:
        subprocess.run(["cp", "-r", str(ROOT / name), str(source)], check=True)
    isolation = ["--no-build-isolation"] if importlib.util.find_spec("setuptools") else []
    result = pip("wheel", "--no-deps", *isolation, "--wheel-dir", str(folder), str(source), cwd=folder)
    if result.returncode and not isolation:
        pytest.skip(f"setuptools is neither installed nor to be had: {result.stderr.strip()[-200:]}")
    assert result.returncode == 0, result.stderr
    [path] = folder.glob("*.whl")
    return path


def test_wheel_holds_the_packages_and_no_more(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for expected in ("py.typed", "config.py", "kernels/isa.py", "kernels/cpu/__init__.py", "planners/__init__.py"):
        assert f"einsum_engine/{expected}" in names
    sources = {f"einsum_engine/{path.relative_to(ROOT / 'einsum_engine')}" for path in _sources("einsum_engine")}
    for folder in ("kernels", "planners", "bench"):
        sources |= {f"einsum_engine/{path.relative_to(ROOT)}" for path in _sources(folder)}
    assert sources - set(names) == set()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"einsum_engine"}
    assert [name for name in names if "results" in name or "tests" in name] == []


def _sources(folder: str) -> list[Path]:
    return list((ROOT / folder).rglob("*.py"))


def test_installed_wheel_contracts_from_another_folder(wheel, tmp_path):
    target, elsewhere = tmp_path / "target", tmp_path / "elsewhere"
    elsewhere.mkdir()
    result = pip("install", "--no-deps", "--no-index", "--target", str(target), str(wheel), cwd=elsewhere)
    assert result.returncode == 0, result.stderr
    environment = dict(os.environ, PYTHONPATH=str(target))
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(target=str(target))],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("right ")
