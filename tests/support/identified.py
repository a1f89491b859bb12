"""A gateway that asks who calls, with keys of several rights and an issuer of tokens, and calls that are just HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from core_grpc.access import DOORS, Rights
from core_grpc.api_keys import changed_keys, new_key
from protos.inference import grpc_service_pb2 as oip
from tests.support.models import write_identity
from tests.support.raw_grpc import RawAnswer, framed, raw_call
from tests.support.stack import Stack, running_stack
from tests.support.tokens import AUDIENCE, ISSUER, Issuer

ALLOWED, DENIED = "open_model", "secret_model"
KEYS: Mapping[str, Rights] = {
    "limited": Rights(("open_*",)),
    "rest_only": Rights(("*",), ("rest",)),
    "no_models": Rights(()),
    "operator": Rights(("*",), DOORS, management=True),
}
MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"


@dataclass(frozen=True)
class Identified:
    """A running gateway and its callers' secrets."""

    stack: Stack
    keys: Mapping[str, str]
    """What callers send, by the names of ``KEYS``; ``expired`` is over."""
    keys_file: Path
    issuer: Issuer

    @property
    def url(self) -> str:
        """Of the edge."""
        return self.stack.addresses.edge_url

    def header(self, name: str) -> dict[str, str]:
        """The header that shows a key."""
        return {"x-api-key": self.keys[name]}

    def infer(self, model: str, headers: Mapping[str, str]) -> httpx.Response:
        """One inference over REST."""
        body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [7]}]}
        return httpx.post(f"{self.url}/v2/models/{model}/infer", json=body, headers=dict(headers), timeout=20)

    def native(self, model: str, headers: Mapping[str, str], *, at_node: bool = False) -> RawAnswer:
        """One inference over gRPC, at the edge or at the node's own listener."""
        addresses = self.stack.addresses
        return raw_call(addresses.node_grpc if at_node else addresses.edge_grpc, MODEL_INFER, framed(infer_message(model)), headers)


def infer_message(model: str) -> bytes:
    """A serialized ModelInferRequest of one value."""
    request = oip.ModelInferRequest(model_name=model)
    request.inputs.add(name="X", datatype="FP32", shape=[1, 1]).contents.fp32_contents.append(7.0)
    return request.SerializeToString()


@contextmanager
def identified_stack(
    free_port: Callable[[], int], transport: str, directory: Path, environ: Mapping[str, str] | None = None
) -> Iterator[Identified]:
    """``tensorgate serve`` with a file of keys and a token issuer."""
    repository, keys_file = directory / "models", directory / "keys"
    for model in (ALLOWED, DENIED):
        write_identity(repository, model, {"X": ("FP32", [-1, 1])}, "max_batch_size = 8\n[warmup]\ncount = 0\n")
    issuer = Issuer(directory)
    auth = {
        "TENSORGATE_AUTH_KEYS_FILE": str(keys_file),
        "TENSORGATE_AUTH_JWT_ISSUER": ISSUER,
        "TENSORGATE_AUTH_JWT_AUDIENCE": AUDIENCE,
        "TENSORGATE_AUTH_JWT_JWKS_FILE": str(issuer.jwks_file),
    }
    keys = {name: add_key(keys_file, rights) for name, rights in KEYS.items()}
    keys["expired"] = add_key(keys_file, Rights(("*",)), expires=int(time.time()) - 1)
    with running_stack(free_port, transport, repository, {**auth, **(environ or {})}) as stack:
        yield Identified(stack, keys, keys_file, issuer)


def add_key(keys_file: Path, rights: Rights, expires: int = 0) -> str:
    """A new key in the file, as its owner shows it."""
    with changed_keys(keys_file) as keys:
        key, shown = new_key(rights, expires, "", time.time())
        keys[key.id] = key
    return shown
