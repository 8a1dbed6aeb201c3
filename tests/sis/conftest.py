"""
For all tests of Sisyphus' room.
"""

from __future__ import annotations

import pytest
from returnn.util.basic import BehaviorVersion


@pytest.fixture(autouse=True)
def _no_behavior_version():
    """Models depend on it, and so do their hashes; a test before may have set one."""
    state = BehaviorVersion._get_state()
    BehaviorVersion._reset()
    yield
    BehaviorVersion._reset(state)
