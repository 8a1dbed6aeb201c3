"""
The losses and gradients of torchaudio's ``rnnt_loss``, frozen in ``torchaudio_transducer.npz``, so that ours is
compared with it without that package. Where it is installed, a test sees that it still gives what is in the file. To
write the file:

    python -m tests.nn.torchaudio_transducer
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

__all__ = ["BLANK", "FILE", "FRAMES", "LABELS", "VOCAB", "make"]

FILE = Path(__file__).with_suffix(".npz")
FRAMES, LABELS, VOCAB, BLANK = [12, 9, 1, 5], [5, 0, 3, 7], 11, 4


def make() -> dict[str, np.ndarray]:
    """:return: logits ``{batch, time, labels + 1, vocab}``, targets, and torchaudio's losses and gradients"""
    import torch
    from torchaudio.functional import rnnt_loss

    rng = np.random.default_rng(8)
    logits = rng.normal(scale=2.0, size=(len(FRAMES), max(FRAMES), max(LABELS) + 1, VOCAB)).astype("float32")
    targets = rng.choice([i for i in range(VOCAB) if i != BLANK], size=(len(FRAMES), max(LABELS))).astype("int32")
    x = torch.tensor(logits, requires_grad=True)
    lengths = (torch.tensor(n, dtype=torch.int32) for n in (FRAMES, LABELS))
    losses = rnnt_loss(x, torch.tensor(targets), *lengths, blank=BLANK, reduction="none")
    losses.sum().backward()
    assert x.grad is not None
    return {"logits": logits, "targets": targets, "losses": losses.detach().numpy(), "gradients": x.grad.numpy()}


if __name__ == "__main__":
    np.savez_compressed(FILE, **make())
