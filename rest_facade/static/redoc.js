"use strict";
// The theme names system fonts, so that none is asked of another host; search would need a worker from a blob URL.
const fonts = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
Redoc.init(
  "openapi.json",
  {
    disableSearch: true,
    expandResponses: "200",
    theme: { typography: { fontFamily: fonts, headings: { fontFamily: fonts } } },
  },
  document.getElementById("redoc"),
);
