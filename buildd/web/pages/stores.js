// Pages of what is kept: the cache, kernels over builds, profiles.

import { chart } from "./chart.js";
import { get } from "./data.js";
import { el, figures, fill } from "./dom.js";
import { count, duration, microseconds, place, share, size, when } from "./format.js";
import { buildAddress } from "./lists.js";
import { Table } from "./table.js";

function tally(title, counts) {
  const pairs = Object.entries(counts).sort((a, b) => b[1] - a[1]);
  const most = Math.max(1, ...pairs.map(([, number]) => number));
  return pairs.length ? [el("h2", {}, title), el("div", { class: "bars" }, pairs.map(([name, number]) => [
    el("span", { title: name }, name), el("i", { style: { width: `${(100 * number) / most}%` } }), el("span", {}, String(number))]))] : null;
}

export async function cache(main, page) {
  const found = await get("/api/cache");
  const stats = found.stats;
  if (!stats) { fill(main, el("h1", {}, "cache"), el("p", {}, "there is no store yet: the first build makes it")); return; }
  const { hits = 0, misses = 0, saved_ms: saved = 0, evicted_bytes: evicted = 0 } = stats.counters;
  const day = (x) => (found.days[Math.min(Math.round(x), found.days.length - 1)] || { day: "" }).day;
  const growth = chart({ label: "size of the results that are there, by day", words: size, axis: day });
  const rates = chart({ label: "hits and misses by day", words: (y) => String(Math.round(y)), axis: day });
  const dear = new Table([
    { title: "action", cell: (one) => el("a", { href: buildAddress(one.build, one.name), title: one.name }, one.name), value: (one) => one.name, width: "minmax(120px, 3fr)" },
    { title: "time in all", cell: (one) => duration(one.wall_s), value: (one) => one.wall_s, width: "82px", number: true },
    { title: "runs", cell: (one) => String(one.runs), value: (one) => one.runs, width: "48px", number: true },
    { title: "peak memory", cell: (one) => size(one.peak_bytes || 0), value: (one) => one.peak_bytes || 0, width: "84px", number: true, wide: true },
    { title: "why, last time", cell: (one) => one.reason || "", width: "minmax(90px, 2fr)", wide: true },
    { title: "project", cell: (one) => el("span", { title: one.project }, place(one.project)), value: (one) => one.project, width: "minmax(70px, 1fr)", wide: true },
  ], { label: "most expensive misses", rows: found.dear, sort: 1, down: true, key: (one) => `${one.project} ${one.name}`, open: (one) => page.go(buildAddress(one.build, one.name)), height: 340 });
  const users = new Table([
    { title: "project", cell: (one) => el("a", { href: `/?${new URLSearchParams({ q: one.project })}`, title: one.project }, place(one.project)), value: (one) => one.project, width: "minmax(110px, 2fr)" },
    { title: "builds", cell: (one) => String(one.builds), value: (one) => one.builds, width: "56px", number: true },
    { title: "hits", cell: (one) => String(one.hits || 0), value: (one) => one.hits || 0, width: "64px", number: true },
    { title: "misses", cell: (one) => String(one.misses || 0), value: (one) => one.misses || 0, width: "64px", number: true },
    { title: "saved", cell: (one) => duration(one.saved_s || 0), value: (one) => one.saved_s || 0, width: "82px", number: true },
    { title: "last build", cell: (one) => when(one.last_ns), value: (one) => one.last_ns, width: "142px", wide: true },
  ], { label: "who uses the cache", rows: found.users, key: (one) => one.project, height: 340 });
  const areas = new Table([
    { title: "what", cell: (one) => one[0], width: "minmax(90px, 1fr)" },
    { title: "entries", cell: (one) => String(one[1].entries), value: (one) => one[1].entries, width: "72px", number: true },
    { title: "size", cell: (one) => (one[1].bytes ? size(one[1].bytes) : ""), value: (one) => one[1].bytes || 0, width: "82px", number: true },
    { title: "", cell: (one) => one[1].note || "", width: "minmax(90px, 3fr)", wide: true },
  ], { label: "what is kept beside the results", rows: Object.entries(stats.areas), key: (one) => one[0], height: 340 });
  fill(main, el("h1", {}, "cache"), el("p", { class: "faint wrap" }, stats.folder),
    figures([[String(hits), "hits"], [String(misses), "misses"], [share(hits, hits + misses), "found"], [duration(saved / 1000), "saved"],
      [size(stats.held_bytes), `of ${size(stats.limit_bytes)}`], [String(stats.results), "results"], evicted ? [size(evicted), "removed"] : null,
      stats.counters.bad_blobs ? [String(stats.counters.bad_blobs), "damaged", "bad"] : null]),
    tally("misses by reason, in the builds of the log", found.missed),
    tally("misses of `buildd run` by reason, ever", stats.missed),
    tally("hits of `buildd run`, ever", stats.hit),
    tally("passed through, ever", stats.passed_through),
    el("h2", {}, "growth"), growth.node, el("h2", {}, "hits and misses"), rates.node,
    el("p", { class: "legend" }, el("span", {}, el("i", { style: { background: "var(--hit)" } }), "hits"), el("span", {}, el("i", { style: { background: "var(--kind1)" } }), "misses")),
    el("h2", {}, "most expensive misses"), dear.node, el("h2", {}, "who uses it"), users.node, el("h2", {}, "what is kept"), areas.node);
  const days = found.days;
  growth.set([{ points: days.map((day, at) => [at, day.held_bytes || 0]), colour: "--live", area: "--area", steps: true }], days.length);
  rates.set([{ points: days.map((day, at) => [at, day.hits || 0]), colour: "--hit", steps: true }, { points: days.map((day, at) => [at, day.misses || 0]), colour: "--kind1", steps: true }], days.length);
  for (const table of [dear, users, areas]) { table.drawn = null; table.draw(); }
}

const number = (value) => (value < 0 ? "?" : String(value));
const percent = (value) => (value === undefined || value < 0 ? "?" : `${Math.round(100 * value)} %`);

/** A figure now, and before where it changed: "48 (was 40)". */
function moved(points, pick, words) {
  const last = pick(points.at(-1));
  const before = points.length > 1 ? pick(points.at(-2)) : last;
  if (before === last) return words(last);
  return el("span", {}, words(last), el("span", { class: "faint" }, ` was ${words(before)}`));
}

export async function kernels(main, page) {
  const detail = el("div");
  const table = new Table([
    { title: "kernel", cell: (one) => el("span", { title: one.name }, one.name), value: (one) => one.name, width: "minmax(120px, 3fr)" },
    { title: "arch", cell: (one) => one.arch, width: "68px" },
    { title: "registers", cell: (one) => moved(one.points, (p) => p.registers, number), value: (one) => one.points.at(-1).registers, width: "92px", number: true },
    { title: "shared", cell: (one) => moved(one.points, (p) => p.shared_bytes, (b) => (b < 0 ? "?" : size(b))), value: (one) => one.points.at(-1).shared_bytes, width: "110px", number: true, wide: true },
    { title: "spills", cell: (one) => moved(one.points, (p) => p.spill_bytes, (b) => (b < 0 ? "?" : size(b))), value: (one) => one.points.at(-1).spill_bytes, width: "80px", number: true },
    { title: "occupancy", cell: (one) => moved(one.points, (p) => p.occupancy ?? -1, percent), value: (one) => one.points.at(-1).occupancy ?? -1, width: "110px", number: true, wide: true },
    { title: "versions", cell: (one) => String(one.points.length), value: (one) => one.points.length, width: "66px", number: true, wide: true },
    { title: "project", cell: (one) => el("span", { title: one.project }, place(one.project)), value: (one) => one.project, width: "minmax(70px, 1fr)", wide: true },
  ], { label: "kernels", key: (one) => `${one.project} ${one.name} ${one.arch}`, open: (one) => show(one), none: "no kernels in the builds of the log" });
  const total = el("p", { class: "faint" });
  const filter = el("input", { type: "search", placeholder: "filter kernels", "aria-label": "filter kernels", value: page.query.get("q") || "", oninput: (event) => load(event.target.value) });
  fill(main, el("h1", {}, "kernels"), el("p", { class: "faint" }, "as their assembler reports them; occupancy for blocks of 256 threads, without dynamic shared memory"),
    el("div", { class: "row" }, filter, total), detail, table.node);
  async function load(text) {
    const found = await get(`/api/kernels?${new URLSearchParams({ q: text })}`);
    table.set(found);
    fill(total, count(found.length, "kernel"));
    if (found.length === 1) show(found[0]);
  }
  function show(one) {
    table.choose(`${one.project} ${one.name} ${one.arch}`, false);
    const history = new Table([
      { title: "build", cell: (p) => el("a", { href: buildAddress(p.build) }, when(p.began_ns)), value: (p) => p.began_ns, width: "minmax(120px, 1fr)" },
      { title: "registers", cell: (p) => number(p.registers), width: "72px", number: true },
      { title: "shared", cell: (p) => (p.shared_bytes < 0 ? "?" : size(p.shared_bytes)), width: "80px", number: true },
      { title: "spills", cell: (p) => (p.spill_bytes < 0 ? "?" : size(p.spill_bytes)), width: "64px", number: true },
      { title: "occupancy", cell: (p) => percent(p.occupancy), width: "76px", number: true },
    ], { label: "versions", rows: one.points.slice().reverse(), height: 200 });
    const curve = chart({ label: "registers over the builds that changed the kernel", words: (y) => String(Math.round(y)), axis: (x) => (one.points[Math.round(x)] ? when(one.points[Math.round(x)].began_ns) : "now") });
    fill(detail, el("section", { class: "detail" }, el("strong", { class: "wrap" }, one.name), el("p", { class: "faint" }, `${one.arch}, ${count(one.builds, "build")}, ${count(one.points.length, "version")}`), el("p", { class: "faint" }, "registers"), curve.node, history.node));
    curve.set([{ points: one.points.map((p, at) => [at, Math.max(0, p.registers)]), colour: "--live", area: "--area", steps: true }], one.points.length);
  }
  await load(page.query.get("q") || "");
}

export async function profiles(main, page) {
  const found = await get("/api/profiles");
  const detail = el("div");
  const table = new Table([
    { title: "problem", cell: (one) => one.problem, width: "minmax(110px, 2fr)" },
    { title: "GPU", cell: (one) => one.gpu, width: "minmax(80px, 1fr)" },
    { title: "tried", cell: (one) => `${one.measured || 0}/${one.candidates}`, value: (one) => one.candidates, width: "64px", number: true, wide: true },
    { title: "best", cell: (one) => (one.best_us ? microseconds(one.best_us) : ""), value: (one) => one.best_us || 0, width: "80px", number: true },
    { title: "library", cell: (one) => (one.library_us ? microseconds(one.library_us) : "-"), value: (one) => one.library_us || 0, width: "80px", number: true },
    { title: "speed", cell: (one) => (one.library_us && one.best_us ? `${(one.library_us / one.best_us).toFixed(2)}x` : ""), value: (one) => (one.library_us || 0) / (one.best_us || 1), width: "60px", number: true, wide: true },
  ], { label: "problems", rows: found, key: (one) => `${one.gpu} ${one.problem}`, open: (one) => page.go(`/profiles?${new URLSearchParams({ gpu: one.gpu, problem: one.problem })}`), none: "nothing is measured yet: `buildd profile`, on a machine with a GPU", height: 300 });
  fill(main, el("h1", {}, "profiles"), el("p", { class: "faint" }, "measured times of candidate kernels, beside the vendor's library where it was measured too"), table.node, detail);
  table.drawn = null; table.draw();
  const gpu = page.query.get("gpu"), problem = page.query.get("problem");
  const one = found.find((each) => each.gpu === gpu && each.problem === problem);
  if (!one) return;
  table.choose(`${gpu} ${problem}`);
  const candidates = await get(`/api/candidates?${new URLSearchParams({ gpu, problem })}`);
  const timed = candidates.filter((each) => each.time_us > 0);
  const bars = timed.map((each) => [each.candidate, each.time_us, ""]);
  if (one.library_us) bars.push([one.library, one.library_us, "library"]);
  bars.sort((a, b) => a[1] - b[1]);
  const most = Math.max(1e-9, ...bars.map(([, time]) => time));
  const rows = new Table([
    { title: "candidate", cell: (each) => each.candidate, width: "minmax(120px, 3fr)" },
    { title: "outcome", cell: (each) => el("span", { class: each.outcome === "measured" ? "" : "warn" }, each.outcome), value: (each) => each.outcome, width: "76px" },
    { title: "time", cell: (each) => (each.time_us ? microseconds(each.time_us) : ""), value: (each) => each.time_us || Infinity, width: "80px", number: true },
    { title: "spread", cell: (each) => (each.spread ? `${(100 * each.spread).toFixed(1)} %` : ""), value: (each) => each.spread || 0, width: "64px", number: true, wide: true },
    { title: "error", cell: (each) => (each.error ? each.error.toExponential(1) : ""), value: (each) => each.error || 0, width: "72px", number: true, wide: true },
    { title: "note", cell: (each) => each.note || "", width: "minmax(80px, 2fr)", wide: true },
  ], { label: "candidates", rows: candidates, height: 400 });
  fill(detail, el("h2", {}, `${problem} on ${gpu}`), el("div", { class: "bars" }, bars.slice(0, 40).map(([name, time, kind]) => [
    el("span", { title: name }, name), el("i", { class: kind, style: { width: `${(100 * time) / most}%` } }), el("span", {}, microseconds(time))])), rows.node);
  rows.drawn = null; rows.draw();
}
