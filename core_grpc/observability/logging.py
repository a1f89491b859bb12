"""Log lines: one a record, on standard error, with the request's id where there is one. Payloads never enter a line."""

from __future__ import annotations

import logging
import sys

from core_grpc.errors import one_line

_LINE_LIMIT = 2000


class LineFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.123 INFO core_grpc.models.registry: text [request …]``; a traceback follows on its own lines."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03d"

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, with control characters escaped: a caller's text cannot forge a second record."""
        request_id = getattr(record, "request_id", "")
        text = f"{record.asctime} {record.levelname} {record.name}: {record.message}"
        return one_line(f"{text} [request {request_id}]" if request_id else text, _LINE_LIMIT)

    def usesTime(self) -> bool:
        """The time is in every line."""
        return True


def configure_logging(level: str) -> None:
    """Sends records of ``level`` (debug, info, warning, error) and above to standard error, one line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
