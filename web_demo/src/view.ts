/** What the page shows. Knows the document, knows nothing of the server. */

import { byId, element } from "./dom";
import { bytesText, millisecondsText, percentText } from "./format";
import type { Answer, Guess } from "./gateway";
import { type ImageModel, modelKey, modelLabel } from "./models";
import type { Problem } from "./problem";
import { type Piece, timePieces } from "./timing";

export class View {
  readonly file = byId("file", HTMLInputElement);
  readonly drop = byId("drop", HTMLElement);
  readonly preview = byId("preview", HTMLCanvasElement);
  readonly model = byId("model", HTMLSelectElement);
  readonly #choose = byId("choose", HTMLElement);
  readonly #about = byId("model-about", HTMLElement);
  readonly #answer = byId("answer", HTMLElement);
  readonly #problem = byId("problem", HTMLElement);
  readonly #nothing = byId("nothing", HTMLElement);
  readonly #busy = byId("busy", HTMLElement);
  readonly #outcome = byId("outcome", HTMLElement);
  readonly #guesses = byId("guesses", HTMLElement);
  readonly #facts = byId("facts", HTMLElement);
  readonly #announce = byId("announce", HTMLElement);

  samples(): NodeListOf<HTMLButtonElement> {
    return document.querySelectorAll<HTMLButtonElement>(".thumbs button");
  }

  showModels(models: readonly ImageModel[], chosen: string): void {
    const options = models.map((model) => new Option(modelLabel(model, models), modelKey(model), false, modelKey(model) === chosen));
    this.model.replaceChildren(...(options.length > 0 ? options : [new Option("No model for photos")]));
    this.model.disabled = options.length === 0;
    this.showAbout(models.find((model) => modelKey(model) === this.model.value)?.description ?? "");
  }

  showAbout(description: string): void {
    this.#about.textContent = description;
  }

  /** `isDrawn` is false where the browser could not decode the photo: then its name stands for it. */
  showPhoto(name: string, isDrawn: boolean): void {
    this.preview.hidden = !isDrawn;
    this.preview.setAttribute("aria-label", `Preview of ${name}`);
    this.drop.classList.toggle("has-photo", isDrawn);
    this.#choose.textContent = isDrawn ? "Choose another photo" : name;
  }

  showBusy(model: string): void {
    this.#only(this.#busy, this.#outcome);
    this.#answer.setAttribute("aria-busy", "true");
    this.#outcome.classList.add("is-old");
    this.#busy.textContent = model === "" ? "Asking the server…" : `Asking ${model}…`;
    this.#announce.textContent = "";
  }

  showAnswer(answer: Answer): void {
    this.#only(this.#outcome);
    this.#outcome.classList.remove("is-old");
    const { guesses } = answer;
    this.#guesses.replaceChildren(...(guesses.length > 0 ? guesses.map(guessRow) : [withoutLabels()]));
    this.#facts.replaceChildren(...facts(answer));
    const best = guesses[0];
    const result = best === undefined ? "The model answered without names for classes." : `Best guess: ${best.label}, ${scoreText(best, guesses)}.`;
    this.#reveal();
    this.#announce.textContent = `${result} Answered in ${millisecondsText(answer.timing.total)}.`;
  }

  showProblem(problem: Problem, retry: (() => void) | null): void {
    this.#only(this.#problem);
    const parts = [element("p", "what", problem.title), element("p", "advice", problem.advice)];
    if (problem.detail) parts.push(element("p", "detail", `The server says: ${problem.detail}`));
    if (retry) {
      const button = element("button", "retry", "Try again");
      button.addEventListener("click", retry);
      parts.push(button);
    }
    this.#problem.replaceChildren(...parts);
    this.#reveal();
  }

  /** Back to the invitation: a problem is over and there is no photo. */
  showNothing(): void {
    this.#only(this.#nothing);
  }

  /** On a narrow screen the answer is below the photo: brings it up when little of it would be seen. */
  #reveal(): void {
    const { top } = this.#answer.getBoundingClientRect();
    if (top > window.innerHeight * 0.6) this.#answer.scrollIntoView({ block: "start" });
  }

  #only(...shown: HTMLElement[]): void {
    this.#answer.removeAttribute("aria-busy");
    this.#announce.textContent = "";
    const isEmpty = this.#guesses.childElementCount === 0;
    for (const part of [this.#problem, this.#nothing, this.#busy, this.#outcome]) {
      part.hidden = !shown.includes(part) || (part === this.#outcome && shown.length > 1 && isEmpty);
    }
  }
}

/** Scores are percentages where all of them are probabilities; else they are shown as they are. */
function areProbabilities(guesses: readonly Guess[]): boolean {
  return guesses.every(({ score }) => score >= 0 && score <= 1.0001);
}

function scoreText(guess: Guess, all: readonly Guess[]): string {
  return areProbabilities(all) ? percentText(guess.score) : guess.score.toFixed(2);
}

function guessRow(guess: Guess, _index: number, all: readonly Guess[]): HTMLElement {
  const best = Math.max(...all.map(({ score }) => score));
  const share = areProbabilities(all) ? guess.score : best > 0 ? guess.score / best : 0;
  const fill = element("span", "fill");
  fill.style.setProperty("--share", String(Math.min(1, Math.max(0, share))));
  const bar = element("span", "bar", fill);
  bar.setAttribute("aria-hidden", "true");
  return element("li", "guess", element("span", "label", guess.label), element("span", "score", scoreText(guess, all)), bar);
}

function withoutLabels(): HTMLElement {
  return element("li", "nothing", "This model answered, but it has no names for its classes.");
}

function facts(answer: Answer): HTMLElement[] {
  const pieces = timePieces(answer.timing);
  const strip = element("div", "strip", ...pieces.map(stripPart));
  strip.setAttribute("aria-hidden", "true");
  const rows = pieces.map((piece) => fact(piece.words, millisecondsText(piece.milliseconds), piece.key));
  return [
    element(
      "dl",
      "figures",
      fact("Answered in", millisecondsText(answer.timing.total)),
      fact("Sent", bytesText(answer.sentBytes)),
      fact("By", `${answer.model}, version ${answer.version}`),
    ),
    element("h3", "", "Where the time went"),
    strip,
    element("dl", "legend", ...rows),
  ];
}

function stripPart(piece: Piece): HTMLElement {
  const part = element("span", `part ${piece.key}`);
  part.style.setProperty("--share", String(piece.share));
  return part;
}

function fact(words: string, value: string, className = ""): HTMLElement {
  return element("div", className, element("dt", "", words), element("dd", "", value));
}
