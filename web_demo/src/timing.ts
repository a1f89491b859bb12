/** An answer's time, cut into the pieces that are shown. */

import type { Timing } from "./gateway";

export interface Piece {
  key: "preprocess" | "queue" | "compute" | "rest";
  words: string;
  milliseconds: number;
  /** Of the whole, from 0 to 1. */
  share: number;
}

/** The server's own times, and the rest: network, proxies, browser. */
export function timePieces(timing: Timing): Piece[] {
  const { preprocess, queue, compute } = timing;
  const inServer = preprocess + queue + compute;
  // The two clocks differ in resolution: the browser's may give less than the server counted.
  const whole = Math.max(timing.total, inServer);
  const share = (milliseconds: number): number => (whole === 0 ? 0 : milliseconds / whole);
  const piece = (key: Piece["key"], words: string, milliseconds: number): Piece => ({ key, words, milliseconds, share: share(milliseconds) });
  return [
    piece("preprocess", "Preparing the photo", preprocess),
    piece("queue", "Waiting for the model", queue),
    piece("compute", "Computing", compute),
    piece("rest", "Network and the rest", whole - inServer),
  ];
}
