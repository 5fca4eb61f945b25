// What the server and the page say to each other.

export type Plain = number | string | boolean | null | { [key: string]: Plain };
export type Image = { [key: string]: Plain };

export interface Field {
  name: string;
  doc: string;
  type: "number" | "integer" | "flag" | "choice" | "kind";
  default: Plain;
  optional: boolean;
  choices?: string[];
  plain?: "number" | "integer" | null;
  kinds?: { [kind: string]: Field[] };
}

export interface Preset {
  objectives: { [name: string]: Image };
  network: Image;
  optimization: Image;
}

export interface Hello {
  op: "hello";
  version: string;
  sets: string[];
  presets: {
    set: Preset;
    points: Preset;
    forms: {
      objectives: { [kind: string]: { about: string; fields: Field[] } };
      network: Field[];
      optimization: Field[];
    };
  };
  points: [number, number];
}

export interface Numbers {
  kl?: number | null;
  off_mass?: number | null;
  fisher_gap?: number | null;
  nll_train?: number | null;
  nll_validation?: number | null;
}

export interface Done {
  op: "done";
  side: number;
  job: number;
  state: "done" | "stopped" | "diverged" | "failed";
  step: number;
  message?: string;
  judged?: { [name: string]: number | null };
}

export type Said =
  | Hello
  | Done
  | { op: "error"; message: string; side?: number; over?: boolean }
  | { op: "exported"; side: number; path: string; script: string };

export type Numeric = Uint8Array | Uint16Array | Float32Array;

/** Headers are taken as they come, from our own server. */
export interface Message {
  header: any;
  arrays: { [name: string]: Numeric };
}

/** Reads a binary message: the length of the header, the header, and the arrays it names. */
export function unpack(buffer: ArrayBuffer): Message {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const arrays: { [name: string]: Numeric } = {};
  let at = 8 + length;
  for (const { name, dtype, shape } of header.arrays) {
    const count = shape.reduce((a: number, b: number) => a * b, 1);
    const kind = dtype === "uint8" ? Uint8Array : dtype === "uint16" ? Uint16Array : Float32Array;
    arrays[name] = new kind(buffer, at, count);
    at += Math.ceil((count * kind.BYTES_PER_ELEMENT) / 8) * 8;
  }
  return { header, arrays };
}

/** A socket to the server that this page came from. */
export class Socket {
  private socket: WebSocket;

  constructor(said: (said: Said) => void, message: (message: Message) => void, closed: (why: string) => void) {
    this.socket = new WebSocket(`ws://${location.host}/socket`);
    this.socket.binaryType = "arraybuffer";
    this.socket.onmessage = ({ data }) =>
      typeof data === "string" ? said(JSON.parse(data)) : message(unpack(data));
    this.socket.onclose = ({ reason }) => closed(reason);
  }

  send(what: object): void {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(what));
  }
}
