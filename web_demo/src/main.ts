/** Puts the page together. */

import { createGrpcWebTransport } from "@connectrpc/connect-web";

import { Demo } from "./demo";
import { Gateway } from "./gateway";
import { listenForPhotos } from "./intake";
import { View } from "./view";

// The API lives where the page lives, also behind a proxy that puts a path in front of both.
const baseUrl = new URL(".", document.baseURI).href;
const view = new View();
const demo = new Demo(new Gateway(createGrpcWebTransport({ baseUrl, useBinaryFormat: true }), () => performance.now()), view);
listenForPhotos(demo, view.file, view.drop, view.samples());
void demo.ask();
