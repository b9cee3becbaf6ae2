// The start of a program by phase: where the time until its first result went.

import { el } from "./dom.js";
import { duration, share } from "./format.js";

const COLOURS = {
  interpreter: "--kind6", imports: "--kind0", tracing: "--kind2", "compiler probes": "--kind7", "traces found": "--hit", "graphs found": "--hit", "graphs compiled": "--kind1",
  "kernels found": "--kind3", "kernels compiled": "--kind4", "first call": "--kind5", program: "--lost",
};

/** A card for one `program_start`. */
export function ledger(start) {
  const phases = Object.entries(start.phases || {}).filter(([, seconds]) => seconds > 0);
  const sum = phases.reduce((all, [, seconds]) => all + seconds, 0);
  const counts = start.counts || {};
  return el("section", { class: "card", "aria-label": `start of ${start.program}` },
    el("strong", { class: "wrap" }, start.program),
    el("p", { class: "faint" }, `${duration(start.wall_s || 0)} to the end of the first call, ${share(sum, start.wall_s || 0)} of it below`),
    el("div", { class: "ledger" }, phases.map(([name, seconds]) => el("i", { title: `${name} ${duration(seconds)}`, style: { width: `${(100 * seconds) / (sum || 1)}%`, background: `var(${COLOURS[name] || "--kind7"})` } }))),
    el("dl", {}, phases.map(([name, seconds]) => [
      el("dt", {}, el("i", { class: "mark", style: { background: `var(${COLOURS[name] || "--kind7"})` } }), name),
      el("dd", {}, `${duration(seconds)}, ${share(seconds, sum)}${counts[name] ? ` (${counts[name]})` : ""}`)])));
}
