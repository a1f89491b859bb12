/** Numbers as people read them. */

/** `1536` → "1.5 KB". Units of 1024, as file managers show them. */
export function bytesText(bytes: number): string {
  if (bytes < 1024) return `${bytes} ${bytes === 1 ? "byte" : "bytes"}`;
  const kilobytes = bytes / 1024;
  if (kilobytes < 1023.95) return `${rounded(kilobytes)} KB`;
  return `${rounded(kilobytes / 1024)} MB`;
}

/** A duration in milliseconds: "0.04 ms", "7.2 ms", "132 ms", "2.4 s". */
export function millisecondsText(milliseconds: number): string {
  if (milliseconds >= 999.5) return `${(milliseconds / 1000).toFixed(1)} s`;
  if (milliseconds >= 99.95) return `${milliseconds.toFixed(0)} ms`;
  return `${milliseconds.toFixed(milliseconds >= 0.95 || milliseconds === 0 ? 1 : 2)} ms`;
}

/** A fraction of one as a percentage: 0.9496 → "95.0 %". What is not zero is never shown as zero, nor as all. */
export function percentText(fraction: number): string {
  if (fraction > 0 && fraction < 0.0005) return "< 0.1 %";
  if (fraction < 1 && fraction >= 0.9995) return "> 99.9 %";
  return `${(fraction * 100).toFixed(1)} %`;
}

function rounded(value: number): string {
  return value >= 99.95 ? value.toFixed(0) : value.toFixed(1);
}
