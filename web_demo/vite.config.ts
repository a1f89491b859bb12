import { defineConfig } from "vitest/config";
import { loadEnv, type Plugin } from "vite";

/**
 * The built page forbids itself everything that is not its own server. Not in development, where Vite injects styles inline.
 */
function contentSecurityPolicy(): Plugin {
  const content = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'";
  return {
    name: "content-security-policy",
    apply: "build",
    transformIndexHtml: () => [
      { tag: "meta", attrs: { "http-equiv": "Content-Security-Policy", content }, injectTo: "head-prepend" },
    ],
  };
}

export default defineConfig(({ mode }) => ({
  base: "./",
  plugins: [contentSecurityPolicy()],
  build: {
    target: "es2022",
    // One small script: nothing to preload, and no data: URLs, which the policy above would refuse.
    modulePreload: false,
    assetsInlineLimit: 0,
  },
  server: {
    // `npm run dev` shows this page in front of a running server; TENSORGATE_URL says where it is.
    proxy: { "^/(tensorgate|docs|redoc|openapi|v1|v2)": loadEnv(mode, ".", "TENSORGATE_")["TENSORGATE_URL"] ?? "http://127.0.0.1:8080" },
  },
  test: {
    include: ["tests/**/*.test.ts"],
  },
}));
