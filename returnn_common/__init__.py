"""
Speech recognition and language models for RETURNN, and the building blocks that they are made of.

A model is written once, on RETURNN's frontend (:mod:`returnn_common.nn`),
and runs on each of RETURNN's engines: PyTorch, TensorFlow (layers or low-level) and JAX.
Importing this package, or any model in it, loads none of them: RETURNN picks the engine later.

Start with :mod:`returnn_common.models`, or copy one of the configs in :mod:`returnn_common.recipes`.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
