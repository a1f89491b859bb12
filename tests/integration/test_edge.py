"""A real edge before a real node: who gets where, and in what form failures come back."""

from __future__ import annotations

import json
import struct
import time
from typing import Any

import grpc
import httpx
import pytest

from protos.tensorgate.v1 import inference_pb2, inference_pb2_grpc
from tests.integration.conftest import MAX_MESSAGE_BYTES, Gateway

ECHO = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
WEB = {"content-type": "application/grpc-web+proto", "x-grpc-web": "1"}


def predict_request(model: str = "echo") -> inference_pb2.PredictRequest:
    tensor = inference_pb2.Tensor(name="X", datatype="FP32", shape=[1, 4], float_values=[1, 2, 3, 4])
    return inference_pb2.PredictRequest(model=model, inputs=[tensor])


def framed(message: bytes) -> bytes:
    return struct.pack(">BI", 0, len(message)) + message


def error_of(answer: httpx.Response) -> tuple[int, Any]:
    assert answer.headers["content-type"] == "application/json"
    return answer.status_code, answer.json()


def status_error(answer: httpx.Response) -> tuple[int, int, str]:
    status, body = error_of(answer)
    assert set(body) == {"code", "message", "details"}
    assert body["details"] == []
    return status, body["code"], body["message"]


def v2_error(answer: httpx.Response) -> tuple[int, str]:
    status, body = error_of(answer)
    assert set(body) == {"error"}
    return status, body["error"]


def test_v2_json(gateway: Gateway) -> None:
    answer = httpx.post(f"{gateway.url}/v2/models/echo/infer", json=ECHO)
    assert answer.status_code == 200, answer.text
    assert answer.json()["outputs"][0]["data"] == [1, 2, 3, 4]


@pytest.mark.parametrize("content_type", [None, "application/x-www-form-urlencoded", "application/octet-stream", "application/json"])
@pytest.mark.parametrize("path", ["/v2/models/echo/infer", "/v1/models/echo:predict?trace=1"])
def test_a_body_without_a_useful_content_type_is_json(gateway: Gateway, path: str, content_type: str | None) -> None:
    body = ECHO if path.startswith("/v2") else {"instances": [[1, 2, 3, 4]]}
    headers = {} if content_type is None else {"content-type": content_type}
    answer = httpx.post(gateway.url + path, content=json.dumps(body), headers=headers)
    assert answer.status_code == 200, answer.text


def test_unknown_query_parameters_are_forgiven_where_others_choose_them(gateway: Gateway) -> None:
    assert httpx.get(f"{gateway.url}/v2/health/ready?cache=1").status_code == 200
    assert status_error(httpx.get(f"{gateway.url}/v1/models?page=2"))[:2] == (400, 3)


def test_rest_answers_carry_no_headers_of_grpc(gateway: Gateway) -> None:
    good = httpx.post(f"{gateway.url}/v2/models/echo/infer", json=ECHO)
    bad = httpx.post(f"{gateway.url}/v1/models/none:predict", json={})
    for answer in (good, bad, httpx.get(f"{gateway.url}/v1/models")):
        assert not [name for name in answer.headers if name.startswith("grpc-")]
        assert answer.headers["x-request-id"]


def test_v2_errors_of_the_core(gateway: Gateway) -> None:
    status, text = v2_error(httpx.post(f"{gateway.url}/v2/models/no%22%5C%0Asuch/infer", json=ECHO))
    assert status == 404
    assert '"' in text
    status, text = v2_error(httpx.post(f"{gateway.url}/v2/models/echo/infer", json={"inputs": []}))
    assert status == 400
    assert "X" in text


def test_v1_errors_of_the_core(gateway: Gateway) -> None:
    assert status_error(httpx.post(f"{gateway.url}/v1/models/none:predict", json={"instances": [[1]]}))[:2] == (404, 5)
    assert status_error(httpx.post(f"{gateway.url}/v1/predict", json={"model": "none"}))[:2] == (404, 5)


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
def test_wrong_methods_and_paths_are_not_found_in_the_form_of_their_door(gateway: Gateway, method: str) -> None:
    assert v2_error(httpx.request(method, f"{gateway.url}/v2/models/echo/infer"))[0] == 404
    assert v2_error(httpx.request(method, f"{gateway.url}/v2/no/such/path"))[0] == 404
    assert status_error(httpx.request(method, f"{gateway.url}/v1/no/such/path"))[:2] == (404, 5)


@pytest.mark.parametrize("body", ["", "{", "[]", "null", '{"model": 5}', "\ufeff{}"])
def test_json_that_envoy_itself_reads_and_refuses(gateway: Gateway, body: str) -> None:
    answer = httpx.post(f"{gateway.url}/v1/predict", content=body.encode())
    # An empty body is an empty message; the core then misses the model.
    assert status_error(answer)[1] in (3, 5)


def test_a_body_above_the_limit_names_it(gateway: Gateway) -> None:
    large = b"[" + b"1," * (MAX_MESSAGE_BYTES // 2) + b"1]"
    text = f"limits.max_message_bytes: the body is larger than {MAX_MESSAGE_BYTES} bytes"
    assert v2_error(httpx.post(f"{gateway.url}/v2/models/echo/infer", content=large)) == (413, text)
    assert status_error(httpx.post(f"{gateway.url}/v1/predict", content=large)) == (413, 8, text)
    # Chunked: the size is not known in advance.
    assert v2_error(httpx.post(f"{gateway.url}/v2/models/echo/infer", content=iter([large]))) == (413, text)


def test_compressed_json_is_refused_by_name(gateway: Gateway) -> None:
    answer = httpx.post(f"{gateway.url}/v1/predict", content=b"\x1f\x8b", headers={"content-encoding": "gzip"})
    assert status_error(answer) == (415, 3, "content-encoding is not supported here; send the body as it is")


def test_too_many_headers(gateway: Gateway) -> None:
    answer = httpx.get(f"{gateway.url}/v2", headers={"x-large": "x" * 40_000})
    assert answer.status_code == 431


def test_a_facade_that_is_away(gateway: Gateway) -> None:
    assert status_error(httpx.get(f"{gateway.url}/docs"))[:2] == (503, 14)


@pytest.mark.parametrize("path", ["/v2/models/slow/infer", "/v1/models/slow:predict"])
def test_the_longest_request_is_a_504(gateway: Gateway, path: str) -> None:
    body = ECHO if path.startswith("/v2") else {"instances": [[1, 2, 3, 4]]}
    answer = httpx.post(gateway.url + path, json=body, timeout=20)
    assert answer.status_code == 504
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json()) in ({"error"}, {"code", "message", "details"})


def test_a_rest_caller_may_set_a_deadline(gateway: Gateway) -> None:
    started = time.monotonic()
    answer = httpx.post(f"{gateway.url}/v2/models/slow/infer", json=ECHO, headers={"grpc-timeout": "300m"})
    assert v2_error(answer)[0] == 504
    assert time.monotonic() - started < 3


def test_native_grpc(gateway: Gateway) -> None:
    with grpc.insecure_channel(gateway.edge_address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        assert stub.Predict(predict_request(), timeout=10).model == "echo"
        with pytest.raises(grpc.RpcError) as caught:
            stub.Predict(predict_request("none"), timeout=10)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.RpcError) as caught:
            stub.Predict(predict_request("slow"), timeout=0.3)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("method", ["/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/no.such.Service/Method"])
def test_what_is_not_offered_is_unimplemented(gateway: Gateway, method: str) -> None:
    with grpc.insecure_channel(gateway.edge_address) as channel:
        call = channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", timeout=10)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_reflection_is_there_on_the_nodes_own_listener(gateway: Gateway) -> None:
    with grpc.insecure_channel(gateway.node_address) as channel:
        call = channel.stream_stream(
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", request_serializer=bytes, response_deserializer=bytes
        )
        assert b"tensorgate.v1.InferenceService" in next(call(iter([b"\x3a\x00"]), timeout=10))


def test_grpc_web(gateway: Gateway) -> None:
    url = f"{gateway.url}/tensorgate.v1.InferenceService/Predict"
    good = httpx.post(url, content=framed(predict_request().SerializeToString()), headers=WEB)
    assert good.content[0] == 0
    assert b"grpc-status:0" in good.content
    bad = httpx.post(url, content=framed(predict_request("none").SerializeToString()), headers=WEB)
    assert bad.headers["grpc-status"] == "5"
    assert "none" in bad.headers["grpc-message"]


@pytest.mark.parametrize("origin", ["http://localhost:5173", "http://127.0.0.1:8080", "https://[::1]"])
def test_pages_of_this_machine_may_call(gateway: Gateway, origin: str) -> None:
    asked = {"origin": origin, "access-control-request-method": "POST", "access-control-request-headers": "x-grpc-web,content-type"}
    preflight = httpx.options(f"{gateway.url}/tensorgate.v1.InferenceService/Predict", headers=asked)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == origin
    assert "x-grpc-web" in preflight.headers["access-control-allow-headers"]
    answer = httpx.post(f"{gateway.url}/v2/models/none/infer", json=ECHO, headers={"origin": origin})
    assert answer.headers["access-control-allow-origin"] == origin
    assert "grpc-status" in answer.headers["access-control-expose-headers"]


@pytest.mark.parametrize("origin", ["http://evil.example", "http://localhost.evil.example", "null", "http://127.0.0.1.evil.example:8080"])
def test_pages_of_other_sites_may_not(gateway: Gateway, origin: str) -> None:
    answer = httpx.post(f"{gateway.url}/v2/models/echo/infer", json=ECHO, headers={"origin": origin})
    assert v2_error(answer) == (403, "this origin may not call the gateway; allow it with --cors-origin")
    assert "access-control-allow-origin" not in answer.headers
    assert status_error(httpx.post(f"{gateway.url}/predict", json={}, headers={"origin": origin}))[:2] == (403, 7)


@pytest.mark.parametrize("path", ["/v2", "/v1/models", "/docs", "/tensorgate.v1.InferenceService/Predict"])
def test_a_name_that_was_made_to_point_here_is_refused(gateway: Gateway, path: str) -> None:
    answer = httpx.post(gateway.url + path, headers={"host": "evil.example:8080"})
    assert answer.status_code == 421
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1", "[::1]:8080", "LOCALHOST"])
def test_the_names_of_this_machine_are_served(gateway: Gateway, host: str) -> None:
    assert httpx.get(f"{gateway.url}/v2/health/live", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("path", ["/v2/../v2/health/live", "//v2/health/live", "/v2/./health//live"])
def test_one_spelling_of_a_path(gateway: Gateway, path: str) -> None:
    request = httpx.Request("GET", gateway.url)
    request.url = request.url.copy_with(raw_path=path.encode())
    with httpx.Client() as client:
        assert client.send(request).status_code == 200
