// Which page is shown, and what is heard of it. Everything on it comes from one stream of the server's events.

import { h, put } from "./dom.js";
import { askForToken, hasToken, onToken } from "./asks.js";
import { migrationPage } from "./migration_page.js";
import { runPage } from "./run_page.js";
import { runsPage } from "./runs_page.js";

const main = document.getElementById("main");
const crumbs = document.getElementById("crumbs");
const link = document.getElementById("link");
const key = document.getElementById("key");

let stream = null;
let only = null; // the one run there is: its page is the first page
let here = "";
let noun = "run"; // what people call one: in a cluster a job
let byItself = false; // the page changes without anybody having asked: the focus stays

function parse() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);
  if (parts[0] === "runs" && parts[2] === "migrations" && parts[3]) return { run: parts[1], migration: parts[3] };
  return parts[0] === "runs" && parts[1] ? { run: parts[1] } : {};
}

function connected(state) {
  const words = { live: "live", over: "run is over", waiting: "connecting", lost: "no connection; trying again" };
  link.className = `link ${state}`;
  link.textContent = words[state];
}

function listen(path, page) {
  stream?.close();
  connected("waiting");
  stream = new EventSource(path);
  const own = stream;
  own.onerror = () => own === stream && connected("lost");
  for (const name of page.sections) {
    own.addEventListener(name, (event) => {
      if (own !== stream) return;
      const value = JSON.parse(event.data);
      connected(name === "job" && value.over ? "over" : page.over ? "over" : "live");
      if (name === "job") page.over = value.over;
      page.take(name, value);
    });
  }
}

function show() {
  if (location.hash === "#main") return; // the skip link
  const { run, migration } = parse();
  const place = JSON.stringify([run, migration]);
  if (place === here) return;
  here = place;
  let page;
  if (migration) page = migrationPage(run, migration);
  else if (run) page = runPage(run);
  else page = runsPage(openOnly, noun);
  main.replaceChildren(page.element);
  window.scrollTo(0, 0);
  put(crumbs, [run, migration], () => [
    run && h("a", { href: `#/runs/${encodeURIComponent(run)}`, "aria-current": migration ? undefined : "page" }, `${noun} ${run}`),
    migration && h("span", { "aria-current": "page" }, `migration ${migration}`),
  ]);
  document.title = [migration && `migration ${migration}`, run && `${noun} ${run}`, "torchrelay"].filter(Boolean).join(" · ");
  listen(run ? `api/runs/${encodeURIComponent(run)}/stream` : "api/runs/stream", page);
}

// With a single run there is nothing to choose.
function openOnly(runs) {
  if (runs.length === 1 && only === null) {
    only = runs[0].run;
    byItself = true;
    location.replace(`#/runs/${encodeURIComponent(only)}`);
  }
}

async function settings() {
  const told = await (await fetch("api/settings")).json();
  key.hidden = !told.actions;
  noun = told.noun;
}

key.addEventListener("click", askForToken);
onToken(() => (key.textContent = hasToken() ? "Token entered" : "Enter token"));
window.addEventListener("hashchange", () => {
  show();
  if (location.hash !== "#main" && !byItself) main.focus({ preventScroll: true });
  byItself = false;
});
settings().catch(() => {}).then(show); // without an answer the page says that there is no connection
