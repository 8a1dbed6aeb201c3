"""
What happens to each utterance in the data loading: augmentation, features, shapes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from returnn.tensor import Dim, Tensor, TensorDict

from .augment import Augment, utterance_rng
from .features import NUM_MELS, log_mel

__all__ = ["MapSeq"]


class MapSeq:
    """
    For RETURNN's ``PostprocessingDataset``, around an ``OggZipDataset`` that gives raw audio {time, 1} as ``data`` and
    labels as ``classes``.

    :param log_mel: whether to compute log-mel features {time', 80}; else it gives raw audio {time}
    :param augment: see :mod:`.augment`
    :param seed: for the augmentation
    """

    def __init__(self, *, log_mel: bool, augment: Augment | None, seed: int):
        self.log_mel, self.augment, self.seed = log_mel, augment, seed

    def __repr__(self) -> str:
        return f"MapSeq(log_mel={self.log_mel!r}, augment={self.augment!r}, seed={self.seed!r})"

    def output_template(self, *, num_classes: int) -> dict[str, dict[str, Any]]:
        """``map_outputs`` of the dataset."""
        feature_dims = [Dim(NUM_MELS, name="log-mel")] if self.log_mel else []
        return {
            "data": {"dims": [Dim(None, name="time"), *feature_dims], "dtype": "float32"},
            "classes": {
                "dims": [Dim(None, name="targets-time")],
                "sparse_dim": Dim(num_classes, name="labels"),
                "dtype": "int32",
            },
        }

    def __call__(self, tensors: TensorDict, *, epoch: int, **_kwargs) -> TensorDict:
        """
        :param tensors: with ``data``, ``classes`` and ``seq_tag``
        :param epoch: of RETURNN, so of the part of the data that is one epoch to it
        """
        seq_tag = str(tensors.data["seq_tag"].raw_tensor)
        audio = np.asarray(tensors.data["data"].raw_tensor)[:, 0]
        if self.augment is not None:
            audio = self._augment(audio, epoch=epoch, seq_tag=seq_tag)
        result = TensorDict()
        if self.log_mel:
            dims, raw = [Dim(None, name="time"), Dim(NUM_MELS, name="log-mel")], log_mel(audio)
        else:
            dims, raw = [Dim(None, name="time")], audio
        result.data["data"] = Tensor("data", dims=dims, dtype="float32", raw_tensor=raw)
        result.data["classes"] = tensors.data["classes"]
        return result

    def _augment(self, audio: np.ndarray, *, epoch: int, seq_tag: str) -> np.ndarray:
        assert self.augment is not None
        changed = self.augment(audio, rng=utterance_rng(seed=self.seed, epoch=epoch, seq_tag=seq_tag))
        if not isinstance(changed, np.ndarray) or changed.ndim != 1 or not len(changed):
            found = f"an array of shape {changed.shape}" if isinstance(changed, np.ndarray) else repr(changed)
            raise ValueError(f"augmentation {self.augment!r}: expected audio with the shape [time], got {found}")
        return changed.astype("float32", copy=False)
