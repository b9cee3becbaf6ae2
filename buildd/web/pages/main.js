// The frame of all pages: which address shows what, keys, the line about the daemon, links without a reload.

import { listen, OLD } from "./data.js";
import { el, fill } from "./dom.js";
import { count, duration, size } from "./format.js";
import { build, builds, programs, search, target } from "./lists.js";
import { cache, kernels, profiles } from "./stores.js";

const VIEWS = [[/^\/$/, builds], [/^\/build\/[^/]+$/, build], [/^\/cache$/, cache], [/^\/kernels$/, kernels], [/^\/profiles$/, profiles], [/^\/programs$/, programs], [/^\/target$/, target], [/^\/search$/, search]];
const KEYS = [["/", "search"], ["g b", "builds"], ["g c", "cache"], ["g k", "kernels"], ["g p", "profiles"], ["g s", "starts of programs"], ["j  k", "down and up in a table"], ["Enter", "open the line"], ["+  -  0", "zoom the timeline"], ["Esc", "close"], ["?", "these keys"]];
const main = document.getElementById("main");
const line = document.getElementById("now");
const trouble = document.getElementById("trouble");
let ends = [];
let heard = [];
let returns = [];
let shown = 0;

function complain(error) {
  trouble.hidden = !error;
  fill(trouble, error ? error.message : "");
}

function tell(now) {
  const memory = now.budget_bytes ? `, ${size(now.memory_bytes || 0)} of ${size(now.budget_bytes)}` : "";
  fill(line, !now.state || now.state === "stopped" ? "no daemon runs; the next command starts one"
    : `${now.state}, up ${duration(now.uptime_s || 0)}: ${count(now.running || 0, "job")}${now.cpus ? ` of ${now.cpus}` : ""}, ${now.queued || 0} waiting${now.waiting_for ? ` for ${now.waiting_for}` : ""}${memory}${now.hits_per_s >= 0.5 ? `, ${Math.round(now.hits_per_s)} hits/s` : ""}`);
}

/** Show the page of the present address. */
async function show() {
  const mine = shown += 1;
  for (const end of ends) end();
  ends = [];
  heard = [];
  returns = [];
  complain(null);
  main.setAttribute("aria-busy", "true");
  const found = VIEWS.find(([pattern]) => pattern.test(location.pathname));
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === location.pathname) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  document.title = `${location.pathname.slice(1) || "builds"} - buildd`;
  let picture = null;
  let stream = "";
  const page = {
    path: location.pathname, query: new URLSearchParams(location.search), go, trouble: complain,
    now(take) { heard.push(take); },
    back(act) { returns.push(act); },
    stream(name, take) { stream = name; picture = take; },
    end(act) { ends.push(act); },
  };
  const view = found ? found[1] : async (where) => fill(where, el("h1", {}, "there is no such page"));
  const ready = view(main, page);
  ends.push(listen(stream, (kind, data) => {
    if (kind === "lost") {
      fill(line, data ? "the server was started again" : "the server does not answer; this page tries again");
      if (data) complain(new Error(OLD));
      return;
    }
    if (kind === "back") { complain(null); for (const act of returns) act(); return; }
    if (kind === "build") { if (picture) picture(data); return; }
    const now = { builds: [], ...data };
    tell(now);
    for (const take of heard) take(now);
  }));
  try {
    await ready;
  } catch (error) {
    if (mine === shown) complain(error);
  }
  if (mine !== shown) return;
  main.setAttribute("aria-busy", "false");
  performance.mark("buildd-shown");
}

function go(address) {
  history.pushState(null, "", address);
  show();
  window.scrollTo(0, 0);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
  const address = new URL(link.href);
  if (address.origin !== location.origin || link.classList.contains("skip") || /\.(html|json)$/.test(address.pathname)) return;
  if (address.pathname === location.pathname && address.search === location.search && address.hash) return;
  event.preventDefault();
  go(address.pathname + address.search + address.hash);
});
document.getElementById("find").addEventListener("submit", (event) => {
  event.preventDefault();
  go(`/search?${new URLSearchParams({ q: event.target.elements.q.value })}`);
});
window.addEventListener("popstate", show);

let before = "";
document.addEventListener("keydown", (event) => {
  const field = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "Escape" && field) event.target.blur();
  if (field || event.ctrlKey || event.metaKey || event.altKey) return;
  const dialog = document.getElementById("keys");
  if (event.key === "/") { event.preventDefault(); document.querySelector("#find input").focus(); }
  else if (event.key === "?") { fill(dialog, el("h2", {}, "keys"), el("dl", {}, KEYS.map(([key, what]) => [el("dt", {}, el("code", {}, key)), el("dd", {}, what)])), el("form", { method: "dialog" }, el("button", {}, "close"))); dialog.showModal(); }
  else if (before === "g") { const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`); if (link) go(link.getAttribute("href")); }
  else if (event.key === "j" || event.key === "k") { const body = main.querySelector(".table .body"); if (body) { body.focus(); body.dispatchEvent(new KeyboardEvent("keydown", { key: event.key })); } }
  before = event.key;
});

show();
