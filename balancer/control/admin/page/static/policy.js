// The policy in force, the form that changes it, and the reasons of recent picks.

function optionsOf(policy) {
  const { name, ...options } = typeof policy.spec === "object" ? policy.spec : { name: policy.spec };
  return options;
}

class Policy {
  constructor(section) {
    this.facts = find("#policy-facts", section);
    this.name = find("[data-key='policy.name']", section);
    this.select = find("#policy-name");
    this.options = find("#policy-options");
    this.output = find("output", section);
    this.known = new Map();
    this.select.onchange = () => this.describe();
    find("#policy-form").onsubmit = (event) => {
      event.preventDefault();
      this.send(find("[type=submit]", section), false);
    };
    find("#policy-check").onclick = (event) => this.send(event.target, true);
  }

  // Names and options are read once; the policy in force is offered first.
  async load() {
    const policies = await ask("GET", "policies");
    this.known = new Map(policies.map((policy) => [policy.name, policy]));
    this.fill();
  }

  fill() {
    if (!this.known.size || !this.policy || this.select.options.length) return;
    const names = new Set([this.policy.name, ...[...this.known.keys()].sort()]);
    this.select.append(...[...names].map((name) => make("option", { value: name }, name)));
    this.describe();
  }

  describe() {
    const { name } = this.policy;
    const chosen = this.known.get(this.select.value);
    const given = this.select.value === name ? optionsOf(this.policy) : {};
    this.options.value = Object.keys(given).length ? JSON.stringify(given, null, 1) : "{}";
    this.options.rows = Math.min(8, this.options.value.split("\n").length + 1);
    setText(find("#policy-help"), chosen ? chosen.description : "");
    const known = chosen ? chosen.options : [];
    const list = known.map((option) => `${option.name}: ${option.type}${option.default === null ? "" : ` = ${JSON.stringify(option.default)}`}`);
    setText(find("#policy-hint"), list.length ? `Options: ${list.join(", ")}` : "This policy has no options.");
    setText(this.output, "");
  }

  send(button, isCheck) {
    act(button, this.output, async () => {
      let options;
      try {
        options = JSON.parse(this.options.value.trim() || "{}");
      } catch (error) {
        throw new Error(`Options are not JSON: ${error.message}`);
      }
      if (options === null || typeof options !== "object" || Array.isArray(options)) {
        throw new Error('Options must be a JSON object, such as {"choices": 3}.');
      }
      const name = this.select.value;
      const answer = await ask("PUT", isCheck ? "policy?check" : "policy", { ...options, name });
      return isCheck ? `${name} can be applied.` : `Done: the policy is ${answer.name}.`;
    });
  }

  show(policy) {
    this.policy = policy;
    this.fill();
    setText(this.name, policy.name);
    const options = Object.entries(policy.options || {}).map(([name, value]) => `${name} = ${JSON.stringify(value)}`);
    const facts = [
      ["Options", options.join(", ") || "defaults"],
      ["Requests routed", count(policy.routed), "policy.routed"],
      ["Fallback picks", count(policy.fallback_picks), "policy.fallback_picks"],
    ];
    for (const file of policy.files) facts.push([`Version of ${file.path.split("/").pop()}`, file.version]);
    if (policy.last_fault) facts.push(["Last fault", policy.last_fault]);
    if (policy.canary) facts.push(["Canary", canaryText(policy.canary)]);
    for (const shadow of policy.shadow) facts.push([`Shadow ${shadow.name}`, `agrees with ${percent(shadow.agreement)} of ${count(shadow.seen)} picks`]);
    showFacts(this.facts, facts);
  }
}

function canaryText(canary) {
  const arms = Object.entries(canary.arms).map(([role, arm]) => `${role} ${arm.policy}: p99 ${duration(arm.latency.p99)}`);
  return `${percent(canary.share)} of requests; ${arms.join(", ")}`;
}

// Terms and values of a description list; `key` names the value in the status.
function showFacts(list, facts) {
  const create = ([term, , key]) => make("div", {}, make("dt", {}, term), make("dd", { "data-key": key }));
  keyed(list, facts, ([term]) => term, create, (row, [, value]) => setText(row.lastChild, value));
}

// One form for each split route, with weights as the command has them. What is being typed is left alone.
function showSplits(section, splits = []) {
  section.hidden = !splits.length;
  keyed(section, splits, (split) => split.name, splitForm, (form, { clusters, reason }) => {
    const shares = clusters.map(({ name, share, requests }) => `${name} ${percent(share)}, ${count(requests)} requests. `);
    setText(find("p", form), shares.join("") + (reason ?? ""));
    if (!form.contains(document.activeElement)) form.weights.value = clusters.map(({ name, weight }) => `${name}=${weight}`).join(" ");
  });
}

function splitForm({ route }) {
  const button = make("button", {}, "Apply");
  const output = make("output");
  const form = make("form", {}, make("h3", {}, `Split ${route}`), make("p"), make("input", { name: "weights", "aria-label": `Weights of ${route}` }), button, output);
  form.onsubmit = (event) => {
    event.preventDefault();
    const pairs = form.weights.value.trim().split(" ").map((pair) => pair.split("="));
    act(button, output, async () => {
      await ask("PUT", "splits", { route, weights: Object.fromEntries(pairs.map(([name, weight]) => [name, +weight])) });
      return "Done.";
    });
  };
  return form;
}

class Picks {
  constructor(section) {
    this.state = find("#picks-state", section);
    this.reasons = find("#reasons", section);
    this.table = find("table", section);
    this.button = find("#explain", section);
    this.button.onclick = () =>
      act(this.button, find("output", section), async () => {
        await (this.isOn ? ask("DELETE", "explain") : ask("POST", "explain", { seconds: 60 }));
        return "";
      });
  }

  show({ explaining, picks }) {
    this.isOn = explaining.on;
    setText(this.button, explaining.on && explaining.seconds_left !== null ? "Stop explaining" : "Explain for 60 s");
    this.button.hidden = explaining.on && explaining.seconds_left === null; // the configuration keeps it on
    const left = explaining.seconds_left === null ? "" : `, ${Math.ceil(explaining.seconds_left)} s left`;
    const off = picks.length ? "Explanations are off; these are the last ones." : "Why a request went to its endpoint: explanations are off, and then cost nothing.";
    setText(this.state, explaining.on ? `${count(explaining.picks)} picks explained${left}` : off);
    this.showReasons(explaining.reasons);
    this.table.hidden = !picks.length;
    const rows = picks.map((pick, number) => ({ pick, number }));
    keyed(this.table.tBodies[0], rows, (row) => row.number, pickRow, (row, { pick }) => {
      setText(row.children[0], longAge(pick.age));
      setText(row.children[1], pick.picked ?? "none");
      setText(row.children[2], pick.text);
    });
  }

  showReasons(reasons) {
    const rows = Object.entries(reasons).sort((one, other) => other[1] - one[1]);
    const total = rows.reduce((sum, [, number]) => sum + number, 0);
    const create = ([reason]) => make("div", {}, make("dt", {}, reason), make("dd", {}, make("span", { class: "bar", "aria-hidden": "true" }, make("i")), make("span")));
    keyed(this.reasons, rows, ([reason]) => reason, create, (row, [, number]) => {
      const [bar, text] = row.lastChild.children;
      bar.firstChild.style.width = `${(100 * number) / total}%`;
      setText(text, `${count(number)} (${percent(number / total)})`);
    });
  }
}

const longAge = (seconds) => (seconds < 1 ? "now" : `${longTime(seconds)} ago`);

function pickRow() {
  const labels = ["Age", "Endpoint", "Reason"];
  return make("tr", { role: "row" }, ...labels.map((label) => make("td", { role: "cell", "data-label": label })));
}
