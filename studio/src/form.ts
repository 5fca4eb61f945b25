// Forms made from the descriptions that the server derives from its typed settings.
import type { Field, Image, Plain } from "./protocol";

let count = 0;

function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  properties: Partial<HTMLElementTagNameMap[K]> = {},
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}
export { element };

const label = (name: string) => name.replaceAll("_", " ").replaceAll("-", " ");

/** The first sentence of a documentation. */
function brief(doc: string): string {
  const end = doc.search(/[.;:] |\.$/);
  return end < 0 ? doc : doc.slice(0, end);
}

/** A form whose value is the image of a dataclass. */
export class Form {
  private parts = new Map<string, () => Plain | undefined>();

  constructor(
    root: HTMLElement,
    fields: Field[],
    value: Image,
    private kind: string | null = null,
  ) {
    root.replaceChildren();
    for (const field of fields) {
      const own = value[field.name] ?? (field.optional ? null : field.default);
      root.append(this.control(field, own));
    }
  }

  value(): Image {
    const out: Image = this.kind === null ? {} : { kind: this.kind };
    for (const [name, part] of this.parts) {
      const own = part();
      if (own !== undefined) out[name] = own;
    }
    return out;
  }

  private control(field: Field, value: Plain): HTMLElement {
    const id = `field-${count++}`;
    const name = element("label", { htmlFor: id, title: field.doc }, label(field.name));
    const hint = element("small", { id: `${id}-hint`, title: field.doc }, brief(field.doc));
    const row = element("div", { className: "row" });
    if (field.type === "flag") {
      const input = element("input", { type: "checkbox", id, checked: value === true });
      input.setAttribute("aria-describedby", hint.id);
      this.parts.set(field.name, () => input.checked);
      row.append(name, input, hint);
    } else if (field.type === "choice") {
      const select = element("select", { id }, ...field.choices!.map((c) => element("option", { value: c }, c)));
      select.value = String(value);
      select.setAttribute("aria-describedby", hint.id);
      this.parts.set(field.name, () => select.value);
      row.append(name, select, hint);
    } else if (field.type === "kind") {
      row.append(this.kinds(field, value, id, name, hint));
    } else {
      const input = this.number(field, id, value);
      input.setAttribute("aria-describedby", hint.id);
      row.append(name, input, hint);
    }
    return row;
  }

  private number(field: Field, id: string, value: Plain): HTMLInputElement {
    const whole = field.type === "integer";
    const input = element("input", { type: "number", id, step: whole ? "1" : "any" });
    input.placeholder = field.optional ? "none" : "";
    input.value = value === null || typeof value === "object" ? "" : String(value);
    input.required = !field.optional;
    this.parts.set(field.name, () => (input.value === "" ? undefined : Number(input.value)));
    return input;
  }

  /** One of several classes, each with a form of its own, or a plain number. */
  private kinds(field: Field, value: Plain, id: string, name: HTMLElement, hint: HTMLElement): HTMLElement {
    const kinds = Object.keys(field.kinds!);
    const single = kinds.length === 1 && !field.plain;
    const inner = element("div", { className: "inner" });
    const options = [...(field.plain ? ["number"] : []), ...kinds];
    const select = element("select", { id }, ...options.map((c) => element("option", { value: c }, label(c))));
    select.setAttribute("aria-describedby", hint.id);
    const nested = value !== null && typeof value === "object" ? (value as Image) : null;
    select.value = nested ? String(nested.kind) : "number";
    const build = () => {
      if (select.value === "number") {
        const start = typeof value === "number" ? value : null;
        const row = element("div", { className: "row" });
        const input = this.number({ ...field, type: field.plain! }, `${id}-number`, start);
        row.append(element("label", { htmlFor: `${id}-number` }, "value"), input);
        inner.replaceChildren(row);
        return;
      }
      const same = nested !== null && nested.kind === select.value;
      const form = new Form(inner, field.kinds![select.value], same ? nested : {}, select.value);
      this.parts.set(field.name, () => form.value());
    };
    select.onchange = build;
    build();
    if (single) {
      // nothing to choose: fold the settings of the part away under its name
      return element("details", {}, element("summary", { title: field.doc }, label(field.name)), inner);
    }
    return element("div", { className: "choice" }, element("div", { className: "row" }, name, select, hint), inner);
  }
}
