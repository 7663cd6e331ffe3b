// What can be asked for with a token: a move, the end of a quarantine. The token stays in this page's memory.

import { h } from "./dom.js";

const dialog = document.getElementById("dialog");
const heard = [];
let token = "";

export const hasToken = () => token !== "";
export const onToken = (listener) => heard.push(listener);

function open(title, text, fields, act, verb) {
  const inputs = fields.map((f) => h("input", { type: f.secret ? "password" : "text", id: `ask-${f.name}`, autocomplete: "off", required: true }));
  const said = h("p", { class: "said", role: "status" });
  const go = h("button", { type: "button", class: "primary" }, verb);
  const close = h("button", { type: "button" }, "Cancel");
  close.addEventListener("click", () => dialog.close());
  async function run() {
    if (inputs.some((i) => !i.value.trim())) {
      said.textContent = "Please fill in all fields.";
      return;
    }
    go.disabled = true;
    said.textContent = "…";
    const { done, message } = await act(...inputs.map((i) => i.value.trim()));
    go.disabled = false;
    said.textContent = message;
    said.className = done ? "said well" : "said act";
    if (done) {
      go.hidden = true;
      close.textContent = "Close";
      close.focus();
    }
  }
  go.addEventListener("click", run);
  inputs.at(-1).addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault(); // else it would press the button that has the focus afterwards
    run();
  });
  dialog.replaceChildren(
    h("h2", { id: "dialog-title" }, title),
    h("p", {}, text),
    ...fields.map((f, n) => h("label", {}, f.label, inputs[n])),
    said,
    h("div", { class: "buttons" }, close, go),
  );
  dialog.showModal();
  inputs[0].focus();
}

async function post(path, body) {
  const headers = { "Content-Type": "application/json", Authorization: `Bearer ${token}` };
  try {
    const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
    if (answer.ok) return await answer.json();
    if (answer.status === 401) setToken("");
    return { done: false, message: `Refused: ${await answer.text()}.` };
  } catch {
    return { done: false, message: "The dashboard does not answer." };
  }
}

function setToken(value) {
  token = value;
  heard.forEach((listener) => listener());
}

export function askForToken() {
  const fields = [{ name: "token", label: "Token", secret: true }];
  open("Enter the token", "Whoever runs this dashboard gives it to you. This page keeps it until it is closed.", fields,
    async (value) => {
      setToken(value);
      return { done: true, message: "From now on this page can ask for moves and clears." };
    }, "Use it");
}

export function askToMove(run, rank) {
  if (!hasToken()) return askForToken();
  const fields = [{ name: "reason", label: "Why" }];
  return open(`Move rank ${rank}`, "A spare takes it over at a step boundary. No step is done again, and training stands still for about a second.",
    fields, (reason) => post(`api/runs/${encodeURIComponent(run)}/migrate`, { rank, reason }), "Move it");
}

export function askToClear(run, subject) {
  if (!hasToken()) return askForToken();
  const fields = [{ name: "reason", label: "Why it may be used again" }];
  return open(`Clear ${subject}`, "It may be given ranks again.", fields,
    (reason) => post(`api/runs/${encodeURIComponent(run)}/clear`, { subject, reason, check: false }), "Clear it");
}
