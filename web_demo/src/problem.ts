/** Every way a call can fail, in plain words: what happened, and what to do about it. */

import { Code, ConnectError } from "@connectrpc/connect";

export interface Problem {
  title: string;
  advice: string;
  /** The server's own line, where it says more than the title. */
  detail?: string;
  /** Trying the same again may work. */
  isWorthRetrying?: boolean;
}

/** What was being attempted, for words that fit. */
export interface Attempt {
  /** Name of the model; empty while the list of models is read. */
  model: string;
  timeoutMs: number;
}

/** The code of a failed call; what is no gRPC status at all (no connection) counts as Unknown. */
export function codeOf(error: unknown): Code {
  return ConnectError.from(error).code;
}

/** True where the browser got no answer of any kind. */
export function isUnreachable(error: unknown): boolean {
  return ConnectError.from(error).cause instanceof TypeError;
}

/** The words for a failed call. */
export function problemFrom(error: unknown, attempt: Attempt): Problem {
  const failure = ConnectError.from(error);
  if (isUnreachable(error)) return UNREACHABLE;
  const problem = (WORDS[failure.code] ?? unexpected)(attempt, failure);
  const detail = failure.rawMessage.trim();
  return detail === "" ? problem : { ...problem, detail };
}

const UNREACHABLE: Problem = {
  title: "The server does not answer",
  advice: "It may have been stopped. Start it with “tensorgate serve”, or check your connection, and try again.",
  isWorthRetrying: true,
};

type Words = (attempt: Attempt, failure: ConnectError) => Problem;

const WORDS: Partial<Record<Code, Words>> = {
  [Code.InvalidArgument]: () => ({
    title: "The server cannot read this file as a photo",
    advice: "It may be damaged, have too many pixels, or be another kind of file under a photo’s name. Choose an ordinary JPEG or PNG.",
  }),
  [Code.NotFound]: ({ model }) => ({
    title: `The server does not have the model ${model} any more`,
    advice: "The list of models has been read again. Choose one from it.",
  }),
  [Code.DeadlineExceeded]: ({ timeoutMs }) => ({
    title: `No answer within ${timeoutMs / 1000} seconds`,
    advice: "The server is busy or the connection is slow. Try again, or choose a smaller photo.",
    isWorthRetrying: true,
  }),
  [Code.ResourceExhausted]: () => ({
    title: "This is more than the server takes now",
    advice: "The photo is above a limit, or too many requests are waiting. Choose a smaller photo, or try again in a moment.",
    isWorthRetrying: true,
  }),
  [Code.Unavailable]: () => ({
    title: "The server cannot run models right now",
    advice: "It is starting, stopping or restarting, or none of its models could be loaded. Try again in a few seconds; the server’s log says more.",
    isWorthRetrying: true,
  }),
  [Code.FailedPrecondition]: ({ model }) => ({
    title: `The model ${model} cannot answer this`,
    advice: "Choose another model.",
  }),
  [Code.Unauthenticated]: () => ({
    title: "The server wants to know who you are",
    advice: "It asks for an API key, which this page does not have. Ask whoever runs the server.",
  }),
  [Code.PermissionDenied]: () => ({
    title: "The server does not allow this",
    advice: "Ask whoever runs the server to allow inference from this page.",
  }),
  [Code.Unimplemented]: () => ({
    title: "This server does not have the API that the page uses",
    advice: "The page and the server are of different versions. Reload the page; if that does not help, update the server.",
  }),
  [Code.Internal]: ({ model }) => ({
    title: "Something went wrong inside the server",
    advice: model === "" ? "Try again; the server’s log says more." : `The model ${model} failed on this photo. Try another one; the server’s log says more.`,
    isWorthRetrying: true,
  }),
};

function unexpected(attempt: Attempt, failure: ConnectError): Problem {
  // A proxy's own page for a body above its limit carries no gRPC status.
  if (failure.rawMessage === "HTTP 413") return { title: "This photo is too large for the server", advice: "Choose a smaller one, or save it as JPEG." };
  return {
    title: attempt.model === "" ? "The list of models could not be read" : "The photo could not be classified",
    advice: "Try again. If it stays like this, look into the server’s log.",
    isWorthRetrying: true,
  };
}
