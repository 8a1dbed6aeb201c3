"""
What the commands say when they cannot go on.
"""

from __future__ import annotations

__all__ = ["CommandError"]


class CommandError(Exception):
    """
    Ends a command with a message, without a traceback.

    :param message: for the user
    :param exit_status: 2: the call cannot work; 1: something failed on the way
    """

    def __init__(self, message: str, *, exit_status: int = 2):
        super().__init__(message)
        self.exit_status = exit_status
