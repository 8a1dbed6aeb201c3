"""
The losses of a decoder on a whole target.
"""

from __future__ import annotations

from typing import Any

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from .decoder import Decoder
from .labels import with_bos_eos
from .loss import Loss

__all__ = ["decoder_losses", "smoothed_cross_entropy"]


def decoder_losses(
    decoder: Decoder,
    encoder: Any,
    *,
    targets: Tensor,
    targets_spatial_dim: Dim,
    bos: int,
    eos: int,
    label_smoothing: float = 0.0,
    label_noise: float = 0.0,
) -> dict[str, Loss]:
    """
    :param encoder: of the decoder's ``transform_encoder``
    :param targets: label indices ``{batch, labels}`` over the decoder's vocabulary, without begin and end of sentence
    :param targets_spatial_dim: labels
    :param bos: index of the begin of sentence
    :param eos: index of the end of sentence
    :param label_smoothing: see :func:`smoothed_cross_entropy`; in training only
    :param label_noise: share of the previous labels that are replaced by any others, in training only: a decoder with
        few transcripts to learn from then looks at the encoder, instead of learning them by heart. (Bengio et al. 2015,
        https://arxiv.org/abs/1506.03099, replace them by what the model itself would have said.)
    :return: "ce": cross-entropy per label, end of sentence included, natural log; "fer": share of the labels, end of
        sentence included, that are not the most probable ones after the true previous ones
    """
    previous, targets, time = with_bos_eos(targets, spatial_dim=targets_spatial_dim, bos=bos, eos=eos)
    if label_noise:
        previous = _with_noise(previous, share=label_noise)
    state = decoder.default_initial_state(batch_dims=targets.remaining_dims(time))
    logits, _ = decoder(previous, spatial_dim=time, state=state, encoder=encoder)
    vocab_dim = decoder.vocab_dim
    log_probs = rf.log_softmax(rf.cast(logits, "float32"), axis=vocab_dim)
    loss = smoothed_cross_entropy(log_probs, targets, vocab_dim=vocab_dim, label_smoothing=label_smoothing)
    errors = rf.cast(rf.reduce_argmax(log_probs, axis=vocab_dim) != targets, "float32")
    num_labels = rf.cast(time.get_size_tensor(device=targets.device), "float32")
    return {
        "ce": Loss(rf.reduce_sum(loss, axis=time), inv_norm_factor=num_labels),
        "fer": Loss(rf.reduce_sum(errors, axis=time), inv_norm_factor=num_labels, as_error=True),
    }


def smoothed_cross_entropy(
    log_probs: Tensor, targets: Tensor, *, vocab_dim: Dim, label_smoothing: float = 0.0
) -> Tensor:
    """
    Cross-entropy with, in training, ``1 - label_smoothing`` of the target's probability on the target, and the rest on
    all other labels alike (Szegedy et al. 2015, https://arxiv.org/abs/1512.00567, section 7).

    :param log_probs: ``{..., vocab}``, float32
    :param targets: ``{...}`` over vocab
    :return: ``{...}``, natural log
    """
    loss = -rf.gather(log_probs, indices=targets, axis=vocab_dim)
    train_flag = rf.get_run_ctx().is_train_flag_enabled(func=smoothed_cross_entropy)
    size = vocab_dim.dimension
    assert size is not None
    if not label_smoothing or train_flag is False or size == 1:
        return loss
    others = -rf.reduce_sum(log_probs, axis=vocab_dim) - loss
    smoothed = loss * (1.0 - label_smoothing) + others * (label_smoothing / (size - 1))
    return smoothed if train_flag is True else rf.where(train_flag, smoothed, loss)


def _with_noise(labels: Tensor, *, share: float) -> Tensor:
    """
    :param labels: ``{batch, time}``, sparse
    :param share: of them which are replaced
    """
    train_flag = rf.get_run_ctx().is_train_flag_enabled(func=_with_noise)
    if train_flag is False:
        return labels
    vocab_dim = labels.sparse_dim
    assert vocab_dim is not None and vocab_dim.dimension is not None

    def _uniform(maximum: float) -> Tensor:
        return rf.random_uniform(labels.dims, minval=0.0, maxval=maximum, dtype="float32", device=labels.device)

    others = rf.minimum(_uniform(float(vocab_dim.dimension)), vocab_dim.dimension - 0.5)  # rounding could reach the end
    others = rf.set_sparse_dim(rf.cast(others, labels.dtype), vocab_dim)
    replaced = _uniform(1.0) < share
    if isinstance(train_flag, Tensor):
        replaced = rf.logical_and(replaced, train_flag)
    return rf.where(replaced, others, labels)
