import "./style.css";

import { Evolve, Meet, square } from "./animation";
import { chart, type Series } from "./chart";
import { gradient, magma, viridis } from "./colors";
import { Pad } from "./draw";
import { ENERGY_SPAN, type Mode, type Plot } from "./field";
import { element, Form } from "./form";
import { Socket, type Hello, type Image, type Message, type Preset, type Said } from "./protocol";
import { scene, Side, type Run, type Scene } from "./run";

const DRAW = "draw your own points";
const LETTERS = ["A", "B"];

function by<T extends HTMLElement = HTMLElement>(id: string): T {
  return document.getElementById(id) as T;
}
const css = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const minus = (text: string) => text.replace("-", "−");

let hello: Hello;
let run: Run = { steps: 0, sides: [], scene: null };
let preview: Scene | null = null; // of the set that is chosen, before it is trained on
let cursor: number | null = null; // the step that is looked at; none for the latest
let forms: { objectives: (Form | null)[]; network: Form | null; optimization: Form | null } = {
  objectives: [null, null],
  network: null,
  optimization: null,
};

// messages -------------------------------------------------------------------------------------

const socket = new Socket(said, received, (why) => {
  by("status").textContent = "Not connected";
  fail(why || "The server has ended. Start it again with fokker studio, and reload this page.");
  busy(false);
});

function said(what: Said): void {
  if (what.op === "hello") greet(what);
  else if (what.op === "error") {
    fail(what.message);
    if (what.over || run.sides.every((side) => side.drawn === 0)) {
      if (document.documentElement.dataset.busy === "true") by("status").textContent = "Not trained";
      busy(false);
    }
  } else if (what.op === "done") {
    const side = run.sides[what.side];
    side.done = what;
    if (what.message) fail(`${side.letter}: ${what.message}`);
    if (run.sides.every((s) => s.done)) {
      busy(false);
      by("status").textContent = run.sides.map((s) => `${s.letter} ${s.state} at step ${s.done!.step}`).join(", ");
    }
    refresh();
  } else exported(what.path, what.script);
}

function received(message: Message): void {
  const { op, side } = message.header;
  if (op === "look") {
    preview = scene(message);
    refresh();
  } else if (op === "start") {
    run.scene = scene(message);
    run.steps = message.header.steps;
  } else if (op === "frame") {
    const own = run.sides[side];
    own.add(message, run.scene!.size, run.scene!.range);
    if (own.drawn === 1) refresh();
    else if (!by("view-train").hidden && !document.hidden) advance(side);
    socket.send({ op: "ack", side });
  } else if (op === "evolve") evolve.show(message);
  else if (op === "meet") meet.show(message);
  if (op === "evolve" || op === "meet") {
    const { letter, name } = run.sides[side];
    by("status").textContent = `${letter}, ${name}, at step ${message.header.step}`;
  }
}

function fail(message: string): void {
  by("alert-text").textContent = message;
  by("alert").hidden = false;
}

// settings -------------------------------------------------------------------------------------

const drawing = () => by<HTMLSelectElement>("data").value === DRAW;
const preset = (): Preset => (drawing() ? hello.presets.points : hello.presets.set);
const comparing = () => by<HTMLInputElement>("compare").checked;

function greet(what: Hello): void {
  hello = what;
  by("status").textContent = `Ready. fokker ${hello.version}`;
  const data = by<HTMLSelectElement>("data");
  data.replaceChildren(...[...hello.sets, DRAW].map((name) => element("option", { value: name }, name)));
  data.value = "rings";
  pad = new Pad(truth.plot, hello.points[1], drawnChanged);
  const names = Object.keys(hello.presets.set.objectives);
  for (const i of [0, 1]) {
    const select = by<HTMLSelectElement>(`method-${i}`);
    select.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
    select.value = i === 0 ? "DCD at many times" : "Contrastive divergence";
    select.onchange = () => objectiveForm(i);
  }
  data.onchange = dataChanged;
  dataChanged();
}

function objectiveForm(i: number): void {
  const image = preset().objectives[by<HTMLSelectElement>(`method-${i}`).value];
  const { about, fields } = hello.presets.forms.objectives[String(image.kind)];
  by(`about-${i}`).textContent = about;
  forms.objectives[i] = new Form(by(`objective-form-${i}`), fields, image, String(image.kind));
}

function dataChanged(): void {
  const { network, optimization } = preset();
  forms.network = new Form(by("network-form"), hello.presets.forms.network, network);
  forms.optimization = new Form(by("optimization-form"), hello.presets.forms.optimization, optimization);
  objectiveForm(0);
  objectiveForm(1);
  by("drawing").hidden = !drawing();
  pad.active = drawing();
  truth.plot.canvas.tabIndex = drawing() ? 0 : -1;
  truth.plot.canvas.setAttribute("role", drawing() ? "application" : "img");
  const how = "Draw with the mouse, or move with the arrow keys, add with space, take back with backspace";
  truth.plot.canvas.setAttribute("aria-label", drawing() ? how : "The data");
  preview = null;
  if (drawing()) {
    truth.plot.half = 1.3;
    drawnChanged();
  } else socket.send({ op: "look", data: by<HTMLSelectElement>("data").value });
  select("train");
  refresh();
}

function drawnChanged(): void {
  by("count").textContent = `${pad.points.length} points (${hello.points[0]} or more)`;
  pad.draw();
}

function busy(on: boolean): void {
  by<HTMLButtonElement>("train").disabled = on;
  by<HTMLButtonElement>("stop").disabled = !on;
  document.documentElement.dataset.busy = String(on);
}

by<HTMLFormElement>("settings").onsubmit = (event) => {
  event.preventDefault();
  by("alert").hidden = true;
  const sides = comparing() ? [0, 1] : [0];
  const names = sides.map((i) => by<HTMLSelectElement>(`method-${i}`).value);
  const request: { [key: string]: unknown } = {
    op: "train",
    objectives: sides.map((i) => forms.objectives[i]!.value()) as Image[],
    network: forms.network!.value(),
    optimization: forms.optimization!.value(),
    seed: Number(by<HTMLInputElement>("seed").value),
  };
  if (drawing()) request.points = pad.points;
  else request.data = by<HTMLSelectElement>("data").value;
  run = { steps: 0, sides: sides.map((i) => new Side(names[i], LETTERS[i])), scene: null };
  cursor = null;
  asked = "";
  busy(true);
  by("status").textContent = "Training …";
  build();
  select("train");
  socket.send(request);
};
by("stop").onclick = () => socket.send({ op: "stop" });
by("alert-close").onclick = () => (by("alert").hidden = true);
by("clear").onclick = () => pad.clear();
by<HTMLInputElement>("compare").onchange = () => (by("second").hidden = !comparing());

// the training view ------------------------------------------------------------------------------

const truth = square("Data", "The data");
truth.figure.id = "panel-data";
let pad: Pad;

interface Panel {
  figure: HTMLElement;
  plot: Plot;
  numbers: HTMLElement;
  save: HTMLButtonElement;
}
let panels: Panel[] = [];
let charts: { key: string; figure: HTMLElement; canvas: HTMLCanvasElement }[] = [];

/** Lays out the panels and charts of a run. */
function build(): void {
  panels = run.sides.map((side, i) => {
    const { figure, caption, plot } = square(side.name, `The energy learned by ${side.name}`);
    figure.id = `panel-${i}`;
    caption.prepend(element("span", { className: `side ${side.letter.toLowerCase()}` }, side.letter));
    const save = element("button", { type: "button", disabled: true, className: "save" }, "Export");
    save.setAttribute("aria-label", `Export the run of ${side.letter}`);
    save.onclick = () => socket.send({ op: "export", side: i });
    caption.append(save);
    const numbers = element("dl", { className: "numbers" });
    figure.append(numbers);
    return { figure, plot, numbers, save };
  });
  const root = by("panels");
  root.replaceChildren(truth.figure, ...panels.map((panel) => panel.figure));
  root.dataset.count = String(1 + panels.length);
  const titles: { [key: string]: string } = drawing()
    ? { loss: "Loss", nll_train: "NLL of the points trained on, nats", nll_validation: "NLL of points kept aside, nats" }
    : { loss: "Loss", kl: "KL to the truth, nats", fisher_gap: "Relative Fisher gap" };
  if (run.sides.length > 1) titles.loss = "Loss, each on a scale of its own";
  charts = Object.entries(titles).map(([key, title]) => {
    const canvas = element("canvas", { className: "line-canvas" });
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", title);
    const figure = element("figure", {}, element("figcaption", {}, element("strong", {}, title)), canvas);
    return { key, figure, canvas };
  });
  by("charts").replaceChildren(...charts.map((c) => c.figure));
}

const checked = (id: string) => by<HTMLInputElement>(id).checked;
const mode = () => document.querySelector<HTMLInputElement>("input[name=field]:checked")!.value as Mode;

function refresh(): void {
  drawTruth();
  run.sides.forEach((_, i) => drawSide(i));
  drawCharts();
  drawScrub();
  drawLegend();
}

let chartsAt = 0; // when the curves were drawn last

/** Draws what a new frame of a side changes; the curves, which change little, four times a second. */
function advance(i: number): void {
  if (cursor === null) drawSide(i);
  drawScrub();
  if (performance.now() - chartsAt > 250) drawCharts();
}

/** The scene to show beside the run: its own, or that of a set chosen since. */
function current(): Scene | null {
  return preview ?? run.scene;
}

function drawTruth(): void {
  const own = current();
  truth.caption.firstElementChild!.textContent = drawing() ? "Data: drawn points" : "Data: the exact density";
  if (drawing()) return pad.draw();
  if (!own) return truth.plot.clear();
  truth.plot.half = own.half;
  if (own.truth) truth.plot.field(own.truth, mode(), own.truth.top);
  else truth.plot.clear();
  if (checked("show-data")) truth.plot.points(own.data, css("--data"), 1.5, 600);
}

const percent = (v: number) => `${(100 * v).toPrecision(3)} %`;

function drawSide(i: number): void {
  const [side, panel, own] = [run.sides[i], panels[i], run.scene];
  panel.save.disabled = !(side.state === "done" || side.state === "stopped");
  const frame = side.at(cursor);
  panel.figure.dataset.frames = String(side.drawn);
  panel.figure.dataset.state = side.state;
  if (!frame || !own) return panel.plot.clear();
  panel.plot.half = own.half;
  const reference = own.truth ? own.truth.top : frame.grid.top;
  panel.plot.field(frame.grid, mode(), reference);
  if (checked("show-score")) panel.plot.arrows(frame.score, "rgba(255, 255, 255, 0.5)");
  if (checked("show-data")) panel.plot.points(own.data, css("--data"), 1.5, 600);
  if (checked("show-particles")) panel.plot.points(frame.particles, css("--particle"), 2);
  const { kl, fisher_gap, off_mass, nll_train, nll_validation } = frame.numbers;
  const rows: [string, string, string, number | null | undefined][] = own.exact
    ? [
        ["KL", "kl", kl == null ? "–" : kl.toPrecision(3), kl],
        ["Fisher gap", "fisher_gap", fisher_gap == null ? "–" : percent(fisher_gap), fisher_gap],
        ["Off the data", "off_mass", off_mass == null ? "–" : percent(off_mass), off_mass],
      ]
    : [
        ["NLL, trained", "nll_train", nll_train == null ? "–" : minus(nll_train.toFixed(3)), nll_train],
        ["NLL, kept aside", "nll_validation", nll_validation == null ? "–" : minus(nll_validation.toFixed(3)), nll_validation],
      ];
  panel.numbers.replaceChildren(
    ...rows.map(([name, key, text, value]) => {
      const entry = element("div", {}, element("dt", {}, name), element("dd", {}, text));
      entry.dataset.key = key;
      entry.dataset.value = String(value);
      return entry;
    }),
  );
  panel.figure.dataset.step = String(frame.step);
}

/** A running mean, for curves that are noise for the most part. */
function smooth(y: number[]): number[] {
  const out: number[] = [];
  let mean = 0;
  y.forEach((v, i) => {
    const share = Math.max(0.03, 1 / (i + 1));
    mean += share * (v - mean);
    out.push(mean);
  });
  return out;
}

/** A curve between zero and one, but for its spikes. */
function unit(y: number[]): number[] {
  const sorted = [...y].sort((a, b) => a - b);
  const [low, high] = [sorted[Math.floor(0.02 * sorted.length)], sorted[Math.floor(0.98 * sorted.length)]];
  return y.map((v) => (v - low) / (high - low || 1));
}

function drawCharts(): void {
  chartsAt = performance.now();
  const colors = [css("--a"), css("--b")];
  for (const { key, canvas } of charts) {
    const series: Series[] = [];
    const several = run.sides.length > 1;
    run.sides.forEach((side, i) => {
      const color = colors[i];
      if (key === "loss") {
        const y = several ? unit(side.losses) : side.losses;
        series.push({ name: "raw", color, x: side.lossSteps, y, faint: true });
        series.push({ name: side.letter, color, x: side.lossSteps, y: smooth(y) });
      } else {
        const x = side.frames.map((frame) => frame.step);
        const y = side.frames.map((frame) => (frame.numbers as { [key: string]: number | null })[key] ?? NaN);
        series.push({ name: side.letter, color, x, y });
      }
    });
    const log = key === "kl" || key === "fisher_gap";
    chart(canvas, series, { log, marker: cursor, hideScale: key === "loss" && several });
  }
}

function drawScrub(): void {
  const steps = Math.max(0, ...run.sides.map((side) => side.at(null)?.step ?? 0));
  const slider = by<HTMLInputElement>("scrub");
  slider.disabled = steps === 0;
  slider.max = String(Math.max(1, steps));
  if (cursor === null) slider.value = String(steps);
  by("scrub-step").textContent = run.sides.length ? `${cursor ?? steps} of ${run.steps}` : "–";
  by<HTMLButtonElement>("live").disabled = cursor === null;
}

function drawLegend(): void {
  const density = mode() === "density";
  const bar = element("span", { className: "ramp" });
  bar.style.background = gradient(density ? magma : viridis);
  const top = current()?.truth?.top;
  const [low, high] = density
    ? ["0", top === undefined ? "largest density" : `${Math.exp(top).toPrecision(2)}, root scale`]
    : [`${ENERGY_SPAN} nats above`, "least energy"];
  by("legend").replaceChildren(element("span", {}, low), bar, element("span", {}, high));
}

by<HTMLInputElement>("scrub").oninput = ({ target }) => {
  cursor = Number((target as HTMLInputElement).value);
  refresh();
};
by("live").onclick = () => {
  cursor = null;
  refresh();
};
for (const input of document.querySelectorAll<HTMLInputElement>(".bar input")) input.onchange = refresh;

// the other views --------------------------------------------------------------------------------

const evolve = new Evolve(
  by("evolve-panels"), by<HTMLInputElement>("evolve-time"), by<HTMLButtonElement>("evolve-play"), by<HTMLOutputElement>("evolve-value"),
);
const meet = new Meet(
  by("meet-rows"), by<HTMLInputElement>("meet-time"), by<HTMLButtonElement>("meet-play"), by<HTMLOutputElement>("meet-value"),
);
const VIEWS = ["train", "evolve", "meet"] as const;
let asked = ""; // what was asked for last, so as not to ask again

const chosen = element("select", { id: "which" });
const whose = element("label", { className: "which" }, "Energy of ", chosen);
chosen.onchange = () => request();

/** Asks for the animation of the view that is open. */
function request(): void {
  const view = VIEWS.find((name) => !by(`view-${name}`).hidden)!;
  if (view === "train") return;
  if (run.sides.length === 0 || !run.sides[0].at(null)) return fail("Train an energy first: there is none to look at yet.");
  if (chosen.options.length !== run.sides.length)
    chosen.replaceChildren(...run.sides.map((s, i) => element("option", { value: String(i) }, `${s.letter}, ${s.name}`)));
  by(`view-${view}`).querySelector(".lead")!.append(whose);
  const side = Number(chosen.value);
  const step = run.sides[side].at(cursor)!.step;
  const key = `${view} ${side} ${step}`;
  if (key === asked) return;
  asked = key;
  by("status").textContent = "Solving …";
  socket.send({ op: view, side, step });
}

function select(view: (typeof VIEWS)[number]): void {
  for (const name of VIEWS) {
    const on = name === view;
    by(`view-${name}`).hidden = !on;
    by(`tab-${name}`).setAttribute("aria-selected", String(on));
    by(`tab-${name}`).tabIndex = on ? 0 : -1;
  }
  evolve.stop();
  meet.stop();
  if (view === "train") {
    if (run.sides.length) refresh();
  } else request();
}

VIEWS.forEach((name, i) => {
  const tab = by(`tab-${name}`);
  tab.onclick = () => select(name);
  tab.onkeydown = ({ key }) => {
    const move = key === "ArrowRight" ? 1 : key === "ArrowLeft" ? VIEWS.length - 1 : 0;
    if (!move) return;
    const next = VIEWS[(i + move) % VIEWS.length];
    select(next);
    by(`tab-${next}`).focus();
  };
});

// export -----------------------------------------------------------------------------------------

function exported(path: string, script: string): void {
  by("exported-path").textContent = path;
  by("exported-script").textContent = script;
  by<HTMLDialogElement>("exported").showModal();
}
by("exported-close").onclick = () => by<HTMLDialogElement>("exported").close();
by("copy").onclick = async () => {
  await navigator.clipboard.writeText(by("exported-script").textContent!);
  by("copy").textContent = "Copied";
};
by("download").onclick = () => {
  const url = URL.createObjectURL(new Blob([by("exported-script").textContent!], { type: "text/x-python" }));
  element("a", { href: url, download: "script.py" }).click();
  window.setTimeout(() => URL.revokeObjectURL(url), 1000);
};

// light and dark ---------------------------------------------------------------------------------

function theme(name: string): void {
  document.documentElement.dataset.theme = name;
  by("theme").textContent = name === "dark" ? "Light" : "Dark";
  by("theme").setAttribute("aria-label", `Change to the ${name === "dark" ? "light" : "dark"} theme`);
  evolve.draw();
  meet.draw();
  if (run.sides.length) drawCharts();
}
by("theme").onclick = () => {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("theme", next);
  theme(next);
};
const system = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
theme(localStorage.getItem("theme") ?? system);

window.addEventListener("resize", () => {
  if (hello) refresh();
  evolve.draw();
  meet.draw();
});
build();
select("train");
busy(false);
