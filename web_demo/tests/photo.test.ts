import { expect, it } from "vitest";

import { MESSAGE_LIMIT_BYTES, problemWithFile } from "../src/photo";

const photo = { name: "cat.jpg", type: "image/jpeg", size: 40_000 };

it("lets photos through, and files that the browser knows nothing about", () => {
  expect(problemWithFile(photo)).toBeNull();
  expect(problemWithFile({ ...photo, type: "" })).toBeNull();
});

it.each([
  ["application/pdf", "a PDF"],
  ["text/plain", "text"],
  ["video/mp4", "a video"],
  ["application/zip", "of type application/zip"],
])("refuses %s and says what it is", (type, words) => {
  expect(problemWithFile({ ...photo, type })?.advice).toContain(`It is ${words}.`);
});

it.each([
  ["image/heic", "HEIC"],
  ["image/svg+xml", "SVG"],
])("refuses %s, which the server cannot read, and names what it can", (type, words) => {
  expect(problemWithFile({ ...photo, type })?.advice).toMatch(new RegExp(`^It is ${words}; wanted is JPEG, PNG`));
});

it("refuses an empty file", () => {
  expect(problemWithFile({ ...photo, size: 0 })?.title).toBe("“cat.jpg” is empty");
});

it("refuses what does not fit into one message and says both sizes", () => {
  const problem = problemWithFile({ ...photo, size: MESSAGE_LIMIT_BYTES + 5_000_000 });
  expect(problem?.title).toBe("“cat.jpg” is too large");
  expect(problem?.advice).toContain("It has 68.8 MB; the server takes up to 64.0 MB");
});

it("leaves room for what is around the photo in the message", () => {
  expect(problemWithFile({ ...photo, size: MESSAGE_LIMIT_BYTES })).not.toBeNull();
  expect(problemWithFile({ ...photo, size: MESSAGE_LIMIT_BYTES - 4096 })).toBeNull();
});
