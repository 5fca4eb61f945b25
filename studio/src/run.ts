// A run as the page knows it: what was said at its start, and the frames kept for scrubbing.
import type { Grid } from "./field";
import type { Done, Message, Numbers, Numeric } from "./protocol";

export interface Frame {
  step: number;
  seconds: number;
  grid: Grid;
  score: Numeric;
  particles: Numeric;
  numbers: Numbers;
}

const KEPT = 400; // frames a side

export class Side {
  frames: Frame[] = [];
  lossSteps: number[] = [];
  losses: number[] = [];
  done: Done | null = null;
  drawn = 0; // frames that came, kept or not

  constructor(
    readonly name: string,
    readonly letter: string,
  ) {}

  add({ header, arrays }: Message, size: number, range: number): Frame {
    const { step, seconds, top, kl, off_mass, fisher_gap, nll_train, nll_validation } = header;
    const frame: Frame = {
      step,
      seconds,
      grid: { size, values: arrays.log_density, most: 65535, top, range },
      score: arrays.score,
      particles: arrays.particles,
      numbers: { kl, off_mass, fisher_gap, nll_train, nll_validation },
    };
    for (let i = 0; i < arrays.losses.length; i++) {
      this.lossSteps.push(header.first_loss + i);
      this.losses.push(arrays.losses[i]);
    }
    this.frames.push(frame);
    this.drawn++;
    if (this.frames.length > KEPT) this.thin();
    return frame;
  }

  /** Drops the frame whose neighbors are closest; the first and the last stay. */
  private thin(): void {
    let gone = 1;
    const gap = (i: number) => this.frames[i + 1].step - this.frames[i - 1].step;
    for (let i = 2; i < this.frames.length - 1; i++) if (gap(i) < gap(gone)) gone = i;
    this.frames.splice(gone, 1);
  }

  /** The kept frame nearest to a step; the last without one. */
  at(step: number | null): Frame | null {
    if (this.frames.length === 0) return null;
    if (step === null) return this.frames[this.frames.length - 1];
    let best = this.frames[0];
    for (const frame of this.frames) if (Math.abs(frame.step - step) < Math.abs(best.step - step)) best = frame;
    return best;
  }

  get state(): string {
    return this.done?.state ?? "training";
  }
}

/** The window and the data of a run. */
export interface Scene {
  half: number;
  exact: boolean;
  truth: Grid | null;
  data: Numeric;
  size: number;
  range: number;
}

export function scene({ header, arrays }: Message): Scene {
  const { half, exact, size, range, truth_top: top } = header;
  const truth = arrays.truth ? { size, values: arrays.truth, most: 65535, top, range } : null;
  return { half, exact, truth, data: arrays.data, size, range };
}

export interface Run {
  steps: number;
  sides: Side[];
  scene: Scene | null;
}
