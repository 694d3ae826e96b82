// Copies what the page needs of LiteRT.js from node_modules to litert/, so that the folder can be
// served as it is, by any static server, without a bundler and without another host.

import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const packages = join(here, "node_modules", "@litertjs");
const target = join(here, "litert");
// `compat` is what LiteRT.js takes where the browser lacks relaxed SIMD. The builds with threads need
// headers that many static hosts cannot set.
const BUILDS = ["litert_wasm_internal", "litert_wasm_compat_internal"];

mkdirSync(join(target, "wasm"), { recursive: true });
for (const build of BUILDS) {
  for (const ending of [".js", ".wasm"]) {
    copyFileSync(join(packages, "core", "wasm", build + ending), join(target, "wasm", build + ending));
  }
}
copyFileSync(join(packages, "wasm-utils", "dist", "bundle.js"), join(target, "wasm-utils.js"));

// Workers have no import maps, so the one import by the name of a package becomes a path.
const source = readFileSync(join(packages, "core", "dist", "index.js"), "utf8");
const changed = source.replaceAll(/(["'])@litertjs\/wasm-utils\1/g, '"./wasm-utils.js"');
if (changed === source) {
  throw new Error("This LiteRT.js does not import @litertjs/wasm-utils: use the version in package.json.");
}
writeFileSync(join(target, "index.js"), changed);
