// Words for numbers: the same ones as in the terminal.

export function duration(seconds) {
  if (!(seconds > 0)) return "0 s";
  if (seconds < 1) return seconds < 0.01 ? `${(seconds * 1000).toFixed(1)} ms` : `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds - minutes * 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function size(bytes) {
  if (!(bytes > 0)) return "0";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (bytes >= 1000 && place < units.length - 1) { bytes /= 1024; place += 1; }
  return `${place && bytes < 100 ? bytes.toFixed(1) : Math.round(bytes)} ${units[place]}`;
}

export function count(number, noun, plural) {
  return `${number} ${number === 1 ? noun : plural || `${noun}s`}`;
}

export function microseconds(value) {
  return value >= 1000 ? `${(value / 1000).toFixed(2)} ms` : `${value.toFixed(1)} us`;
}

/** A moment in nanoseconds since 1970, in the reader's own time zone. */
export function when(ns) {
  const date = new Date(ns / 1e6);
  const two = (number) => String(number).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

export function share(part, whole) {
  return whole > 0 ? `${Math.round((100 * part) / whole)} %` : "-";
}

/** The last parts of a path, which tell folders apart. */
export function place(path) {
  const parts = path.split("/").filter(Boolean);
  return parts.length > 2 ? `…/${parts.slice(-2).join("/")}` : path;
}
