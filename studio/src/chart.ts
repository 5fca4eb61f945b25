// Curves on a canvas.

export interface Series {
  name: string;
  color: string;
  x: ArrayLike<number>;
  y: ArrayLike<number>;
  faint?: boolean;
}

export interface Options {
  log?: boolean;
  logX?: boolean;
  marker?: number | null;
  xLabel?: string;
  hideScale?: boolean; // of y, where the curves do not share one
  zero?: boolean; // the scale of y starts at zero
  band?: { x: number; from: number; to: number; color: string }; // how far a curve has fallen at x
}

const css = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function short(v: number): string {
  const size = Math.abs(v);
  if (v === 0) return "0";
  if (size >= 1e4 || size < 1e-3) return v.toExponential(0).replace("e+", "e").replace("-", "−");
  return String(Number(v.toPrecision(2))).replace("-", "−");
}

/** Round numbers within an interval, three to six of them. */
function ticks(low: number, high: number, log: boolean): number[] {
  if (log) {
    const out: number[] = [];
    const [a, b] = [Math.ceil(low), Math.floor(high)];
    const stride = Math.max(1, Math.ceil((b - a) / 4));
    for (let k = a; k <= b; k += stride) out.push(k);
    return out.length > 1 ? out : [low, high];
  }
  const raw = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw)!;
  const out: number[] = [];
  for (let v = Math.ceil(low / step) * step; v <= high + 1e-9 * step; v += step) out.push(v);
  return out;
}

/** A share of the values lies below the result; single spikes must not set the scale. */
function quantile(values: number[], share: number): number {
  return values[Math.min(values.length - 1, Math.floor(share * values.length))];
}

export function chart(canvas: HTMLCanvasElement, series: Series[], options: Options = {}): void {
  const ratio = Math.min(2, window.devicePixelRatio || 1);
  const [w, h] = [canvas.clientWidth || 300, canvas.clientHeight || 150];
  canvas.width = Math.round(w * ratio);
  canvas.height = Math.round(h * ratio);
  const context = canvas.getContext("2d", { willReadFrequently: true })!;
  context.scale(ratio, ratio);
  const ink = css("--ink-soft");
  context.font = `11px ${css("--sans")}`;
  const tx = (v: number) => (options.logX ? Math.log10(v) : v);
  const ty = (v: number) => (options.log ? Math.log10(v) : v);
  const xs: number[] = [];
  const ys: number[] = [];
  for (const s of series)
    for (let i = 0; i < s.x.length; i++) {
      const [x, y] = [tx(s.x[i]), ty(s.y[i])];
      if (Number.isFinite(x)) xs.push(x);
      if (Number.isFinite(x) && Number.isFinite(y)) ys.push(y);
    }
  const left = options.hideScale ? 10 : 46;
  const [right, top, bottom] = [w - 10, 8, h - (options.xLabel ? 34 : 22)];
  context.strokeStyle = css("--line");
  context.lineWidth = 1;
  context.strokeRect(left + 0.5, top + 0.5, right - left, bottom - top);
  if (ys.length < 2) return;
  ys.sort((a, b) => a - b);
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  let [y0, y1] = [quantile(ys, 0.01), quantile(ys, 0.99)];
  if (options.zero) y0 = 0;
  const room = 0.06 * (y1 - y0 || 1);
  y1 += room;
  if (!options.zero) y0 -= room;
  const px = (x: number) => left + ((tx(x) - x0) / (x1 - x0 || 1)) * (right - left);
  const py = (y: number) => bottom - ((ty(y) - y0) / (y1 - y0)) * (bottom - top);

  context.fillStyle = ink;
  context.textBaseline = "middle";
  context.textAlign = "right";
  if (!options.hideScale)
    for (const v of ticks(y0, y1, !!options.log)) {
      const y = bottom - ((v - y0) / (y1 - y0)) * (bottom - top);
      context.fillText(short(options.log ? 10 ** v : v), left - 6, y);
      context.fillRect(left - 3, Math.round(y), 3, 1);
    }
  context.textBaseline = "top";
  const marks = ticks(x0, x1, !!options.logX);
  marks.forEach((v, i) => {
    const x = left + ((v - x0) / (x1 - x0 || 1)) * (right - left);
    context.textAlign = i === marks.length - 1 && x > right - 20 ? "right" : "center";
    context.fillText(short(options.logX ? 10 ** v : v), Math.min(x, right + 6), bottom + 6);
    context.fillRect(Math.round(x), bottom, 1, 3);
  });
  if (options.xLabel) {
    context.textAlign = "center";
    context.fillText(options.xLabel, (left + right) / 2, bottom + 20);
  }

  context.save();
  context.beginPath();
  context.rect(left, top, right - left, bottom - top);
  context.clip();
  if (options.band) {
    const { x, from, to, color } = options.band;
    context.fillStyle = color;
    context.fillRect(left, py(from), px(x) - left, py(to) - py(from));
  }
  for (const s of series) {
    context.beginPath();
    context.strokeStyle = s.color;
    context.globalAlpha = s.faint ? 0.28 : 1;
    context.lineWidth = s.faint ? 1 : 1.8;
    context.lineJoin = "round";
    let pen = false;
    for (let i = 0; i < s.x.length; i++) {
      const [x, y] = [px(s.x[i]), py(s.y[i])];
      if (!Number.isFinite(x) || !Number.isFinite(y)) {
        pen = false;
        continue;
      }
      if (pen) context.lineTo(x, y);
      else context.moveTo(x, y);
      pen = true;
    }
    context.stroke();
    context.globalAlpha = 1;
  }
  if (options.marker !== null && options.marker !== undefined) {
    const x = px(options.marker);
    context.strokeStyle = css("--ink");
    context.setLineDash([3, 3]);
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x, top);
    context.lineTo(x, bottom);
    context.stroke();
  }
  context.restore();
}
