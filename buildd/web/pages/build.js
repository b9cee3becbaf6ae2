// A build's page: figures, timeline, memory, critical path, what ran, what was said. Live, ended, or in a file.

import { chart } from "./chart.js";
import { el, facts, figures, fill } from "./dom.js";
import { count, duration, place, share, size, when } from "./format.js";
import { barColour, Lanes } from "./lanes.js";
import { ledger } from "./ledger.js";
import { Table } from "./table.js";

const OUTCOMES = { built: "good", failed: "bad", running: "live", lost: "faint", hit: "", queued: "faint" };
const MOST_LINES = 300;

/** A build as it is known so far; `apply` takes what the server says is new. */
export class Build {
  constructor() { this.bars = []; this.samples = []; this.said = []; this.measurements = []; this.critical = []; this.programs = []; this.lanes = []; this.head = {}; }

  apply(change) {
    if (change.full) { this.bars = []; this.samples = []; this.said = []; this.measurements = []; }
    this.head = { elapsed_s: 0, hits: 0, misses: 0, failures: 0, total: 0, done: 0, running: 0, saved_s: 0, ...change.head };
    for (const given of change.bars) {
      const bar = { lane: "", kind: "", outcome: "queued", queued_s: 0, start_s: 0, end_s: 0, expected_s: 0, user_s: 0, system_s: 0, peak_bytes: 0, saved_s: 0, reasons: [], steps: [], after: "", message: "", command: "", ...given };
      this.bars[bar.id] = bar;
    }
    if (this.head.peaks_only) this.samples = change.samples; else this.samples.push(...change.samples);
    this.said.push(...change.said);
    this.measurements.push(...change.measurements);
    this.critical = change.critical;
    this.programs = change.programs;
    this.lanes = change.lanes;
  }

  seconds(bar) { return bar.outcome === "running" ? Math.max(0, this.head.elapsed_s - bar.start_s) : Math.max(0, bar.end_s - bar.start_s); }
}

/** The page. `options`: id, line (of the log), alone (in a file, without a server). Returns {update, destroy}. */
export function buildPage(main, build, options) {
  const state = { kind: "", asked: "", chosen: -1 };
  const title = el("h1");
  const under = el("p", { class: "faint wrap" });
  const numbers = el("div");
  const legend = el("p", { class: "legend" });
  const detail = el("div");
  const lanes = new Lanes((bar) => choose(bar.id));
  const memory = chart({ label: "memory of jobs against the budget", words: size, axis: duration, from: 0 });
  const memoryNote = el("p", { class: "legend" });
  const path = el("div");
  const said = el("div");
  const starts = el("div");
  const outcome = el("select", { "aria-label": "outcome", onchange: (event) => { state.kind = event.target.value; rows(); } },
    ["", "built", "failed", "hit", "running", "queued", "lost"].map((name) => el("option", { value: name }, name || "all outcomes")));
  const asked = el("input", { type: "search", placeholder: "filter actions", "aria-label": "filter actions", oninput: (event) => { state.asked = event.target.value.toLowerCase(); rows(); } });
  const table = new Table([
    { title: "action", cell: (bar) => el("span", { title: bar.name }, el("i", { class: "mark", style: { background: `var(${barColour(bar)})` } }), bar.name), value: (bar) => bar.name, width: "minmax(120px, 3fr)" },
    { title: "kind", cell: (bar) => bar.kind, width: "72px", wide: true },
    { title: "outcome", cell: (bar) => el("span", { class: OUTCOMES[bar.outcome] }, bar.outcome), value: (bar) => bar.outcome, width: "64px" },
    { title: "start", cell: (bar) => (bar.lane ? duration(bar.start_s) : ""), value: (bar) => bar.start_s, width: "72px", number: true, wide: true },
    { title: "time", cell: (bar) => (bar.outcome === "hit" ? `(${duration(bar.saved_s)})` : duration(build.seconds(bar))), value: (bar) => build.seconds(bar), width: "76px", number: true },
    { title: "waited", cell: (bar) => duration(Math.max(0, bar.start_s - bar.queued_s)), value: (bar) => bar.start_s - bar.queued_s, width: "72px", number: true, wide: true },
    { title: "peak memory", cell: (bar) => (bar.peak_bytes ? size(bar.peak_bytes) : ""), value: (bar) => bar.peak_bytes, width: "76px", number: true },
    { title: "why it ran", cell: (bar) => bar.message || bar.reasons[0] || "", width: "minmax(80px, 2fr)", wide: true },
  ], { label: "actions", sort: 4, down: true, key: (bar) => bar.id, open: (bar) => choose(bar.id, true), none: "no action yet", moves: (bar) => bar.outcome === "running" });

  fill(main,
    el("div", { class: "row" }, title, options.alone ? null : el("span", { class: "row" },
      el("a", { href: `/build/${encodeURIComponent(options.id)}/export.html` }, "save as one file"),
      el("a", { href: `/build/${encodeURIComponent(options.id)}/trace.json` }, "trace for Perfetto"))),
    under, numbers,
    el("h2", {}, "timeline"), legend, lanes.node,
    el("p", { class: "faint" }, "ctrl and the wheel, or + and -, zoom; 0 shows all; a line above a bar: on the critical path"),
    detail,
    el("h2", {}, "memory"), memory.node, memoryNote,
    el("h2", {}, "critical path"), path,
    starts,
    el("h2", {}, "actions"), el("div", { class: "row" }, asked, outcome), table.node,
    said);

  function choose(id, scroll = false) {
    state.chosen = id;
    const bar = build.bars[id];
    lanes.mark(id);
    if (scroll) lanes.show(bar);
    table.choose(id, !scroll);
    if (!options.alone) history.replaceState(null, "", `#action=${encodeURIComponent(bar.name)}`);
    showDetail();
  }

  function showDetail() {
    const bar = build.bars[state.chosen];
    if (!bar) { fill(detail); return; }
    const lines = build.said.filter((one) => one.bar === bar.id);
    fill(detail, el("section", { class: "detail", "aria-label": "the chosen action" },
      el("div", { class: "row" }, el("strong", { class: "wrap" }, bar.name), el("button", { type: "button", onclick: close }, "close")),
      facts([
        ["outcome", bar.outcome], ["kind", bar.kind],
        ["time", bar.outcome === "hit" ? `found; its job took ${duration(bar.saved_s)}` : `${duration(build.seconds(bar))}${bar.expected_s ? `, expected ${duration(bar.expected_s)}` : ""}`],
        ["processor time", bar.user_s ? `${duration(bar.user_s)} user, ${duration(bar.system_s)} system` : ""],
        ["waited", bar.start_s > bar.queued_s ? duration(bar.start_s - bar.queued_s) : ""],
        ["waited last for", bar.after], ["peak memory", bar.peak_bytes ? size(bar.peak_bytes) : ""],
        ["outputs", bar.output_bytes ? size(bar.output_bytes) : ""], ["kernels", bar.kernels || ""],
        ["message", bar.message],
      ]),
      bar.reasons.length ? el("div", {}, el("span", { class: "faint" }, "why it ran"), el("ul", {}, bar.reasons.map((why) => el("li", { class: "wrap" }, why)))) : null,
      bar.steps.length ? el("div", {}, el("span", { class: "faint" }, "steps"), el("div", { class: "bars" }, stepBars(bar))) : null,
      bar.command ? el("pre", {}, bar.command) : null,
      lines.length ? el("pre", {}, lines.map((one) => `${one.text}\n`)) : null));
  }

  function stepBars(bar) {
    const most = Math.max(...bar.steps.map((step) => step.wall_s || 0), 0.001);
    return bar.steps.map((step) => [
      el("span", { title: step.name }, step.name),
      el("i", { style: { width: `${(100 * (step.wall_s || 0)) / most}%` } }),
      el("span", {}, step.hit ? "from the store" : `${duration(step.wall_s)}${step.peak_bytes ? `, ${size(step.peak_bytes)}` : ""}`),
    ]);
  }

  function close() {
    state.chosen = -1;
    lanes.mark(-1);
    table.choose(null, false);
    if (!options.alone) history.replaceState(null, "", location.pathname);
    showDetail();
  }

  function rows() {
    table.set(build.bars.filter((bar) => bar && (!state.kind || bar.outcome === state.kind)
      && (!state.asked || `${bar.name} ${bar.kind} ${bar.reasons.join(" ")}`.toLowerCase().includes(state.asked))));
    if (state.chosen >= 0) table.choose(state.chosen, false);
  }

  function update() {
    const { head } = build;
    const line = options.line;
    const words = head.command || (line ? line.command || line.targets.join(" ") : (head.targets || []).join(" ")) || "a build";
    document.title = `${words.slice(0, 60)} - buildd`;
    fill(title, words);
    fill(under, [when(head.began_ns || 0), line ? place(line.project) : "", `build ${options.id}`].filter(Boolean).join(" · "));
    const ended = head.ended;
    fill(numbers, figures([
      [ended ? head.outcome || "lost" : "running", "outcome", ended ? (head.outcome === "built" ? "good" : "bad") : "live"],
      [duration(head.elapsed_s), "time"],
      [String(head.hits || build.bars.filter((bar) => bar && bar.outcome === "hit").length), "hits"],
      [String(head.misses || build.bars.filter((bar) => bar && bar.lane.startsWith("cpu")).length), "ran"],
      head.failures ? [String(head.failures), "failed", "bad"] : null,
      !ended && head.total ? [share(head.done, head.total), `of ${head.total} done`] : null,
      !ended && head.running ? [String(head.running), "running"] : null,
      !ended && head.eta_s > 1 ? [duration(head.eta_s), "left, about"] : null,
      head.saved_s ? [duration(head.saved_s), "saved"] : null,
      build.samples.length ? [size(Math.max(...build.samples.map((one) => one.used_bytes))), head.peaks_only ? "most memory (of peaks)" : "most memory"] : null,
    ]), !ended && head.waiting_for ? el("p", { class: "warn" }, `others wait for ${head.waiting_for}`) : null,
    head.message ? el("p", { class: "bad wrap" }, head.message) : null);
    const critical = new Set(build.critical.map((one) => one.id));
    lanes.set({ seconds: head.elapsed_s, lanes: build.lanes, bars: build.bars.filter(Boolean), critical, measurements: build.measurements });
    const kinds = new Map();
    for (const bar of build.bars) if (bar && bar.lane) kinds.set(barColour(bar), bar.outcome === "built" || bar.outcome === "running" ? bar.kind || "job" : bar.outcome);
    fill(legend, [...kinds].map(([name, kind]) => el("span", {}, el("i", { style: { background: `var(${name})` } }), kind)));
    memory.node.hidden = build.samples.length === 0;
    const budget = build.samples.filter((one) => one.budget_bytes);
    memory.set([
      { points: build.samples.map((one) => [one.at_s, one.used_bytes]), colour: "--live", area: "--area", steps: true },
      { points: budget.map((one) => [one.at_s, one.budget_bytes]), colour: "--budget", dashed: true, steps: true },
    ], head.elapsed_s);
    fill(memoryNote, build.samples.length === 0 ? "no job has run"
      : head.peaks_only ? "the jobs' peaks added up: more than they really used at one time" : [
        el("span", {}, el("i", { style: { background: "var(--live)" } }), "resident memory of all jobs"),
        el("span", {}, el("i", { style: { background: "var(--budget)" } }), "what all jobs together may use")]);
    showPath();
    fill(starts, build.programs.length ? [el("h2", {}, "starts of programs"), el("div", { class: "cards" }, build.programs.map(ledger))] : null);
    rows();
    if (state.chosen >= 0) showDetail();
    const notes = build.said.filter((one) => one.bar < 0);
    fill(said, notes.length ? [el("h2", {}, "messages"), el("pre", {}, notes.slice(-MOST_LINES).map((one) => `${one.text}\n`))] : null);
  }

  let links = null;
  const pathNote = el("p", { class: "faint" });

  function showPath() {
    const time = (one) => Math.max(0, one.end_s - (one.start_s || 0));
    const ran = build.critical.reduce((sum, one) => sum + time(one), 0);
    fill(pathNote, build.critical.length ? `${count(build.critical.length, "job")}, ${duration(ran)} of ${duration(build.head.elapsed_s)} (${share(ran, build.head.elapsed_s)}): only where one of these is faster does this build end sooner` : "nothing has run");
    if (JSON.stringify(build.critical) === links) return; // a live page draws every second
    links = JSON.stringify(build.critical);
    const most = Math.max(...build.critical.map(time), 0.001);
    fill(path, pathNote,
      el("div", { class: "bars" }, build.critical.map((one) => [
        el("a", { href: `#action=${encodeURIComponent(one.name)}`, title: one.name, onclick: (event) => { event.preventDefault(); choose(one.id, true); } }, one.name),
        el("i", { style: { width: `${(100 * time(one)) / most}%` } }),
        el("span", {}, `${duration(time(one))}${one.waited_for === "slot" ? `, after ${duration((one.start_s || 0) - (one.queued_s || 0))} without a slot` : ""}`),
      ])));
  }

  function deep() {
    const name = new URLSearchParams(location.hash.slice(1)).get("action");
    const bar = name ? build.bars.find((one) => one && one.name === name) : null;
    if (bar && bar.id !== state.chosen) choose(bar.id, true);
  }

  const escape = (event) => { if (event.key === "Escape" && state.chosen >= 0) close(); };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const repaint = () => { lanes.soon(); memory.draw(); };
  window.addEventListener("keydown", escape);
  window.addEventListener("hashchange", deep);
  dark.addEventListener("change", repaint);
  update();
  deep();
  return {
    update, state,
    destroy() { window.removeEventListener("keydown", escape); window.removeEventListener("hashchange", deep); dark.removeEventListener("change", repaint); },
  };
}

