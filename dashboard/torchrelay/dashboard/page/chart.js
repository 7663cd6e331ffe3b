// Steps over time, with each standstill as a band. Drawn anew when something has changed, or the page has another width.

import { clock, h, number, svg } from "./dom.js";

const HEIGHT = 220;
const LEFT = 56, RIGHT = 12, TOP = 12, BOTTOM = 26;
const SPANS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800];

export function chart(run) {
  const place = h("div", { class: "chart" });
  const said = h("p", { class: "quiet chart-said" });
  const element = h("div", {}, place, said);
  let data = null;
  const redraw = () => data && draw(place, said, data, run);
  new ResizeObserver(redraw).observe(place);
  return { element, take(value) { data = value; redraw(); } };
}

function niceStep(span, most) {
  const raw = Math.max(span / most, 1);
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw && Number.isInteger(s));
}

function draw(place, said, data, run) {
  const width = Math.max(place.clientWidth, 240);
  const { points, marks, started_s } = data;
  if (points.length < 2) {
    place.replaceChildren(h("p", { class: "quiet" }, "No steps yet."));
    said.textContent = "";
    return;
  }
  const t0 = points[0][0], t1 = Math.max(points.at(-1)[0], t0 + 1, ...marks.map((m) => m.to));
  const top = Math.max(1, ...points.map((p) => p[1]));
  const x = (t) => LEFT + ((t - t0) / (t1 - t0)) * (width - LEFT - RIGHT);
  const y = (s) => HEIGHT - BOTTOM - (s / top) * (HEIGHT - TOP - BOTTOM);
  const still = { 0: "training never stood still", 1: "training stood still once" }[marks.length] ?? `training stood still ${marks.length} times`;
  const label = `${number(points.at(-1)[1])} steps between ${clock(started_s + t0)} and ${clock(started_s + t1)}; ${still}`;
  const line = points.map(([t, s], n) => `${n ? "L" : "M"}${x(t).toFixed(1)} ${y(s).toFixed(1)}`).join("");
  const area = `${line}L${x(points.at(-1)[0]).toFixed(1)} ${y(0)}L${x(points[0][0]).toFixed(1)} ${y(0)}Z`;
  const cross = svg("line", { class: "cross", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  const picture = svg("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label },
    rows(top, y, width), columns(t0, t1, started_s, x),
    svg("path", { class: "area", d: area }),
    marks.map((m) => band(m, x, run, marks.length > 30 ? 1.5 : 3)),
    svg("path", { class: "line", d: line }), cross);
  place.replaceChildren(picture);
  said.textContent = label + ".";
  picture.addEventListener("pointermove", (event) => {
    const t = t0 + ((event.offsetX - LEFT) / (width - LEFT - RIGHT)) * (t1 - t0);
    const near = points.reduce((best, p) => (Math.abs(p[0] - t) < Math.abs(best[0] - t) ? p : best));
    const mark = marks.find((m) => t >= m.from - (t1 - t0) / 200 && t <= m.to + (t1 - t0) / 200);
    cross.setAttribute("x1", x(near[0]));
    cross.setAttribute("x2", x(near[0]));
    cross.setAttribute("visibility", "visible");
    said.textContent = `${clock(started_s + near[0])}: step ${number(near[1])}` + (mark ? `. ${mark.title}.` : "");
  });
  picture.addEventListener("pointerleave", () => {
    cross.setAttribute("visibility", "hidden");
    said.textContent = label + ".";
  });
}

function rows(top, y, width) {
  const step = niceStep(top, 4);
  const made = [];
  for (let s = 0; s <= top; s += step) {
    made.push(svg("line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: y(s), y2: y(s) }),
      svg("text", { class: "tick", x: LEFT - 8, y: y(s) + 4, "text-anchor": "end" }, number(s)));
  }
  return made;
}

function columns(t0, t1, startedS, x) {
  const room = Math.max(2, Math.floor((x(t1) - x(t0)) / 90));
  const span = SPANS.find((s) => (t1 - t0) / s <= room) ?? SPANS.at(-1);
  const zone = new Date(startedS * 1000).getTimezoneOffset() * 60;
  const made = [];
  for (let at = Math.ceil((startedS + t0 - zone) / span) * span + zone; at <= startedS + t1; at += span) {
    made.push(svg("text", { class: "tick", x: x(at - startedS), y: HEIGHT - 8, "text-anchor": "middle" }, clock(at, span < 60)));
  }
  return made;
}

function band(m, x, run, least) {
  const from = x(m.from), wide = Math.max(x(m.to) - from, least);
  const mark = svg("rect", { class: `band tone-${m.tone}`, x: from, y: TOP, width: wide, height: HEIGHT - TOP - BOTTOM }, svg("title", {}, m.title));
  // For the mouse alone: by keyboard the list of migrations leads there.
  mark.addEventListener("click", () => (location.hash = `#/runs/${encodeURIComponent(run)}/migrations/${encodeURIComponent(m.key)}`));
  return mark;
}
