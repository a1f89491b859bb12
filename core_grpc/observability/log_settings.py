"""What is logged, changed while the server runs: Triton's logging extension.

Settings: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_logging.md. ``log_format`` ``default`` has
local times, ``ISO8601`` has UTC with a Z. A ``log_verbose_level`` above 0 shows debug lines. The file cannot be changed: it is standard
error, which belongs to whoever started the process.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from core_grpc.errors import InvalidArgument, Unsupported, quoted

FORMATS = ("default", "ISO8601")
_MOST_VERBOSE = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The settings, under Triton's names."""

    log_file: str = ""
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_verbose_level: int = 0
    log_format: str = "default"


class LogControl(logging.Filter):
    """Reads and changes the settings. A filter of the root logger's handlers, which is how they take effect."""

    def __init__(self) -> None:
        super().__init__()
        level = logging.getLogger().level
        self._settings = LogSettings(
            log_info=level <= logging.INFO, log_warning=level <= logging.WARNING, log_verbose_level=int(level <= logging.DEBUG)
        )

    @property
    def settings(self) -> LogSettings:
        """What holds now."""
        return self._settings

    def update(self, changes: Mapping[str, bool | int | str]) -> LogSettings:
        """Changes some settings, all or none, and gives what holds then.

        Raises:
            InvalidArgument: no such setting, or a value of the wrong kind.
            Unsupported: the file.
        """
        for name, value in changes.items():
            _check(name, value)
        self._settings = replace(self._settings, **changes)  # type: ignore[arg-type]  # Checked above.
        self._apply()
        return self._settings

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is logged."""
        if record.levelno >= logging.ERROR:
            return self._settings.log_error
        if record.levelno >= logging.WARNING:
            return self._settings.log_warning
        return self._settings.log_info if record.levelno >= logging.INFO else self._settings.log_verbose_level > 0

    def _apply(self) -> None:
        root = logging.getLogger()
        root.setLevel(logging.DEBUG if self._settings.log_verbose_level else logging.INFO)
        for handler in root.handlers:
            if self not in handler.filters:
                handler.addFilter(self)
            if handler.formatter:
                is_utc = self._settings.log_format == "ISO8601"
                handler.formatter.converter = time.gmtime if is_utc else time.localtime
                handler.formatter.default_msec_format = "%s.%03dZ" if is_utc else "%s.%03d"


_KINDS = {item.name: item.type for item in fields(LogSettings)}


def _check(name: str, value: object) -> None:
    if name == "log_file":
        raise Unsupported("log file location can not be updated through network protocol: the log is the process's standard error")
    if name not in _KINDS:
        raise InvalidArgument(f"log setting {quoted(name)}: wanted one of {', '.join(_KINDS)}")
    if _KINDS[name] == "bool" and not isinstance(value, bool):
        raise InvalidArgument(f"{name}: wanted true or false")
    if name == "log_verbose_level" and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_VERBOSE):
        raise InvalidArgument(f"{name}: wanted a whole number from 0")
    if name == "log_format" and value not in FORMATS:
        raise InvalidArgument(f"{name}: wanted one of {', '.join(FORMATS)}")
