"""
RETURNN's frontend in one namespace, with the few generic pieces that it lacks.

Use it as ``from returnn_common import nn``. It holds everything of :mod:`returnn.frontend` (``nn.Module``,
``nn.Linear``, ``nn.relu``, ``nn.nested``, ...), the classes of :mod:`returnn.tensor`, and our own:

- dims: :func:`FeatureDim`, :func:`SpatialDim`, :func:`as_dim`, :func:`get_spatial_dim`, and :data:`any_feature_dim`
- :func:`dropout`, which also takes ``dropout=`` and ``axis=nn.any_feature_dim``
- :class:`Loss`, what a model's ``losses`` returns
- :func:`ctc_losses` of several heads, :func:`decoder_losses`, :func:`smoothed_cross_entropy`
- :func:`transducer_loss` and :func:`transducer_losses` with :class:`TransducerTargets`,
  :func:`joint_transducer_loss`, :func:`pruned_transducer_loss`; :func:`joint_transducer_scores` and
  :func:`transducer_occupancies`, from which alignments are made
- :class:`BatchNorm`, :class:`LSTM`, :class:`RotarySelfAttention`, :class:`StochasticDepth`,
  :func:`make_conv_subsampling`
- :func:`fuse`, which gives RETURNN's modules the forms that PyTorch computes faster
- :func:`scan_over`, a loop over the frames that can be differentiated on each engine
- :func:`fold_over`, a loop over the frames for a search
- :func:`while_loop`, whose body can call modules on each engine

Importing it loads no backend.

There is no ``__all__`` here on purpose: the namespace follows whatever the installed RETURNN offers.
"""

# The frontend comes first, so that our own names win where both have one (`dropout`, `Loss`).
from returnn.frontend import *
from returnn.frontend import audio as audio
from returnn.frontend import hooks as hooks
from returnn.frontend import init as init
from returnn.frontend import nested as nested
from returnn.frontend.tensor_array import TensorArray as TensorArray
from returnn.tensor import Dim as Dim
from returnn.tensor import Tensor as Tensor
from returnn.tensor import TensorDict as TensorDict
from returnn.tensor import batch_dim as batch_dim
from returnn.tensor import single_step_dim as single_step_dim

from ._ctc_losses import CtcHead as CtcHead
from ._ctc_losses import ctc_losses as ctc_losses
from ._decoder_losses import decoder_losses as decoder_losses
from ._decoder_losses import smoothed_cross_entropy as smoothed_cross_entropy
from ._dropout import dropout as dropout
from .batch_norm import BatchNorm as BatchNorm
from .decoder import Decoder as Decoder
from .dims import FeatureDim as FeatureDim
from .dims import SpatialDim as SpatialDim
from .dims import any_feature_dim as any_feature_dim
from .dims import as_dim as as_dim
from .dims import get_spatial_dim as get_spatial_dim
from .encoder import Encoder as Encoder
from .encoder import StreamingEncoder as StreamingEncoder
from .fused import fuse as fuse
from .loop import while_loop as while_loop
from .loss import Loss as Loss
from .lstm import LSTM as LSTM
from .recorded import fold_over as fold_over
from .rotary import RotarySelfAttention as RotarySelfAttention
from .scan import scan_over as scan_over
from .stochastic_depth import StochasticDepth as StochasticDepth
from .stochastic_depth import linear_drop_probs as linear_drop_probs
from .stochastic_depth import stochastic_depth as stochastic_depth
from .subsampling import make_conv_subsampling as make_conv_subsampling
from .transducer_alignment import TransducerOccupancies as TransducerOccupancies
from .transducer_alignment import transducer_occupancies as transducer_occupancies
from .transducer_joint import joint_transducer_loss as joint_transducer_loss
from .transducer_joint import joint_transducer_scores as joint_transducer_scores
from .transducer_loss import TransducerLoss as TransducerLoss
from .transducer_loss import TransducerTargets as TransducerTargets
from .transducer_loss import transducer_loss as transducer_loss
from .transducer_loss import transducer_losses as transducer_losses
from .transducer_pruning import PrunedTransducerLoss as PrunedTransducerLoss
from .transducer_pruning import pruned_transducer_loss as pruned_transducer_loss

# Last: importing our module of the same name has put that into its place.
from returnn.frontend import scan as scan  # isort: skip
