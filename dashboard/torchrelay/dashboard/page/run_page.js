// One run: what is the matter, what is left to do, and what there is to see.

import { clock, command, day, h, number, put, seconds } from "./dom.js";
import { askToClear } from "./asks.js";
import { phaseBar, total } from "./bar.js";
import { chart } from "./chart.js";
import { rankMap } from "./rank_map.js";

export function runPage(run) {
  const parts = Object.fromEntries(
    ["head", "todo", "tiles", "spares", "migrations", "quarantine", "verdicts", "report", "restarts"].map((n) => [n, h("div", { class: `part-${n}` })]));
  const steps = chart(run);
  const map = rankMap(run);
  const element = h("div", { class: "page" },
    parts.head, parts.todo, parts.tiles,
    h("section", { class: "card", "aria-labelledby": "h-steps" }, h("h2", { id: "h-steps" }, "Steps over time"), steps.element),
    h("section", { class: "card", "aria-labelledby": "h-ranks" }, h("h2", { id: "h-ranks" }, "Ranks"), map.element),
    parts.migrations, parts.restarts, parts.quarantine, parts.verdicts, parts.report);
  const known = { job: null, devices: null };

  function job() {
    const j = known.job;
    if (!j) return;
    put(parts.head, [j.headline, j.command, j.progress, j.title, j.when, j.note], () => headline(j));
    put(parts.todo, j.to_do, () => todo(j.to_do));
    if (known.devices) put(parts.tiles, [j.goodput, j.steps, j.steps_per_s, j.began, j.level, j.protection_reason, j.migrations, j.under_way, j.not_done, j.standstill, j.over, known.devices.spares], () => tiles(j, known.devices.spares));
    put(parts.restarts, j.restarts, () => restarts(j.restarts));
    if (known.devices) put(parts.quarantine, [known.devices.quarantine, j.actions], () => quarantine(run, known.devices.quarantine, j.actions));
    map.takeJob(j);
  }
  const takes = {
    job(value) { known.job = value; job(); },
    devices(value) { known.devices = value; job(); },
    ranks: map.take,
    chart: steps.take,
    migrations(value) { put(parts.migrations, value, () => migrations(run, value)); },
    verdicts(value) { put(parts.verdicts, value, () => verdicts(value)); },
    report(value) { put(parts.report, value, () => report(value)); },
  };
  return { element, sections: Object.keys(takes), take: (name, value) => takes[name](value) };
}

function headline(j) {
  return h("section", { class: `headline tone-${j.headline.tone}` },
    h("span", { class: "eyebrow" }, [j.title || `Run ${j.run}`, j.when].filter(Boolean).join(" · ")),
    h("h1", { "aria-live": "polite" }, j.headline.text),
    h("p", {}, j.headline.detail),
    j.note && h("p", { class: "quiet" }, j.note),
    j.progress && h("div", { class: "how-far" },
      h("progress", { max: "1", value: String(j.progress.share), "aria-label": j.progress.what }),
      h("span", {}, `${j.progress.what}: ${j.progress.text}`)),
    j.command && h("code", { class: "run-command", title: j.command }, j.command));
}

function todo(list) {
  if (!list.length) return null;
  return h("section", { class: "card todo", "aria-labelledby": "h-todo" },
    h("h2", { id: "h-todo" }, list.length === 1 ? "Left for you to do" : `Left for you to do: ${list.length} things`),
    h("ul", { class: "plain-list" }, list.map((t, n) => h("li", {}, t.text, t.command && command(t.command, `todo-${n}`)))));
}

function tile(name, value, unit, ...more) {
  return h("div", { class: "tile" }, h("h2", {}, name), h("p", { class: "big" }, value, unit && h("small", {}, ` ${unit}`)), ...more);
}

// Slow steps are told by how long one takes.
function rate(perS) {
  return perS >= 1 ? `${perS.toFixed(1)} per second` : `one every ${seconds(1 / perS)}`;
}

function tiles(j, spares) {
  const g = j.goodput;
  const sum = g.parts.reduce((a, p) => a + p.seconds, 0);
  const good = h("div", {},
    h("div", { class: "bar thin", role: "img", "aria-label": g.parts.map((p) => `${p.name} ${p.words}`).join(", ") },
      h("div", { class: "bar-fill", css: { width: "100%" } }, sum > 0 && g.parts.map((p) => h("span", { class: `segment part-${p.part}`, title: `${p.name}: ${p.words}`, css: { "flex-grow": String(p.seconds) } })))),
    h("ul", { class: "legend" }, g.parts.map((p) => h("li", {}, h("span", { class: `swatch part-${p.part}`, "aria-hidden": "true" }), `${p.name} `, h("b", {}, p.words)))));
  const dots = spares.wanted <= 12 && spares.known && h("span", { class: "dots", "aria-hidden": "true" },
    Array.from({ length: Math.max(spares.wanted, spares.ready) }, (_, n) => h("span", { class: n < spares.ready ? "dot ready" : n < spares.ready + spares.making ? "dot making" : "dot" })));
  const making = spares.making ? `${spares.making} being made` : "";
  return h("section", { class: "tiles", "aria-label": "Figures" },
    tile("Goodput", g.known ? g.share : "–", "", h("p", { class: "quiet" }, g.known ? `of all time since the start; ${g.since_first_step} since the first step` : "It counts from the first step."), good),
    tile("Protection", h("span", { class: `level level-${j.level}` }, j.protection), "", h("p", { class: "quiet" }, j.protection_reason)),
    tile("Steps", number(j.steps), "", h("p", { class: "quiet" }, [!j.over && j.steps_per_s && `${rate(j.steps_per_s)} now`, j.began && `${j.began} since the start`].filter(Boolean).join("; "))),
    tile("Spares", spares.known ? `${spares.ready}` : "–", spares.known ? `of ${spares.wanted} ready` : "", dots, h("p", { class: "quiet" }, [making, spares.reason].filter(Boolean).join(". "))),
    tile("Migrations", number(j.migrations), "", h("p", { class: "quiet" }, [j.under_way && "one is under way", j.migrations ? `training stood still for ${j.standstill} in all` : !j.under_way && "nothing had to be moved", j.not_done && `${j.not_done} not made`].filter(Boolean).join("; "))));
}

function migrations(run, list) {
  const longest = Math.max(0, ...list.map((m) => total(m.bar)));
  const body = list.length
    ? folded("ol", "moves", 8, "migrations", list.map((m) => h("li", {},
        h("a", { class: `move tone-${m.tone}`, href: `#/runs/${encodeURIComponent(run)}/migrations/${encodeURIComponent(m.key)}`, "data-key": m.key },
          h("span", { class: "move-when" }, `${day(m.started_s)} ${clock(m.started_s)}`),
          h("span", { class: "move-title" }, h("span", { class: "dot", "aria-hidden": "true" }), m.title),
          h("span", { class: "move-why" }, m.reason),
          h("span", { class: "move-cost" }, m.standstill ? `stood still ${m.standstill}` : m.outcome)),
        phaseBar(m.bar, longest))))
    : h("p", { class: "quiet" }, "None so far.");
  const names = new Map(list.flatMap((m) => m.bar).map((s) => [s.row, s.name]));
  const legend = h("ul", { class: "legend" }, [...names].map(([row, name]) => h("li", {}, h("span", { class: `swatch row-${row}`, "aria-hidden": "true" }), name)));
  return h("section", { class: "card", "aria-labelledby": "h-moves" }, h("h2", { id: "h-moves" }, "Migrations"), body, list.length > 0 && legend);
}

// A long list begins with its newest; the rest is there for who wants it.
function folded(tag, look, shown, what, rows) {
  if (rows.length <= shown + 2) return h(tag, { class: look }, rows);
  const more = h("details", { class: "more" }, h("summary", {}, `${number(rows.length - shown)} more ${what}`), h(tag, { class: look }, rows.slice(shown)));
  more.open = opened.has(what);
  more.addEventListener("toggle", () => (more.open ? opened.add(what) : opened.delete(what)));
  return [h(tag, { class: look }, rows.slice(0, shown)), more];
}

const opened = new Set();

function restarts(list) {
  if (!list.length) return null;
  return h("section", { class: "card", "aria-labelledby": "h-restarts" }, h("h2", { id: "h-restarts" }, "Restarts of all processes"),
    h("ul", { class: "plain-list" }, list.map((r) => h("li", {}, r.text, r.took && h("span", { class: "quiet" }, ` All trained again after ${r.took}.`)))));
}

function quarantine(run, list, actions) {
  const rows = list.map((q) => h("li", { class: "device" },
    h("div", {},
      h("b", {}, q.subject), q.node && q.node !== q.subject ? ` on ${q.node}` : "",
      h("p", {}, q.reason),
      h("p", { class: "quiet" }, [q.since_s && `since ${day(q.since_s)} ${clock(q.since_s)}`, q.rule && `row “${q.rule}” of the fault policy`].filter(Boolean).join(", "))),
    actions
      ? h("button", { type: "button", "data-key": `clear-${q.subject}`, onclick: () => askToClear(run, q.subject) }, "Clear…")
      : q.command && command(q.command, `clear-${q.subject}`)));
  return h("section", { class: "card", "aria-labelledby": "h-quarantine" }, h("h2", { id: "h-quarantine" }, "Quarantine"),
    list.length
      ? [h("p", { class: "quiet" }, "These are given no rank until somebody has looked at them and cleared them."), folded("ul", "plain-list devices", 5, "in quarantine", rows)]
      : h("p", { class: "quiet" }, "No device and no machine is in quarantine."));
}

function verdictRow(v) {
  return h("li", {}, h("span", { class: "when" }, clock(v.time_s)), h("span", { class: `chip outcome-${v.outcome}` }, v.would ? `would ${v.action}` : v.outcome === "refused" ? "not done" : v.action),
    h("span", {}, h("b", {}, [v.ranks, v.text.startsWith(v.subject) ? "" : v.subject].filter(Boolean).join(", ")), " ", v.text));
}

function verdicts(list) {
  const would = list.filter((v) => v.would);
  const did = list.filter((v) => !v.would);
  return [
    would.length > 0 && h("section", { class: "card", "aria-labelledby": "h-would" }, h("h2", { id: "h-would" }, "What torchrelay would have done"),
      h("p", { class: "quiet" }, "The fault policy only observes (--observe): nothing of this was done."), folded("ul", "verdicts", 5, "verdicts", would.map(verdictRow))),
    did.length > 0 && h("section", { class: "card", "aria-labelledby": "h-did" }, h("h2", { id: "h-did" }, "Faults of devices and numbers"), folded("ul", "verdicts", 5, "verdicts", did.map(verdictRow))),
  ];
}

const ANSWERS = { yes: "yes", partly: "partly", no: "no" };

function report(r) {
  if (!r.loop) return null;
  const details = h("details", {}, h("summary", {}, "Protection report"),
    h("p", { class: "quiet" }, "Training loop: ", h("code", {}, r.loop)),
    h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Against"), h("th", { scope: "col" }, ""), h("th", { scope: "col" }, "How"))),
      h("tbody", {}, r.against.map((a) => h("tr", {}, h("th", { scope: "row" }, a.what), h("td", {}, h("span", { class: `chip answer-${a.answer}` }, ANSWERS[a.answer] ?? a.answer)), h("td", {}, a.how))))),
    r.gaps.length > 0 && [h("h3", {}, "What is not protected"), h("ul", { class: "plain-list" }, r.gaps.map((g) => h("li", {}, g.ranks && `${g.ranks}: `, g.text, g.file && h("code", {}, ` ${g.file}:${g.line}`))))],
    r.rehearsed.length > 0 && [h("h3", {}, "Rehearsed"), h("ul", { class: "plain-list" }, r.rehearsed.map((t) => h("li", {}, t)))]);
  details.open = r.gaps.length > 0;
  return h("section", { class: "card" }, details);
}
