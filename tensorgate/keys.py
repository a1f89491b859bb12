"""``tensorgate keys``: makes, lists, rotates and revokes API keys, while edge and nodes run."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from core_grpc.access import ALL_RIGHTS, Rights
from core_grpc.api_keys import ApiKey, KeysError, changed_keys, new_key, read_keys
from core_grpc.settings import SettingsError, load_settings
from tensorgate.settings import KeysSettings


@dataclass(frozen=True, slots=True)
class KeyCommand:
    """What is asked."""

    action: str
    """``create``, ``list``, ``rotate`` or ``revoke``."""
    key_id: str = ""
    """Of the key to rotate or revoke."""
    rights: Rights = ALL_RIGHTS
    note: str = ""
    expires: int = 0
    """Seconds since 1970; 0: never."""
    overlap_s: int = 0
    """For how long a rotated key stays valid beside the new one."""


def run(environ: Mapping[str, str], command: KeyCommand) -> int:
    """Does it.

    Raises:
        SettingsError: no file is named.
        KeysError: the file cannot be read or written, or has no such key.
    """
    name = load_settings(KeysSettings, environ).auth.keys_file
    if not name:
        raise SettingsError("name the file of keys with --file, or set TENSORGATE_AUTH_KEYS_FILE")
    path = Path(name)
    if command.action == "list":
        sys.stdout.write(_table(list(read_keys(path).values())))
        return 0
    with changed_keys(path) as keys:
        if command.action == "create":
            key, shown = new_key(command.rights, command.expires, command.note, time.time())
            keys[key.id] = key
        elif command.action == "rotate":
            shown = _rotate(keys, command)
        else:
            del keys[_known(keys, command.key_id).id]
            shown = ""
    if shown:
        # The key alone on standard output, so that a script can take it.
        sys.stdout.write(f"{shown}\n")
        sys.stderr.write("keep it: only its hash was stored, and it is not shown again\n")
    return 0


def _rotate(keys: dict[str, ApiKey], command: KeyCommand) -> str:
    """A new key with the rights of an old one, which ends."""
    old, now = _known(keys, command.key_id), time.time()
    key, shown = new_key(old.rights, old.expires, old.note, now)
    keys[key.id] = key
    if command.overlap_s:
        ends = int(now) + command.overlap_s
        keys[old.id] = replace(old, expires=min(old.expires, ends) if old.expires else ends)
    else:
        del keys[old.id]
    return shown


def _known(keys: Mapping[str, ApiKey], key_id: str) -> ApiKey:
    if key_id not in keys:
        raise KeysError(f"no key has the id {key_id!r}: see `tensorgate keys list`")
    return keys[key_id]


def _table(keys: list[ApiKey]) -> str:
    rows = [("id", "made", "expires", "rights", "note")]
    rows += [(key.id, _day(key.made), _ends(key), str(key.rights), key.note) for key in keys]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n" for row in rows)


def _ends(key: ApiKey) -> str:
    if not key.expires:
        return "never"
    return _day(key.expires) if key.is_valid(time.time()) else f"{_day(key.expires)} (over)"


def _day(moment: int) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M")
