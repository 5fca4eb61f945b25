// The two animations of a learned energy: its evolution, and the meeting of data and model.
import { chart } from "./chart";
import { Plot, type Grid } from "./field";
import { element } from "./form";
import type { Message, Numeric } from "./protocol";

const css = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A figure with a square canvas. */
export function square(title: string, label: string): { figure: HTMLElement; caption: HTMLElement; plot: Plot } {
  const canvas = element("canvas", { className: "field-canvas" });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  const caption = element("figcaption", {}, element("strong", {}, title));
  const figure = element("figure", {}, caption, canvas);
  return { figure, caption, plot: new Plot(canvas) };
}

function lines(label: string): { figure: HTMLElement; canvas: HTMLCanvasElement; caption: HTMLElement } {
  const canvas = element("canvas", { className: "line-canvas" });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  const caption = element("figcaption", {}, element("strong", {}, label));
  return { figure: element("figure", {}, caption, canvas), canvas, caption };
}

/** One image of a stack of them. */
function slice(values: Numeric, i: number, size: number, top: number, range: number): Grid {
  return { size, values: values.subarray(i * size * size, (i + 1) * size * size), most: 255, top, range };
}

function path(values: Numeric, i: number, times: number): Numeric {
  const count = values.length / times;
  return values.subarray(i * count, (i + 1) * count);
}

/** An animation with a slider and a button that plays it. */
abstract class Animation {
  protected message: Message | null = null;
  private timer = 0;

  constructor(
    private slider: HTMLInputElement,
    private play: HTMLButtonElement,
    protected output: HTMLOutputElement,
  ) {
    slider.oninput = () => this.draw();
    play.onclick = () => (this.timer ? this.stop() : this.start());
  }

  get index(): number {
    return Number(this.slider.value);
  }

  show(message: Message): void {
    this.message = message;
    this.slider.max = String(message.header.times.length - 1);
    this.slider.disabled = false;
    this.draw();
  }

  stop(): void {
    window.clearInterval(this.timer);
    this.timer = 0;
    this.play.textContent = "Play";
  }

  private start(): void {
    if (!this.message) return;
    const last = Number(this.slider.max);
    if (this.index === last) this.slider.value = "0";
    this.play.textContent = "Pause";
    this.timer = window.setInterval(() => {
      if (this.index === last) return this.stop();
      this.slider.value = String(this.index + 1);
      this.draw();
    }, 120);
  }

  abstract draw(): void;
}

/** The evolved energy, exact and by one Taylor step. */
export class Evolve extends Animation {
  private exact = square("Exact", "The exactly evolved density");
  private taylor = square("One Taylor step", "The density after one Taylor step");
  private error = lines("Error of the step, in nats");

  constructor(root: HTMLElement, slider: HTMLInputElement, play: HTMLButtonElement, output: HTMLOutputElement) {
    super(slider, play, output);
    root.append(this.exact.figure, this.taylor.figure, this.error.figure);
  }

  draw(): void {
    if (!this.message) return;
    const { header, arrays } = this.message;
    const [i, { size, tops, range, half, times, errors }] = [this.index, header];
    for (const [view, values] of [[this.exact, arrays.evolved], [this.taylor, arrays.taylor]] as const) {
      view.plot.half = half;
      view.plot.field(slice(values, i, size, tops[i], range), "density", tops[i]);
    }
    chart(this.error.canvas, [{ name: "error", color: css("--a"), x: times.slice(1), y: errors.slice(1) }], {
      log: true,
      logX: true,
      marker: i ? times[i] : null,
      xLabel: "time t",
    });
    this.output.textContent = `t = ${times[i].toPrecision(2)}, σ = ${Math.sqrt(times[i]).toPrecision(2)}, error ${errors[i].toPrecision(2)}`;
    this.output.dataset.error = String(errors[i]);
    this.output.dataset.time = String(times[i]);
  }
}

/** Data and model until they meet, by Langevin dynamics and by a common diffusion. */
export class Meet extends Animation {
  private rows = [
    {
      data: square("Data, carried by Langevin dynamics", "Data under Langevin dynamics"),
      model: square("Model, which stands still", "The model"),
      kl: lines("KL of data to model, nats"),
    },
    {
      data: square("Data, carried by the diffusion", "Data under the diffusion"),
      model: square("Model, carried by the same", "The model under the diffusion"),
      kl: lines("KL of data to model, nats"),
    },
  ];

  constructor(root: HTMLElement, slider: HTMLInputElement, play: HTMLButtonElement, output: HTMLOutputElement) {
    super(slider, play, output);
    const titles = ["Contrastive divergence", "Diffusion contrastive divergence"];
    this.rows.forEach((row, k) => {
      const panels = element("div", { className: "panels" }, row.data.figure, row.model.figure, row.kl.figure);
      root.append(element("h3", {}, titles[k]), panels);
    });
  }

  draw(): void {
    if (!this.message) return;
    const { header, arrays } = this.message;
    const [i, { size, range, half, times, clock }] = [this.index, header];
    const count = times.length;
    const parts = [
      { data: [arrays.data_langevin, i, arrays.langevin_paths], model: [arrays.model_spread, 0, null] },
      { data: [arrays.data_spread, i, arrays.data_paths], model: [arrays.model_spread, i, arrays.model_paths] },
    ] as const;
    parts.forEach((part, k) => {
      for (const which of ["data", "model"] as const) {
        const [values, index, paths] = part[which];
        const { plot } = this.rows[k][which];
        plot.half = half;
        plot.field(slice(values, index, size, 0, range), "density", 0);
        if (paths) plot.points(path(paths, i, count), css("--particle"), 1.6);
      }
      const [clockwork, y] = k === 0 ? [clock, header.kl_langevin] : [times, header.kl_diffusion];
      const x = clockwork.map(Math.sqrt);
      chart(this.rows[k].kl.canvas, [{ name: "KL", color: css(k === 0 ? "--b" : "--a"), x, y }], {
        marker: x[i],
        xLabel: "√t",
        zero: true,
        band: { x: x[i], from: y[0], to: y[i], color: css("--area") },
      });
    });
    const [cd, dcd] = [header.kl_langevin[i], header.kl_diffusion[i]];
    this.output.textContent = `KL ${cd.toPrecision(3)} by Langevin, ${dcd.toPrecision(3)} by diffusion`;
    this.output.dataset.langevin = String(cd);
    this.output.dataset.diffusion = String(dcd);
  }
}
