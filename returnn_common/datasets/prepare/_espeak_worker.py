"""
Speaks phrases with eSpeak NG, as a program of its own, which uses nothing but the standard library.

It is a process of its own because the library keeps hidden state (phases, random numbers) that no call resets: only in
a fresh process do the same phrases give the same samples. And a crash in native code ends only this process.

    python _espeak_worker.py LIBRARY FOLDER SEED < jobs.json > samples

FOLDER is the one that holds ``espeak-ng-data``. The jobs are a list of [text, voice, rate, pitch, range]: rate in words
per minute, the others 0 to 99. Output, all little-endian: the sample rate, then for each job the number of samples,
each as 4 bytes, and the samples, 16 bits each.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import sys

# From espeak-ng's speak_lib.h
_AUDIO_OUTPUT_SYNCHRONOUS = 2
_DONT_EXIT = 0x8000
_POSITION_CHARACTER = 1
_CHARS_UTF8 = 1
_RATE, _PITCH, _RANGE = 1, 3, 4


def main(library: str, folder: str, seed: str) -> None:
    """Run the jobs; see above."""
    # The library keeps its data's path in a short buffer: make it short, wherever the package lies.
    os.chdir(folder)
    lib = ctypes.CDLL(library)
    sample_rate = lib.espeak_Initialize(_AUDIO_OUTPUT_SYNCHRONOUS, 0, b".", _DONT_EXIT)
    if sample_rate <= 0:
        raise RuntimeError(f"eSpeak NG does not start (code {sample_rate}) with the data in {folder}")
    lib.espeak_ng_SetRandSeed.argtypes = [ctypes.c_long]
    lib.espeak_ng_SetRandSeed(int(seed))  # it starts from the time of day

    samples = array.array("h")
    callback_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)

    def collect(wave, num_samples: int, _events) -> int:
        if wave and num_samples > 0:
            samples.frombytes(ctypes.string_at(wave, 2 * num_samples))
        return 0

    callback = callback_type(collect)  # must live as long as the library may call it
    lib.espeak_SetSynthCallback(callback)
    lib.espeak_Synth.argtypes = [
        ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int, ctypes.c_uint, ctypes.c_uint,
        ctypes.c_void_p, ctypes.c_void_p,
    ]  # fmt: skip

    jobs = json.load(sys.stdin)
    out = sys.stdout.buffer
    out.write(sample_rate.to_bytes(4, "little"))
    for text, voice, rate, pitch, pitch_range in jobs:
        del samples[:]
        # The library silently falls back to the plain voice when the part after "+" is unknown.
        variant = os.path.join("espeak-ng-data", "voices", "!v", voice.partition("+")[2])
        if not os.path.exists(variant) or lib.espeak_SetVoiceByName(voice.encode()) != 0:
            raise RuntimeError(f"eSpeak NG has no voice {voice!r}")
        for parameter, value in [(_RATE, rate), (_PITCH, pitch), (_RANGE, pitch_range)]:
            lib.espeak_SetParameter(parameter, value, 0)
        data = text.encode() + b"\0"
        if lib.espeak_Synth(data, len(data), 0, _POSITION_CHARACTER, 0, _CHARS_UTF8, None, None) != 0 or not any(
            samples
        ):
            raise RuntimeError(f"eSpeak NG gives no sound for {text!r} in the voice {voice!r}")
        if sys.byteorder == "big":
            samples.byteswap()
        out.write(len(samples).to_bytes(4, "little") + samples.tobytes())
    out.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
