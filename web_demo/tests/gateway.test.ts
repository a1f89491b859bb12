import { create } from "@bufbuild/protobuf";
import { Code, ConnectError, createRouterTransport } from "@connectrpc/connect";
import { expect, it } from "vitest";

import { Gateway } from "../src/gateway";
import { InferenceService, type PredictRequest, PredictResponseSchema } from "../src/gen/protos/tensorgate/v1/inference_pb";
import type { ImageModel } from "../src/models";

const MODEL: ImageModel = {
  name: "net",
  version: "3",
  description: "",
  input: "pixels",
  outputs: ["probabilities"],
};
const IMAGE = new Uint8Array([0xff, 0xd8, 0xff]);

function clock(...moments: number[]): () => number {
  return () => moments.shift() ?? Number.NaN;
}

it("sends the encoded image as one BYTES element and asks for five classes", async () => {
  const asked: PredictRequest[] = [];
  const transport = createRouterTransport(({ service }) => {
    service(InferenceService, {
      predict(request) {
        asked.push(request);
        return create(PredictResponseSchema, {
          model: "net",
          version: "3",
          classes: [{ top: [{ label: "cat", index: 1, score: 0.75 }] }],
          timing: { preprocessMs: 1, queueMs: 2, computeMs: 4 },
        });
      },
    });
  });
  const answer = await new Gateway(transport, clock(100, 112)).classify(MODEL, IMAGE, new AbortController().signal);

  expect(asked[0]).toMatchObject({ model: "net", version: "3", outputs: ["probabilities"], topK: 5 });
  expect(asked[0]?.inputs).toHaveLength(1);
  expect(asked[0]?.inputs[0]).toMatchObject({ name: "pixels", datatype: "BYTES", shape: [1, 1], bytesValues: [IMAGE] });
  expect(answer.guesses).toEqual([{ label: "cat", score: 0.75 }]);
  expect(answer.timing).toEqual({ total: 12, preprocess: 1, queue: 2, compute: 4 });
  // Frame 5, model 5, version 3, input 2 + (8 + 7 + 4 + 5), outputs 15, top_k 2.
  expect(answer.sentBytes).toBe(56);
});

it("answers without guesses or timing where the server gives none", async () => {
  const transport = createRouterTransport(({ service }) => service(InferenceService, { predict: () => ({}) }));
  const answer = await new Gateway(transport, clock(0, 1)).classify(MODEL, IMAGE, new AbortController().signal);
  expect(answer.guesses).toEqual([]);
  expect(answer.timing).toEqual({ total: 1, preprocess: 0, queue: 0, compute: 0 });
});

it("passes the server's status on", async () => {
  const transport = createRouterTransport(({ service }) => {
    service(InferenceService, {
      predict() {
        throw new ConnectError("model 'net' is unknown", Code.NotFound);
      },
    });
  });
  const call = new Gateway(transport, clock()).classify(MODEL, IMAGE, new AbortController().signal);
  await expect(call).rejects.toMatchObject({ code: Code.NotFound, rawMessage: "model 'net' is unknown" });
});
