// The table of endpoints, grouped by region, and the dialog that changes one. On a narrow screen rows become cards:
// roles are written out, because CSS that changes `display` takes the table's own away.

const COLUMNS = [
  ["Endpoint", "name"],
  ["State", "state"],
  ["Share", "share"],
  ["In flight", "number"],
  ["Per second", "number"],
  ["p50", "number"],
  ["p99", "number"],
  ["Failed", "number"],
  ["Connections", "number"],
  ["Weight", "number"],
  ["", "action"],
];
const FEW = 100; // a p99 of fewer samples is their maximum

const TONES = {
  ready: "good",
  warming: "warn",
  full: "warn",
  draining: "quiet",
  maintenance: "quiet",
  ejected: "bad",
  unreachable: "bad",
  "failing checks": "bad",
};

const failuresOf = (outcomes) => outcomes.error_status + outcomes.refused + outcomes.timeout + outcomes.reset;

function p99Of(cell, recent) {
  setText(cell, duration(recent.p99));
  const isRough = recent.p99 !== null && recent.samples < FEW;
  cell.classList.toggle("rough", isRough);
  cell.title = isRough ? `the longest of ${recent.samples} samples` : "";
}

class Endpoints {
  constructor(section) {
    this.table = find("table", section);
    this.window = find("#window", section);
    this.dialog = find("#manage");
    for (const [title, kind] of COLUMNS) {
      const text = title || make("span", { class: "unseen" }, "Change");
      find("thead tr", section).append(make("th", { role: "columnheader", scope: "col", class: kind }, text));
    }
    this.bodies = make("tbody", { hidden: true });
    this.groups = new Map();
    find("form", this.dialog).onsubmit = (event) => this.apply(event);
    find("[value=close]", this.dialog).onclick = () => this.dialog.close();
  }

  show(snapshot) {
    setText(this.window, `rates and latency of the last ${significant(snapshot.seconds, 2)} s`);
    const members = new Map(snapshot.regions.map((region) => [region.name, []]));
    for (const endpoint of snapshot.endpoints) members.get(endpoint.region).push(endpoint);
    for (const region of snapshot.regions) this.showRegion(region, members.get(region.name));
    for (const [name, group] of this.groups) {
      if (members.has(name)) continue;
      group.remove();
      this.groups.delete(name);
    }
  }

  showRegion(region, endpoints) {
    let group = this.groups.get(region.name);
    if (!group) {
      group = make("tbody", { role: "rowgroup", "data-region": region.name });
      this.groups.set(region.name, group);
      this.table.append(group);
    }
    const rows = [{ region }, ...endpoints];
    keyed(group, rows, (row) => (row.region === region ? "" : row.id), (row) => this.row(row), (element, row) =>
      row.region === region ? this.updateRegion(element, region) : this.updateEndpoint(element, row),
    );
  }

  row(item) {
    const isRegion = typeof item.region === "object";
    const row = make("tr", { role: "row", class: isRegion ? "region" : "endpoint", "data-id": isRegion ? undefined : item.id });
    COLUMNS.forEach(([title, kind], number) => {
      const isHead = number === 0;
      const role = isHead ? "rowheader" : "cell";
      const scope = isHead ? (isRegion ? "rowgroup" : "row") : undefined;
      row.append(make(isHead ? "th" : "td", { role, scope, class: kind, "data-label": title }));
    });
    const share = row.children[2];
    share.append(make("span", { class: "bar", "aria-hidden": "true" }, make("i")), make("span"));
    if (!isRegion) this.fillEndpoint(row, item);
    return row;
  }

  fillEndpoint(row, endpoint) {
    row.children[0].append(make("b", {}, endpoint.id), " ", make("span", { class: "muted" }, endpoint.address));
    row.children[1].append(make("span", { class: "badge" }));
    const button = make("button", { type: "button", "aria-label": `Change ${endpoint.id}` }, "Change");
    button.onclick = () => this.open(row.endpoint);
    row.children[10].append(button);
  }

  updateRecent(row, recent) {
    const [bar, share] = row.children[2].children;
    bar.firstChild.style.width = `${(recent.share ?? 0) * 100}%`;
    setText(share, percent(recent.share));
    setText(row.children[4], rate(recent.rate));
    setText(row.children[5], duration(recent.p50));
    p99Of(row.children[6], recent);
  }

  updateRegion(row, region) {
    setText(row.children[0], region.name);
    setText(row.children[1], region.endpoints === 1 ? "1 endpoint" : `${region.endpoints} endpoints`);
    setText(row.children[3], count(region.in_flight));
    setText(row.children[7], `${rate(region.recent.failed)} /s`);
    this.updateRecent(row, region.recent);
  }

  updateEndpoint(row, endpoint) {
    row.endpoint = endpoint;
    const badge = row.children[1].firstChild;
    setText(badge, endpoint.condition_text);
    setClass(badge, `badge ${TONES[endpoint.condition] || "warn"}`);
    const limit = endpoint.max_in_flight === null ? "" : ` / ${count(endpoint.max_in_flight)}`;
    setText(row.children[3], count(endpoint.in_flight) + limit);
    const failures = failuresOf(endpoint.outcomes);
    setText(row.children[7], count(failures));
    row.children[7].classList.toggle("bad", endpoint.recent.failed > 0);
    row.children[7].title = Object.entries(endpoint.outcomes).map(([kind, number]) => `${kind} ${count(number)}`).join(", ");
    const { leased, idle, opening } = endpoint.connections;
    setText(row.children[8], `${count(leased)} + ${count(idle)} idle${opening ? ` + ${count(opening)} opening` : ""}`);
    setText(row.children[9], significant(endpoint.weight));
    this.updateRecent(row, endpoint.recent);
  }

  open(endpoint) {
    this.endpoint = { ...endpoint };
    setText(find("h2", this.dialog), endpoint.id);
    setText(find("p", this.dialog), `${endpoint.region}, ${endpoint.address}`);
    find(`[value=${endpoint.state}]`, this.dialog).checked = true;
    find("#manage-weight").value = endpoint.weight;
    setText(find("output", this.dialog), "");
    this.dialog.showModal();
  }

  apply(event) {
    event.preventDefault();
    const { id } = this.endpoint;
    const change = {
      state: find("[name=state]:checked", this.dialog).value,
      weight: Number(find("#manage-weight").value),
    };
    for (const [key, value] of Object.entries(change)) if (value === this.endpoint[key]) delete change[key];
    act(find("[type=submit]", this.dialog), find("output", this.dialog), async () => {
      if (!Object.keys(change).length) return "Nothing has been changed.";
      const changed = await ask("PATCH", `endpoints/${encodeURIComponent(id)}`, change);
      Object.assign(this.endpoint, { state: changed.state, weight: changed.weight });
      return `Done: ${id} is ${changed.state}, weight ${significant(changed.weight)}.`;
    });
  }
}
