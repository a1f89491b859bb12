/** The chosen photo on a canvas: upright by its EXIF orientation, and without a blob: URL, which the page's policy would refuse. */

/** The longest side that is drawn, in device pixels. */
const LONGEST_PIXELS = 1280;

/** Draws `file`; false where the browser cannot decode it, which says nothing about the server. */
export async function drawPreview(canvas: HTMLCanvasElement, file: Blob, isCurrent: () => boolean): Promise<boolean> {
  let bitmap: ImageBitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    return false;
  }
  if (isCurrent()) {
    const scale = Math.min(1, LONGEST_PIXELS / Math.max(bitmap.width, bitmap.height));
    canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    canvas.getContext("2d")?.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  }
  bitmap.close();
  return true;
}
