"""
Settings of every test, and fixtures that several folders use.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import pytest

# Before anything imports RETURNN. Without the first, TensorFlow's native ops are compiled for a GPU where nvcc is
# found; without the second, PyTorch's threads fight with those of the other engines on few cores.
os.environ.setdefault("DISABLE_CUDA", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")


class _RootIsNoPackage:
    """
    The repository's root has an ``__init__.py``, for those who clone it into a recipe folder. To pytest it would be a
    package of the folder's name, and imported: under a name like ``torch`` or ``my.clone``, say.
    """

    @staticmethod
    def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        if path.resolve() == Path(__file__).resolve().parents[1]:
            return pytest.Dir.from_parent(parent, path=path)
        return None


def pytest_configure(config: pytest.Config):
    # Registered here, because the hook of a conftest file only counts below its own folder.
    config.pluginmanager.register(_RootIsNoPackage())


_MEMORY = Path("/proc/self/statm")
_limit = 3_000_000_000


@pytest.fixture(autouse=True)
def _compiled_functions_are_dropped():
    """JAX keeps whatever it has compiled, gigabytes in the end; each process of the tests has its own."""
    yield
    global _limit
    jax = sys.modules.get("jax")
    if jax is not None and _MEMORY.exists() and _resident_bytes() > _limit:
        jax.clear_caches()
        ctypes.CDLL(None).malloc_trim(0)
        _limit = max(_limit, _resident_bytes() + 1_500_000_000)


def _resident_bytes() -> int:
    return int(_MEMORY.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """
    Real recordings (spoken digits, some LibriSpeech), which are too large for the repository.

    :return: folder ``$RETURNN_COMMON_SHARED_DATA``, by default ``shared/data`` beside the clone
    """
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    path = Path(os.environ.get("RETURNN_COMMON_SHARED_DATA", default))
    if not path.is_dir():
        pytest.skip(f"no recordings: {path} is not there; set RETURNN_COMMON_SHARED_DATA to a folder with them")
    return path
