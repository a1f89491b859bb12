import { Code, ConnectError } from "@connectrpc/connect";
import { describe, expect, it } from "vitest";

import { problemFrom } from "../src/problem";

const attempt = { model: "net", timeoutMs: 30_000 };
const codes = Object.values(Code).filter((code): code is Code => typeof code === "number");

describe("problemFrom", () => {
  it.each(codes.map((code) => [Code[code], code] as const))("has a title and advice for %s, and passes the server's line on", (_name, code) => {
    const problem = problemFrom(new ConnectError("input 'x': too bad", code), attempt);
    expect(problem.title).toMatch(/^\p{Lu}.*[^.]$/u);
    expect(problem.advice).toMatch(/\.$/);
    expect(problem.detail).toBe("input 'x': too bad");
    expect(`${problem.title} ${problem.advice}`).not.toMatch(/undefined|NaN|gRPC|code/);
  });

  it("tells a server that cannot be reached from one that answers", () => {
    const problem = problemFrom(ConnectError.from(new TypeError("Failed to fetch")), attempt);
    expect(problem.title).toBe("The server does not answer");
    expect(problem.detail).toBeUndefined();
    expect(problem.isWorthRetrying).toBe(true);
  });

  it("names the model that is gone and the seconds that have passed", () => {
    expect(problemFrom(new ConnectError("", Code.NotFound), attempt).title).toContain("net");
    expect(problemFrom(new ConnectError("", Code.DeadlineExceeded), attempt).title).toBe("No answer within 30 seconds");
  });

  it("does not offer to try again what cannot work", () => {
    expect(problemFrom(new ConnectError("", Code.InvalidArgument), attempt).isWorthRetrying).toBeUndefined();
  });

  it("knows a proxy's refusal of a large body", () => {
    expect(problemFrom(new ConnectError("HTTP 413", Code.Unknown), attempt).title).toBe("This photo is too large for the server");
  });
});
