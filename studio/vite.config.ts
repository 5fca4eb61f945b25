// Builds the page into the Python package. `build.json` holds a hash of the sources, by which a test
// knows, without node, whether the committed build is theirs.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { defineConfig, type Plugin } from "vite";

function sources(): string {
  const names = ["index.html", "package.json", "tsconfig.json", "vite.config.ts"];
  names.push(...readdirSync("src").map((name) => `src/${name}`));
  const hash = createHash("sha256");
  for (const name of names.sort()) {
    hash.update(`${name}\n`);
    hash.update(readFileSync(name));
  }
  return hash.digest("hex");
}

const stamp: Plugin = {
  name: "stamp",
  generateBundle() {
    const source = JSON.stringify({ sources: sources() }) + "\n";
    this.emitFile({ type: "asset", fileName: "build.json", source });
  },
};

export default defineConfig({
  base: "./",
  plugins: [stamp],
  build: {
    outDir: "../src/fokker/studio/static",
    emptyOutDir: true,
    modulePreload: false,
    rollupOptions: {
      output: {
        entryFileNames: "studio.js",
        assetFileNames: "studio[extname]",
      },
    },
  },
});
