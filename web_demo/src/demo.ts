/** The page's behaviour: a photo comes in, the chosen model is asked, an answer or a problem is shown. */

import { Code } from "@connectrpc/connect";

import { type Gateway, TIMEOUT_MS } from "./gateway";
import { type ImageModel, imageModels, modelKey, whyNoModel, whyNotReady } from "./models";
import { problemWithFile } from "./photo";
import { drawPreview } from "./preview";
import { codeOf, isUnreachable, type Problem, problemFrom } from "./problem";
import type { View } from "./view";

export class Demo {
  readonly #gateway: Gateway;
  readonly #view: View;
  #models: ImageModel[] = [];
  #photo: File | null = null;
  /** Aborted when something newer is asked for: an old answer never replaces a new one. */
  #current = new AbortController();

  constructor(gateway: Gateway, view: View) {
    this.#gateway = gateway;
    this.#view = view;
    view.model.addEventListener("change", () => {
      view.showAbout(this.#chosen()?.description ?? "");
      void this.ask();
    });
  }

  /** Takes a photo and asks. */
  take(file: File): void {
    const problem = problemWithFile(file);
    if (problem !== null) return this.refuse(problem);
    this.#photo = file;
    const current = this.#renew();
    void drawPreview(this.#view.preview, file, () => this.#photo === file).then((isDrawn) => {
      if (this.#photo === file) this.#view.showPhoto(file.name, isDrawn);
    });
    void this.#ask(file, current);
  }

  /** Says why something that came in is not taken. */
  refuse(problem: Problem): void {
    this.#renew();
    this.#view.showProblem(problem, null);
  }

  /** Asks about the photo that is there; without one, only the list of models is read. */
  async ask(): Promise<void> {
    const current = this.#renew();
    if (this.#photo !== null) return this.#ask(this.#photo, current);
    if (this.#models.length > 0 || (await this.#readModels(current))) {
      if (!current.aborted) this.#view.showNothing();
    }
  }

  async #ask(photo: File, current: AbortSignal): Promise<void> {
    this.#view.showBusy(this.#chosen()?.name ?? "");
    if (this.#models.length === 0 && !(await this.#readModels(current))) return;
    const model = this.#chosen();
    const image = await this.#read(photo, current);
    if (current.aborted || model === undefined || image === null) return;
    try {
      const answer = await this.#gateway.classify(model, image, current);
      if (!current.aborted) this.#view.showAnswer(answer);
    } catch (error) {
      if (!current.aborted) await this.#explain(error, model, current);
    }
  }

  async #read(photo: File, current: AbortSignal): Promise<Uint8Array | null> {
    try {
      return new Uint8Array(await photo.arrayBuffer());
    } catch {
      const advice = "It may have been moved or changed since you chose it, or it is a folder. Choose it again.";
      if (!current.aborted) this.#view.showProblem({ title: `“${photo.name}” cannot be opened`, advice }, null);
      return null;
    }
  }

  /** False where no model can be offered, and the page says why; also where something newer was asked for meanwhile. */
  async #readModels(current: AbortSignal): Promise<boolean> {
    try {
      const all = await this.#gateway.listModels();
      if (current.aborted) return false;
      this.#offer(imageModels(all));
      if (this.#models.length > 0) return true;
      const problem = { title: "No model here can look at photos now", advice: `${whyNoModel(all)} Try again when that has changed.` };
      this.#view.showProblem(problem, this.#retry);
    } catch (error) {
      if (current.aborted) return false;
      this.#offer([]);
      this.#view.showProblem(problemFrom(error, { model: "", timeoutMs: TIMEOUT_MS.listModels }), this.#retry);
    }
    return false;
  }

  #offer(models: ImageModel[]): void {
    const before = this.#view.model.value;
    this.#models = models;
    this.#view.showModels(this.#models, before);
  }

  /** Shows a failed call. Where the model may be the reason, the server is asked what it has now. */
  async #explain(error: unknown, model: ImageModel, current: AbortSignal): Promise<void> {
    let problem = problemFrom(error, { model: model.name, timeoutMs: TIMEOUT_MS.classify });
    const code = codeOf(error);
    if (!isUnreachable(error) && (code === Code.NotFound || code === Code.Unavailable)) {
      problem = (await this.#problemWithModel(model, code)) ?? problem;
    }
    if (!current.aborted) this.#view.showProblem(problem, problem.isWorthRetrying ? this.#retry : null);
  }

  async #problemWithModel(model: ImageModel, code: Code): Promise<Problem | null> {
    try {
      const all = await this.#gateway.listModels();
      this.#offer(imageModels(all));
      const now = all.find((other) => modelKey(other) === modelKey(model));
      const why = now === undefined ? "" : whyNotReady(now);
      if (code === Code.NotFound || why === "") return null;
      return { title: `The model ${model.name} does not answer now`, advice: `It is ${why}. Try again in a moment, or choose another model.`, isWorthRetrying: true };
    } catch {
      return null;
    }
  }

  readonly #retry = (): void => void this.ask();

  #chosen(): ImageModel | undefined {
    return this.#models.find((model) => modelKey(model) === this.#view.model.value);
  }

  #renew(): AbortSignal {
    this.#current.abort();
    this.#current = new AbortController();
    return this.#current.signal;
  }
}
