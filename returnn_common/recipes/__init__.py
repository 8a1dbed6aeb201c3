"""
Complete experiment configs, one readable file each. Copy one and change it, or run it::

    returnn-common run digits_ctc --corpus DIR --out DIR
    python -m returnn digits_ctc.py ++corpus PREPARED_DIR ++backend torch
"""
