// A migration as a bar of its phases.

import { h, seconds } from "./dom.js";

export const total = (bar) => bar.reduce((sum, s) => sum + s.seconds, 0);

export function phaseBar(bar, longest) {
  const words = bar.map((s) => `${s.name} ${seconds(s.seconds)}`).join(", ");
  return h("div", { class: "bar", role: "img", "aria-label": words || "no phase has begun" },
    h("div", { class: "bar-fill", css: { width: `${longest ? (100 * total(bar)) / longest : 0}%` } },
      bar.map((s) => h("span", { class: `segment row-${s.row}`, title: `${s.name}: ${seconds(s.seconds)}`, css: { "flex-grow": String(s.seconds) } }))));
}

export function phaseLegend(bar) {
  return h("ul", { class: "legend" },
    bar.map((s) => h("li", {}, h("span", { class: `swatch row-${s.row}`, "aria-hidden": "true" }), `${s.name} `, h("b", {}, seconds(s.seconds)))));
}
