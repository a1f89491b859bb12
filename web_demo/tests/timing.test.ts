import { expect, it } from "vitest";

import { timePieces } from "../src/timing";

it("cuts the whole into the server's times and the rest", () => {
  const pieces = timePieces({ total: 50, preprocess: 5, queue: 0, compute: 20 });
  expect(pieces.map(({ milliseconds }) => milliseconds)).toEqual([5, 0, 20, 25]);
  expect(pieces.map(({ share }) => share)).toEqual([0.1, 0, 0.4, 0.5]);
});

it("keeps the shares within one where the browser's clock shows less than the server counted", () => {
  const pieces = timePieces({ total: 8, preprocess: 4, queue: 1, compute: 5 });
  expect(pieces.at(-1)?.milliseconds).toBe(0);
  expect(pieces.reduce((sum, { share }) => sum + share, 0)).toBeCloseTo(1);
});

it("has no shares of nothing", () => {
  expect(timePieces({ total: 0, preprocess: 0, queue: 0, compute: 0 }).every(({ share }) => share === 0)).toBe(true);
});
