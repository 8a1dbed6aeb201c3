"""A trained model with a streaming encoder recognises piece by piece what it recognises offline."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from returnn_common.cli import main
from returnn_common.cli.run_model import load_run_model
from returnn_common.models.ctc import CtcModel
from tests.models.streaming_tools import assert_same, same_pace, search_pieces, search_whole

PIECES = [160, 4_000, 10**6]  # samples: a frame, less than a chunk, everything
_ODD = [0, 1, 500, 9_000]  # samples of utterances that are cut off


def check_streaming(folder: Path, recordings: list[np.ndarray]):
    """
    :param folder: of a run of digits_transducer or digits_ctc with encoder=streaming
    :param recordings: {time}, 16 kHz
    """
    run = load_run_model(folder)
    models = [run.model]
    if not isinstance(run.model, CtcModel):  # and the CTC head beside it
        ctc = CtcModel(encoder=run.model.encoder, vocab_dim=run.model.vocab_dim, features=run.model.features)
        ctc.labels_dim, ctc.output = run.model.labels_dim, run.model.aux_ctc_outputs[0]
        models.append(ctc)
    odd = [x[:n] for x, n in zip(recordings, _ODD, strict=False)]
    with run.forward():
        for model in models:
            for options in ({}, {"beam_size": 4}):
                expected = search_whole(model, recordings, **options)
                assert sum(len(entry[0][1]) for entry in expected) > len(recordings)
                for size in PIECES[1:]:
                    paces = same_pace([len(x) for x in recordings], size)
                    assert_same(search_pieces(model, recordings, paces, **options)[1], expected)
            paces = same_pace([len(x) for x in odd], PIECES[0])
            assert_same(search_pieces(model, odd, paces, beam_size=4)[1], search_whole(model, odd, beam_size=4))


@pytest.mark.slow  # it trains: 10 minutes on two cores
def test_trained_digits(shared_data, tmp_path):
    out = tmp_path / "out"
    arguments = ["run", "digits_transducer", "--corpus", str(shared_data / "digits"), "--out", str(out)]
    assert main([*arguments, "--set", "encoder=streaming"]) == 0
    paths = sorted((shared_data / "digits" / "test").rglob("*.flac"))
    check_streaming(out, [soundfile.read(path, dtype="float32")[0] for path in paths[:: len(paths) // 20][:20]])
