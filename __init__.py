"""
For a clone of the repository that is imported as a package itself: as ``recipe/returnn_common`` of a Sisyphus setup,
or through ``returnn.import_``. An installed package does not contain this file.

``X.nn``, ``X.models`` and so on are found in the inner folder, ``X.test`` beside this file; and ``X.returnn_common.nn``
too, which is how RETURNN imports a config that lies in a clone.
"""

import os as _os

_root = _os.path.dirname(_os.path.abspath(__file__))

# The inner package first: its modules are what people mean.
__path__ = [_os.path.join(_root, "returnn_common"), _root]

if __package__:  # not when a tool runs or reads this file by itself
    from .returnn_common import __version__ as __version__
