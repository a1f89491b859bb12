"""Knows no stub: what a server offers, and how to call ModelInfer, comes from its reflection. Prints what it learnt, as JSON."""

import json
import struct
import sys

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

channel = grpc.insecure_channel(sys.argv[1])
database = ProtoReflectionDescriptorDatabase(channel)
pool = DescriptorPool(database)
services = list(database.get_services())


def call(service, method, values):
    described = pool.FindServiceByName(service).FindMethodByName(method)
    request = json_format.ParseDict(values, GetMessageClass(described.input_type)())
    answer = channel.unary_unary(
        f"/{service}/{method}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=GetMessageClass(described.output_type).FromString,
    )
    return answer(request, timeout=10)


methods = {name: [method.name for method in pool.FindServiceByName(name).methods] for name in services}
messages = {name: [method.input_type.full_name for method in pool.FindServiceByName(name).methods] for name in services}
x = {"name": "X", "datatype": "FP32", "shape": [1, 2], "contents": {"fp32Contents": [0.5, -2.0]}}
oip = "inference.GRPCInferenceService"
answer = call(oip, "ModelInfer", {"modelName": "id_fp32", "inputs": [x]})
print(
    json.dumps(
        {
            "services": sorted(services),
            "described": all(methods.values()) and all(pool.FindMessageTypeByName(name) for names in messages.values() for name in names),
            "health": call("grpc.health.v1.Health", "Check", {"service": oip}).status,
            "live": call(oip, "ServerLive", {}).live,
            "values": list(struct.unpack("<2f", answer.raw_output_contents[0])),
            "ours": [name for name in sys.modules if name.split(".")[0] in ("protos", "core_grpc")],
        }
    )
)
