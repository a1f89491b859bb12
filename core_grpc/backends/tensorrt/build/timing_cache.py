"""The timing cache of full TensorRT: what the builder measured of each tactic, in a file, so that the next build need not measure again.

TensorRT-RTX times nothing at build and has only the empty form of it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core_grpc.backends.tensorrt.bindings import RTX, Bindings


def default_path(bindings: Bindings) -> Path:
    """Below the user's cache directory; a file for each version, because another version's cache is useless."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "tensorgate" / f"timing-{bindings.flavour.name}-{bindings.version}.cache"


@dataclass(frozen=True, slots=True)
class TimingCache:
    """The cache that one build reads and adds to."""

    path: Path | None
    """None: there is none."""
    _config: Any

    @classmethod
    def of(cls, bindings: Bindings, config: Any, path: Path | None) -> TimingCache:
        """Gives the file's content, if there is any, to a builder's configuration.

        A cache of another GPU or version, or what is none, is not used: TensorRT says so in its log, and starts an empty one.
        """
        if bindings.flavour is RTX:
            return cls(None, config)
        found = path or default_path(bindings)
        try:
            content = found.read_bytes()
        except OSError:
            content = b""
        config.set_timing_cache(config.create_timing_cache(content), ignore_mismatch=False)
        return cls(found, config)

    def keep(self) -> tuple[str, ...]:
        """Writes what the build has measured. A cache that cannot be written is no reason to fail: the user is told, in the lines given."""
        if self.path is None:
            return ()
        content = bytes(self._config.get_timing_cache().serialize())
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(content)
            temporary.replace(self.path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            return (f"the timing cache was not kept: {self.path} cannot be written: {error.strerror}",)
        return ()
