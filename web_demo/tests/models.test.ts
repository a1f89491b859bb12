import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";

import { type Model, ModelSchema, ModelState } from "../src/gen/protos/tensorgate/v1/inference_pb";
import { imageModels, modelLabel, whyNoModel } from "../src/models";

function model(fields: MessageInitShape<typeof ModelSchema>): Model {
  return create(ModelSchema, {
    name: "net",
    version: "1",
    state: ModelState.READY,
    inputs: [{ name: "pixels", accepts: "image" }],
    outputs: [{ name: "logits" }, { name: "probabilities" }],
    ...fields,
  });
}

describe("imageModels", () => {
  it("takes the models with one input that accepts an image", () => {
    const two = [{ name: "a", accepts: "image" }, { name: "b" }];
    const found = imageModels([model({ name: "numbers", inputs: [{ name: "x" }] }), model({ name: "two", inputs: two }), model({ name: "photo" })]);
    expect(found.map(({ name }) => name)).toEqual(["photo"]);
    expect(found[0]?.input).toBe("pixels");
  });

  it("asks for the probabilities alone where the model has them, else for everything", () => {
    const [both, logits] = imageModels([model({}), model({ outputs: [{ name: "logits" }] })]);
    expect(both?.outputs).toEqual(["probabilities"]);
    expect(logits?.outputs).toEqual([]);
  });

  it("leaves out what is not ready and keeps the server's order", () => {
    const found = imageModels([model({ name: "a", state: ModelState.LOADING }), model({ name: "c" }), model({ name: "b" })]);
    expect(found.map(({ name }) => name)).toEqual(["c", "b"]);
  });
});

describe("modelLabel", () => {
  it("says the version only where there are several", () => {
    const all = imageModels([model({ name: "a" }), model({ name: "b" }), model({ name: "b", version: "2" })]);
    expect(all.map((one) => modelLabel(one, all))).toEqual(["a", "b, version 1", "b, version 2"]);
  });
});

describe("whyNoModel", () => {
  it("tells an empty server from one without image models", () => {
    expect(whyNoModel([])).toBe("The server has no models.");
    expect(whyNoModel([model({ inputs: [{ name: "x" }] })])).toBe("The server has one model, but none takes a photo.");
  });

  it("names a model that failed to load although nobody knows what it would take", () => {
    expect(whyNoModel([model({ inputs: [{ name: "x" }] }), model({ name: "broken", inputs: [], state: ModelState.UNAVAILABLE })])).toBe("Model broken is not available.");
  });

  it("gives the state and the server's reason, with one full stop", () => {
    expect(whyNoModel([model({ state: ModelState.LOADING })])).toBe("Model net is still loading.");
    expect(whyNoModel([model({ state: ModelState.UNAVAILABLE, reason: "the file is broken." })])).toBe("Model net is not available: the file is broken.");
  });
});
