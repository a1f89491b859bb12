/** Which of the server's models this page can offer, and why not when it is none. */

import { type Model, ModelState } from "./gen/protos/tensorgate/v1/inference_pb";

/** A model version that answers and takes an encoded image. */
export interface ImageModel {
  name: string;
  version: string;
  description: string;
  /** The input that the image goes into. */
  input: string;
  /** The outputs to ask for; empty asks for all. */
  outputs: string[];
}

/** The ready models with exactly one input, an image; in the server's order. */
export function imageModels(models: readonly Model[]): ImageModel[] {
  return models.filter((model) => model.state === ModelState.READY && takesImage(model)).map(imageModel);
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

/** What keeps a model from answering: "still loading", "not available: the file is damaged"; empty where it is ready. */
export function whyNotReady(model: Model): string {
  if (model.state === ModelState.READY) return "";
  const words = STATE_WORDS[model.state] ?? "in a state that this page does not know";
  return model.reason === "" ? words : `${words}: ${model.reason.replace(/\.$/, "")}`;
}

/** One line on what the server has, for when no model can be offered. */
export function whyNoModel(models: readonly Model[]): string {
  if (models.length === 0) return "The server has no models.";
  // What a model takes may be unknown until it has been loaded.
  const waiting = models.find((model) => model.state !== ModelState.READY && (takesImage(model) || model.inputs.length === 0));
  if (waiting !== undefined) return `Model ${waiting.name} is ${whyNotReady(waiting)}.`;
  return `The server has ${models.length === 1 ? "one model" : `${models.length} models`}, but none takes a photo.`;
}

function takesImage(model: Model): boolean {
  return model.inputs.length === 1 && model.inputs[0]?.accepts === "image";
}

function imageModel(model: Model): ImageModel {
  const outputs = model.outputs.map((output) => output.name);
  return {
    name: model.name,
    version: model.version,
    description: model.description,
    input: model.inputs[0]?.name ?? "",
    outputs: outputs.includes("probabilities") ? ["probabilities"] : [],
  };
}

const STATE_WORDS: Partial<Record<ModelState, string>> = {
  [ModelState.LOADING]: "still loading",
  [ModelState.UNLOADING]: "being unloaded",
  [ModelState.UNAVAILABLE]: "not available",
};
