"""
The ways in which people get hold of the package: wheel, editable install, a clone in a Sisyphus recipe folder,
``returnn.import_``, and RETURNN loading a config that lies in a clone. Each in a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import returnn_common

ROOT = Path(__file__).resolve().parents[1]
REPO = "github.com/rwth-i6/returnn_common"

pytestmark = pytest.mark.skipif(not (ROOT / "setup.cfg").is_file(), reason="needs the repository, not only the tests")

REPORT = """
import importlib, json, sys
from pathlib import Path
def report(name):
    package, nn, data = [importlib.import_module(name + end) for end in ("", ".nn", ".data")]
    bundled = data.get_bundled_path("README.md")
    assert "# Bundled files" in Path(bundled).read_text("utf8")
    assert nn.FeatureDim("x", 3).size == 3
    loaded = [backend for backend in ("torch", "tensorflow", "jax") if backend in sys.modules]
    paths = {"nn": str(Path(nn.__file__).resolve()), "bundled": str(Path(bundled).resolve())}
    print(json.dumps({**paths, "version": package.__version__, "loaded": loaded}))
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """:return: a copy of what git would have: the working tree without what was built in it"""
    path = tmp_path_factory.mktemp("clone") / "some-name"
    path.mkdir()
    built = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.pyc")
    for name in ["returnn_common", "data"]:
        shutil.copytree(ROOT / name, path / name, ignore=built)
    for name in ["__init__.py", "test.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"]:
        shutil.copy(ROOT / name, path / name)
    return path


@pytest.fixture(scope="module")
def wheel(clone, tmp_path_factory) -> Path:
    source = shutil.copytree(clone, tmp_path_factory.mktemp("wheel") / "source")
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(source.parent), str(source))
    (path,) = source.parent.glob("*.whl")
    return path


def _pip(*args: str, python: Path | None = None):
    target = ["--python", str(python)] if python else []
    _run([sys.executable, "-m", "pip", *target, "--quiet", *args, "--no-index"])


def _run(command: list[str], *, cwd: Path | None = None, **env: str) -> str:
    # Without PYTHONPATH, so that nothing but what is tested leads to the package.
    base = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(command, env={**base, **env}, cwd=cwd, capture_output=True, text=True)
    assert result.returncode == 0, f"{command}:\n{result.stdout}\n{result.stderr}"
    return result.stdout


def _report(name: str, *, python: Path | str = sys.executable, before: str = "", cwd: Path, **env: str) -> dict:
    out = _run([str(python), "-c", f"{REPORT}\n{before}\nreport({name!r})"], cwd=cwd, **env)
    report = json.loads(out.splitlines()[-1])
    assert report["loaded"] == []
    assert report["version"] == returnn_common.__version__
    return report


def _new_venv(path: Path) -> Path:
    """
    :return: Python of a virtual environment that has our dependencies but not this package: the folder of this
        interpreter's packages comes after its own, and .pth files there (an editable install is one) do not count
    """
    _run([sys.executable, "-m", "venv", "--without-pip", str(path)])
    (site_packages,) = path.glob("lib/python*/site-packages")
    dependencies = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site_packages / "dependencies.pth").write_text("\n".join(sorted(dependencies)) + "\n")
    return path / "bin" / "python"


def _git_env(home: Path, clone: Path) -> dict[str, str]:
    """:return: environment in which the repository's address leads to the clone, without the user's own settings"""
    config = home / "gitconfig"
    config.write_text(
        f'[url "file://{clone}"]\n    insteadOf = https://github.com:/rwth-i6/returnn_common\n'
        "[user]\n    name = Test\n    email = test@example.com\n"
    )
    (home / "pkg").mkdir()
    return {
        "HOME": str(home),
        "GIT_CONFIG_GLOBAL": str(config),
        "GIT_CONFIG_NOSYSTEM": "1",
        "RETURNN_PKG_PATH": str(home / "pkg"),
        "RETURNN_PKG_IMPORT_PATH": str(home / "pkg-import"),
    }


def test_wheel(wheel, tmp_path):
    names = zipfile.ZipFile(wheel).namelist()
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "returnn_common").rglob("*.py")}
    bundled = {
        "returnn_common/_data/" + path.relative_to(ROOT / "data").as_posix()
        for path in (ROOT / "data").rglob("*")
        if path.is_file()
    }
    info = {name for name in names if ".dist-info/" in name}
    assert set(names) - info == modules | bundled, "all of the package, and nothing else"
    assert any(name.endswith("LICENSE") for name in info)

    python = _new_venv(tmp_path / "venv")
    _pip("install", "--no-deps", str(wheel), python=python)
    report = _report("returnn_common", python=python, cwd=tmp_path)
    package = next((tmp_path / "venv").glob("lib/python*/site-packages")).resolve() / "returnn_common"
    assert report["nn"] == str(package / "nn" / "__init__.py")
    assert report["bundled"] == str(package / "_data" / "README.md")
    assert "demo" in _run([str(python.parent / "returnn-common"), "--help"], cwd=tmp_path)


def test_editable_install(clone, tmp_path):
    source = shutil.copytree(clone, tmp_path / "source")
    python = _new_venv(tmp_path / "venv")
    _pip("install", "--no-deps", "--no-build-isolation", "--editable", str(source), python=python)
    report = _report("returnn_common", python=python, cwd=tmp_path)
    assert report["nn"] == str(source.resolve() / "returnn_common" / "nn" / "__init__.py")
    assert report["bundled"] == str(source.resolve() / "data" / "README.md")
    assert "demo" in _run([str(python.parent / "returnn-common"), "--help"], cwd=tmp_path)


def test_plain_checkout(clone):
    report = _report("returnn_common", cwd=clone)
    assert report["nn"] == str(clone.resolve() / "returnn_common" / "nn" / "__init__.py")
    assert report["bundled"] == str(clone.resolve() / "data" / "README.md")


def test_clone_in_recipe_folder(clone, tmp_path):
    recipe = tmp_path / "recipe"
    shutil.copytree(clone, recipe / "returnn_common")
    env = {"PYTHONPATH": str(recipe), "PYTHONDONTWRITEBYTECODE": "1"}
    report = _report("returnn_common", cwd=tmp_path, **env)
    assert report["nn"] == str(recipe.resolve() / "returnn_common" / "returnn_common" / "nn" / "__init__.py")
    assert report["bundled"] == str(recipe.resolve() / "returnn_common" / "data" / "README.md")
    out = _run([sys.executable, "-c", "from returnn_common.test import hello; print(hello())"], cwd=tmp_path, **env)
    assert out == "hello world\n"


@pytest.mark.parametrize("by_version", [True, False])
def test_returnn_import(clone, tmp_path, by_version):
    source = shutil.copytree(clone, tmp_path / "source")
    env = _git_env(tmp_path, source)
    for args in [["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "All"]]:
        _run(["git", *args], cwd=source, **env)
    version, module = None, "dev"
    if by_version:
        date_format = "--date=format:%Y%m%d%H%M%S"
        date, rev = _run(["git", "log", "-n1", "--format=%cd %H", date_format], cwd=source, **env).split()
        version, module = f"{date[:8]}-{rev[:7]}", f"v{date}_{rev[:12]}"
        # What is not committed must not matter.
        (source / "test.py").write_text("raise Exception('not the version that was asked for')\n")

    before = f"""
from returnn.import_ import import_
test = import_({REPO!r}, "test.py", {version!r})
print(test.hello())
import_({REPO!r}, ".", {version!r})
from returnn_import.github_com.rwth_i6.returnn_common.{module} import test as same_test
assert same_test is test
"""
    name = f"returnn_import.github_com.rwth_i6.returnn_common.{module}"
    report = _report(name, before=before, cwd=tmp_path, **env)
    checkout = tmp_path.resolve() / "pkg" / (REPO + (f"@v{date}-{rev[:12]}" if by_version else ""))
    assert report["nn"] == str(checkout / "returnn_common" / "nn" / "__init__.py")
    assert report["bundled"] == str(checkout / "data" / "README.md")


@pytest.mark.parametrize("folder", ["returnn_common", "some-name"])
def test_config_in_a_clone(clone, tmp_path, folder):
    # RETURNN imports a config that lies in a package as a module of it: FOLDER.returnn_common.recipes.NAME.
    source = shutil.copytree(clone, tmp_path / folder)
    config = source / "returnn_common" / "recipes" / "my_config.py"
    config.write_text(
        "from returnn_common import nn\nfrom returnn_common.data import get_bundled_path\n"
        "my_dim = nn.FeatureDim('x', 3)\nmy_path = str(get_bundled_path('README.md'))\n"
    )
    script = (
        "from returnn.config import Config\n"
        "config = Config()\n"
        f"config.load_file({str(config.relative_to(source))!r})\n"
        "print(config.typed_dict['my_dim'].size, config.typed_dict['my_path'])\n"
    )
    out = _run([sys.executable, "-c", script], cwd=source)
    assert out == f"3 {source / 'data' / 'README.md'}\n"


@pytest.mark.parametrize("folder", ["my.clone", "torch", "returnn_common"])
def test_pytest_in_a_clone_of_any_name(clone, tmp_path, folder):
    # pytest would import the root's __init__.py, under the folder's name.
    source = shutil.copytree(clone, tmp_path / folder)
    (source / "tests" / "nn").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "conftest.py", source / "tests")
    (source / "tests" / "nn" / "test_it.py").write_text(
        "import sys\nfrom pathlib import Path\n\n"
        "def test_it():\n"
        "    root = str(Path(__file__).parents[2] / '__init__.py')\n"
        "    assert [name for name, module in sys.modules.items() if getattr(module, '__file__', None) == root] == []\n"
        "    from returnn_common import nn\n"
        "    assert nn.__file__.startswith(str(Path(root).with_name('returnn_common')))\n"
    )
    out = _run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=source)
    assert "1 passed" in out


def test_setup_lists_every_package():
    text = (ROOT / "setup.cfg").read_text("utf8")
    block = re.search(r"^packages =\n((?: +.*\n)+)", text, re.MULTILINE)
    assert block
    inits = (ROOT / "returnn_common").rglob("__init__.py")
    packages = {path.parent.relative_to(ROOT).as_posix().replace("/", ".") for path in inits}
    assert set(block[1].split()) == packages | {"returnn_common._data"}
