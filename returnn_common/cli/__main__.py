"""``python -m returnn_common.cli`` is the command ``returnn-common``."""

from __future__ import annotations

import sys

from .main import main

if __name__ == "__main__":
    sys.exit(main())
