// Requests to the admin interface, and the stream of snapshots. EventSource cannot send a token, so fetch reads it.

const TOKEN = "steelyard.token";
const RETRY = [1000, 2000, 5000];
const HIDDEN_LIMIT = 60000; // a hidden tab stops watching: a balancer without viewers takes no snapshots

class NeedsToken extends Error {}

function takeTokenFromAddress() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!given) return;
  sessionStorage.setItem(TOKEN, given);
  history.replaceState(null, "", location.pathname + location.search);
}

function authorization() {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

async function refusal(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error || `HTTP ${response.status}`;
  } catch {
    if (response.status === 404) throw new NeedsToken("The balancer refuses this request: it needs its token.");
    return `HTTP ${response.status}`;
  }
}

// Requests are about the cluster shown: the query is ?cluster=NAME, or empty.
const ofPool = (path) => path + location.search.replace("?", path.includes("?") ? "&" : "?");

// Relative addresses: the page may be served under a prefix by a proxy.
async function ask(method, path, body) {
  const headers = authorization();
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(ofPool(path), { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new Error("The balancer does not answer.");
  }
  if (!response.ok) throw new Error(await refusal(response));
  return response.json();
}

// Server-sent events of a response body, one [name, document] after the other.
async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const fields = block.split("\n").map((line) => line.split(/: (.*)/s));
      const named = Object.fromEntries(fields);
      if (named.event && named.data) yield [named.event, JSON.parse(named.data)];
    }
  }
}

async function watchOnce(onEvent, signal) {
  const response = await fetch(ofPool("stream"), { headers: authorization(), signal, cache: "no-store" });
  if (!response.ok) throw new Error(await refusal(response));
  for await (const [name, document] of eventsOf(response.body)) onEvent(name, document);
  throw new Error("the stream has ended");
}

// Watch until the page is closed, and connect again after an interruption.
async function watch(onEvent, onState) {
  let failures = 0;
  for (;;) {
    const stop = new AbortController();
    const unhide = stopWhileHidden(stop);
    try {
      await watchOnce((name, document) => {
        failures = 0;
        onEvent(name, document);
      }, stop.signal);
    } catch (error) {
      if (isOver) return;
      if (error instanceof NeedsToken) {
        onState("needs its token");
        await askForToken();
      } else {
        onState(document.hidden ? "paused" : "reconnecting", error.message);
        if (!document.hidden) await new Promise((go) => setTimeout(go, RETRY[Math.min(failures++, RETRY.length - 1)]));
      }
    }
    unhide();
    await untilVisible();
  }
}

function stopWhileHidden(stop) {
  let timer;
  const look = () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(() => stop.abort(), HIDDEN_LIMIT);
  };
  document.addEventListener("visibilitychange", look);
  look();
  return () => {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", look);
  };
}

function untilVisible() {
  return new Promise((go) => {
    if (!document.hidden) return go();
    document.addEventListener("visibilitychange", () => go(), { once: true });
  });
}

function askForToken() {
  const dialog = find("#token");
  const output = find("output", dialog);
  output.className = "bad";
  setText(output, sessionStorage.getItem(TOKEN) ? "The balancer has refused this token." : "");
  if (!dialog.open) dialog.showModal();
  return new Promise((go) => {
    find("form", dialog).onsubmit = () => {
      sessionStorage.setItem(TOKEN, find("#token-value").value.trim());
      find("#token-value").value = "";
      go();
    };
    dialog.oncancel = (event) => event.preventDefault();
  });
}
