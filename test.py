"""
The smallest thing to load with ``returnn.import_``, to see whether it works.
"""

__all__ = ["hello"]


def hello() -> str:
    """
    :return: a greeting
    """
    return "hello world"
