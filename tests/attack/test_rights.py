"""What each caller may do, on every door and inside streams: the same answer everywhere, and changes without a restart."""

from __future__ import annotations

import grpc
import httpx
import pytest

from protos.inference import grpc_service_pb2 as oip
from protos.inference import grpc_service_pb2_grpc
from protos.tensorgate.v1 import inference_pb2
from tests.support.identified import ALLOWED, DENIED, MODEL_INFER, Identified, infer_message
from tests.support.programs import Program, wait_until
from tests.support.raw_grpc import framed, raw_call

WEB = {"content-type": "application/grpc-web+proto", "x-grpc-web": "1"}


def web_status(identified: Identified, path: str, message: bytes, headers: dict[str, str]) -> str:
    answer = httpx.post(identified.url + path, content=framed(message), headers={**WEB, **headers}, timeout=20)
    return answer.headers.get("grpc-status") or answer.content.rpartition(b"grpc-status:")[2][:2].strip().decode()


@pytest.mark.parametrize(
    ("caller", "model", "http", "status"),
    [
        ("limited", ALLOWED, 200, "0"),
        ("limited", DENIED, 403, "7"),
        ("limited", "no_such_model", 403, "7"),
        ("operator", DENIED, 200, "0"),
        ("no_models", ALLOWED, 403, "7"),
        ("expired", ALLOWED, 401, "16"),
    ],
)
def test_a_right_holds_on_every_door(identified: Identified, caller: str, model: str, http: int, status: str) -> None:
    header = identified.header(caller)
    rest = identified.infer(model, header)
    assert rest.status_code == http, rest.text
    assert (set(rest.json()) == {"error"}) is (http != 200)
    assert (rest.headers.get("www-authenticate") is not None) is (http == 401)
    assert identified.native(model, header).headers["grpc-status"] == status
    assert identified.native(model, header, at_node=True).headers["grpc-status"] == status
    assert web_status(identified, MODEL_INFER, infer_message(model), header) == status
    predict = httpx.post(f"{identified.url}/predict", json={"input": [[7]], "model": model}, headers=header, timeout=20)
    assert predict.status_code == http, predict.text


def test_a_key_is_for_its_doors(identified: Identified) -> None:
    header = identified.header("rest_only")
    assert identified.infer(ALLOWED, header).status_code == 200
    assert identified.native(ALLOWED, header).headers["grpc-status"] == "7"
    assert identified.native(ALLOWED, header, at_node=True).headers["grpc-status"] == "7"
    assert web_status(identified, MODEL_INFER, infer_message(ALLOWED), header) == "7"


def test_a_list_shows_what_its_caller_may_use(identified: Identified) -> None:
    def names(caller: str) -> set[str]:
        answer = httpx.get(f"{identified.url}/v1/models", headers=identified.header(caller))
        index = httpx.post(f"{identified.url}/v2/repository/index", headers=identified.header(caller), json={})
        found = {model["name"] for model in answer.json()["models"]}
        assert found == {model["name"] for model in index.json()}
        return found

    assert names("limited") == {ALLOWED}
    assert names("operator") == {ALLOWED, DENIED}
    assert names("no_models") == set()


def test_a_right_holds_for_each_request_of_a_stream(identified: Identified) -> None:
    requests = [oip.ModelInferRequest.FromString(infer_message(model)) for model in (ALLOWED, DENIED, ALLOWED)]
    with grpc.insecure_channel(identified.stack.addresses.edge_grpc) as channel:
        stub = grpc_service_pb2_grpc.GRPCInferenceServiceStub(channel)
        metadata = list(identified.header("limited").items())
        answers = list(stub.ModelStreamInfer(iter(requests), metadata=metadata, timeout=20))
    assert [bool(answer.error_message) for answer in answers] == [False, True, False]
    assert "may not use it" in answers[1].error_message


def test_management_is_a_right(identified: Identified) -> None:
    path = f"{identified.url}/v2/repository/models/{ALLOWED}/load"
    assert httpx.post(path, headers=identified.header("limited"), json={}).status_code == 403
    assert httpx.post(path, headers=identified.header("operator"), json={}, timeout=20).status_code == 200
    request = inference_pb2.LoadModelRequest(model=ALLOWED).SerializeToString()
    load = "/tensorgate.v1.InferenceService/LoadModel"
    for address in (identified.stack.addresses.edge_grpc, identified.stack.addresses.node_grpc):
        assert raw_call(address, load, framed(request), identified.header("limited")).headers["grpc-status"] == "7"
        assert raw_call(address, load, framed(request), identified.header("operator")).headers["grpc-status"] == "0"


def test_health_and_pages_ask_for_nobody(identified: Identified) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", "/health", "/docs", "/openapi.json"):
        assert httpx.get(identified.url + path, timeout=20).status_code == 200, path
    for address in (identified.stack.addresses.edge_grpc, identified.stack.addresses.node_grpc):
        assert raw_call(address, "/grpc.health.v1.Health/Check", framed(b""), {}).headers["grpc-status"] == "0"


def test_a_preflight_needs_no_key(identified: Identified) -> None:
    headers = {"origin": "http://localhost:3000", "access-control-request-method": "POST", "access-control-request-headers": "x-api-key"}
    answer = httpx.options(f"{identified.url}/v2/models/{ALLOWED}/infer", headers=headers)
    assert answer.status_code == 200
    assert "x-api-key" in answer.headers["access-control-allow-headers"]


def test_a_token_gives_the_rights_of_its_scope(identified: Identified) -> None:
    bearer = {"authorization": f"Bearer {identified.issuer.token('openid model:open_*')}"}
    assert identified.infer(ALLOWED, bearer).status_code == 200
    assert identified.infer(DENIED, bearer).status_code == 403
    assert identified.native(ALLOWED, bearer).headers["grpc-status"] == "0"
    no_scope = {"authorization": f"Bearer {identified.issuer.token('openid')}"}
    assert identified.infer(ALLOWED, no_scope).status_code == 403


def test_keys_change_while_everything_runs(identified: Identified) -> None:
    """A connection that is open stays open, and its next call with a revoked key is refused."""

    def keys(*arguments: str) -> str:
        with Program("tensorgate", "keys", *arguments, "--file", str(identified.keys_file)) as program:
            assert program.wait() == 0, program.output
            return program.output

    key = next(line for line in keys("create", "--model", "open_*").splitlines() if line.startswith("tg_"))
    key_id = key.split("_")[1]
    body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [7]}]}
    with httpx.Client(base_url=identified.url, headers={"x-api-key": key}, timeout=20) as client:

        def status() -> int:
            return client.post(f"/v2/models/{ALLOWED}/infer", json=body).status_code

        def both(http: int, grpc_status: str) -> bool:
            at_node = identified.native(ALLOWED, {"x-api-key": key}, at_node=True)
            return status() == http and at_node.headers["grpc-status"] == grpc_status

        wait_until(lambda: both(200, "0"), "the new key is known", 5)
        rotated = next(line for line in keys("rotate", key_id).splitlines() if line.startswith("tg_"))
        wait_until(lambda: both(401, "16"), "the old key is over", 5)
        wait_until(lambda: identified.infer(ALLOWED, {"x-api-key": rotated}).status_code == 200, "the rotated key is known", 5)
    assert key_id not in keys("list")
    keys("revoke", rotated.split("_")[1])
    wait_until(lambda: identified.infer(ALLOWED, {"x-api-key": rotated}).status_code == 401, "the revoked key is over", 5)


def test_a_listener_that_asks_who_calls_may_be_reached_by_others(identified: Identified) -> None:
    flags = ["edge", "--host", "0.0.0.0", "--port", "0"]
    with Program("tensorgate", *flags) as program:
        assert program.wait() == 1
        assert "say --insecure" in program.output
    with Program("tensorgate", *flags, "--keys", str(identified.keys_file)) as program:
        program.wait_for("edge listens on")
