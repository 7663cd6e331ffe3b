// Thousands of ranks on a canvas: a block for each node, a square for each rank. Arrow keys walk from rank to rank.

import { h } from "./dom.js";
import { members, sentence, STATES } from "./rank_map.js";

export function picture(place, choose) {
  const canvas = h("canvas", { tabindex: "0", role: "img", "aria-roledescription": "map of ranks", class: "rank-picture" });
  place.replaceChildren(canvas);
  const view = { ranks: null, spots: [], at: new Map(), size: 0, cursor: -1, perRow: 1 };
  const redraw = () => view.ranks && paint(canvas, place, view);
  new ResizeObserver(redraw).observe(place);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  function go(rank) {
    if (rank < 0 || rank >= view.ranks.states.length) return;
    view.cursor = rank;
    choose(rank);
    redraw();
    canvas.setAttribute("aria-label", sentence(view.ranks, rank));
  }

  canvas.addEventListener("pointermove", (event) => {
    const found = find(view, event.offsetX, event.offsetY);
    if (found !== null && found !== view.cursor) go(found);
  });
  canvas.addEventListener("focus", () => view.cursor < 0 && go(0));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: view.perRow, ArrowUp: -view.perRow }[event.key];
    const to = event.key === "Home" ? 0 : event.key === "End" ? view.ranks.states.length - 1 : step && view.cursor + step;
    if (to === undefined) return;
    event.preventDefault();
    go(to);
  });
  return {
    draw(ranks) {
      view.ranks = ranks;
      if (view.cursor < 0) canvas.setAttribute("aria-label", `${ranks.states.length} ranks on ${ranks.nodes.length} nodes`);
      redraw();
    },
  };
}

// Blocks as wide as most nodes are large, squares as large as fit: the whole job is seen at once.
function lay(view, width) {
  const blocks = view.ranks.nodes.map(members);
  const wide = Math.min(usual(blocks.map((b) => b.length)), 16);
  const gap = width < 500 ? 3 : 5;
  const total = view.ranks.states.length;
  const size = Math.max(4, Math.min(14, Math.floor(Math.sqrt((width * (width < 500 ? 700 : 460)) / total) - 1.5)));
  const blockWidth = wide * size + gap;
  const across = Math.max(1, Math.floor((width + gap) / blockWidth));
  view.spots = [];
  view.size = size;
  view.perRow = across * wide;
  let y = 0;
  for (let n = 0; n < blocks.length; n += across) {
    const row = blocks.slice(n, n + across);
    const deep = Math.max(...row.map((b) => Math.ceil(b.length / wide)));
    row.forEach((block, m) => block.forEach((rank, k) => {
      view.spots[rank] = [m * blockWidth + (k % wide) * size, y + Math.floor(k / wide) * size];
    }));
    y += deep * size + (deep > 1 ? gap : 2);
  }
  return y;
}

// How many ranks most nodes have: one that took others over has more, in further rows.
function usual(lengths) {
  const times = new Map();
  for (const length of lengths) times.set(length, (times.get(length) ?? 0) + 1);
  return [...times].reduce((best, now) => (now[1] > best[1] ? now : best))[0];
}

function paint(canvas, place, view) {
  const width = Math.max(place.clientWidth, 200);
  const height = lay(view, width);
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.setProperty("width", `${width}px`);
  canvas.style.setProperty("height", `${height}px`);
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const style = getComputedStyle(place);
  const colors = Object.fromEntries(Object.entries(STATES).map(([letter, [name]]) => [letter, style.getPropertyValue(`--state-${name}`)]));
  const side = view.size - 1;
  const loud = [];
  for (let rank = 0; rank < view.ranks.states.length; rank++) {
    const letter = view.ranks.states[rank];
    if ("lmu".includes(letter)) loud.push(rank);
    pen.fillStyle = colors[letter];
    pen.fillRect(...view.spots[rank], side, side);
  }
  // One among thousands has to be seen: it has a ring.
  for (const rank of loud.length < 200 ? loud : []) ring(pen, view, rank, colors[view.ranks.states[rank]], 3);
  if (view.cursor >= 0) ring(pen, view, view.cursor, style.getPropertyValue("--ink"), 1);
}

function ring(pen, view, rank, color, apart) {
  const [x, y] = view.spots[rank];
  pen.strokeStyle = color;
  pen.lineWidth = 2;
  pen.strokeRect(x - apart, y - apart, view.size - 1 + 2 * apart, view.size - 1 + 2 * apart);
}

function find(view, x, y) {
  for (let rank = 0; rank < view.spots.length; rank++) {
    const [left, top] = view.spots[rank];
    if (x >= left && x < left + view.size && y >= top && y < top + view.size) return rank;
  }
  return null;
}
