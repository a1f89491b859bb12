/** The four ways a photo comes in: chosen, dropped, pasted, or one of the samples. */

import type { Problem } from "./problem";

export interface Intake {
  take(file: File): void;
  refuse(problem: Problem): void;
}

export function listenForPhotos(intake: Intake, input: HTMLInputElement, drop: HTMLElement, samples: Iterable<HTMLButtonElement>): void {
  input.addEventListener("change", () => {
    const file = input.files?.[0];
    if (file) intake.take(file);
    // So that choosing the same file again is a change again.
    input.value = "";
  });
  listenForDrops(intake, drop);
  document.addEventListener("paste", (event) => {
    takeFrom(intake, event.clipboardData, "Copy a photo, not its address or a text, and paste again. Or choose a file.");
  });
  for (const button of samples) {
    button.addEventListener("click", () => void takeSample(intake, button));
  }
}

/** Anywhere on the page: a photo that misses the drop zone must not replace the page. */
function listenForDrops(intake: Intake, drop: HTMLElement): void {
  let depth = 0;
  const mark = (change: number): void => {
    depth = Math.max(0, depth + change);
    drop.classList.toggle("is-over", depth > 0);
  };
  document.addEventListener("dragenter", () => mark(+1));
  document.addEventListener("dragleave", () => mark(-1));
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    mark(-depth);
    takeFrom(intake, event.dataTransfer, "Drop a photo’s file. A picture from another page: save it first, then drop the file.");
  });
}

function takeFrom(intake: Intake, data: DataTransfer | null, advice: string): void {
  const file = data?.files[0];
  if (file) intake.take(file);
  else intake.refuse({ title: "That was not a file", advice });
}

async function takeSample(intake: Intake, button: HTMLButtonElement): Promise<void> {
  const image = button.querySelector("img");
  if (image === null) return;
  try {
    const response = await fetch(image.src);
    if (!response.ok) throw new Error(`HTTP ${response.status}`);
    intake.take(new File([await response.blob()], button.dataset["name"] ?? "sample.jpg", { type: "image/jpeg" }));
  } catch {
    intake.refuse({
      title: "The sample photo could not be fetched",
      advice: "The server may have been stopped. Start it with “tensorgate serve” and try again, or choose a photo of your own.",
    });
  }
}
