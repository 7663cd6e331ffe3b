// The story of one migration.

import { clock, day, h, put, seconds } from "./dom.js";
import { phaseBar, phaseLegend, total } from "./bar.js";

const KINDS = { seen: "Seen", decided: "Decided", done: "Done" };
const OUTCOMES = { committed: "done", abandoned: "given up", checkpoint: "saved", cleared: "nothing to do", "under way": "under way" };

export function migrationPage(run, key) {
  const place = h("div", { class: "stack" }, h("p", { class: "empty" }, "…"));
  const element = h("div", { class: "page story" }, place);
  const path = `api/runs/${encodeURIComponent(run)}/migrations/${encodeURIComponent(key)}`;
  let last = "";
  async function load() {
    const answer = await fetch(path);
    if (answer.ok) put(place, await answer.json(), (story) => draw(run, story));
    else put(place, answer.status, () => h("p", { class: "empty" }, "This migration is not known, or no longer kept."));
  }
  return {
    element,
    sections: ["job", "migrations", "devices"],
    take(name, value) {
      const about = name === "migrations" ? JSON.stringify(value.find((m) => m.key === key) ?? null) : last;
      if (name === "devices" || about !== last) load();
      last = about;
    },
  };
}

function draw(run, s) {
  return [
    h("section", { class: `headline tone-${s.tone}` },
      h("span", { class: "eyebrow" }, `Migration ${s.key} · ${day(s.started_s)} ${clock(s.started_s)} · ${OUTCOMES[s.outcome] ?? s.outcome}`),
      h("h1", {}, s.title),
      h("p", {}, s.summary)),
    s.to_do.length > 0 && h("section", { class: "card" }, h("h2", {}, "What is left to do"), h("ul", { class: "plain-list" }, s.to_do.map((t) => h("li", {}, t)))),
    h("section", { class: "card" },
      h("h2", {}, "What it cost"),
      s.bar.length > 0 && [phaseBar(s.bar, total(s.bar)), phaseLegend(s.bar)],
      s.costs.length ? h("ul", { class: "plain-list close" }, s.costs.map((c) => h("li", {}, c))) : h("p", { class: "quiet" }, "It is not over yet.")),
    h("section", { class: "card" },
      h("h2", {}, "What happened"),
      h("ol", { class: "timeline" }, s.lines.map((line) =>
        h("li", { class: `kind-${line.kind}` },
          h("span", { class: "when" }, `${line.after_s < 0 ? "−" : "+"}${seconds(Math.abs(line.after_s))}`),
          h("span", { class: "kind" }, KINDS[line.kind]),
          h("div", { class: "what" }, h("p", {}, line.text), h("p", { class: "who" }, `by ${line.who}`, line.took_s ? `, took ${seconds(line.took_s)}` : "")))))),
    h("p", {}, h("a", { href: `#/runs/${encodeURIComponent(run)}` }, `← Back to run ${run}`)),
  ];
}
