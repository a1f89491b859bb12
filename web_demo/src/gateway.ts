/** The server as this page sees it: two unary RPCs of tensorgate.v1.InferenceService by gRPC-Web. */

import { create, toBinary } from "@bufbuild/protobuf";
import { createClient, type Client, type Transport } from "@connectrpc/connect";

import { InferenceService, type Model, type PredictRequest, PredictRequestSchema } from "./gen/protos/tensorgate/v1/inference_pb";
import type { ImageModel } from "./models";

/** One class and how sure the model is of it. */
export interface Guess {
  label: string;
  score: number;
}

/** Where the time of one answer went, in milliseconds. */
export interface Timing {
  /** From sending to having the answer, on the browser's clock. */
  total: number;
  preprocess: number;
  queue: number;
  compute: number;
}

export interface Answer {
  model: string;
  version: string;
  /** Best first. Empty for a model without labels. */
  guesses: Guess[];
  /** The whole message, framing included. */
  sentBytes: number;
  timing: Timing;
}

/** How long the page waits for an answer, in milliseconds. */
export const TIMEOUT_MS = { listModels: 10_000, classify: 30_000 };

/** gRPC's frame in front of each message: a flag and a length. */
const FRAME_BYTES = 5;
const TOP_K = 5;

/** One image in a BYTES tensor, with or without a batch dimension. */
const SHAPE = [1, 1];

/** A request with one encoded image (JPEG, PNG, …) as it is: the server decodes, resizes and normalises. */
export function predictRequest(model: ImageModel, image: Uint8Array): PredictRequest {
  return create(PredictRequestSchema, {
    model: model.name,
    version: model.version,
    inputs: [{ name: model.input, datatype: "BYTES", shape: SHAPE, bytesValues: [image] }],
    outputs: model.outputs,
    topK: TOP_K,
  });
}

export class Gateway {
  readonly #client: Client<typeof InferenceService>;
  readonly #now: () => number;

  /** `now` is a clock in milliseconds. */
  constructor(transport: Transport, now: () => number) {
    this.#client = createClient(InferenceService, transport);
    this.#now = now;
  }

  async listModels(): Promise<Model[]> {
    const response = await this.#client.listModels({}, { timeoutMs: TIMEOUT_MS.listModels });
    return response.models;
  }

  /** Runs `model` on one image. Throws ConnectError; with code Canceled when `signal` was aborted. */
  async classify(model: ImageModel, image: Uint8Array, signal: AbortSignal): Promise<Answer> {
    const request = predictRequest(model, image);
    const started = this.#now();
    const response = await this.#client.predict(request, { signal, timeoutMs: TIMEOUT_MS.classify });
    const { preprocessMs = 0, queueMs = 0, computeMs = 0 } = response.timing ?? {};
    return {
      model: response.model,
      version: response.version,
      guesses: (response.classes[0]?.top ?? []).map(({ label, score }) => ({ label, score })),
      timing: { total: this.#now() - started, preprocess: preprocessMs, queue: queueMs, compute: computeMs },
      sentBytes: toBinary(PredictRequestSchema, request).byteLength + FRAME_BYTES,
    };
  }
}
