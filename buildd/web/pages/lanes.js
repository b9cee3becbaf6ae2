// The timeline: bars on lanes, drawn on a canvas of the size that is seen; the scroller around it has the whole size.

import { colour, context, el } from "./dom.js";
import { duration } from "./format.js";

const LANE = 24;
const HEAD = 20;
const LABEL = 58;
const LETTER = 6.4; // the usual width of a letter: to measure each name would take longer than to draw it
const MOST_ZOOM = 5000;
const KINDS = 8;
const known = new Map();

/** The number of a kind's colour: the same one in all of a page. */
export function kindColour(kind) {
  if (!known.has(kind)) known.set(kind, known.size % KINDS);
  return `--kind${known.get(kind)}`;
}

export function barColour(bar) {
  if (bar.outcome === "failed") return "--bad";
  if (bar.outcome === "hit") return "--hit";
  if (bar.outcome === "lost") return "--lost";
  return kindColour(bar.kind || "job");
}

/** The lanes of a build. `choose(bar)` is called for the bar that is clicked. */
export class Lanes {
  constructor(choose) {
    this.choose = choose;
    this.zoom = 1;
    this.chosen = -1;
    this.bars = [];
    this.lanes = new Map();
    this.seconds = 1;
    this.canvas = el("canvas", { role: "img", "aria-label": "jobs by lane over time; the table below has the same jobs" });
    this.sizer = el("div", { class: "size" });
    this.node = el("div", { class: "lanes", tabindex: "0", onscroll: () => this.soon(), onkeydown: (event) => this.key(event) }, this.canvas, this.sizer);
    this.node.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.scale(Math.exp(-event.deltaY / 300), event.clientX - this.node.getBoundingClientRect().left - LABEL);
    }, { passive: false });
    this.canvas.addEventListener("click", (event) => { const bar = this.at(event); if (bar) this.choose(bar); });
    this.canvas.addEventListener("mousemove", (event) => {
      const bar = this.at(event);
      this.canvas.style.setProperty("cursor", bar ? "pointer" : "default");
      this.canvas.title = bar ? `${bar.name}  ${duration(this.end(bar) - bar.start_s)}` : "";
    });
    new ResizeObserver(() => this.resize()).observe(this.node);
  }

  /** Show a build: bars by id, names of lanes, critical ids, measurements on GPUs, its length. */
  set(build) {
    this.seconds = Math.max(build.seconds, 0.001);
    this.critical = build.critical;
    const names = build.lanes;
    const changed = names.length !== this.lanes.size;
    this.lanes = new Map(names.map((name) => [name, []]));
    for (const bar of build.bars) if (bar.lane && this.lanes.has(bar.lane)) this.lanes.get(bar.lane).push(bar);
    for (const one of build.measurements) {
      const bar = { id: -2, name: `${one.name} ${one.outcome}`, lane: one.gpu, kind: "gpu", outcome: one.outcome === "measured" ? "built" : "failed", start_s: one.at_s, end_s: one.at_s + one.wall_s, steps: [] };
      if (this.lanes.has(one.gpu)) this.lanes.get(one.gpu).push(bar);
    }
    for (const bars of this.lanes.values()) bars.sort((a, b) => a.start_s - b.start_s);
    if (changed) this.resize();
    this.soon();
  }

  mark(id) { this.chosen = id; this.soon(); }

  /** Bring a bar into sight. */
  show(bar) {
    const place = [...this.lanes.keys()].indexOf(bar.lane);
    if (place < 0) return;
    const x = (bar.start_s / this.seconds) * this.wide();
    if (x < this.node.scrollLeft || x > this.node.scrollLeft + this.node.clientWidth - LABEL) this.node.scrollLeft = x - this.node.clientWidth / 3;
    this.node.scrollTop = Math.max(0, HEAD + place * LANE - this.node.clientHeight / 2);
    this.mark(bar.id);
  }

  wide() { return Math.max(1, this.node.clientWidth - LABEL) * this.zoom; }
  end(bar) { return bar.outcome === "running" ? this.seconds : bar.end_s || bar.start_s; }

  resize() {
    this.sizer.style.setProperty("width", `${LABEL + this.wide()}px`);
    this.sizer.style.setProperty("height", `${HEAD + this.lanes.size * LANE}px`);
    this.node.style.setProperty("height", `${Math.min(window.innerHeight * 0.6, HEAD + Math.max(2, this.lanes.size) * LANE + 14)}px`);
    this.soon();
  }

  /** Zoom around a place, in pixels from the lanes' left end. */
  scale(factor, around = this.node.clientWidth / 2) {
    const before = this.zoom;
    this.zoom = Math.min(MOST_ZOOM, Math.max(1, this.zoom * factor));
    const left = (this.node.scrollLeft + around) * (this.zoom / before) - around;
    this.resize();
    this.node.scrollLeft = left;
  }

  key(event) {
    const act = { "+": () => this.scale(1.5), "=": () => this.scale(1.5), "-": () => this.scale(1 / 1.5), 0: () => this.scale(0) }[event.key];
    if (act && !event.ctrlKey && !event.metaKey) { act(); event.preventDefault(); }
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const place = Math.floor((event.clientY - box.top - HEAD + this.node.scrollTop) / LANE);
    const bars = [...this.lanes.values()][place];
    const x = event.clientX - box.left - LABEL;
    if (!bars || x < 0) return null;
    const per = this.seconds / this.wide();
    const at = (x + this.node.scrollLeft) * per;
    let best = null;
    for (let index = this.first(bars, at - 4 * per); index < bars.length && bars[index].start_s <= at + 4 * per; index += 1) {
      if (this.end(bars[index]) + 4 * per >= at) best = bars[index];
    }
    return best && best.id >= 0 ? best : null;
  }

  /** The index of the first bar of a lane that may end after a time: a lane holds one bar at a time. */
  first(bars, at) {
    let low = 0, high = bars.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.end(bars[middle]) < at) low = middle + 1; else high = middle;
    }
    return low;
  }

  soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  draw() {
    const width = this.node.clientWidth, height = this.node.clientHeight;
    if (!width || !height) return;
    const pen = context(this.canvas, width, height);
    const left = this.node.scrollLeft, top = this.node.scrollTop;
    const wide = this.wide();
    const from = (left / wide) * this.seconds, to = ((left + width - LABEL) / wide) * this.seconds;
    const colours = new Map();
    const paint = (name) => { if (!colours.has(name)) colours.set(name, colour(name)); return colours.get(name); };
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    this.grid(pen, paint, from, to, width, height);
    const names = [...this.lanes.keys()];
    const firstLane = Math.max(0, Math.floor((top - HEAD) / LANE));
    const lastLane = Math.min(names.length, Math.ceil((top + height - HEAD) / LANE));
    for (let lane = firstLane; lane < lastLane; lane += 1) {
      const y = HEAD + lane * LANE - top;
      const bars = this.lanes.get(names[lane]);
      let free = -1;
      for (let index = this.first(bars, from); index < bars.length && bars[index].start_s <= to; index += 1) {
        const bar = bars[index];
        const x = LABEL + (bar.start_s / this.seconds) * wide - left;
        const end = LABEL + (this.end(bar) / this.seconds) * wide - left;
        if (end < free && bar.id !== this.chosen) continue; // less than a pixel, in one that is painted
        const span = Math.max(1.5, end - x - 0.5);
        this.bar(pen, paint, bar, Math.max(LABEL, x), y + 2, Math.min(span, width), wide, left);
        free = Math.max(free, Math.ceil(x));
      }
      pen.fillStyle = paint("--ground");
      pen.fillRect(0, y, LABEL - 2, LANE);
      pen.fillStyle = paint("--faint");
      pen.textAlign = "left";
      pen.fillText(names[lane].slice(0, 9), 6, y + LANE / 2, LABEL - 10);
    }
    pen.fillStyle = paint("--ground");
    pen.fillRect(0, 0, LABEL - 2, HEAD);
  }

  bar(pen, paint, bar, x, y, span, wide, left) {
    const tall = LANE - 5;
    pen.fillStyle = paint(barColour(bar));
    pen.fillRect(x, y, span, tall);
    if (span > 24) {
      for (const step of bar.steps || []) {
        if (step.hit || !step.wall_s) continue;
        const at = LABEL + ((bar.start_s + step.start_s) / this.seconds) * wide - left;
        pen.fillStyle = paint(kindColour(step.name.split(" ")[0]));
        pen.fillRect(Math.max(x, at), y + tall - 5, Math.max(1, Math.min((step.wall_s / this.seconds) * wide, x + span - at)), 5);
      }
    }
    if (bar.outcome === "running") {
      pen.strokeStyle = paint("--live");
      pen.lineWidth = 2;
      pen.strokeRect(x + 1, y + 1, span - 2, tall - 2);
    }
    if (this.critical.has(bar.id)) { pen.fillStyle = paint("--critical"); pen.fillRect(x, y - 2, span, 2); }
    if (bar.id === this.chosen) { pen.strokeStyle = paint("--text"); pen.lineWidth = 2; pen.strokeRect(x, y, span, tall); }
    if (span > 40) {
      const words = bar.outcome === "failed" ? `failed ${bar.name}` : bar.name;
      const room = Math.floor((span - 8) / LETTER);
      pen.fillStyle = paint("--on-kind");
      pen.textAlign = "left";
      pen.fillText(words.length > room ? `${words.slice(0, Math.max(1, room - 1))}…` : words, x + 4, y + tall / 2 - (bar.steps && bar.steps.length ? 2 : 0));
    }
  }

  grid(pen, paint, from, to, width, height) {
    const rough = ((to - from) / Math.max(2, width / 110)) || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const every = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
    pen.strokeStyle = paint("--line");
    pen.fillStyle = paint("--faint");
    pen.lineWidth = 1;
    pen.textAlign = "left";
    for (let at = Math.ceil(from / every) * every; at <= to; at += every) {
      const x = Math.round(LABEL + ((at - from) / (to - from)) * (width - LABEL)) + 0.5;
      pen.beginPath(); pen.moveTo(x, 0); pen.lineTo(x, height); pen.stroke();
      pen.fillText(duration(at), x + 3, HEAD / 2);
    }
  }
}
