/** Which of the server's models this page can offer, and why not when it is none. */

import { type Model, ModelState } from "./gen/protos/tensorgate/v1/inference_pb";

/** A model version that takes an encoded image. */
export interface ImageModel {
  name: string;
  version: string;
  description: string;
  /** The input that the image goes into. */
  input: string;
  /** The outputs to ask for; empty asks for all. */
  outputs: string[];
  /** The shape of one image in a BYTES tensor: `[1, 1]` with a batch dimension, `[1]` without. */
  shape: number[];
  isReady: boolean;
  /** Why it does not answer, in the server's words; empty where it gives none. */
  reason: string;
  state: string;
}

/**
 * The models with exactly one input, an image. Ready ones come first, in the server's order; the others are there to say why
 * nothing can be offered.
 */
export function imageModels(models: readonly Model[]): ImageModel[] {
  const fitting = models.filter((model) => model.inputs.length === 1 && model.inputs[0]?.accepts === "image").map(imageModel);
  return [...fitting.filter((model) => model.isReady), ...fitting.filter((model) => !model.isReady)];
}

/** How the picker names a model: with its version only where the name alone is not enough. */
export function modelLabel(model: ImageModel, all: readonly ImageModel[]): string {
  const versions = all.filter((other) => other.name === model.name).length;
  return versions > 1 ? `${model.name}, version ${model.version}` : model.name;
}

/** Identifies a model version among the options of the picker. */
export function modelKey(model: Pick<ImageModel, "name" | "version">): string {
  return `${model.name}/${model.version}`;
}

/** One line on what the server has, for when no model can be offered. */
export function whyNoModel(models: readonly Model[]): string {
  const known = imageModels(models);
  const first = known[0];
  if (first === undefined) {
    return models.length === 0
      ? "The server has no models."
      : `The server has ${models.length === 1 ? "one model" : `${models.length} models`}, but none takes a photo.`;
  }
  return `Model ${first.name} is ${first.state}${first.reason === "" ? "" : `: ${first.reason}`}.`;
}

function imageModel(model: Model): ImageModel {
  const outputs = model.outputs.map((output) => output.name);
  return {
    name: model.name,
    version: model.version,
    description: model.description,
    input: model.inputs[0]?.name ?? "",
    outputs: outputs.includes("probabilities") ? ["probabilities"] : [],
    shape: model.maxBatchSize > 0 ? [1, 1] : [1],
    isReady: model.state === ModelState.READY,
    reason: model.reason.replace(/\.$/, ""),
    state: STATE_WORDS[model.state] ?? "in a state that this page does not know",
  };
}

const STATE_WORDS: Partial<Record<ModelState, string>> = {
  [ModelState.LOADING]: "still loading",
  [ModelState.READY]: "ready",
  [ModelState.UNLOADING]: "being unloaded",
  [ModelState.UNAVAILABLE]: "not available",
};
