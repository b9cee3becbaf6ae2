// The server's data: JSON by address, and the live stream. Knows no view.

const SILENCE_MS = 25000; // the server says something every ten seconds
const AGAIN_MS = 1000;

/** Data of an address; throws an Error that says what to do. */
export async function get(address) {
  let answer;
  try {
    answer = await fetch(address, { credentials: "same-origin" });
  } catch {
    throw new Error("the server does not answer: `buildd ui` starts it");
  }
  if (answer.status === 401) throw new Error("this page's link is old: `buildd ui` prints a new one");
  if (answer.status === 404) return null;
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  return answer.json();
}

/**
 * Listen to the server while the page is seen. `heard(kind, data)` gets "now" and "build" events, and "lost" where the
 * server does not answer. A page that comes back (from sleep, from behind) asks for what it has missed.
 * Returns a function that ends it.
 */
export function listen(build, heard) {
  let source = null;
  let last = Date.now();
  let since = "";
  let retry = 0;
  let over = false;

  const stop = () => { if (source) source.close(); source = null; clearTimeout(retry); };
  const again = (pause) => { stop(); if (!over) retry = setTimeout(start, pause); };
  const take = (kind) => (event) => {
    last = Date.now();
    const data = JSON.parse(event.data);
    if (kind === "build") since = `${data.revision}-${data.picture}`;
    heard(kind, data);
  };
  function start() {
    stop();
    if (over || document.hidden) return;
    last = Date.now();
    const asked = new URLSearchParams();
    if (build) asked.set("build", build);
    if (since) asked.set("since", since);
    source = new EventSource(`/api/stream?${asked}`);
    source.addEventListener("now", take("now"));
    source.addEventListener("build", take("build"));
    source.onerror = () => { heard("lost", null); again(AGAIN_MS); };
  }
  const seen = () => (document.hidden ? stop() : start());
  // A connection can die without a word while the machine sleeps.
  const watch = setInterval(() => { if (source && Date.now() - last > SILENCE_MS) again(0); }, 5000);
  document.addEventListener("visibilitychange", seen);
  window.addEventListener("pageshow", seen);
  start();
  return () => {
    over = true;
    stop();
    clearInterval(watch);
    document.removeEventListener("visibilitychange", seen);
    window.removeEventListener("pageshow", seen);
  };
}
