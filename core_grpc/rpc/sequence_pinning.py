"""Sequences behind an edge with several nodes: one that may land anywhere is refused before it begins.

The sequence's id is inside the message, where the edge cannot read it. So callers repeat it in the header ``x-sequence-id``, by which the
edge chooses the node and which it never asks twice. Other calls it spreads, and asks again elsewhere when a node fails; it marks them.
"""

from __future__ import annotations

from core_grpc.errors import FailedPrecondition
from core_grpc.rpc.context import RpcContext
from core_grpc.types import InferRequest

SPREAD_HEADER = "x-tensorgate-spread"
"""Set by the edge on unary calls that any node may get, and taken from no client (envoy/edge.yaml.j2)."""


def refuse_spread_sequence(request: InferRequest, context: RpcContext) -> None:
    """Holds a unary request against the way it came.

    Raises:
        FailedPrecondition: it belongs to a sequence, and the next one of it could reach another node.
    """
    if request.parameters.get("sequence_id") and SPREAD_HEADER in context.metadata:
        raise FailedPrecondition(
            "parameter 'sequence_id': there are several nodes behind this edge: repeat the id in the header x-sequence-id, or use a stream"
        )
