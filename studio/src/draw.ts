// Drawing one's own points, with the mouse or with the keys.
import type { Plot } from "./field";

const SPRAY = 0.025; // std of the points about the pen
const STRIDE = 0.02; // of the pen between two points

export class Pad {
  points: [number, number][] = [];
  private cursor: [number, number] = [0, 0];
  private last: [number, number] | null = null;
  active = false;

  constructor(
    readonly plot: Plot,
    private most: number,
    private changed: () => void,
  ) {
    const { canvas } = plot;
    canvas.addEventListener("pointerdown", (event) => {
      if (!this.active) return;
      canvas.setPointerCapture(event.pointerId);
      this.last = null;
      this.stroke(event);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (this.active && event.buttons & 1) this.stroke(event);
    });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  clear(): void {
    this.points = [];
    this.changed();
  }

  private add(x: number, y: number): void {
    if (this.points.length >= this.most) return;
    const clamp = (v: number) => Math.max(-1, Math.min(1, v));
    const round = (v: number) => Math.round(v * 1e5) / 1e5;
    this.points.push([round(clamp(x)), round(clamp(y))]);
  }

  private stroke(event: PointerEvent): void {
    const box = this.plot.canvas.getBoundingClientRect();
    const half = this.plot.half;
    const x = ((event.clientX - box.left) / box.width) * 2 * half - half;
    const y = half - ((event.clientY - box.top) / box.height) * 2 * half;
    const from = this.last ?? [x, y];
    const steps = Math.max(1, Math.round(Math.hypot(x - from[0], y - from[1]) / STRIDE));
    for (let i = 1; i <= steps; i++) {
      const t = i / steps;
      const r = SPRAY * Math.sqrt(-2 * Math.log(1 - Math.random()));
      const angle = 2 * Math.PI * Math.random();
      this.add(from[0] + t * (x - from[0]) + r * Math.cos(angle), from[1] + t * (y - from[1]) + r * Math.sin(angle));
    }
    this.last = [x, y];
    this.cursor = [x, y];
    this.changed();
  }

  private key(event: KeyboardEvent): void {
    if (!this.active) return;
    const step = event.shiftKey ? 0.01 : 0.05;
    const moves: { [key: string]: [number, number] } = {
      ArrowLeft: [-step, 0],
      ArrowRight: [step, 0],
      ArrowUp: [0, step],
      ArrowDown: [0, -step],
    };
    if (event.key in moves) {
      const [dx, dy] = moves[event.key];
      const clamp = (v: number) => Math.max(-1, Math.min(1, v));
      this.cursor = [clamp(this.cursor[0] + dx), clamp(this.cursor[1] + dy)];
    } else if (event.key === " " || event.key === "Enter") this.add(...this.cursor);
    else if (event.key === "Backspace") this.points.pop();
    else return;
    event.preventDefault();
    this.changed();
  }

  draw(): void {
    const { plot } = this;
    plot.resize();
    plot.clear();
    const { context } = plot;
    const [a, b] = [plot.x(-1), plot.y(1)];
    context.strokeStyle = "rgba(255, 255, 255, 0.25)";
    context.setLineDash([6, 6]);
    context.strokeRect(a, b, plot.x(1) - a, plot.y(-1) - b);
    context.setLineDash([]);
    plot.points(Float32Array.from(this.points.flat()), "rgba(255, 240, 220, 0.85)", 2.2);
    const [x, y] = [plot.x(this.cursor[0]), plot.y(this.cursor[1])];
    const r = plot.canvas.width / 45;
    context.strokeStyle = "#7de2d1";
    context.lineWidth = plot.canvas.width / 250;
    context.beginPath();
    context.moveTo(x - r, y);
    context.lineTo(x + r, y);
    context.moveTo(x, y - r);
    context.lineTo(x, y + r);
    context.stroke();
  }
}
