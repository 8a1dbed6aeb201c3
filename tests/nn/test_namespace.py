from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest
import returnn.frontend as rf

from returnn_common import nn

# In a process of its own: with PyTorch selected, RETURNN puts compiled functions in the place of some of its own.
# Modules are left out: which of them are attributes of the frontend depends on what else has been imported.
COMPARE = """
import json
from types import ModuleType
import returnn.frontend as rf
from returnn_common import nn
public = {n: x for n, x in vars(rf).items() if not n.startswith("_") and not isinstance(x, ModuleType)}
missing = [n for n in public if not hasattr(nn, n)]
print(json.dumps([len(public), missing, sorted(n for n, x in public.items() if getattr(nn, n, None) is not x)]))
"""


def test_holds_the_whole_frontend():
    out = subprocess.run([sys.executable, "-c", COMPARE], capture_output=True, text=True, check=True).stdout
    num_public, missing, ours = json.loads(out)
    assert num_public > 250
    assert missing == []
    assert ours == ["BatchNorm", "LSTM", "Loss", "dropout", "while_loop"]


@pytest.mark.parametrize("name", ["audio", "hooks", "init", "nested"])
def test_namespace_holds_the_frontends_modules(name):
    assert getattr(nn, name) is importlib.import_module(f"returnn.frontend.{name}")


def test_fixed_names():
    for name in ["Tensor", "Dim", "TensorDict", "batch_dim", "single_step_dim"]:
        assert getattr(nn, name) is getattr(importlib.import_module("returnn.tensor"), name)
    assert issubclass(nn.Linear, rf.Module) and nn.Module is rf.Module
