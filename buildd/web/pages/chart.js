// Curves on a canvas: an area, lines over it, a scale at the left. Redrawn when the page's width changes.

import { colour, context, el } from "./dom.js";

/**
 * A chart of series over x. `series`: {points: [[x, y]], colour (of a CSS variable), area, steps (each value holds until
 * the next one), dashed, label}. `options`: label, words (y -> text), axis (x -> text), to (least end of x), height.
 */
export function chart(options) {
  const canvas = el("canvas", { role: "img", "aria-label": options.label });
  const frame = el("div", { class: "chart" }, canvas);
  const made = {
    node: frame,
    set(series, to = 0) { made.series = series; made.to = to; made.draw(); },
    draw() { if (made.series && frame.clientWidth) paint(canvas, frame.clientWidth, made.series, made.to, options); },
  };
  new ResizeObserver(() => made.draw()).observe(frame);
  return made;
}

function paint(canvas, width, series, to, options) {
  const height = options.height || 120;
  const pen = context(canvas, width, height);
  const left = 64, right = 8, top = 8, bottom = 18;
  const all = series.flatMap((one) => one.points);
  const first = Math.min(...all.map(([x]) => x), Infinity);
  const start = Number.isFinite(first) ? (options.from ?? first) : 0;
  const end = Math.max(to, all.reduce((most, [x]) => Math.max(most, x), start + 1e-9));
  const most = all.reduce((high, [, y]) => Math.max(high, y), 0) * 1.08 || 1;
  const px = (x) => left + ((x - start) / (end - start || 1)) * (width - left - right);
  const py = (y) => height - bottom - (y / most) * (height - top - bottom);
  pen.font = "11px system-ui, sans-serif";
  pen.fillStyle = colour("--faint");
  pen.strokeStyle = colour("--line");
  pen.textAlign = "right";
  for (const part of [0, 0.5, 1]) {
    const y = py((most / 1.08) * part);
    pen.beginPath(); pen.moveTo(left, y); pen.lineTo(width - right, y); pen.stroke();
    pen.fillText(options.words((most / 1.08) * part), left - 6, y + 4);
  }
  pen.textAlign = "left"; pen.fillText(options.axis(start), left, height - 4);
  pen.textAlign = "right"; pen.fillText(options.axis(end), width - right, height - 4);
  for (const one of series) {
    if (!one.points.length) continue;
    pen.beginPath();
    let before = null;
    for (const [x, y] of one.points) {
      if (before === null) pen.moveTo(px(x), py(y));
      else { if (one.steps) pen.lineTo(px(x), py(before)); pen.lineTo(px(x), py(y)); }
      before = y;
    }
    if (one.steps) pen.lineTo(px(end), py(before));
    pen.setLineDash(one.dashed ? [5, 4] : []);
    pen.strokeStyle = colour(one.colour);
    pen.lineWidth = 1.5;
    pen.stroke();
    if (one.area) {
      pen.lineTo(px(one.steps ? end : one.points.at(-1)[0]), py(0));
      pen.lineTo(px(one.points[0][0]), py(0));
      pen.globalAlpha = 0.35; pen.fillStyle = colour(one.area); pen.fill(); pen.globalAlpha = 1;
    }
    pen.setLineDash([]);
  }
}
