import { expect, it } from "vitest";

import { bytesText, millisecondsText, percentText } from "../src/format";

it.each([
  [0, "0 bytes"],
  [1, "1 byte"],
  [1023, "1023 bytes"],
  [1024, "1.0 KB"],
  [75_631, "73.9 KB"],
  [102_400, "100 KB"],
  [1024 * 1024 - 1, "1.0 MB"],
  [64 * 1024 * 1024, "64.0 MB"],
])("%d bytes as %s", (bytes, text) => expect(bytesText(bytes)).toBe(text));

it.each([
  [0, "0.0 ms"],
  [0.041, "0.04 ms"],
  [0.96, "1.0 ms"],
  [7.23, "7.2 ms"],
  [99.96, "100 ms"],
  [999.4, "999 ms"],
  [999.9, "1.0 s"],
  [2440, "2.4 s"],
])("%d ms as %s", (milliseconds, text) => expect(millisecondsText(milliseconds)).toBe(text));

it.each([
  [0, "0.0 %"],
  [0.0001, "< 0.1 %"],
  [0.9496, "95.0 %"],
  [0.99951, "> 99.9 %"],
  [1, "100.0 %"],
])("%d as %s", (fraction, text) => expect(percentText(fraction)).toBe(text));
