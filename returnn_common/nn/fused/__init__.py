"""
Modules of RETURNN's frontend in the forms that PyTorch computes faster: one call where the frontend composes several.

:func:`fuse` gives them to a model. They are subclasses of RETURNN's modules, with the same parameters, names and
results, which only on PyTorch compute otherwise; on the other engines, for packed tensors, and where PyTorch traces a
graph, they are RETURNN's.
"""

from .fuse import fuse

__all__ = ["fuse"]
