"""Which calls may name regions of shared memory.

Not those that come through an edge without its setting ``management``: who may not register regions may not read and write, by guessing
their names, those that others registered. The edge says that it has the setting by a header which no caller of it can send.
Where callers have rights, `management` is one of them, on every listener.
"""

from __future__ import annotations

from core_grpc.access import RIGHTS
from core_grpc.rpc.context import RpcContext
from core_grpc.shared_memory.regions import SharedMemory

_MANAGEMENT = "x-tensorgate-management"
_NOT_AT_EDGE = SharedMemory(is_allowed=False, refusal="ask the node's own listener, or allow it with the edge's setting management")


def memory_for(memory: SharedMemory, context: RpcContext) -> SharedMemory:
    """Shared memory as a call may use it."""
    if memory.is_allowed and (not RIGHTS.get().management or (context.from_edge and _MANAGEMENT not in context.metadata)):
        return _NOT_AT_EDGE
    return memory
