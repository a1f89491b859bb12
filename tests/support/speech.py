"""Real speech, and the model that hears it: Silero VAD with its state kept by the server. See tests/data/README.md."""

from __future__ import annotations

import shutil
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SILERO = Path(__file__).parents[1] / "data" / "silero_vad_16k_batch.onnx"
CLIPS = Path("/usr/share/sounds/alsa")
"""Of the Debian package alsa-utils: a voice that says where the loudspeakers are."""
RATE = 16_000
NEW, CONTEXT = 512, 64
"""Samples of a frame that are new, and those of the one before that stand in front of them."""
CONFIG = """
max_batch_size = 64
[queue]
max_rows = 4096
[sequence]
max_idle_ms = 60000
[[sequence.state]]
input = "state"
output = "stateN"
"""

Samples = NDArray[np.float32]


def write_silero(repository: Path, name: str = "silero", config: str = CONFIG) -> None:
    """``silero``: input FP32 [batch, 576] -> output [batch, 1], the probability of speech; state [2, batch, 128] -> stateN."""
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    shutil.copy(SILERO, directory / "model.onnx")
    (repository / name / "model.toml").write_text(config, encoding="utf-8")


def spoken_clips() -> Sequence[Samples]:
    """The clips with a voice, at 16 kHz."""
    paths = sorted(path for path in CLIPS.glob("*.wav") if path.name != "Noise.wav")
    assert len(paths) == 8, f"wanted the 8 clips of the Debian package alsa-utils in {CLIPS}, found {len(paths)}"
    return [_samples(path) for path in paths]


def frames(samples: Samples, start: int = 0) -> NDArray[np.float32]:
    """The frames from sample ``start`` on, ``[frames, 576]``."""
    heard = np.concatenate([np.zeros(CONTEXT, np.float32), samples[start:]])
    count = (len(heard) - CONTEXT) // NEW
    return np.stack([heard[index * NEW : index * NEW + CONTEXT + NEW] for index in range(count)])


def _samples(path: Path) -> Samples:
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth()) == (1, 2)
        whole = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768
        return _at_16_khz(whole, file.getframerate())


def _at_16_khz(samples: NDArray[np.floating], rate: int) -> Samples:
    """Every third sample, or so, of what is below 8 kHz: a sinc under a Kaiser window takes the rest away."""
    step = rate // RATE
    assert step * RATE == rate
    offsets = np.arange(-10 * step, 10 * step + 1)
    taps = np.sinc(offsets / step) * np.kaiser(len(offsets), 5.0)
    return np.convolve(samples, taps / taps.sum(), mode="same")[::step].astype(np.float32)
