"use strict";
// Elements and texts. Names of endpoints, policies and regions are untrusted: they are only ever set as text.

const find = (selector, within = document) => within.querySelector(selector);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

// Unchanged text is left alone: a selection stays, and a screen reader has nothing to repeat.
function setText(element, text) {
  text = String(text);
  if (element.textContent !== text) element.textContent = text;
}

function setClass(element, name) {
  if (element.className !== name) element.className = name;
}

// Rows of `parent` by key, made on demand, in the order of `items`; rows without an item are removed.
function keyed(parent, items, keyOf, create, update) {
  const rows = (parent.rowsByKey ??= new Map());
  const wanted = new Set();
  let at = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    wanted.add(key);
    let row = rows.get(key);
    if (!row) rows.set(key, (row = create(item)));
    if (row === at) at = at.nextElementSibling;
    else parent.insertBefore(row, at);
    update(row, item);
  }
  for (const [key, row] of rows) {
    if (!wanted.has(key)) {
      row.remove();
      rows.delete(key);
    }
  }
}

const NONE = "–";
const whole = new Intl.NumberFormat("en");
const count = (value) => (value === null || value === undefined ? NONE : whole.format(value));

function significant(value, digits = 3) {
  if (value === null || value === undefined) return NONE;
  if (value === 0) return "0";
  if (Math.abs(value) >= 10 ** (digits - 1)) return whole.format(Math.round(value));
  return String(Number(value.toPrecision(digits)));
}

const rate = (value) => significant(value);
const percent = (value) => (value === null || value === undefined ? NONE : `${(value * 100).toFixed(1)} %`);

function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds > 0 && seconds < 0.001) return `${significant(seconds * 1e6)} µs`;
  if (seconds > 0 && seconds < 1) return `${significant(seconds * 1e3)} ms`;
  return `${significant(seconds)} s`;
}

function longTime(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} days`;
}

const clock = (date) => date.toLocaleTimeString("en-GB");

// Run an action of a form or a button and show its result in `output`.
async function act(button, output, action) {
  button.disabled = true;
  output.className = "";
  setText(output, "…");
  try {
    setText(output, await action());
    output.className = "good";
  } catch (error) {
    setText(output, error.message);
    output.className = "bad";
  } finally {
    button.disabled = false;
  }
}
