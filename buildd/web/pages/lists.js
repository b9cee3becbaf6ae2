// Pages of builds: the list, one build live, the history of a target, search results, starts of programs.

import { Build, buildPage } from "./build.js";
import { get } from "./data.js";
import { chart } from "./chart.js";
import { el, fill } from "./dom.js";
import { count, duration, place, when } from "./format.js";
import { ledger } from "./ledger.js";
import { Table } from "./table.js";

const AGAIN_MS = 700;
const GOOD = { built: "good", failed: "bad", cancelled: "faint", refused: "bad", daemon_error: "bad" };

export const buildAddress = (id, action) => `/build/${encodeURIComponent(id)}${action ? `#action=${encodeURIComponent(action)}` : ""}`;
export const targetAddress = (project, name) => `/target?${new URLSearchParams({ project, name })}`;

const what = (line) => line.command || (line.targets || []).join(" ") || "-";

function buildColumns() {
  return [
    { title: "when", cell: (line) => when(line.began_ns), value: (line) => line.began_ns, width: "142px", wide: true },
    { title: "what", cell: (line) => el("a", { href: buildAddress(line.id), title: what(line) }, what(line)), value: what, width: "minmax(110px, 2fr)" },
    { title: "outcome", cell: (line) => el("span", { class: GOOD[line.outcome] }, line.outcome), value: (line) => line.outcome, width: "76px" },
    { title: "time", cell: (line) => duration(line.wall_s), value: (line) => line.wall_s, width: "72px", number: true },
    { title: "hits", cell: (line) => String(line.hits || 0), value: (line) => line.hits || 0, width: "52px", number: true },
    { title: "ran", cell: (line) => String(line.misses || 0), value: (line) => line.misses || 0, width: "52px", number: true },
    { title: "project", cell: (line) => el("span", { title: line.project }, place(line.project)), value: (line) => line.project, width: "minmax(80px, 1fr)", wide: true },
  ];
}

export async function builds(main, page) {
  const live = el("div");
  const asked = page.query.get("q") || "";
  const table = new Table(buildColumns(), { label: "builds", key: (line) => line.id, open: (line) => page.go(buildAddress(line.id)), none: "no build yet: run `buildd build`, or `buildd run -- make`" });
  const total = el("p", { class: "faint" });
  const filter = el("input", { type: "search", placeholder: "filter builds", "aria-label": "filter builds", value: asked, oninput: (event) => load(event.target.value) });
  fill(main, el("h1", {}, "builds"), live, el("div", { class: "row" }, filter, total), table.node);
  async function load(text) {
    const lines = await get(`/api/builds?${new URLSearchParams({ q: text })}`);
    table.set(lines);
    fill(total, count(lines.length, "build"));
  }
  let going = "";
  page.now((now) => {
    const names = now.builds.map((one) => one.id).join(" ");
    if (going && names !== going) load(filter.value).catch(page.trouble);
    going = names;
    fill(live, now.builds.map((one) => el("p", {}, el("span", { class: "live" }, "running "),
      el("a", { href: buildAddress(one.id), class: "wrap" }, one.what || one.id),
      el("span", { class: "faint" }, `  ${duration(one.elapsed_s)}, ${one.total ? `${one.done || 0} of ${one.total} done, ` : ""}${one.running || 0} running, ${one.waiting || 0} waiting  ${place(one.project)}`))));
  });
  page.back(() => load(filter.value).catch(page.trouble));
  await load(asked);
}

export async function build(main, page) {
  const id = decodeURIComponent(page.path.split("/")[2]);
  const known = new Build();
  let shown = null;
  let timer = 0;
  let over = false;
  const begin = (name, line) => {
    if (shown) shown.destroy();
    shown = buildPage(main, known, { id: name, line });
  };
  async function load() {
    const found = await get(`/api/build/${encodeURIComponent(id)}`);
    if (over) return;
    if (found === null) {
      if (!shown) fill(main, el("h1", {}, "this build is not known yet"), el("p", { class: "faint" }, "it has just begun, or is no longer in the log: this page looks again"));
      timer = setTimeout(() => load().catch(page.trouble), AGAIN_MS);
      return;
    }
    found.change.full = true;
    known.apply(found.change);
    begin(found.id, found.line);
    if (!found.line) timer = setTimeout(again, AGAIN_MS);
  }
  /** A build that ends is in the log soon afterwards. */
  function again() {
    if (over) return;
    if (known.head.ended) load().catch(page.trouble); else timer = setTimeout(again, AGAIN_MS);
  }
  page.stream(id, (change) => {
    if (shown && known.head.ended && !change.full) return;
    known.apply(change);
    if (shown) shown.update(); else { begin(id, null); timer = setTimeout(again, AGAIN_MS); }
  });
  page.end(() => { over = true; clearTimeout(timer); if (shown) shown.destroy(); });
  await load();
}

export async function target(main, page) {
  const project = page.query.get("project") || "", name = page.query.get("name") || "";
  const points = await get(`/api/target?${new URLSearchParams({ project, name })}`);
  const times = chart({ label: `build times of ${name}`, words: duration, axis: (x) => (Number.isInteger(x) ? `build ${x + 1}` : "") });
  const table = new Table([...buildColumns().slice(0, 6), {
    title: "its own actions that ran", width: "minmax(80px, 2fr)", wide: true,
    cell: (line) => (line.actions || []).map((one) => `${one.name} ${duration(one.wall_s)}`).join(", "),
  }], { label: `builds of ${name}`, key: (line) => line.id, open: (line) => page.go(buildAddress(line.id)), rows: points.map((one) => ({ ...one.line, actions: one.actions })) });
  fill(main, el("h1", {}, name), el("p", { class: "faint wrap" }, project), el("h2", {}, "time of each build, oldest first"), times.node, el("h2", {}, "builds"), table.node);
  times.set([{ points: points.map((one) => one.line.wall_s).reverse().map((wall, place) => [place, wall]), colour: "--live", area: "--area" }]);
  table.draw();
}

export async function search(main, page) {
  const text = page.query.get("q") || "";
  const found = await get(`/api/search?${new URLSearchParams({ q: text })}`);
  const address = (one) => (one.kind === "target" ? targetAddress(one.project, one.text)
    : one.kind === "kernel" ? `/kernels?${new URLSearchParams({ q: one.text })}`
      : buildAddress(one.build, one.kind === "action" ? one.text : ""));
  const table = new Table([
    { title: "kind", cell: (one) => one.kind, width: "60px" },
    { title: "found", cell: (one) => el("a", { href: address(one), title: one.text }, one.text), value: (one) => one.text, width: "minmax(120px, 3fr)" },
    { title: "", cell: (one) => one.note || "", width: "90px", wide: true },
    { title: "last build", cell: (one) => when(one.began_ns), value: (one) => one.began_ns, width: "142px", wide: true },
    { title: "project", cell: (one) => el("span", { title: one.project }, place(one.project)), value: (one) => one.project, width: "minmax(80px, 1fr)" },
  ], { label: "results", rows: found, key: (one) => `${one.kind} ${one.text} ${one.project}`, open: (one) => page.go(address(one)), none: "nothing found in the builds of the log" });
  fill(main, el("h1", {}, `search: ${text}`), el("p", { class: "faint" }, count(found.length, "result")), table.node);
}

export async function programs(main) {
  const found = await get("/api/programs");
  fill(main, el("h1", {}, "starts of programs"),
    el("p", { class: "faint" }, "programs under `buildd run` that use torch or Triton: where the time until the end of their first call went"),
    found.length ? el("div", { class: "cards" }, found.map((one) => el("div", {}, el("p", { class: "faint" }, el("a", { href: buildAddress(one.build) }, when(one.began_ns)), ` ${place(one.project)}`), ledger(one.start))))
      : el("p", {}, "none yet: `buildd run -- python train.py`"));
}
