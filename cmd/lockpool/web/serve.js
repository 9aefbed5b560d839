// This file keeps the page of lockpool serve up to date. Texts come from other clients, so
// they are set as text and attributes only; the page's policy forbids everything else.
"use strict";

const live = document.getElementById("live");
const dialog = document.querySelector("dialog");
const question = document.getElementById("question");
const { events, lock, change } = document.body.dataset;

// bindings returns functions that show the data in what is bound in an element, but not in
// the items of its lists.
function bindings(root) {
  const bound = [];
  for (const el of [root, ...root.querySelectorAll("[data-a], [data-each]")]) {
    const outer = el.parentElement?.closest("[data-each]");
    if (el !== root && outer && root.contains(outer)) continue;
    const { a, each, as } = el.dataset;
    for (const pair of a ? a.split(" ") : []) {
      const [name, key] = pair.split(":");
      bound.push((data) => {
        const value = String(data[key] ?? "");
        if (name !== "text" && value !== el.getAttribute(name)) el.setAttribute(name, value);
        if (name === "text" && value !== el.textContent) el.textContent = value;
      });
    }
    if (each) bound.push(list(el, each, as || each));
  }
  return bound;
}

// list returns a function that makes the items of a list those of the data, in their order. An
// item stays the same element as long as its key is there.
function list(parent, each, as) {
  const blank = document.querySelector(`template[data-of="${as}"]`).content.querySelector("[data-key]");
  const items = new Map();
  const add = (el, key) => {
    el.dataset.key = key;
    for (const button of el.querySelectorAll("button")) button.hidden = !change;
    items.set(key, { el, bound: bindings(el) });
    return items.get(key);
  };
  for (const el of parent.children) add(el, el.dataset.key);
  return async (data) => {
    const rows = data[each] ?? [];
    const wanted = new Set(rows.map((values) => values.key));
    for (const [key, { el }] of items) {
      if (wanted.has(key)) continue;
      el.remove();
      items.delete(key);
    }
    let at = parent.firstElementChild;
    for (const [i, values] of rows.entries()) {
      if (i % 50 === 49) await new Promise(requestAnimationFrame);
      const { el, bound } = items.get(values.key) || add(blank.cloneNode(true), values.key);
      for (const show of bound) show(values);
      if (at !== el && at?.nextElementSibling !== el) {
        const focused = el.contains(document.activeElement) ? document.activeElement : null;
        parent.insertBefore(el, at);
        focused?.focus({ preventScroll: true });
      } else {
        at = el.nextElementSibling;
      }
    }
  };
}

const page = bindings(document.body);
const source = new EventSource(events);
let newest, busy;
source.onmessage = async (event) => {
  newest = event.data;
  if (busy) return;
  for (busy = true; newest; ) {
    const data = JSON.parse(newest);
    newest = "";
    for (const show of page) await show(data);
    if (live.textContent !== "Live.") live.textContent = "Live."; // is said aloud
  }
  busy = false;
};
source.onerror = () => {
  live.textContent = source.readyState === EventSource.CLOSED ? "No longer live: reload the page." : "The connection is lost; trying again.";
};

// The buttons ask first.
let asked;
document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-ask]");
  if (!button) return;
  asked = { do: button.value, lock, node: button.closest("[data-key]").dataset.key };
  question.textContent = button.dataset.ask;
  dialog.returnValue = "no";
  dialog.showModal();
});
dialog.addEventListener("close", async () => {
  if (!asked || dialog.returnValue !== "yes") return;
  const said = document.querySelector("[data-said]");
  const body = new URLSearchParams(asked);
  asked = null; // once, even if an earlier event comes late
  try {
    const answer = await fetch("/change", { method: "POST", headers: { "Lockpool-Change": change }, body });
    said.textContent = await answer.text();
  } catch {
    said.textContent = "lockpool serve does not answer; nothing is known of the change.";
  }
});
