"""
Runs RETURNN's task "forward" on the splits of a recognition.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...recog.search_options import LANGUAGE_MODELS
from ..errors import CommandError
from ..quiet import stderr_to
from ..run.distributed import failure
from ..run.process import Runner
from ..run.progress import ForwardProgress
from .folder import RecogFolder
from .options import make_model_of
from .request import Request

__all__ = [
    "Recognition",
    "config_code",
    "find_loadable_checkpoint",
    "recognise",
    "remove_checkpoint",
    "run_returnn",
]


@dataclass
class Recognition:
    """
    :param request: what is asked for
    :param folder: open
    :param console: of rich
    :param runner: starts RETURNN, see :func:`..run.process.run_python`
    """

    request: Request
    folder: RecogFolder
    console: Any
    runner: Runner


def config_code(request: Request) -> str:
    """:return: text of RETURNN's config: that of the run, with what the search and the language model need"""
    options = request.search_options
    lines = [
        "#!rnn.py",
        '"""Written by returnn-common recog."""',
        f"config.load_file({str(request.run.folder.config)!r})",
        f"search_options = {options!r}",
    ]
    if LANGUAGE_MODELS.keys() & options.keys():
        lines += [
            "from returnn_common.training.language_model import with_language_models",
            "get_model = with_language_models(get_model)",
        ]
    return "\n".join(lines) + "\n"


def recognise(recognition: Recognition, *, split: str, with_components: bool):
    """
    Writes the n-best lists of a split, unless they are there.

    :param split:
    :param with_components: and the scores of the parts of the model for them
    :raises CommandError: if RETURNN fails
    """
    folder = recognition.folder
    done: Mapping[str, Any] = folder.state.get("done", {})
    outputs = [folder.nbest(split), *([folder.components(split)] if with_components else [])]
    if split in done and all(path.is_file() for path in outputs):
        return
    start = time.monotonic()
    checkpoint = find_loadable_checkpoint(recognition)
    arguments = ["++recog_output_file", str(outputs[0]), "++recog_nbest", str(recognition.request.nbest)]
    if with_components:
        arguments += ["++recog_components_file", str(outputs[1])]
    with ForwardProgress(recognition.console, f"recognising {split}") as progress:
        run_returnn(
            recognition,
            *("++task", "forward"),
            *("++load", str(checkpoint)),
            *("++recog_split", split),
            *("++beam_size", str(recognition.request.beam)),
            *("++log_verbosity", "5"),
            *arguments,
            log=folder.log(split),
            on_line=progress.on_line,
        )
    for path in outputs:
        if not path.is_file():
            raise CommandError(f"recognition has not written {path}", exit_status=1)
    folder.update(done={**done, split: round(time.monotonic() - start, 1)})


def run_returnn(recognition: Recognition, *arguments: str, log: Path, **callbacks: Any):
    """
    Runs RETURNN on the folder's config.

    :param recognition:
    :param arguments: ``++key``, value, ...
    :param log: to write
    :param callbacks: of the runner
    :raises CommandError: if it fails
    """
    request, folder = recognition.request, recognition.folder
    module = "returnn_common.recog.net_dict" if request.backend == "tensorflow-net-dict" else "returnn"
    options = {**request.run.settings, "backend": request.backend}
    for name in ("beam_size", "search_options"):  # the run's; ours follow, and are in the config
        options.pop(name, None)
    if request.data is not None:
        options["corpus"] = str(request.data)
    given = [part for name, value in options.items() for part in (f"++{name}", value)]
    start = log.stat().st_size if log.is_file() else 0
    # RETURNN takes what begins with "-" for another option, unless there is a "+" before it.
    escaped = [f"+{argument}" if argument.startswith("-") else argument for argument in (*given, *arguments)]
    status = recognition.runner(
        ["-m", module, str(folder.config), *escaped],
        cwd=folder.path,
        log=log,
        keep_open=folder.lock_file,
        **callbacks,
    )
    if status:
        raise failure(status, [log], [start])


def find_loadable_checkpoint(recognition: Recognition) -> Path:
    """
    :param recognition:
    :return: what RETURNN loads: the run's own, or one for this engine
    :raises CommandError: if it cannot be made
    """
    from ...training.checkpoints import find_checkpoint
    from ...training.convert import convert_checkpoint

    request, folder = recognition.request, recognition.folder
    if request.backend == _backend_of(request):
        return Path(find_checkpoint(request.checkpoint)[1])
    number = "".join(part for part in request.checkpoint.name.split(".") if part.isdecimal()) or "001"
    out = folder.checkpoints / f"{request.backend}.{number}"  # RETURNN takes the number for the epoch
    try:
        return Path(find_checkpoint(out)[1])
    except FileNotFoundError:
        pass
    # Only PyTorch wants a parameter with several names under each of them, for which the model is needed.
    model = make_model_of(request.run) if request.backend == "torch" else None
    try:
        with stderr_to():
            return Path(convert_checkpoint(request.checkpoint, out, backend=request.backend, model=model))
    except (ValueError, OSError) as error:
        raise CommandError(" ".join(str(error).split()), exit_status=1) from error
    except ImportError as error:
        raise CommandError(f"{error}: the engine of the checkpoint is not installed") from error


def _backend_of(request: Request) -> str:
    """:return: backend for which the checkpoint is"""
    from ...training.checkpoints import find_checkpoint
    from ...training.convert import read_parameters

    if request.checkpoint.parent == request.run.folder.checkpoints:
        return request.run.backend
    engine, _ = find_checkpoint(request.checkpoint)
    return engine if engine != "tensorflow" else read_parameters(request.checkpoint).backend


def remove_checkpoint(folder: RecogFolder):
    """When all is done: it has nothing that the checkpoints of the runs do not have."""
    shutil.rmtree(folder.checkpoints, ignore_errors=True)
