// What pages do beyond links and forms: times that go on, live tables, a slider that shows at once, "/" for the search.
"use strict";

const seconds = 1000;

function ageText(at) {
  const past = Math.max(0, (Date.now() - Date.parse(at)) / seconds);
  if (past < 9.95) return past.toFixed(1) + " s ago";
  for (const [limit, divisor, unit] of [[120, 1, "s"], [7200, 60, "min"], [172800, 3600, "h"]]) {
    if (past < limit) return Math.round(past / divisor) + " " + unit + " ago";
  }
  return Math.round(past / 86400) + " d ago";
}

function tickTimes() {
  for (const one of document.querySelectorAll("time[datetime]")) {
    const text = ageText(one.dateTime);
    if (one.textContent !== text) one.textContent = text;
  }
}

function say(text, away = false) {
  const place = document.getElementById("live");
  if (!place) return;
  place.classList.toggle("away", away);
  if (place.textContent !== text) place.textContent = text;
}

// A stream of what changes: `changed` gets each list of changes.
function follow(query, changed) {
  const stream = new EventSource("live?" + new URLSearchParams(query));
  stream.addEventListener("open", () => say("live"));
  stream.addEventListener("quiet", () => say("live"));
  stream.addEventListener("away", (event) => say(JSON.parse(event.data), true));
  stream.addEventListener("error", () => say("not live: the inspector does not answer", true));
  stream.addEventListener("message", (event) => { say("live"); changed(JSON.parse(event.data)); });
  addEventListener("pagehide", () => stream.close());
}

function cell(text, of, name = "") {
  const made = document.createElement("td");
  made.dataset.of = of;
  made.className = name;
  made.textContent = text;
  return made;
}

function keyRow(change) {
  const row = document.createElement("tr");
  row.dataset.key = encodeURI(change.key);
  const head = document.createElement("th");
  head.scope = "row";
  const link = document.createElement("a");
  link.className = "code";
  link.href = "key?" + new URLSearchParams({key: change.key});
  link.textContent = change.key;
  head.append(link);
  row.append(head, cell("", "version", "number"), cell("", "at"), cell("", "state"), cell("", "schema", "code"),
    cell("", "writer", "code"));
  return row;
}

function fill(row, change) {
  const of = (name) => row.querySelector(`[data-of=${name}]`);
  of("version").textContent = change.version;
  const time = document.createElement("time");
  time.dateTime = change.at;
  time.title = change.at;
  time.textContent = ageText(change.at);
  of("at").replaceChildren(time);
  const tag = document.createElement("span");
  tag.className = "tag good";
  tag.textContent = "durable";
  of("state").replaceChildren(tag);
  of("schema").textContent = change.schema;
  of("writer").textContent = change.writer;
  row.classList.remove("fresh");
  void row.offsetWidth;
  row.classList.add("fresh");
}

function liveTable(prefix) {
  const table = document.getElementById("keys");
  const body = table.tBodies[0];
  follow({prefix}, (changes) => {
    for (const change of changes) {
      let row = [...body.rows].find((one) => decodeURIComponent(one.dataset.key) === change.key);
      if (change.op === "delete") {
        row?.remove();
      } else if (change.version) {
        const focused = row?.contains(document.activeElement);
        row ??= keyRow(change);
        fill(row, change);
        if (!focused) body.prepend(row); // what somebody is about to follow stays where it is
      }
    }
    while (body.rows.length > Number(table.dataset.limit)) body.rows[body.rows.length - 1].remove();
    table.hidden = !body.rows.length;
    document.getElementById("none")?.remove();
  });
}

function liveKey(place) {
  const key = decodeURIComponent(place.dataset.liveKey);
  const newest = Number(place.dataset.newest);
  follow({only: key}, (changes) => {
    const version = Math.max(...changes.map((one) => one.version ?? 0));
    if (version <= newest) return;
    const link = document.createElement("a");
    link.href = "key?" + new URLSearchParams({key});
    link.textContent = `version ${version} is there: show it`;
    place.replaceChildren(link);
  });
}

// The slider: what it stands at is shown at once, and is the page's address from then on.
function scrub(form) {
  const slider = form.elements.version;
  const shown = document.getElementById("shown");
  const output = document.getElementById("scrubbed");
  const key = form.elements.key.value;
  let asked = null, waiting = 0;
  const show = async () => {
    asked?.abort();
    asked = new AbortController();
    const query = new URLSearchParams({key, version: slider.value});
    try {
      const answer = await fetch(`key?${query}&part=1&newest=${slider.max}`, {signal: asked.signal});
      shown.innerHTML = await answer.text();
      history.replaceState(null, "", "key?" + query);
      const told = shown.querySelector("[data-told]");
      slider.setAttribute("aria-valuetext", told ? told.dataset.told : `version ${slider.value}`);
      marked(slider.value);
      stepsTo(form, key, Number(slider.value), Number(slider.max));
    } catch (error) {
      if (error.name !== "AbortError") say("not live: the inspector does not answer", true);
    }
  };
  slider.addEventListener("input", () => {
    output.textContent = `${slider.value} of ${slider.max}`;
    clearTimeout(waiting);
    waiting = setTimeout(show, 60);
  });
}

function marked(version) {
  for (const row of document.querySelectorAll(".versions tbody tr")) {
    const is = row.querySelector("th a").textContent === String(version);
    is ? row.setAttribute("aria-current", "true") : row.removeAttribute("aria-current");
  }
}

function stepsTo(form, key, version, newest) {
  const to = (rel, where) => {
    const link = form.querySelector(`[rel=${rel}]`);
    if (link) link.href = "key?" + new URLSearchParams({key, version: Math.min(Math.max(where, 1), newest)});
  };
  to("prev", version - 1);
  to("next", version + 1);
}

// The slider of a run stands at its commits: what lies between two is the one before.
function scrubRun(form) {
  const slider = form.elements.n;
  const places = [...form.querySelectorAll("datalist option")].map((one) => Number(one.value));
  const before = (n) => places.filter((one) => one <= n).pop() ?? places[0];
  slider.addEventListener("keydown", (event) => {
    const step = {ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10}[event.key];
    if (!step) return;
    event.preventDefault();
    const at = places.indexOf(before(Number(slider.value)));
    slider.value = places[Math.min(Math.max(at + step, 0), places.length - 1)];
    slider.dispatchEvent(new Event("input"));
    slider.dispatchEvent(new Event("change"));
  });
  slider.addEventListener("input", () => {
    const told = form.querySelector(`option[value="${before(Number(slider.value))}"]`).dataset.told;
    document.getElementById("scrubbed").textContent = told;
    slider.setAttribute("aria-valuetext", told);
  });
  let waiting = 0;
  slider.addEventListener("change", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      slider.value = before(Number(slider.value));
      sessionStorage.setItem("focus", "at");
      form.requestSubmit();
    }, 250);
  });
}

// A part of the page that is asked for again and again, while somebody looks.
function again(place) {
  const look = async () => {
    if (!document.hidden && !place.contains(document.activeElement)) {
      try {
        const answer = await fetch(place.dataset.again);
        if (answer.ok) place.innerHTML = await answer.text();
        say(answer.ok ? "live" : "not live: the inspector does not answer", !answer.ok);
      } catch {
        say("not live: the inspector does not answer", true);
      }
    }
    setTimeout(look, 2 * seconds);
  };
  setTimeout(look, 2 * seconds);
}

addEventListener("keydown", (event) => {
  const inField = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "");
  if (event.key === "/" && !inField && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    document.getElementById("search").select();
  }
});

setInterval(tickTimes, 5 * seconds);
const live = document.getElementById("live");
if (live?.dataset.live) liveTable(decodeURIComponent(live.dataset.live));
if (live?.dataset.liveKey) liveKey(live);
const once = {scrub, "scrub-run": scrubRun};
for (const [id, begin] of Object.entries(once)) {
  const form = document.getElementById(id);
  if (form) begin(form);
}
const part = document.querySelector("[data-again]");
if (part) again(part);
const focus = sessionStorage.getItem("focus");
if (focus) {
  sessionStorage.removeItem("focus");
  document.getElementById(focus)?.focus();
}
