// Put the page together and follow the stream.

const STALE_AFTER = 3; // periods without a snapshot

takeTokenFromAddress();

const charts = new Charts(find("#charts"));
const tiles = new Tiles(find("#tiles"));
const endpoints = new Endpoints(find("#endpoints"));
const policy = new Policy(find("#policy"));
const picks = new Picks(find("#picks"));
const events = new Events(find("#events"));
let previous = null;
let staleness;
let isOver = false; // an experiment has ended, and so has its page

function showLink(text, tone) {
  setText(find("#link"), text);
  setClass(find("#link"), `badge ${tone}`);
  document.body.classList.toggle("stale", tone !== "good");
}

function showSnapshot(snapshot) {
  showLink("live", "good");
  clearTimeout(staleness);
  const limit = STALE_AFTER * snapshot.period + 1;
  staleness = setTimeout(() => showLink(`no data for ${Math.round(limit)} s`, "bad"), limit * 1000);
  showHeader(snapshot);
  tiles.show(snapshot);
  charts.add(snapshot.point, snapshot.period);
  endpoints.show(snapshot);
  policy.show(snapshot.policy);
  showSplits(find("#splits"), snapshot.splits);
  picks.show(snapshot);
  showTotals(find("#totals .groups"), snapshot);
  events.show(snapshot, previous);
  if (!previous) policy.load().catch((error) => setText(policy.output, error.message));
  previous = snapshot;
}

const HANDLERS = {
  history: (points) => charts.replace(points),
  snapshot: showSnapshot,
  note: showNote,
};

watch(
  (name, document) => HANDLERS[name]?.(document),
  (state, reason) => {
    clearTimeout(staleness);
    showLink(state, "bad");
    if (reason) find("#link").title = reason;
  },
);
