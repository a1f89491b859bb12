"""Who may call an RPC at all: an identity is asked for here, by the RPC's name, so that no spelling of a URL matters.

On the private Unix socket the edge says who calls. On the node's own listener nobody is believed: a caller shows an API key.
"""

from __future__ import annotations

from core_grpc.access import RIGHTS, Rights, check_door, parse_rights
from core_grpc.api_keys import KeyFile
from core_grpc.errors import PermissionDenied, Unauthenticated
from core_grpc.observability.caller import ANONYMOUS, CALLER, caller_of
from core_grpc.rpc.context import RpcContext

RIGHTS_HEADER = "x-tensorgate-rights"
DOOR_HEADER = "x-tensorgate-door"
_CHALLENGE = ("www-authenticate", 'Bearer realm="tensorgate"')
_OPEN = (
    "/grpc.health.v1.Health/Check",
    "/inference.GRPCInferenceService/ServerLive",
    "/inference.GRPCInferenceService/ServerReady",
    "/tensorgate.rest.v1.Rest/ServerLive",
    "/tensorgate.rest.v1.Rest/ServerReady",
)
"""RPCs for whoever asks: they say whether the server answers, and nothing else. A load balancer has no key."""
_MANAGEMENT_WORDS = ("LoadModel", "UnloadModel", "RepositoryModel", "SharedMemory", "TraceSetting", "LogSetting")


def is_management(path: str) -> bool:
    """Whether an RPC changes the server, or shows what only its operator should see."""
    method = path.rpartition("/")[2]
    return any(word in method for word in _MANAGEMENT_WORDS)


class Admission:
    """Looks at each call before its handler."""

    def __init__(self, *, is_metered: bool, is_required: bool, keys: KeyFile | None) -> None:
        """``is_required`` asks for an identity; ``keys`` are those that callers of the node's own listener may show."""
        self._is_metered = is_metered
        self._is_required = is_required
        self._keys = keys

    def admit(self, path: str, context: RpcContext) -> None:
        """Sets the caller and the rights of the current task.

        Raises:
            Unauthenticated: nobody vouches for the caller.
            PermissionDenied: the caller may not use this door, or not manage.
        """
        if not self._is_required:
            if self._is_metered and context.from_edge:
                CALLER.set(caller_of(context.metadata))
            return
        caller, rights = self._from_edge(context) if context.from_edge else self._from_key(context)
        if rights is None:
            if path in _OPEN:
                RIGHTS.set(Rights())
                return
            context.set_header(*_CHALLENGE)
            raise Unauthenticated("wanted an API key (x-api-key, or authorization: Bearer) or a token, got none that is valid")
        CALLER.set(caller)
        RIGHTS.set(rights)
        check_door(rights, context.metadata.get(DOOR_HEADER, "grpc") if context.from_edge else "grpc")
        if is_management(path) and not rights.management:
            raise PermissionDenied("management: this caller may not load, unload or change settings")

    def _from_edge(self, context: RpcContext) -> tuple[str, Rights | None]:
        caller, text = caller_of(context.metadata), context.metadata.get(RIGHTS_HEADER)
        return (ANONYMOUS, None) if caller == ANONYMOUS or text is None else (caller, parse_rights(text))

    def _from_key(self, context: RpcContext) -> tuple[str, Rights | None]:
        bearer = context.metadata.get("authorization", "")
        presented = context.metadata.get("x-api-key") or (bearer[7:].strip() if bearer[:7].lower() == "bearer " else "")
        key = self._keys.key_of(presented) if self._keys else None
        return (key.id, key.rights) if key else (ANONYMOUS, None)
