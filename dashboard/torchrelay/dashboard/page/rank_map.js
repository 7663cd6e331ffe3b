// Ranks by node: colour is the state. A small job has a button for each rank, a large one a picture that keys can walk on.

import { h, number, put } from "./dom.js";
import { askToMove } from "./asks.js";
import { picture } from "./rank_picture.js";

export const STATES = {
  r: ["running", "training"],
  s: ["standing", "waiting for a migration"],
  l: ["lost", "lost"],
  m: ["moving", "being moved"],
  i: ["starting", "setting up"],
  f: ["finished", "finished"],
  u: ["unknown", "over"],
};
const LETTER = { running: "r", standing: "s", lost: "l", starting: "i", moving: "m", finished: "f", unknown: "u" };
const BUTTONS = 256;

export function rankMap(run) {
  const legend = h("div", {});
  const place = h("div", { class: "map" });
  const said = h("div", { class: "rank-said", role: "status" });
  const others = h("div", {});
  const element = h("div", {}, legend, place, said, others);
  const state = { ranks: null, job: null, chosen: null, picture: null };

  function choose(rank) {
    state.chosen = rank;
    tell();
  }

  function tell() {
    const { ranks, job, chosen } = state;
    if (!ranks) return;
    put(said, [chosen, ranks.states[chosen], ranks.told[chosen], ranks.moved[chosen], job?.actions, job?.steps && chosen !== null], () =>
      chosen === null || chosen >= ranks.states.length ? h("p", { class: "quiet" }, "Point at a rank, or walk with the arrow keys, to see what it does and why.") : describe(run, ranks, job, chosen));
  }

  return {
    element,
    takeJob(job) { state.job = job; tell(); },
    take(ranks) {
      state.ranks = ranks;
      put(legend, ranks.counts, () => counts(ranks.counts));
      if (ranks.states.length > BUTTONS) {
        state.picture ??= picture(place, choose);
        state.picture.draw(ranks);
      } else {
        buttons(place, ranks, choose);
      }
      put(others, [ranks.told, ranks.states.length], () => exceptions(run, ranks));
      tell();
    },
  };
}

function counts(all) {
  return h("ul", { class: "legend" }, Object.entries(all).map(([name, n]) =>
    h("li", {}, h("span", { class: `swatch state-${name}`, "aria-hidden": "true" }), h("b", {}, number(n)), ` ${STATES[LETTER[name]][1]}`)));
}

export function nodeOf(ranks, rank) {
  return ranks.nodes.find((n) => n.ranks.some(([a, b]) => rank >= a && rank <= b))?.name ?? "";
}

export function members(node) {
  return node.ranks.flatMap(([a, b]) => Array.from({ length: b - a + 1 }, (_, n) => a + n));
}

export function sentence(ranks, rank) {
  const who = ranks.workers[rank] ? ` (${ranks.workers[rank]})` : "";
  const gpu = ranks.gpus[rank] ? `, ${ranks.gpus[rank]}` : "";
  return `Rank ${rank}${who} on ${nodeOf(ranks, rank)}${gpu}: ${STATES[ranks.states[rank]][1]}`;
}

function describe(run, ranks, job, rank) {
  const moved = ranks.moved[rank];
  return [
    h("p", {}, h("span", { class: `swatch state-${STATES[ranks.states[rank]][0]}`, "aria-hidden": "true" }), h("b", {}, sentence(ranks, rank)), ranks.told[rank] ? `. ${ranks.told[rank]}` : "."),
    h("p", { class: "row" },
      moved && h("a", { href: `#/runs/${encodeURIComponent(run)}/migrations/${encodeURIComponent(moved)}`, "data-key": "story" }, "Why it moved"),
      job?.actions && h("button", { type: "button", "data-key": "move", onclick: () => askToMove(run, rank) }, `Move rank ${rank}…`)),
  ];
}

function buttons(place, ranks, choose) {
  put(place, [ranks.states.length, ranks.nodes, ranks.gpus], () => ranks.nodes.map((node) =>
    h("div", { class: "node", role: "group", "aria-label": `node ${node.name}` }, h("span", { class: "node-name" }, node.name),
      h("div", { class: "cells" }, byDevice(members(node), ranks.gpus).map(([gpu, its]) => gpu
        ? h("div", { class: "device", role: "group", "aria-label": gpu }, h("span", { class: "device-name", title: gpu }, shortName(gpu)), h("div", { class: "device-cells" }, its.map((rank) => cell(place, rank, choose))))
        : its.map((rank) => cell(place, rank, choose)))))));
  for (const button of place.querySelectorAll("button")) {
    const rank = Number(button.dataset.key);
    const look = `cell state-${STATES[ranks.states[rank]][0]}${ranks.moved[rank] ? " moved" : ""}`;
    if (button.className !== look) button.className = look;
    const name = sentence(ranks, rank);
    if (button.getAttribute("aria-label") !== name) button.setAttribute("aria-label", name);
  }
}

// Ranks of one GPU stand together; those whose GPU nobody knows stand alone.
function byDevice(ranks, gpus) {
  const devices = new Map();
  for (const rank of ranks) {
    const gpu = gpus[rank] ?? "";
    if (gpu && devices.has(gpu)) devices.get(gpu).push(rank);
    else devices.set(gpu || `rank ${rank}`, [rank]);
  }
  return [...devices].map(([gpu, its]) => [gpus[its[0]] ? gpu : "", its]);
}

// The first letters of its UUID tell a node's GPUs apart.
function shortName(gpu) {
  return gpu.replace(/^GPU-/, "").slice(0, 4);
}

function cell(place, rank, choose) {
  const button = h("button", { type: "button", "data-key": String(rank), tabindex: rank === 0 ? "0" : "-1" }, String(rank));
  button.addEventListener("pointerenter", () => choose(rank));
  button.addEventListener("focus", () => choose(rank));
  button.addEventListener("keydown", (event) => {
    const all = [...place.querySelectorAll("button")];
    const at = all.indexOf(button);
    const beside = button.getBoundingClientRect();
    const inRow = all.filter((b) => Math.abs(b.getBoundingClientRect().top - beside.top) < 2).length;
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + inRow, ArrowUp: at - inRow, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined || !all[to]) return;
    event.preventDefault();
    button.tabIndex = -1;
    all[to].tabIndex = 0;
    all[to].focus();
  });
  return button;
}

// What stands out among many can be read, and reached by keyboard, without the picture.
function exceptions(run, ranks) {
  const list = Object.entries(ranks.told).filter(([rank]) => "lmu".includes(ranks.states[rank]));
  if (!list.length || ranks.states.length <= BUTTONS) return null;
  return h("ul", { class: "plain-list" }, list.slice(0, 20).map(([rank, why]) => h("li", {}, h("b", {}, sentence(ranks, Number(rank))), `. ${why}`)));
}
