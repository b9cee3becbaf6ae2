// Makes elements. Texts become text nodes, never markup: names of files, targets and kernels are other people's.

/** An element. `attributes`: on* are listeners, `style` a table of properties, others attributes; null leaves one out. */
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [property, text] of Object.entries(value)) made.style.setProperty(property, text);
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  add(made, children);
  return made;
}

/** Append children; strings and numbers become text, null and false nothing. */
export function add(parent, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return parent;
}

/** Put children in place of all that is there. The same text again changes nothing, so nothing is drawn. */
export function fill(parent, ...children) {
  const [only] = children;
  if (children.length === 1 && typeof only === "string" && !parent.firstElementChild && parent.textContent === only) return parent;
  parent.replaceChildren();
  return add(parent, children);
}

/** A list of figures: pairs of a text and its label. */
export function figures(pairs) {
  return el("ul", { class: "figures" }, pairs.filter(Boolean).map(([value, label, kind]) =>
    el("li", {}, el("b", { class: kind || "" }, value), el("span", {}, label))));
}

/** A description list; pairs without a value are left out. */
export function facts(pairs) {
  return el("dl", {}, pairs.filter((pair) => pair && pair[1] !== "" && pair[1] !== null && pair[1] !== undefined)
    .map(([label, value]) => [el("dt", {}, label), el("dd", {}, value)]));
}

/** The value of a CSS variable, for canvases. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** A canvas context for a size in CSS pixels, sharp on every screen. */
export function context(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}
