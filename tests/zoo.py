"""
The table of every builder and preset: one line each, with a tiny configuration. ``test_zoo.py`` runs each through.

    python -m tests.zoo            prints the table of what runs where
    python -m tests.zoo --update   writes what is generated from it: golden files, data/engines.json, and
                                   the tables in README.md and docs/engines.md
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from returnn_common import nn
from returnn_common.models.aed import make_aed_model
from returnn_common.models.ctc import make_ctc_model
from returnn_common.models.decoder.lstm_attention import make_lstm_attention_decoder
from returnn_common.models.decoder.mini_lstm import make_internal_lm, make_mini_lstm
from returnn_common.models.decoder.transducer import make_joiner, make_lstm_predictor, make_stateless_predictor
from returnn_common.models.decoder.transformer import make_transformer_decoder
from returnn_common.models.decoder.transformer_espnet import make_espnet_transformer_decoder
from returnn_common.models.encoder.conformer import conformer_l, conformer_m, conformer_s, make_conformer_encoder
from returnn_common.models.encoder.conformer_fast import fast_conformer_l, make_fast_conformer_encoder
from returnn_common.models.encoder.conformer_rotary import make_rotary_conformer_encoder
from returnn_common.models.encoder.conformer_streaming import make_streaming_conformer_encoder
from returnn_common.models.encoder.e_branchformer import (
    e_branchformer_b,
    e_branchformer_l,
    make_e_branchformer_encoder,
)
from returnn_common.models.encoder.espnet import make_espnet_conformer_encoder, make_espnet_e_branchformer_encoder
from returnn_common.models.encoder.lstm import make_lstm_encoder
from returnn_common.models.encoder.transformer import make_transformer_encoder, make_transformer_text_encoder
from returnn_common.models.features import LogMel
from returnn_common.models.language_model import LanguageModel
from returnn_common.models.lm.lstm import make_lstm_lm
from returnn_common.models.lm.transformer import make_transformer_lm
from returnn_common.models.specaugment import SpecAugment, SpecAugmentPolicy
from returnn_common.models.transducer import make_transducer_model
from returnn_common.models.transformer import make_transformer
from tests.zoo_kinds import (
    AUDIO,
    DECODER,
    ENCODER,
    JOINER,
    LM,
    PREDICTOR,
    SPECTROGRAM,
    SPEECH,
    SPEECH_FROM_AUDIO,
    TEXT,
    TEXT_ALONE,
    TEXT_ENCODER,
    VOCAB,
    Kind,
)

__all__ = ["Entry", "ZOO"]


@dataclass(frozen=True)
class Entry:
    """
    One line of the table.

    :param builder: the public function or class
    :param kind: how the module is fed
    :param make: makes the module. Its arguments, by name: ``features`` and ``labels`` are dims; ``dropout``: 0, or how
        much of whatever is random in training. Without that argument nothing is random.
    :param variant: what is special in this line, where a builder has several
    :param full: makes the module at full size from the features' dim (80), for the golden file; None: ``make`` does
    :param tolerance: of the outputs between engines, relative to the largest
    :param no_gradient: patterns of parameters which no loss can depend on, such as a bias that a norm removes
    :param like: name of another entry, which has the same modules with other numbers: the other engines run this one
        among the slow tests only
    :param limits: engine -> name of what RETURNN can't do there, in ``tests/limits.py``
    """

    builder: Callable[..., Any]
    kind: Kind
    make: Callable[..., nn.Module]
    variant: str = ""
    full: Callable[..., nn.Module] | None = None
    tolerance: float = 2e-5
    no_gradient: tuple[str, ...] = ()
    like: str | None = None
    limits: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """of the entry, and of its golden file"""
        return self.builder.__name__ + (f"-{self.variant}" if self.variant else "")


def _tiny_preset(
    preset: Callable[..., Any],
    features: nn.Dim,
    *,
    builder: Callable[..., Any] = make_conformer_encoder,
    **random: float,
) -> Any:
    """what a preset of that builder makes, with one layer and two dims a head instead of its own sizes"""

    def _make(in_dim: nn.Dim, *, num_layers: int, out_dim: int, num_heads: int, **options: Any) -> Any:
        tiny = {"num_layers": 1, "out_dim": 2 * num_heads, "subsampling_channels": 4, **random}
        return builder(in_dim, num_heads=num_heads, **{**options, **tiny})

    with mock.patch.object(sys.modules[preset.__module__], builder.__name__, _make):
        return preset(features)


# Softmax removes what is added to all keys alike.
_KEYS = ("*self_att.qkv.bias",)
_CONFORMER = {"num_layers": 1, "out_dim": 8, "num_heads": 2, "conv_kernel_size": 5, "subsampling_channels": 4}
_DECODER = {"num_layers": 1, "model_dim": 8, "num_heads": 2}
_TRANSFORMER = {"num_layers": 1, "out_dim": 8, "num_heads": 2, "subsampling_channels": 4}


def _internal_lm(labels: nn.Dim, dropout: float) -> nn.Module:
    """Its decoder is not to be trained, but gets the same values on each engine, and has gradients."""
    context = nn.FeatureDim("context", 8)
    decoder = make_lstm_attention_decoder(context, labels, model_dim=6, embed_dim=4, att_dim=5, dropout=dropout)
    model = make_internal_lm(decoder, context, model_dim=5, embed_dim=4)
    for parameter in decoder.parameters():
        parameter.trainable = True
    return model


def _specaugment(dropout: float) -> SpecAugment | None:
    """The published policies are for 80 features: of 8 and few frames, they leave nothing."""
    return SpecAugment(SpecAugmentPolicy(5, 2, 1, 10, 0.2, 1)) if dropout else None


def _encoder(features: nn.Dim, dropout: float) -> nn.Module:
    """for the full models"""
    return make_conformer_encoder(features, **{**_CONFORMER, "num_layers": 2}, conv_norm="layer", dropout=dropout)


def _aed(features: nn.Dim, labels: nn.Dim, dropout: float) -> nn.Module:
    """end of sentence behind the labels"""
    encoder = _encoder(features, dropout)
    decoder = make_transformer_decoder(encoder.out_dim, VOCAB + 1, **_DECODER, dropout=dropout)
    specaugment = _specaugment(dropout)
    options = {"encoder": encoder, "decoder": decoder, "specaugment": specaugment, "aux_ctc_layers": [1, 2]}
    return make_aed_model(features, labels, **options)


def _aed_from_audio(labels: nn.Dim, dropout: float) -> nn.Module:
    """end of sentence among the labels"""
    encoder = _encoder(nn.FeatureDim("mel", 8), dropout)
    sizes = {"model_dim": 6, "embed_dim": 4, "att_dim": 5}
    decoder = make_lstm_attention_decoder(encoder.out_dim, labels, **sizes, dropout=dropout)
    specaugment = _specaugment(dropout)
    return make_aed_model(None, labels, encoder=encoder, decoder=decoder, eos=0, specaugment=specaugment)


def _transducer(features: nn.Dim, labels: nn.Dim, dropout: float) -> nn.Module:
    """as in the Conformer transducers, with CTC beside it"""
    encoder = _encoder(features, dropout)
    predictor = make_lstm_predictor(labels, model_dim=6, embed_dim=4, dropout=dropout)
    joiner = make_joiner(encoder.out_dim, predictor.out_dim, labels, model_dim=7, dropout=dropout)
    parts = {"encoder": encoder, "predictor": predictor, "joiner": joiner, "specaugment": _specaugment(dropout)}
    return make_transducer_model(features, labels, **parts, aux_ctc_layers=[2])


def _transducer_from_audio(labels: nn.Dim, dropout: float) -> nn.Module:
    """the other parts"""
    encoder = _encoder(nn.FeatureDim("mel", 8), dropout)
    predictor = make_stateless_predictor(labels, model_dim=6, dropout=dropout)
    joiner = make_joiner(encoder.out_dim, predictor.out_dim, labels, kind="gated", model_dim=7, dropout=dropout)
    parts = {"encoder": encoder, "predictor": predictor, "joiner": joiner, "specaugment": _specaugment(dropout)}
    return make_transducer_model(None, labels, **parts, separate_blank=True)


ZOO = [
    # Features. Of a single frame the mean is the frame, and what rounding leaves is divided by a tiny deviation.
    Entry(LogMel, AUDIO, lambda dropout: LogMel(6, frequency_warp=dropout / 2), tolerance=1e-3),
    Entry(LogMel, AUDIO, lambda: LogMel(6, prior_frames=10), variant="prior", tolerance=1e-3),
    Entry(
        SpecAugment,
        SPECTROGRAM,
        lambda dropout: SpecAugment("LD") if dropout else SpecAugment("LD", start_step=10**6, full_step=10**6),
    ),
    # Encoders
    Entry(
        make_conformer_encoder,
        ENCODER,
        lambda features, dropout: make_conformer_encoder(features, **{**_CONFORMER, "num_layers": 2}, dropout=dropout),
        no_gradient=(*_KEYS, "*depthwise_conv.bias"),
    ),
    Entry(
        make_conformer_encoder,
        ENCODER,
        lambda features, dropout: make_conformer_encoder(
            features, **_CONFORMER, subsampling=6, conv_norm="layer", dropout=dropout
        ),
        variant="layer-norm-6",
        no_gradient=_KEYS,
    ),
    *(
        Entry(
            preset,
            ENCODER,
            lambda features, dropout, preset=preset: _tiny_preset(preset, features, dropout=dropout),
            full=preset,
            no_gradient=(*_KEYS, "*depthwise_conv.bias"),
            like=None if preset is conformer_s else conformer_s.__name__,
        )
        for preset in (conformer_s, conformer_m, conformer_l)
    ),
    Entry(
        make_rotary_conformer_encoder,
        ENCODER,
        lambda features, dropout: make_rotary_conformer_encoder(features, **_CONFORMER, dropout=dropout),
        no_gradient=("*depthwise_conv.bias",),
    ),
    Entry(
        make_fast_conformer_encoder,
        ENCODER,
        lambda features, dropout: make_fast_conformer_encoder(
            features, **_CONFORMER, conv_norm="layer", dropout=dropout
        ),
        no_gradient=_KEYS,
    ),
    Entry(
        fast_conformer_l,
        ENCODER,
        lambda features, dropout: _tiny_preset(
            fast_conformer_l, features, builder=make_fast_conformer_encoder, dropout=dropout
        ),
        full=fast_conformer_l,
        no_gradient=(*_KEYS, "*depthwise_conv.bias"),
        like=make_fast_conformer_encoder.__name__,
    ),
    *(
        Entry(
            make_streaming_conformer_encoder,
            ENCODER,
            lambda features, dropout, chunks=chunks: make_streaming_conformer_encoder(
                features, **_CONFORMER, **chunks, dropout=dropout
            ),
            variant=variant,
        )
        for variant, chunks in {
            "": {"chunk_size": 2, "left_chunks": 1},
            "no-left": {"chunk_size": 3, "left_chunks": 0},
        }.items()
    ),
    Entry(
        make_e_branchformer_encoder,
        ENCODER,
        lambda features, dropout: make_e_branchformer_encoder(
            features, **_CONFORMER, dropout=dropout, layer_drop=dropout
        ),
    ),
    *(
        Entry(
            preset,
            ENCODER,
            lambda features, dropout, preset=preset: _tiny_preset(
                preset, features, builder=make_e_branchformer_encoder, dropout=dropout, layer_drop=dropout
            ),
            full=preset,
            like=make_e_branchformer_encoder.__name__,
        )
        for preset in (e_branchformer_b, e_branchformer_l)
    ),
    *(
        Entry(
            make_transformer_encoder,
            ENCODER,
            lambda features, dropout, options=options: make_transformer_encoder(
                features, **_TRANSFORMER, **options, dropout=dropout, layer_drop=dropout
            ),
            variant=variant,
        )
        for variant, options in {
            "": {},
            "absolute": {"positions": "absolute", "subsampling": 1},
            "rotary-6": {"positions": "rotary", "subsampling": 6},
        }.items()
    ),
    Entry(
        make_transformer_text_encoder,
        TEXT_ENCODER,
        lambda labels, dropout: make_transformer_text_encoder(
            labels, num_layers=1, out_dim=8, num_heads=2, dropout=dropout, layer_drop=dropout
        ),
    ),
    Entry(
        make_lstm_encoder,
        ENCODER,
        lambda features, dropout: make_lstm_encoder(
            features, num_layers=2, out_dim=6, time_pooling=(3, 2), dropout=dropout
        ),
        full=make_lstm_encoder,
    ),
    # Those whose weights can be ESPnet's
    Entry(
        make_espnet_conformer_encoder,
        ENCODER,
        lambda features, dropout: make_espnet_conformer_encoder(
            features, num_layers=2, out_dim=8, num_heads=2, ff_dim=12, conv_kernel_size=5, dropout=dropout
        ),
        no_gradient=(*_KEYS, "*depthwise_conv.bias"),
    ),
    Entry(
        make_espnet_e_branchformer_encoder,
        ENCODER,
        lambda features, dropout: make_espnet_e_branchformer_encoder(
            features,
            num_layers=2,
            out_dim=8,
            num_heads=2,
            ff_dim=12,
            cgmlp_dim=12,
            conv_kernel_size=5,
            merge_kernel_size=3,
            dropout=dropout,
        ),
    ),
    Entry(
        make_espnet_transformer_decoder,
        DECODER,
        lambda features, labels, dropout: make_espnet_transformer_decoder(
            features, labels, **_DECODER, ff_dim=12, dropout=dropout
        ),
    ),
    # Decoders and language models
    Entry(
        make_lstm_attention_decoder,
        DECODER,
        lambda features, labels, dropout: make_lstm_attention_decoder(
            features, labels, model_dim=6, embed_dim=4, att_dim=5, num_heads=2, dropout=dropout
        ),
    ),
    Entry(
        make_lstm_lm,
        LM,
        lambda labels, dropout: make_lstm_lm(labels, num_layers=1, embed_dim=4, model_dim=6, dropout=dropout),
    ),
    # Internal language models
    Entry(
        make_mini_lstm,
        PREDICTOR,
        lambda labels: make_mini_lstm(labels, 6, model_dim=5, embed_dim=4),
    ),
    Entry(
        make_internal_lm,
        LM,
        _internal_lm,
        no_gradient=("decoder.attention.*",),  # of one frame, which gets all of it
    ),
    # Parts of transducers
    Entry(
        make_lstm_predictor,
        PREDICTOR,
        lambda labels, dropout: make_lstm_predictor(labels, model_dim=6, embed_dim=4, dropout=dropout),
    ),
    Entry(
        make_stateless_predictor,
        PREDICTOR,
        lambda labels, dropout: make_stateless_predictor(labels, context_size=3, model_dim=6, dropout=dropout),
    ),
    *(
        Entry(
            make_joiner,
            JOINER,
            lambda features, labels, dropout, kind=kind: make_joiner(
                features, features, labels, kind=kind, model_dim=6, dropout=dropout
            ),
            variant=kind,
        )
        for kind in ("additive", "multiplicative", "gated")
    ),
    # Transformer decoder and language model
    *(
        Entry(
            make_transformer_decoder,
            DECODER,
            lambda features, labels, dropout, positions=positions: make_transformer_decoder(
                features, labels, **_DECODER, positions=positions, dropout=dropout
            ),
            variant=positions,
        )
        for positions in ("absolute", "rotary")
    ),
    *(
        Entry(
            make_transformer_lm,
            LM,
            lambda labels, dropout, options=options: make_transformer_lm(
                labels, **_DECODER, **options, dropout=dropout
            ),
            variant=variant,
        )
        for variant, options in [
            ("no-positions", {"positions": "none", "embed_dim": 4}),
            ("absolute", {"positions": "absolute"}),
            ("rotary", {"positions": "rotary"}),
        ]
    ),
    # Full models
    Entry(
        LanguageModel,
        TEXT_ALONE,
        lambda labels, dropout: LanguageModel(
            make_transformer_lm(labels, **_DECODER, dropout=dropout),
            bos=0,
            eos=1,
            word_starts=[False, False, True, True, False],
        ),
    ),
    *(
        Entry(
            make_transformer,
            TEXT,
            lambda labels, dropout, positions=positions: make_transformer(
                labels,
                labels,
                **_DECODER,
                positions=positions,
                dropout=dropout,
                label_smoothing=0.1 if dropout else 0.0,
                bos=0,
                eos=1,
            ),
            variant=positions,
        )
        for positions in ("absolute", "rotary")
    ),
    Entry(
        make_ctc_model,
        SPEECH,
        lambda features, labels, dropout: make_ctc_model(
            features,
            labels,
            encoder=_encoder(features, dropout),
            specaugment=_specaugment(dropout),
            aux_layers=[1],
        ),
        no_gradient=_KEYS,
    ),
    Entry(make_aed_model, SPEECH, _aed),
    Entry(make_aed_model, SPEECH_FROM_AUDIO, _aed_from_audio, variant="audio-lstm"),
    Entry(make_transducer_model, SPEECH, _transducer, no_gradient=_KEYS),
    Entry(
        make_transducer_model,
        SPEECH_FROM_AUDIO,
        _transducer_from_audio,
        variant="audio",
        no_gradient=_KEYS,
        like=make_transducer_model.__name__,  # its other parts have lines of their own
    ),
    Entry(
        make_ctc_model,
        SPEECH_FROM_AUDIO,
        lambda labels, dropout: make_ctc_model(
            None, labels, encoder=_encoder(nn.FeatureDim("mel", 8), dropout), specaugment=_specaugment(dropout)
        ),
        variant="audio",
        no_gradient=_KEYS,
    ),
]


if __name__ == "__main__":
    from tests.zoo_report import main

    main()
