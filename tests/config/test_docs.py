"""The Python code in ``docs/configs.md`` and ``docs/net_dict.md``, executed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from returnn.config import Config

from returnn_common.datasets import Librispeech, WordVocab
from returnn_common.training import train_step
from tests.config.net_dicts import make_tiny_config
from tests.sis.examples import get_model

DOCS = Path(__file__).resolve().parents[2] / "docs"


def _execute(page: str, folder: Path, monkeypatch, **given: Any) -> dict[str, Any]:
    """:return: what the page's code defines, which is executed within the folder"""
    monkeypatch.chdir(folder)
    for code in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf8"), re.DOTALL):
        exec(compile(code, page, "exec"), given)
    return given


def test_configs(tmp_path: Path, monkeypatch):
    dataset = Librispeech(path="/data", vocab=WordVocab(["YES", "NO"]))
    vocab_dim = dataset.get_extern_data()["classes"]["sparse_dim"]
    given = {"dataset": dataset, "vocab_dim": vocab_dim, "get_model": get_model, "train_step": train_step}
    _execute("configs.md", tmp_path, monkeypatch, **given)
    config = Config()
    config.load_file(str(tmp_path / "train.config"))
    assert config.typed_dict["get_model"].keywords["num_layers"] == 12 and config.value("backend", "") == "torch"


def test_net_dicts(tmp_path: Path, monkeypatch):
    (tmp_path / "train.config").write_text(
        "from tests.config.net_dicts import make_tiny_config\n\nglobals().update(make_tiny_config(num_layers=1))\n"
    )
    configs = {"small_config": make_tiny_config(num_layers=0), "large_config": make_tiny_config(num_layers=1)}
    made = _execute("net_dict.md", tmp_path, monkeypatch, **configs)
    assert '"class": "my_layer", "from": "encoder", "dim": encoder_dim' in " ".join(made["code"].split())
    staged: dict[str, Any] = {}
    exec((tmp_path / "staged.config").read_text(), staged)
    assert staged["get_network"](4).keys() == made["staged"].stages[1].network.keys()
    net: dict[str, Any] = {}
    exec((tmp_path / "net.config").read_text(), net)
    assert net["network"].keys() == made["net_dict"].network.keys()
