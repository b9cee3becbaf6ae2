// A table of any length: only the lines that are seen are in the document.

import { el, fill } from "./dom.js";

const LINE = 28;
const SPARE = 6;

/**
 * A table. `columns`: {title, cell(row) -> node or text, value(row) for sorting, width, number, wide (left out where the
 * page is narrow)}. `options`: label, rows, sort (index of a column), down, open(row) for a click or Enter, key(row) names
 * a row for `choose`, height (most, in pixels), none (words for no rows), moves(row) whether a row's cells can change while
 * it is the same object (without it: yes).
 */
export class Table {
  constructor(columns, options) {
    this.columns = columns;
    this.options = options;
    this.sort = options.sort ?? -1;
    this.down = options.down ?? false;
    this.chosen = null;
    this.lines = [];
    this.version = 0;
    this.all = el("div", { class: "all" });
    this.body = el("div", { class: "body", tabindex: "0", role: "rowgroup", onscroll: () => this.soon(), onkeydown: (e) => this.key(e) }, this.all);
    if (options.height) this.body.style.setProperty("max-height", `${options.height}px`);
    this.head = el("div", { class: "head", role: "row" });
    this.node = el("div", { class: "table", role: "table", "aria-label": options.label, style: {
      "--columns": columns.map((column) => column.width || "1fr").join(" "),
      "--narrow": columns.filter((column) => !column.wide).map((column) => (column.width || "1fr").replace(/minmax\(\d+px/, "minmax(70px")).join(" "),
    } }, this.head, this.body);
    this.titles();
    new ResizeObserver(() => { this.tall = this.body.clientHeight; this.draw(); }).observe(this.body);
    this.set(options.rows || []);
  }

  titles() {
    fill(this.head, this.columns.map((column, place) => el("button", {
      type: "button", class: this.kind(column), "aria-sort": place === this.sort ? (this.down ? "descending" : "ascending") : null,
      onclick: () => { this.down = place === this.sort ? !this.down : Boolean(column.number); this.sort = place; this.titles(); this.set(this.given); },
    }, column.title)));
  }

  kind(column) {
    return [column.number && "number", column.wide && "wide"].filter(Boolean).join(" ");
  }

  /** Show rows, in the order of the chosen column. */
  set(rows) {
    this.given = rows;
    this.rows = rows;
    const column = this.columns[this.sort];
    if (column) {
      const value = column.value || column.cell;
      const way = this.down ? -1 : 1;
      this.rows = rows.map((row) => [value(row), row]).sort(([a], [b]) => (a < b ? -way : a > b ? way : 0)).map(([, row]) => row);
    }
    this.all.style.setProperty("height", `${Math.max(1, this.rows.length) * LINE}px`);
    this.node.setAttribute("aria-rowcount", this.rows.length);
    this.drawn = null;
    this.version += 1;
    this.draw();
  }

  soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  draw() {
    const height = this.tall || this.body.clientHeight || 600;
    const first = Math.max(0, Math.floor(this.body.scrollTop / LINE) - SPARE);
    const last = Math.min(this.rows.length, Math.ceil((this.body.scrollTop + height) / LINE) + SPARE);
    if (this.drawn && this.drawn[0] === first && this.drawn[1] === last) return;
    this.drawn = [first, last];
    if (!this.rows.length) {
      this.lines = [];
      fill(this.all, el("div", { class: "none" }, this.options.none || "nothing yet"));
      return;
    }
    if (!this.lines.length) fill(this.all);
    while (this.lines.length < last - first) this.lines.push(this.line());
    while (this.lines.length > last - first) this.lines.pop().node.remove();
    // A row keeps its line while it is seen: line number N shows the rows N, N + lines, N + 2 lines ...
    const lines = this.lines.length;
    for (let place = first; place < last; place += 1) this.show(this.lines[place % lines], place);
  }

  /** An empty line; `show` fills it. */
  line() {
    const made = { row: null, place: -1, name: undefined };
    made.cells = this.columns.map((column) => el("span", { role: "cell", class: this.kind(column) }));
    made.node = el("div", { class: "line", role: "row", onclick: (event) => {
      if (this.options.open && !event.target.closest("a")) this.options.open(made.row);
    } }, made.cells);
    if (this.options.open) made.node.style.setProperty("cursor", "pointer");
    this.all.append(made.node);
    return made;
  }

  show(line, place) {
    const row = this.rows[place];
    const chosen = this.options.key && this.chosen !== null && this.options.key(row) === this.chosen;
    if (line.chosen !== chosen) { line.node.classList.toggle("chosen", chosen); line.chosen = chosen; }
    if (line.place !== place) {
      line.node.style.setProperty("transform", `translateY(${place * LINE}px)`);
      line.node.setAttribute("aria-rowindex", place + 1);
    }
    const moves = this.options.moves ? this.options.moves(row) : true;
    if (line.row === row && line.place === place && (line.version === this.version || !moves)) return;
    line.row = row;
    line.place = place;
    line.version = this.version;
    this.columns.forEach((column, index) => {
      const cell = column.cell(row), node = line.cells[index];
      if (cell instanceof Node) { node.replaceChildren(cell); node.removeAttribute("title"); return; }
      const text = String(cell);
      if (node.firstChild && node.firstChild.nodeType === Node.TEXT_NODE) {
        if (node.firstChild.data !== text) node.firstChild.data = text; else return;
      } else node.replaceChildren(text);
      if (text) node.title = text;
    });
  }

  /** Mark a row, and have it in sight. */
  choose(name, scroll = true) {
    this.chosen = name;
    const place = this.rows.findIndex((row) => this.options.key && this.options.key(row) === name);
    if (scroll && place >= 0) {
      const top = place * LINE;
      if (top < this.body.scrollTop || top > this.body.scrollTop + this.body.clientHeight - LINE) this.body.scrollTop = Math.max(0, top - 3 * LINE);
    }
    this.drawn = null;
    this.draw();
  }

  key(event) {
    const move = { j: 1, k: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
    const named = this.options.key;
    if (!named || !this.rows.length) return;
    const at = this.rows.findIndex((row) => named(row) === this.chosen);
    if (move) {
      const next = this.rows[Math.min(this.rows.length - 1, Math.max(0, at + move))];
      this.choose(named(next));
      event.preventDefault();
      event.stopPropagation();
    } else if (event.key === "Enter" && at >= 0 && this.options.open) {
      this.options.open(this.rows[at]);
    }
  }
}
