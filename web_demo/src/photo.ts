/** What can be said about a chosen file before it is sent. */

import type { Problem } from "./problem";
import { bytesText } from "./format";

/** The server's default for the largest message (setting `limits.max_message_bytes`). */
export const MESSAGE_LIMIT_BYTES = 64 * 1024 * 1024;

/** What the server reads. */
const READ_TYPES = ["image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp", "image/tiff"];
const READ_NAMES = "JPEG, PNG, WebP, GIF, BMP or TIFF";

/** Room in the message for what is around the photo: names, shape, framing. */
const ENVELOPE_BYTES = 4096;

/** The part of a `File` that the checks read. */
export interface FileFacts {
  name: string;
  /** What the browser says the file is, from its name: "image/jpeg"; empty where it does not know. */
  type: string;
  size: number;
}

/**
 * Why a file cannot be sent, or null. Only what its name and size tell: whether the bytes are an image is for the server to say.
 */
export function problemWithFile(file: FileFacts): Problem | null {
  if (file.size === 0) {
    return { title: `“${file.name}” is empty`, advice: "Choose a photo with something in it. A folder cannot be sent either." };
  }
  if (file.type !== "" && !file.type.startsWith("image/")) {
    return {
      title: `“${file.name}” is not a photo`,
      advice: `It is ${kindOf(file.type)}. Choose a JPEG, PNG or WebP file.`,
    };
  }
  if (file.type !== "" && !READ_TYPES.includes(file.type)) {
    const kind = file.type.slice("image/".length).split("+")[0]?.toUpperCase();
    return { title: `“${file.name}” is of a kind that the server cannot read`, advice: `It is ${kind}; wanted is ${READ_NAMES}. Save it as JPEG and choose that.` };
  }
  if (file.size > MESSAGE_LIMIT_BYTES - ENVELOPE_BYTES) {
    return {
      title: `“${file.name}” is too large`,
      advice: `It has ${bytesText(file.size)}; the server takes up to ${bytesText(MESSAGE_LIMIT_BYTES)} in one message. Choose a smaller photo or save it as JPEG.`,
    };
  }
  return null;
}

function kindOf(type: string): string {
  const family = type.split("/")[0];
  if (type === "application/pdf") return "a PDF";
  if (family === "text") return "text";
  if (family === "video") return "a video";
  if (family === "audio") return "a sound";
  return `of type ${type}`;
}
