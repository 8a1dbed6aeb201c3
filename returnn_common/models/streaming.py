"""
Speech recognition of what comes in pieces: from raw audio or features, through encoder and search, which both have a
state, to hypotheses after each piece. After the last one, they are those of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import nn
from ..nn.stream_buffer import StreamBuffer
from ..search import Hypotheses, SearchStream
from .features import LogMel

__all__ = ["EncoderStream", "SpeechStream", "check_encoder_streams"]


def check_encoder_streams(owner: str, encoder: Any) -> nn.StreamingEncoder:
    """
    :param owner: for the message
    :return: the same
    :raises ValueError: for an encoder that needs the whole utterance
    """
    if not isinstance(encoder, nn.StreamingEncoder):
        raise ValueError(
            f"{owner}: expected an encoder that has a step from chunk to chunk, such as"
            f" make_streaming_conformer_encoder, got {type(encoder).__name__}"
        )
    return encoder


class EncoderStream:
    """
    From pieces of any size to what the encoder makes of them. It takes whole chunks; what makes none yet is held back.

    :param encoder: with a state
    :param features: raw audio to the encoder's input; None: the source is that input
    :param batch_dims: of the utterances
    """

    def __init__(self, encoder: nn.StreamingEncoder, *, features: LogMel | None, batch_dims: Sequence[nn.Dim]):
        self.encoder = encoder
        self.features = features
        self.batch_dims = list(batch_dims)
        chunk = encoder.chunk_size * int(encoder.downsample_factor)
        self._chunks = StreamBuffer(step=chunk, window=chunk)

    def initial_state(self) -> nn.State:
        """
        :return: before the first piece
        :raises ValueError: if the features are normalised over whole utterances
        """
        features = self.features
        return nn.State(
            features=features.initial_state(batch_dims=self.batch_dims) if features is not None else None,
            chunks=self._chunks.initial_state(batch_dims=self.batch_dims, item_dims=[self.encoder.in_dim]),
            encoder=self.encoder.initial_state(batch_dims=self.batch_dims),
        )

    def step(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim, state: nn.State) -> tuple[nn.Tensor, nn.Dim, nn.State]:
        """
        :param source: the next ``{batch, time}`` of raw audio, or ``{batch, time, in_dim}``, of each utterance as many
            as there are, also none
        :param in_spatial_dim: time
        :param state: of :meth:`initial_state`, or of the step before
        :return: encoder's output for the complete chunks, ``{batch, time', out_dim}``; the dim time'; new state
        :raises ValueError: if the source has no ``in_dim``
        """
        new_state = nn.State(features=None)
        if self.features is not None:
            source, in_spatial_dim, new_state.features = self.features.step(
                source, in_spatial_dim=in_spatial_dim, state=state.features
            )
        elif self.encoder.in_dim not in source.dims:
            raise ValueError(f"speech stream: expected features with {self.encoder.in_dim}, got {source}")
        source, time, new_state.chunks = self._chunks.push(source, in_spatial_dim=in_spatial_dim, state=state.chunks)
        out, time, new_state.encoder = self._encode(source, time, state.encoder)
        return out, time, new_state

    def finish(self, state: nn.State) -> list[tuple[nn.Tensor, nn.Dim]]:
        """
        :param state: of the last :meth:`step`
        :return: encoder's output for what was held back, in one or two pieces; nothing can follow
        """
        outputs, encoder_state, chunks = [], state.encoder, state.chunks
        if self.features is not None:
            source, time = self.features.finish(state.features)
            source, time, chunks = self._chunks.push(source, in_spatial_dim=time, state=chunks)
            out, time, encoder_state = self._encode(source, time, encoder_state)
            outputs.append((out, time))
        source, time = self._chunks.flush(chunks)
        out, time, _ = self._encode(source, time, encoder_state)
        return [*outputs, (out, time)]

    def _encode(self, source: nn.Tensor, time: nn.Dim, state: nn.State) -> tuple[nn.Tensor, nn.Dim, nn.State]:
        source.feature_dim = self.encoder.in_dim
        if nn.is_executing_eagerly() and not nn.is_static_traceable() and not int(time.get_dim_value()):
            # Convolutions of some engines take no sequence without frames.
            return (
                nn.zeros([*self.batch_dims, time, self.encoder.out_dim], feature_dim=self.encoder.out_dim),
                time,
                state,
            )
        return self.encoder.step(source, in_spatial_dim=time, state=state)


class SpeechStream:
    """
    What a model's ``stream`` returns. Utterances of a batch need not keep pace::

        stream = model.stream(batch_dims=[batch_dim], beam_size=4)
        state = stream.initial_state()
        for piece, time in pieces:  # of any size
            state = stream.step(piece, in_spatial_dim=time, state=state)
            print(stream.hypotheses(state).nbest(0))  # so far
        print(stream.hypotheses(stream.finish(state)).nbest(0))

    :param encoder: to the encoder's output
    :param search: with a state
    :param to_frames: from the encoder's output to what the search takes, e.g. log probabilities; None: it takes that
    :param device: of the model
    """

    def __init__(
        self,
        encoder: EncoderStream,
        *,
        search: SearchStream,
        to_frames: Callable[[nn.Tensor], nn.Tensor] | None = None,
        device: str | None,
    ):
        self.encoder = encoder
        self.to_frames = to_frames
        self.search = search
        self.device = device

    def initial_state(self) -> nn.State:
        """
        :return: before the first piece: nested tensors
        :raises ValueError: if the features are normalised over whole utterances
        """
        with nn.set_default_device_ctx(self.device):
            return nn.State(encoder=self.encoder.initial_state(), search=self.search.initial_state())

    def step(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim, state: nn.State) -> nn.State:
        """
        :param source: see :meth:`EncoderStream.step`
        :param in_spatial_dim: its time
        :param state: of :meth:`initial_state`, or of the step before
        :return: new state
        :raises ValueError: if the source has no ``in_dim``
        """
        with nn.set_default_device_ctx(self.device):
            out, time, encoder_state = self.encoder.step(source, in_spatial_dim=in_spatial_dim, state=state.encoder)
            return nn.State(encoder=encoder_state, search=self._search(out, time, state.search))

    def finish(self, state: nn.State) -> nn.State:
        """
        :param state: of the last :meth:`step`
        :return: with what was held back; it is for :meth:`hypotheses`, not for another step
        """
        with nn.set_default_device_ctx(self.device):
            search_state = state.search
            for out, time in self.encoder.finish(state.encoder):
                search_state = self._search(out, time, search_state)
            return nn.State(encoder=state.encoder, search=search_state)

    def hypotheses(self, state: nn.State) -> Hypotheses:
        """:return: those of the frames that the encoder has given out, as if the utterances ended there"""
        with nn.set_default_device_ctx(self.device):
            return self.search.hypotheses(state.search)

    def _search(self, out: nn.Tensor, time: nn.Dim, state: Any) -> Any:
        frames = out if self.to_frames is None else self.to_frames(out)
        return self.search.step(frames, spatial_dim=time, state=state)
