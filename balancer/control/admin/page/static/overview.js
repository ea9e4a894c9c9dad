// Header, tiles, totals and events.

const TILES = [
  ["Requests", (s) => rate(s.recent.rate), "/s"],
  ["p50", (s) => duration(s.recent.p50)],
  ["p99", (s) => duration(s.recent.p99)],
  ["In flight", (s) => count(s.in_flight), "", "in_flight"],
  ["Queued", (s) => count(s.queued), "", "queued"],
  ["Failed attempts", (s) => rate(s.recent.failed), "/s", null, (s) => s.recent.failed > 0],
  ["Error responses", (s) => rate(s.recent.errors), "/s", null, (s) => s.recent.errors > 0],
  ["Retries", (s) => rate(s.recent.retries), "/s"],
];

class Tiles {
  constructor(list) {
    this.values = TILES.map(([title, , unit, key]) => {
      const value = make("b", key ? { "data-key": key } : {}, NONE);
      list.append(make("div", { class: "card" }, make("dt", {}, title), make("dd", {}, value, make("small", {}, unit || ""))));
      return value;
    });
  }

  show(snapshot) {
    TILES.forEach(([, of, , , isBad], number) => {
      const text = of(snapshot);
      setText(this.values[number], text);
      setClass(this.values[number], isBad && isBad(snapshot) ? "bad" : "");
      this.values[number].nextSibling.hidden = text === NONE;
    });
  }
}

const listed = (counts) => Object.entries(counts).filter(([, number]) => number).map(([name, number]) => `${name} ${count(number)}`).join(", ") || "none";

function panicText(panic) {
  if (panic.everywhere) return "everywhere: health is ignored";
  return panic.regions.length ? `${panic.regions.join(", ")}: health is ignored` : "no";
}

function sharedText(shared) {
  return shared.connected ? `${count(shared.others)} other processes` : `store is lost: ${shared.problem || "not connected yet"}`;
}

// Groups of totals: [title, [term, value, key in the status]].
function totalsOf(s) {
  const groups = [
    ["Requests", [
      ["Received", count(s.requests), "requests"],
      ["Abandoned by the client", count(s.abandoned), "abandoned"],
      ["Retried", count(s.retried), "retried"],
      ["Retries denied by the budget", count(s.retries_denied), "retries_denied"],
      ["Error responses", listed(s.errors), "errors"],
    ]],
    ["Queue", [
      ["Waiting", `${count(s.queue.length)} of at most ${count(s.queue.limit)}`],
      ["Oldest", duration(s.queue.oldest)],
      ["Joined", count(s.queue.joined), "queue.joined"],
      ["Served", count(s.queue.served), "queue.served"],
      ["Left by the client", count(s.queue.left), "queue.left"],
      ["Rejected", listed(s.queue.dropped)],
      ...(s.levels || []).map((level) => [`Level ${level.name}`, `${count(level.waiting)} waiting, ${count(level.shed)} rejected`]),
    ]],
    ["Clients", [
      ["Connected", count(s.clients), "clients"],
      ["Connections", count(s.connections), "connections"],
      ["Tunnels open", count(s.tunnels.open)],
      ["Panic", panicText(s.panic)],
    ]],
  ];
  if (s.shared) groups[2][1].push(["Shared with other units", sharedText(s.shared)]);
  if (s.hedging) {
    groups.push(["Hedges", [
      ["Hedged", count(s.hedging.hedged), "hedging.hedged"],
      ["Answered first", count(s.hedging.won), "hedging.won"],
      ["Withheld", listed({ budget: s.hedging.denied, "all slow": s.hedging.withheld })],
    ]]);
  } else groups[0][1].push(["Hedges", "off"]);
  const read = s.inference;
  if (read) {
    const quantiles = (of) => `${duration(of.p50)}, p99 ${duration(of.p99)}`;
    groups.push(["Prompts", [
      ["Read", count(read.prompts), "inference.prompts"],
      ["Bodies without one", listed(read.unread)],
      ["Tokens", count(read.prompt_tokens), "inference.prompt_tokens"],
      ["Of these cached", percent(read.prompt_tokens ? read.cached_tokens / read.prompt_tokens : null)],
      ["Tokens of answers", count(read.output_tokens), "inference.output_tokens"],
      ["TTFT, p50", quantiles(read.ttft)],
      ["TPOT, p50", quantiles(read.tpot)],
    ]]);
  }
  return groups;
}

function showTotals(parent, snapshot) {
  const create = ([title]) => make("div", {}, make("h3", {}, title), make("dl", { class: "facts" }));
  keyed(parent, totalsOf(snapshot), ([title]) => title, create, (group, [, facts]) => showFacts(group.lastChild, facts));
}

const EVENT_LIMIT = 50;
const ANNOUNCE_EVERY = 4000;

class Events {
  constructor(section) {
    this.list = find("ol", section);
    this.empty = find("p", section);
    this.seen = new Set();
    this.waiting = [];
  }

  add(text, date = new Date()) {
    const time = make("time", { datetime: date.toISOString() }, clock(date));
    const rows = [...this.list.children];
    const next = rows.find((row) => row.date <= date) ?? null;
    const row = make("li", {}, time, " ", text);
    row.date = date;
    this.list.insertBefore(row, next);
    while (this.list.children.length > EVENT_LIMIT) this.list.lastChild.remove();
    this.empty.hidden = true;
  }

  // Changes are read aloud a few seconds apart, several together.
  announce(text) {
    this.add(text);
    this.waiting.push(text);
    this.timer ??= setTimeout(() => {
      const more = this.waiting.length > 3 ? ` and ${this.waiting.length - 3} more changes` : "";
      setText(find("#announcements"), this.waiting.slice(0, 3).join(". ") + more);
      this.waiting = [];
      this.timer = undefined;
    }, ANNOUNCE_EVERY);
  }

  // Changes of routes are the balancer's; the others are seen as differences of snapshots.
  show(snapshot, previous) {
    for (const event of snapshot.events) {
      if (this.seen.has(event.id)) continue;
      this.seen.add(event.id);
      this.add(`${event.who}: ${event.text}`, new Date(Date.now() - event.age * 1000));
    }
    if (previous) for (const text of changesBetween(previous, snapshot)) this.announce(text);
  }
}

// An endpoint at its limit is full and ready in turns, many times a minute: that is no event.
const lasting = (endpoint) => (endpoint.condition === "full" ? "ready" : endpoint.condition);

function changesBetween(before, now) {
  const changes = [];
  const old = new Map(before.endpoints.map((endpoint) => [endpoint.id, endpoint]));
  for (const endpoint of now.endpoints) {
    const past = old.get(endpoint.id);
    old.delete(endpoint.id);
    if (!past) changes.push(`${endpoint.id} was added`);
    else if (lasting(past) !== lasting(endpoint)) changes.push(`${endpoint.id} is ${endpoint.condition_text}`);
    if (past && past.weight !== endpoint.weight) changes.push(`${endpoint.id} has weight ${significant(endpoint.weight)}`);
  }
  for (const id of old.keys()) changes.push(`${id} was removed`);
  if (JSON.stringify(before.policy.spec) !== JSON.stringify(now.policy.spec)) changes.push(`the policy is ${now.policy.name}`);
  if (panicText(before.panic) !== panicText(now.panic)) changes.push(`panic: ${panicText(now.panic)}`);
  if (!before.draining && now.draining) changes.push("the balancer is draining");
  if (before.reload.done < now.reload.done) changes.push("the configuration was reloaded");
  if (before.processes !== now.processes) changes.push(`${now.processes} processes answer`);
  if (before.uptime > now.uptime + 1) changes.push("the balancer was restarted");
  return changes;
}

// The query is ?cluster=NAME, or empty.
function showNamed(names) {
  const list = find("#of");
  list.hidden = !names.length;
  keyed(list, names, String, (name) => make("option", {}, name), () => {});
  list.value = location.search.split("=")[1] || names[0];
  list.onchange = () => (location.search = "cluster=" + list.value);
}

function showHeader(snapshot) {
  showNamed(snapshot.named);
  const processes = snapshot.processes > 1 ? ` · ${snapshot.processes} processes` : "";
  setText(find("#identity"), `${snapshot.version} · ${snapshot.build} · up ${longTime(snapshot.uptime)}${processes}`);
  const condition = find("#condition");
  condition.hidden = false;
  setText(condition, snapshot.health.reason);
  condition.title = snapshot.health.summary;
  setClass(condition, `badge ${{ serving: "good", panic: "warn", draining: "quiet" }[snapshot.readiness] || "bad"}`);
  document.title = `${significant(snapshot.recent.rate)}/s · Steelyard`;
}

function showNote(note) {
  const box = find("#note");
  box.hidden = !note.text;
  setText(find("strong", box), note.title || "");
  setText(find("span", box), note.text || "");
  const { total, done } = note;
  Object.assign(find("progress", box), { hidden: !total, max: total || 1, value: done || 0 });
  document.body.classList.toggle("read-only", !!note.read_only);
  if (!note.state) return;
  clearTimeout(staleness);
  previous = null; // the next snapshot may be another balancer's: its differences are no events
  showLink(note.state, "quiet");
  find("#condition").hidden = true;
  document.title = `${note.state} · Steelyard`;
  isOver = note.state === "ended";
}
