# SPDX-License-Identifier: Apache-2.0
"""The wheel, built through an sdist, installs into a clean environment and works there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import penstock
from penstock.dialects.diagnostics import DISTRIBUTION, pip_install

FLOORS = ("dialects", "passes", "lowering", "runtime", "tools")

PROGRAM = """\
func.func @f(%x: i32) -> i32 {
  %y = arith.addi %x, %x : i32
  %z = arith.addi %x, %x : i32
  %s = arith.muli %y, %z : i32
  func.return %s : i32
}
"""


def run(*words: str | Path, cwd: Path, stdin: str = "") -> str:
    """Run a command, which must succeed; returns its stdout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    finished = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def tracked(repository: Path) -> list[str]:
    """The files of a checkout, but those that are ignored."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=repository)
    return sorted(filter(None, listed.split("\0")))


def copy_sources(repository: Path, to: Path) -> None:
    """Copy what a checkout holds: building leaves files behind, and stale ones would hide missing ones."""
    for name in tracked(repository):
        source, copy = repository / name, to / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            copy.symlink_to(os.readlink(source))
        elif source.exists():
            shutil.copy(source, copy)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = Path(__file__).parent.parent.parent
    sources = tmp_path_factory.mktemp("sources")
    copy_sources(repository, sources)
    # Without arguments `build` makes the sdist, and the wheel from what the sdist holds.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", cwd=sources)
    (built,) = (sources / "dist").glob("*.whl")
    return built


def test_the_wheel_holds_every_module_and_data_file_of_the_source_tree(wheel: Path, repository: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        f"penstock/{path.relative_to(repository)}" for floor in FLOORS for path in (repository / floor).rglob("*.py")
    }
    expected |= {f"penstock/machines/{path.name}" for path in (repository / "machines").glob("*.toml")}
    expected |= {f"penstock/{path.relative_to(repository)}" for path in (repository / "runtime").rglob("*.h")}
    code = (repository / "machines" / "code").rglob("*")
    expected |= {f"penstock/{path.relative_to(repository)}" for path in code if path.is_file()}
    expected |= {f"penstock/tools/report/{name}" for name in ("page.html", "page.css", "page.js", "pictures.js")}
    expected |= {f"penstock/tools/demo/{name}" for name in ("digits.onnx", "test_images.npz")}
    expected |= {"penstock/__init__.py", "penstock/py.typed"}
    assert "penstock/machines/gemmini-fp32.toml" in expected
    assert expected <= names, f"missing: {sorted(expected - names)}"


def test_the_wheel_installs_and_runs_in_a_clean_environment(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "env"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    python = environment / "bin" / "python"
    (site,) = (environment / "lib").glob("python*/site-packages")
    # The dependencies come from the environment of the suite. A .pth file adds the folder without reading the .pth
    # files in it, so an editable Penstock there stays unseen.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(
        sys.executable,
        "-m",
        "pip",
        f"--python={python}",
        "install",
        "--no-deps",
        "--no-compile",
        "--quiet",
        wheel,
        cwd=tmp_path,
    )
    where = run(python, "-c", "import penstock.tools.opt as opt; print(opt.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(environment.resolve()), "the installed package is the one that is tested"

    tools = environment / "bin"
    assert run(tools / "penstock", "--version", cwd=tmp_path).startswith(f"penstock {penstock.__version__}, ")
    assert "gemmini-fp32" in run(tools / "penstock", "machines", "list", cwd=tmp_path)
    merged = run(tools / "penstock-opt", "-p", "cse", cwd=tmp_path, stdin=PROGRAM)
    assert "arith.muli %y, %y" in merged
    assert "graph-to-tensor" in run(tools / "penstock-opt", "--list-passes", cwd=tmp_path)
    run(python, "-c", "import penstock; penstock.compile", cwd=tmp_path)


STRANGER = re.compile(r"""(?x) \bpenstock(?:\[ | \s*[=~<>!]=) | pip3?\ install\ (?:[-\w.]+\ )*['"]?penstock(?![-\w/]) |
    \bdependencies\ =\ \[[^]]*"penstock" | \b(?:version|distribution|metadata|requires)\(["']penstock["']\)""")
"""What would install, or ask for, the package `penstock` of a package index, which is not ours."""


def test_nothing_installs_the_package_of_the_same_name_that_is_not_ours(repository: Path) -> None:
    for wrong in ("pip install penstock", "install 'penstock[cc]'", "penstock==0.1", 'version("penstock")'):
        assert STRANGER.search(wrong), wrong
    for right in (pip_install("cc"), "pip install ./penstock/lab", "penstock machines", 'penstock = "penstock.tools"'):
        assert not STRANGER.search(right), right
    paths = [repository / name for name in tracked(repository)]
    paths.remove(Path(__file__))
    texts = {path: path.read_bytes().decode(errors="replace") for path in paths if path.is_file()}
    found = [f"{path}: {match[0]}" for path, text in texts.items() for match in STRANGER.finditer(text)]
    assert found == []
    assert f'name = "{DISTRIBUTION}"' in texts[repository / "pyproject.toml"]


def test_a_release_has_one_version_and_one_date(repository: Path) -> None:
    citation = (repository / "CITATION.cff").read_text(encoding="utf-8")
    version, date = (re.findall(rf"^{key}: (.*)$", citation, re.MULTILINE) for key in ("version", "date-released"))
    changes = (repository / "CHANGELOG.md").read_text(encoding="utf-8")
    assert version == [penstock.__version__]
    assert re.findall(r"^## (.*)$", changes, re.MULTILINE)[0] == f"{penstock.__version__} - {date[0]}"


SPDX = {
    ".py": "# SPDX-License-Identifier: Apache-2.0\n",
    **dict.fromkeys((".c", ".h"), "/* SPDX-License-Identifier: Apache-2.0 */\n"),
}
"""The first line of a source file, by its suffix."""
SOURCES = (*FLOORS, "src", "docs", "tests", "benchmarks", "examples")
"""Where it is in all files, but in those of the skeleton, which become the files of others."""


def test_every_source_file_says_its_licence(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert all(project["license"] in line for line in SPDX.values())
    paths = [path for path in map(Path, tracked(repository)) if path.suffix in SPDX and path.parts[0] in SOURCES]
    texts = {
        str(path): (repository / path).read_text(encoding="utf-8") for path in paths if "skeleton" not in path.parts
    }
    assert len(texts) > 1000
    assert [path for path, text in texts.items() if not text.startswith(SPDX[Path(path).suffix])] == []


WITHOUT_DEPENDENCIES = "models"
"""The extra whose packages are only read, and are installed with `--no-deps`."""


def extras(repository: Path) -> dict[str, list[str]]:
    """The requirements of each extra that pip resolves."""
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {name: each for name, each in project["optional-dependencies"].items() if name != WITHOUT_DEPENDENCIES}


def test_constraints_pin_what_the_package_and_its_extras_ask_for(repository: Path) -> None:
    lines = (repository / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    versions = {canonicalize_name(name): version for name, version in pins.items()}
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [
        Requirement(text)
        for texts in ([project["dependencies"]], extras(repository).values())
        for each in texts
        for text in each
    ]
    # PyTorch has a build for each kind of GPU, and pins what it needs by itself.
    missing = [str(each) for each in asked if canonicalize_name(each.name) not in versions and each.name != "torch"]
    assert missing == []
    wrong = [
        each for each in asked if each.name != "torch" and versions[canonicalize_name(each.name)] not in each.specifier
    ]
    assert wrong == []


@pytest.mark.slow
def test_all_extras_can_be_installed_together_under_the_constraints(repository: Path, tmp_path: Path) -> None:
    names = ",".join(name for name in extras(repository) if name != "torch")
    words = ["install", "--dry-run", "--ignore-installed", "--quiet", "-c", "constraints.txt", f".[{names}]"]
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", *words, cwd=repository)


@pytest.mark.slow
def test_the_lowest_versions_of_dependencies_suffice(wheel: Path, tmp_path: Path, repository: Path) -> None:
    environment = tmp_path / "env"
    run(sys.executable, "-m", "venv", environment, cwd=tmp_path)
    python = environment / "bin" / "python"
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lowest = [re.sub(r"[>=]=([^,]*).*", r"==\1", each) for each in project["dependencies"]]
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", each) for each in lowest), lowest
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel, *lowest, cwd=tmp_path)
    installed = run(python, "-m", "pip", "list", "--format=freeze", cwd=tmp_path).lower().replace("_", "-").splitlines()
    for each in lowest:
        name, _, version = each.lower().replace("_", "-").partition("==")
        assert any(re.fullmatch(rf"{name}=={re.escape(version)}(\.0)*", line) for line in installed), (each, installed)
    # The example of the README, in a folder that holds nothing but the examples.
    shutil.copytree(repository / "examples" / "digits", tmp_path / "examples" / "digits")
    readme = (repository / "README.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (expected,) = re.findall(r"```text\n(.*?)```", readme, re.DOTALL)
    assert run(python, "-c", program, cwd=tmp_path) == expected
    demonstrated = run(environment / "bin" / "penstock", "demo", "--images=4", "--interpret=1", cwd=tmp_path)
    assert "all levels agree" in demonstrated
