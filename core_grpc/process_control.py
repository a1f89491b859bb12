"""How a node talks to the process that started it: readiness out, drain in.

Out: the sd_notify protocol (https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html), so a node also runs as a
systemd service of ``Type=notify``. In: a pipe whose read end is named by ``TENSORGATE_CONTROL_FD``: the line ``drain`` asks for a
drain, ``drain now`` for one without notice (nobody is left in front), its end means that the parent is gone.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

CONTROL_FD = "TENSORGATE_CONTROL_FD"


def notify(*lines: str) -> None:
    """Tells the parent, if it listens: ``READY=1``, ``STATUS=…``, ``STOPPING=1``, ``X_DRAINED=1``."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        # An abstract socket, as systemd may give.
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        try:
            sender.sendto("\n".join(lines).encode(), address)
        except OSError:
            # The parent is gone or does not read: nothing that a node could do about it.
            return


def watch_control(on_drain: Callable[[bool], None], on_parent_gone: Callable[[], None]) -> None:
    """Calls back from the running event loop when the parent asks for a drain or is gone. Without a control pipe does nothing.

    ``on_drain`` is told whether somebody in front has to notice.
    """
    text = os.environ.get(CONTROL_FD, "")
    if not text:
        return
    fd = int(text)
    os.set_blocking(fd, False)
    loop = asyncio.get_running_loop()

    def readable() -> None:
        data = os.read(fd, 1024)
        if not data:
            loop.remove_reader(fd)
            on_parent_gone()
        elif b"drain" in data:
            on_drain(b"now" not in data)

    loop.add_reader(fd, readable)
