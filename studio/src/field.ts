// Fields on a canvas: densities and energies, with arrows and points over them.
import { magma, viridis, type Colors } from "./colors";
import type { Numeric } from "./protocol";

const FINE = 3; // pixels of the picture a cell, along each side

/** A log-density on a grid, rows from top to bottom. */
export interface Grid {
  size: number;
  values: Numeric;
  most: number; // the whole number of the largest value
  top: number; // the log-density that it stands for
  range: number; // nats from there down to zero
}

export type Mode = "density" | "energy";

interface Rule {
  starts: Int32Array;
  weights: Float32Array; // four a pixel
}
const rules = new Map<number, Rule>();

/** The weights of cubic interpolation (Catmull–Rom) from cells to pixels. */
function rule(size: number): Rule {
  const known = rules.get(size);
  if (known) return known;
  const fine = size * FINE;
  const made = { starts: new Int32Array(4 * fine), weights: new Float32Array(4 * fine) };
  for (let i = 0; i < fine; i++) {
    const x = (i + 0.5) / FINE - 0.5;
    const k = Math.floor(x);
    const t = x - k;
    made.weights.set(
      [((-t + 2) * t - 1) * t, (3 * t - 5) * t * t + 2, ((-3 * t + 4) * t + 1) * t, (t - 1) * t * t].map((w) => w / 2),
      4 * i,
    );
    for (let m = 0; m < 4; m++) made.starts[4 * i + m] = Math.max(0, Math.min(size - 1, k - 1 + m));
  }
  rules.set(size, made);
  return made;
}

/** Refines whole numbers, first along rows, then along columns. */
function refine(values: Numeric, size: number): Float32Array {
  const fine = size * FINE;
  const { starts, weights } = rule(size);
  const wide = new Float32Array(size * fine);
  for (let i = 0; i < size; i++) {
    const row = i * size;
    for (let j = 0, at = 0; j < fine; j++, at += 4)
      wide[i * fine + j] =
        weights[at] * values[row + starts[at]] +
        weights[at + 1] * values[row + starts[at + 1]] +
        weights[at + 2] * values[row + starts[at + 2]] +
        weights[at + 3] * values[row + starts[at + 3]];
  }
  const out = new Float32Array(fine * fine);
  for (let i = 0, at = 0; i < fine; i++, at += 4) {
    const [a, b, c, d] = [weights[at], weights[at + 1], weights[at + 2], weights[at + 3]];
    const [p, q] = [starts[at] * fine, starts[at + 1] * fine];
    const [r, s] = [starts[at + 2] * fine, starts[at + 3] * fine];
    for (let j = 0; j < fine; j++) out[i * fine + j] = a * wide[p + j] + b * wide[q + j] + c * wide[r + j] + d * wide[s + j];
  }
  return out;
}

/** The brightness of every whole number of a grid, from 0 to 255. */
function brightness(grid: Grid, mode: Mode, reference: number): Uint8Array {
  const steps = 4096;
  const table = new Uint8Array(steps + 1);
  for (let i = 0; i <= steps; i++) {
    const below = grid.range * (1 - i / steps); // nats under the top
    const share =
      mode === "density"
        ? Math.sqrt(Math.exp(grid.top - below - reference)) // the root shows faint mass as well
        : 1 - below / ENERGY_SPAN;
    table[i] = 255 * Math.min(1, Math.max(0, share));
  }
  return table;
}

export const ENERGY_SPAN = 15; // nats of energy that are shown

const scratch = document.createElement("canvas");

/** A square canvas that shows a window of the plane, from -half to half. */
export class Plot {
  readonly context: CanvasRenderingContext2D;
  half = 1;

  constructor(readonly canvas: HTMLCanvasElement) {
    // pictures are made by this page, pixel by pixel, so they are best kept where it runs
    this.context = canvas.getContext("2d", { willReadFrequently: true })!;
    this.resize();
  }

  /** Matches the pixels of the canvas to those of the screen. */
  resize(): void {
    const ratio = Math.min(2, window.devicePixelRatio || 1);
    const side = Math.round((this.canvas.clientWidth || 380) * ratio);
    if (this.canvas.width !== side) this.canvas.width = this.canvas.height = side;
  }

  clear(colors: Colors = magma): void {
    this.context.fillStyle = `rgb(${colors[0]}, ${colors[1]}, ${colors[2]})`;
    this.context.fillRect(0, 0, this.canvas.width, this.canvas.height);
  }

  /** Draws a density, on the scale of a reference log-density, or its energy. */
  field(grid: Grid, mode: Mode, reference: number): void {
    this.resize();
    const fine = grid.size * FINE;
    const smooth = refine(grid.values, grid.size);
    const table = brightness(grid, mode, reference);
    const colors = mode === "density" ? magma : viridis;
    scratch.width = scratch.height = fine;
    const context = scratch.getContext("2d", { willReadFrequently: true })!;
    const image = context.createImageData(fine, fine);
    const scale = 4096 / grid.most;
    for (let i = 0, at = 0; i < smooth.length; i++, at += 4) {
      const v = smooth[i] * scale;
      const c = 3 * table[v <= 0 ? 0 : v >= 4096 ? 4096 : v | 0];
      image.data[at] = colors[c];
      image.data[at + 1] = colors[c + 1];
      image.data[at + 2] = colors[c + 2];
      image.data[at + 3] = 255;
    }
    context.putImageData(image, 0, 0);
    this.context.drawImage(scratch, 0, 0, this.canvas.width, this.canvas.height);
  }

  /** From the plane to the canvas. */
  x(x: number): number {
    return ((x / this.half + 1) / 2) * this.canvas.width;
  }
  y(y: number): number {
    return ((1 - y / this.half) / 2) * this.canvas.height;
  }

  points(points: Numeric, color: string, radius: number, most = Infinity): void {
    const { context, canvas } = this;
    const r = (radius * canvas.width) / 400;
    context.fillStyle = color;
    context.beginPath();
    for (let i = 0; i < Math.min(points.length, 2 * most); i += 2) {
      const [x, y] = [this.x(points[i]), this.y(points[i + 1])];
      context.moveTo(x + r, y);
      context.arc(x, y, r, 0, 2 * Math.PI);
    }
    context.fill();
  }

  /** Arrows at the nodes of a square grid, x first; the length is the root of the root of the score. */
  arrows(score: Numeric, color: string): void {
    const { context, canvas } = this;
    const side = Math.round(Math.sqrt(score.length / 2));
    const gap = canvas.width / side;
    let most = 0;
    for (let i = 0; i < score.length; i += 2) most = Math.max(most, Math.hypot(score[i], score[i + 1]));
    context.strokeStyle = color;
    context.lineWidth = Math.max(1, canvas.width / 420);
    context.lineCap = "round";
    context.beginPath();
    for (let i = 0; i < side * side; i++) {
      const [u, v] = [score[2 * i], -score[2 * i + 1]];
      const norm = Math.hypot(u, v);
      if (!(norm > 0) || most === 0) continue;
      const length = 0.72 * gap * (norm / most) ** 0.25;
      const [dx, dy] = [(u / norm) * length, (v / norm) * length];
      const cx = (Math.floor(i / side) + 0.5) * gap;
      const cy = canvas.height - ((i % side) + 0.5) * gap;
      const [tx, ty] = [cx + dx / 2, cy + dy / 2];
      context.moveTo(cx - dx / 2, cy - dy / 2);
      context.lineTo(tx, ty);
      context.moveTo(tx - 0.3 * dx - 0.18 * dy, ty - 0.3 * dy + 0.18 * dx);
      context.lineTo(tx, ty);
      context.lineTo(tx - 0.3 * dx + 0.18 * dy, ty - 0.3 * dy - 0.18 * dx);
    }
    context.stroke();
  }
}
