// All runs that the dashboard knows.

import { h, number, put } from "./dom.js";

export function runsPage(only, noun) {
  const list = h("div", {});
  const about = h("div", {});
  const element = h("div", { class: "page" }, h("h1", { class: "plain" }, noun === "job" ? "Jobs" : "Runs"), about, list);
  const known = { runs: null, about: null };
  return {
    element,
    sections: ["about", "runs"],
    take(name, value) {
      known[name] = value;
      if (name === "runs") only(value);
      put(about, known.about?.note, (note) => note && h("p", { class: "quiet", role: "status" }, note));
      if (known.runs) put(list, known, () => (known.runs.length ? h("ul", { class: "runs" }, known.runs.map(card)) : nothing(known.about)));
    },
  };
}

function nothing(about) {
  if (!about?.nothing) return null;
  return h("div", { class: "empty" }, h("p", {}, about.nothing),
    about.command && h("p", {}, "It appears here as soon as one is started: ", h("code", {}, about.command)));
}

function card(r) {
  const facts = [
    [`${number(r.ranks)}`, r.ranks === 1 ? "rank" : "ranks"],
    [number(r.steps), "steps"],
    [r.over ? "–" : `${r.steps_per_s.toFixed(1)}/s`, "step rate"],
    [r.goodput, "goodput"],
    [r.protection, "protection"],
  ];
  return h("li", {},
    h("a", { class: `card run-card tone-${r.tone}`, href: `#/runs/${encodeURIComponent(r.run)}`, "data-key": r.run },
      h("span", { class: "run-name" }, r.title || `run ${r.run}`),
      r.when ? h("span", { class: "quiet" }, r.when) : "",
      h("span", { class: "run-head" }, h("span", { class: "dot", "aria-hidden": "true" }), r.headline),
      h("code", { class: "run-command" }, r.command),
      h("dl", { class: "facts" }, facts.map(([value, name]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
      r.to_do ? h("span", { class: "badge" }, r.to_do === 1 ? "1 thing to do" : `${r.to_do} things to do`) : ""));
}
