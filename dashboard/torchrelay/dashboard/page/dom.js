// Elements, numbers and times. Text is set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "css") for (const [property, v] of Object.entries(value)) element.style.setProperty(property, v);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((c) => c !== undefined && c !== null && c !== false && c !== ""));
  return element;
}

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

// Replaces the content of `place` if `value` is another than the last time, and keeps the focus where it was.
export function put(place, value, build) {
  const text = JSON.stringify(value);
  if (place.drawnFrom === text) return;
  place.drawnFrom = text;
  const held = place.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const made = build(value);
  place.replaceChildren(...[made].flat(Infinity).filter(Boolean));
  if (held) place.querySelector(`[data-key="${CSS.escape(held)}"]`)?.focus({ preventScroll: true });
}

export const number = (value) => value.toLocaleString("en-US");

const pad = (value) => String(value).padStart(2, "0");

export function clock(timeS, withSeconds = true) {
  const t = new Date(timeS * 1000);
  return `${pad(t.getHours())}:${pad(t.getMinutes())}` + (withSeconds ? `:${pad(t.getSeconds())}` : "");
}

export function day(timeS) {
  return new Date(timeS * 1000).toLocaleDateString("en-GB", { day: "numeric", month: "short" });
}

export function seconds(value) {
  if (value < 0.0095) return `${(value * 1000).toFixed(0)} ms`;
  if (value < 0.995) return `${value.toFixed(2)} s`;
  if (value < 99.5) return `${value.toFixed(1)} s`;
  return `${Math.round(value)} s`;
}

export function copyButton(text, key) {
  const button = h("button", { type: "button", class: "copy", "data-key": key, "aria-label": `Copy: ${text}` }, "Copy");
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  });
  return button;
}

export function command(text, key) {
  return h("div", { class: "command" }, h("code", {}, text), copyButton(text, key));
}
