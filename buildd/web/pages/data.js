// The server's data: JSON by address, and the live stream. Knows no view.

const SILENCE_MS = 25000; // the server says something every ten seconds
const AGAIN_MS = 1000;

export const OLD = "this page's link is old: `buildd ui` prints a new one";

/** Data of an address; throws an Error that says what to do. */
export async function get(address) {
  let answer;
  try {
    answer = await fetch(address, { credentials: "same-origin" });
  } catch {
    throw new Error("the server does not answer: `buildd ui` starts it");
  }
  if (answer.status === 401) throw new Error(OLD);
  if (answer.status === 404) return null;
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  return answer.json();
}

/** Whether the server is there, and has another token than this page: it was started again. */
async function isOld() {
  try {
    return (await fetch("/", { method: "HEAD", credentials: "same-origin" })).status === 401;
  } catch {
    return false;
  }
}

/**
 * Listen to the server while the page is seen. `heard(kind, data)` gets "now" and "build" events; "lost" where the server
 * does not answer, with whether it is one that wants another token; "back" when there is an answer again. A page that
 * comes back (from sleep, from behind) asks for what it has missed. A server that was started again is tried until it
 * takes this page's cookie, which opening the new link in this browser renews. Returns a function that ends it.
 */
export function listen(build, heard) {
  let source = null;
  let last = Date.now();
  let since = "";
  let retry = 0;
  let over = false;
  let starts = 0;
  let told = 0;

  const stop = () => { if (source) source.close(); source = null; clearTimeout(retry); };
  const again = (pause) => { stop(); if (!over) retry = setTimeout(start, pause); };
  const take = (kind) => (event) => {
    last = Date.now();
    const data = JSON.parse(event.data);
    if (kind === "build") since = `${data.revision}-${data.picture}`;
    if (told && told !== starts) heard("back", null);
    told = starts;
    heard(kind, data);
  };
  function start() {
    stop();
    if (over || document.hidden) return;
    last = Date.now();
    starts += 1;
    const asked = new URLSearchParams();
    if (build) asked.set("build", build);
    if (since) asked.set("since", since);
    source = new EventSource(`/api/stream?${asked}`);
    source.addEventListener("now", take("now"));
    source.addEventListener("build", take("build"));
    source.onerror = () => {
      again(AGAIN_MS);
      const mine = starts;
      isOld().then((old) => { if (!over && mine === starts) heard("lost", old); });
    };
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
