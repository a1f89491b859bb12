"""The file of API keys, which edge and nodes read while they run: hashed, one key a line, replaced as a whole.

A key is ``tg_<id>_<secret>``. The id is public and names the key everywhere; of the secret, 256 random bits, only SHA-256 is kept: what
cannot be guessed needs no slow hash. A line has six fields with tabs between: id, SHA-256 of the secret in hex, when it was made, when it
expires (seconds since 1970; 0: never), rights as ``core_grpc.access`` writes them, a note. Lines that begin with ``#`` are passed over.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from core_grpc.access import Rights, parse_rights

_KEY = re.compile(r"tg_([a-z0-9]{12})_([A-Za-z0-9_-]{43})")
_HEADER = "# Tensorgate API keys: id, SHA-256 of the secret, made, expires, rights, note. Written by `tensorgate keys`.\n"
_FIELDS = 6
_LOOK_S = 1.0
_NO_HASH = "0" * 64


class KeysError(Exception):
    """The file cannot be read or written, or has no such key; the message is one line."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key as it is kept."""

    id: str
    sha256: str
    """Of the secret, in hex."""
    made: int
    expires: int
    """Seconds since 1970; 0: never."""
    rights: Rights
    note: str = ""

    def is_valid(self, now: float) -> bool:
        """Whether it has not expired."""
        return not self.expires or now < self.expires

    def line(self) -> str:
        """As it stands in the file."""
        return "\t".join([self.id, self.sha256, str(self.made), str(self.expires), str(self.rights), self.note]) + "\n"


def new_key(rights: Rights, expires: int, note: str, now: float) -> tuple[ApiKey, str]:
    """A new key, and what its owner sends: shown once, kept nowhere."""
    secret = secrets.token_urlsafe(32)
    key = ApiKey(secrets.token_hex(6), _hash(secret), int(now), expires, rights, note)
    return key, f"tg_{key.id}_{secret}"


def read_keys(path: Path) -> dict[str, ApiKey]:
    """The keys of a file, by id.

    Raises:
        KeysError: it cannot be read, or a line is no key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise KeysError(f"the file of API keys cannot be read: {path.name}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from error
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line and not line.startswith("#")]
    keys = [_parsed(path, number, line) for number, line in lines]
    return {key.id: key for key in keys}


@contextmanager
def changed_keys(path: Path) -> Iterator[dict[str, ApiKey]]:
    """The keys of a file, to be changed: what they are in the end replaces the file at once. One change at a time.

    Raises:
        KeysError: see ``read_keys``; it cannot be written.
    """
    try:
        with path.with_name(f".{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            keys = read_keys(path) if path.exists() else {}
            yield keys
            _replace(path, _HEADER + "".join(key.line() for key in keys.values()))
    except OSError as error:
        raise KeysError(f"cannot write {path}: {error.strerror}") from error


class KeyFile:
    """The keys as a server asks for them: the file is looked at once a second, and what cannot be read lets nobody in."""

    def __init__(self, path: Path) -> None:
        """Raises KeysError: see ``read_keys``."""
        self._path = path
        self._keys: Mapping[str, ApiKey] = read_keys(path)
        self._stamp = _stamp(path)
        self._next_look = time.monotonic() + _LOOK_S

    def key_of(self, presented: str) -> ApiKey | None:
        """The valid key that a caller presents; None for anything else. Takes as long for a wrong secret as for an unknown id."""
        self._refresh()
        match = _KEY.fullmatch(presented)
        key = self._keys.get(match[1]) if match else None
        is_right = hmac.compare_digest(_hash(match[2] if match else ""), key.sha256 if key else _NO_HASH)
        return key if key and is_right and key.is_valid(time.time()) else None

    def _refresh(self) -> None:
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._keys = read_keys(self._path)
        except KeysError:
            self._keys = {}


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _parsed(path: Path, number: int, line: str) -> ApiKey:
    parts = line.split("\t")
    if len(parts) != _FIELDS or not re.fullmatch(r"[a-z0-9]{12}\t[0-9a-f]{64}\t[0-9]{1,12}\t[0-9]{1,12}", "\t".join(parts[:4])):
        raise KeysError(f"the file of API keys {path.name}, line {number}: wanted id, hash, made, expires, rights, note with tabs between")
    return ApiKey(parts[0], parts[1], int(parts[2]), int(parts[3]), parse_rights(parts[4]), parts[5])


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        info = path.stat()
    except OSError:
        return (0, 0, 0)
    return (info.st_ino, info.st_mtime_ns, info.st_size)


def _replace(path: Path, text: str) -> None:
    """Writes beside the file and renames, so that a reader finds the old file or the new one; only its owner may read it."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
