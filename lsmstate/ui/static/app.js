"use strict";

// The page reads /api every two seconds and changes nothing. Every text goes in as text.

const EVERY_MS = 2000;
const chosen = { at: null, bucket: null, stream: null, key: "", rows: null };
let charts = [];
let shown = "";

function make(tag, attributes = {}, ...inside) {
  const found = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) found.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) found.setAttribute(name, value);
  }
  found.append(...inside.filter((each) => each != null));
  return found;
}

function number(value) {
  if (value == null) return "";
  return Number(value).toLocaleString("en", { maximumFractionDigits: value < 10 ? 2 : 0 });
}

function bytes(value) {
  if (value == null) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return `${value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 })} ${units[at]}`;
}

function table(columns, rows, options = {}) {
  const head = make("tr", {}, ...columns.map(([name, kind]) =>
    make("th", { scope: "col", class: kind === "number" ? "number" : null }, name)));
  const body = rows.map((row) => make("tr", { class: row.isChosen ? "chosen" : null },
    ...row.cells.map((cell, n) => make("td", { class: columns[n][1] ?? null }, cell ?? ""))));
  const found = make("table", {}, make("thead", {}, head), make("tbody", {}, ...body));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": options.label }, found);
}

function section(title, id, ...inside) {
  return make("section", { id, "aria-label": title }, make("h2", {}, title), ...inside);
}

function wide(found) { found.classList.add("wide"); return found; }

async function asked(name, parameters = {}) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) {
    // An empty text in a list is a value: that of a key column.
    if (Array.isArray(value)) for (const each of value) query.append(key, each);
    else if (value != null && value !== "") query.append(key, value);
  }
  const answer = await fetch(`/api/${name}?${query}`, { headers: { Accept: "application/json" } });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error ?? `status ${answer.status}`);
  return found;
}

function say(text, isBad = false) {
  const status = document.getElementById("status");
  status.textContent = text;
  status.classList.toggle("bad", isBad);
}

function damage(found) {
  if (!found.length) return null;
  const list = found.map((each) => make("li", {}, [each.file, each.what].filter(Boolean).join(": ")));
  const box = wide(section("Damage", "damage", make("ul", {}, ...list)));
  box.classList.add("damaged");
  return box;
}

// Charts. ------------------------------------------------------------------------------------

function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function chart(title, id, batches, series, shownAs) {
  const place = make("div", { class: "chart" });
  const found = section(title, id, place);
  if (!batches.length) {
    place.append(make("p", { class: "note" }, "No micro-batch is on record yet."));
    return found;
  }
  const axis = { stroke: style("--soft"), grid: { stroke: style("--edge"), width: 1 }, ticks: { show: false } };
  const colors = [style("--mark"), style("--second"), style("--bad")];
  const options = {
    width: 400,
    height: 190,
    scales: { x: { time: false } },
    axes: [
      { ...axis, values: (_, ticks) => ticks.map((t) => Number.isInteger(t) ? String(t) : "") },
      { ...axis, size: 70, values: (_, ticks) => ticks.map(shownAs) },
    ],
    series: [
      { label: "batch" },
      ...series.map(([label], n) => ({
        label,
        stroke: colors[n % colors.length],
        width: 2,
        points: { show: batches.length < 40 },
        value: (_, value) => value == null ? "" : shownAs(value),
      })),
    ],
  };
  const data = [batches.map((b) => b.batch_id), ...series.map(([, of]) => batches.map(of))];
  queueMicrotask(() => {
    options.width = Math.max(240, place.clientWidth);
    charts.push(new uPlot(options, data, place));
  });
  return found;
}

// A query. -----------------------------------------------------------------------------------

function tile(name, value) {
  return make("div", { class: "tile" }, make("b", {}, value), make("span", {}, name));
}

function ago(seconds) {
  const past = Math.max(0, Date.now() / 1000 - seconds);
  if (past < 90) return `${Math.round(past)} s ago`;
  if (past < 5400) return `${Math.round(past / 60)} min ago`;
  return new Date(seconds * 1000).toLocaleString();
}

function overview(found) {
  const { start, end, batches } = found.history;
  const last = batches[batches.length - 1];
  const total = (name) => batches.reduce((sum, b) => sum + (b[name] ?? 0), 0);
  let state = "no start is on record";
  if (start.time) state = end == null ? `started ${ago(start.time)}` : `ended ${ago(end.time)}`;
  if (last) state += `, last micro-batch ${ago(last.time)}`;
  const tiles = [tile("newest micro-batch", number(found.batch ?? last?.batch_id))];
  if (last) {
    tiles.push(
      tile("rows in, in all", number(total("rows_in"))),
      tile("rows out, in all", number(total("rows_out"))),
      tile("time of the last", `${number(last.batch_ms)} ms`),
      tile("memory of the cap", `${bytes(last.peak_state_bytes)} of ${bytes(last.memory_limit_bytes)}`),
      tile("late rows", number(total("late_rows"))),
      tile("copies of rows", number(total("copied_rows"))),
      tile("skew of rows", number(last.rows_skew)),
    );
  }
  const whole = (found.buckets ?? []).reduce((sum, b) => sum + (b.bytes ?? 0), 0);
  if (found.buckets) {
    tiles.push(tile("state on disk", bytes(whole)), tile("buckets", number(found.buckets.length)));
  }
  const name = [start.operator, start.name].filter(Boolean).join(" ");
  const failed = end?.exception ? make("pre", {}, end.exception.slice(0, 2000)) : null;
  return wide(section(name || "Query", "overview",
    make("p", { class: "note" }, `${found.path}: ${state}`), make("div", { class: "tiles" }, ...tiles), failed));
}

function plan(found) {
  const parts = [];
  if (found.plan) {
    const image = new DOMParser().parseFromString(found.plan, "image/svg+xml").documentElement;
    parts.push(make("div", { class: "scroll" }, document.importNode(image, true)));
  }
  if (found.history.start.explanation) parts.push(make("pre", {}, found.history.start.explanation));
  return parts.length ? section("Plan", "plan", ...parts) : null;
}

function hotKeys(batches) {
  const last = batches.filter((b) => b.hottest_keys.length).pop();
  if (!last) return null;
  const rows = last.hottest_keys.map((each) => ({
    cells: [each.key, number(each.rows), `${number(100 * each.share)} %`, each.spread],
  }));
  return section("Hot keys", "hot-keys",
    table([["key", "wrap"], ["rows", "number"], ["share", "number"], ["spread"]], rows));
}

function bucketTable(found) {
  const most = Math.max(1, ...found.buckets.map((b) => b.bytes ?? 0));
  const rows = found.buckets.map((each) => ({
    isChosen: each.bucket === chosen.bucket,
    cells: [
      make("button", { class: "link", type: "button", onclick: () => chooseBucket(each.bucket) }, String(each.bucket)),
      number(each.rows),
      bytes(each.bytes),
      make("meter", { min: 0, max: most, value: each.bytes ?? 0 }),
      number(each.runs),
      each.damage ?? "",
    ],
  }));
  const columns = [["bucket"], ["rows", "number"], ["bytes", "number"], [""], ["runs", "number"], ["", "wrap"]];
  return section("Buckets", "buckets", table(columns, rows),
    make("div", { id: "levels" }, make("p", { class: "note" }, "Choose a bucket to see its levels.")));
}

// BOTTOM_LEVEL of the picker of compactions.
function levelName(level) { return level === 63 ? "bottom" : String(level); }

function levels(state) {
  const rows = (state.levels ?? []).map((each) => ({
    cells: [levelName(each.level), number(each.runs), number(each.files), bytes(each.bytes),
      number(each.rows), number(each.deletions)],
  }));
  const columns = [["level"], ["runs", "number"], ["files", "number"], ["bytes", "number"],
    ["rows", "number"], ["deletions", "number"]];
  const runs = (state.runs ?? []).map((run) => ({
    cells: [String(run.number), levelName(run.level), number(run.files.length), bytes(run.bytes), number(run.rows)],
  }));
  return make("div", {}, table(columns, rows), make("h2", {}, "Runs"),
    table([["run"], ["level"], ["files", "number"], ["bytes", "number"], ["rows", "number"]], runs));
}

async function chooseBucket(bucket) {
  chosen.bucket = bucket;
  const place = document.getElementById("levels");
  try {
    const found = await asked("bucket", { at: chosen.at, bucket });
    const parts = found.states.map((state) => state.damaged.length && !state.levels
      ? make("p", {}, state.damaged.map((d) => d.what).join("; ")) : levels(state));
    place.replaceChildren(make("h2", {}, `Levels of bucket ${bucket}`), ...parts);
  } catch (error) {
    place.replaceChildren(make("p", {}, error.message));
  }
}

function settings(found) {
  const told = Object.entries(found.settings ?? {});
  const rows = told.filter(([name, value]) => value != null && name !== "adopted").map(([name, value]) => ({
    cells: [name, typeof value === "string" ? value : JSON.stringify(value)],
  }));
  return rows.length ? section("Settings", "settings", table([["name"], ["value", "wrap"]], rows)) : null;
}

// Rows. --------------------------------------------------------------------------------------

function rowSearch(streams) {
  if (!streams.length) return null;
  if (!streams.some((s) => s.name === chosen.stream)) chosen.stream = streams[0].name;
  const choice = make("select", { name: "stream" }, ...streams.map((s) =>
    make("option", { value: s.name, selected: s.name === chosen.stream }, s.name)));
  const hint = make("span", { class: "note" });
  const key = make("input", { name: "key", value: chosen.key, placeholder: "values of the key, by commas" });
  const told = () => {
    hint.textContent = `key: ${streams.find((s) => s.name === choice.value).key.join(", ")}`;
  };
  choice.addEventListener("change", told);
  told();
  const place = make("div", { id: "found" });
  const form = make("form", {
    onsubmit: async (event) => {
      event.preventDefault();
      chosen.stream = choice.value;
      chosen.key = key.value;
      const values = key.value === "" ? [] : key.value.split(",").map((v) => v.trim());
      try {
        const rows = await asked("rows", { at: chosen.at, stream: choice.value, key: values, limit: 50 });
        place.replaceChildren(rowTable(rows));
      } catch (error) {
        place.replaceChildren(make("p", {}, error.message));
      }
    },
  }, make("label", {}, "Stream ", choice), make("label", {}, "Key ", key),
  make("button", {}, "Show rows"), hint);
  return wide(section("Rows", "rows", form, place));
}

function rowTable(found) {
  const rows = found.rows.map((row) => ({
    cells: found.columns.map((name) => {
      const value = row[name];
      if (value == null) return "";
      return typeof value === "object" ? JSON.stringify(value) : String(value);
    }),
  }));
  const more = found.is_more ? `The first ${rows.length} rows.` : rows.length === 1 ? "1 row." : `${rows.length} rows.`;
  return make("div", {}, table(found.columns.map((name) => [name]), rows), make("p", { class: "note" }, more));
}

// The page. ----------------------------------------------------------------------------------

function queryPage(found) {
  const batches = found.history.batches;
  return [
    found.problem ? wide(section("Not readable yet", "problem", make("p", {}, found.problem))) : null,
    damage(found.damaged),
    overview(found),
    chart("Rows", "chart-rows", batches, [["in", (b) => b.rows_in], ["out", (b) => b.rows_out]], number),
    chart("Time, ms", "chart-time", batches, [["micro-batch", (b) => b.batch_ms], ["longest commit", (b) => b.commit_ms]], number),
    chart("Memory of a worker", "chart-memory", batches, [["state", (b) => b.peak_state_bytes], ["cap", (b) => b.memory_limit_bytes]], bytes),
    chart("State on disk", "chart-disk", batches, [["of the buckets with rows", (b) => b.state_disk_bytes], ["written", (b) => b.spilled_bytes]], bytes),
    chart("Late rows and copies", "chart-late", batches, [["late", (b) => b.late_rows], ["copies", (b) => b.copied_rows]], number),
    plan(found),
    hotKeys(batches),
    found.buckets ? bucketTable(found) : null,
    settings(found),
    rowSearch(found.streams ?? []),
  ];
}

function storePage(found) {
  const parts = [];
  const streams = new Map();
  for (const state of found.states) {
    parts.push(damage(state.damaged));
    if (!state.levels) continue;
    for (const stream of state.streams) streams.set(stream.name, stream);
    const tiles = [
      tile("rows", number(state.rows)), tile("bytes", bytes(state.bytes)),
      tile("of a raw byte", number(state.bytes_per_raw_byte)),
      tile("write-ahead logs", bytes(state.changelog_bytes)),
      tile("logged writes", number(state.logged_writes)),
      tile("kept by checkpoints", bytes(state.checkpoint_bytes)),
    ];
    parts.push(wide(section("Store", "overview", make("p", { class: "note" }, state.directory), make("div", { class: "tiles" }, ...tiles))));
    parts.push(section("Levels", "levels", levels(state)));
    parts.push(section("Streams", "streams", table([["stream"], ["key", "wrap"], ["columns", "number"]],
      state.streams.map((s) => ({ cells: [s.name, s.key.join(", "), number(s.columns)] })))));
  }
  parts.push(rowSearch([...streams.values()]));
  return parts;
}

// What the reader of the page has chosen or typed stays while the figures move on.
function show(parts) {
  const main = document.getElementById("main");
  const before = document.getElementById("rows");
  const held = document.activeElement && before?.contains(document.activeElement);
  const kept = new Map(["rows", "levels"].map((id) => [id, document.getElementById(id)]));
  for (const each of charts) each.destroy();
  charts = [];
  main.replaceChildren(...parts.filter((each) => each != null));
  const rows = kept.get("rows");
  if (rows && document.getElementById("rows")) document.getElementById("rows").replaceWith(rows);
  const old = kept.get("levels");
  if (old && chosen.bucket != null && document.getElementById("buckets")) {
    document.getElementById("levels").replaceWith(old);
  }
  if (held) rows.querySelector("input")?.focus({ preventScroll: true });
}

async function refresh() {
  const select = document.getElementById("places");
  try {
    const { places } = await asked("places");
    const options = places.map((p) => p.at);
    if ([...select.options].map((o) => o.value).join("\n") !== options.join("\n")) {
      select.replaceChildren(...places.map((p) =>
        make("option", { value: p.at, selected: p.at === chosen.at }, p.at === "." ? p.path : `${p.at} (${p.kind})`)));
    }
    if (!options.includes(chosen.at)) chosen.at = options[0] ?? null;
    if (chosen.at == null) {
      shown = "";
      show([wide(section("Nothing yet", "problem", make("p", {}, "No state was found here. The page looks again.")))]);
      return;
    }
    select.value = chosen.at;
    const kind = places.find((p) => p.at === chosen.at).kind;
    const found = await asked(kind, { at: chosen.at });
    const text = JSON.stringify(found);
    if (text !== shown) {
      shown = text;
      show(kind === "query" ? queryPage(found) : storePage(found));
    }
    say(`read ${new Date().toLocaleTimeString()}`);
  } catch (error) {
    say(error.message, true);
  }
}

document.getElementById("places").addEventListener("change", (event) => {
  Object.assign(chosen, { at: event.target.value, bucket: null, stream: null, key: "" });
  document.getElementById("main").replaceChildren();
  shown = "";
  refresh();
});

async function forever() {
  await refresh();
  setTimeout(forever, document.hidden ? 5 * EVERY_MS : EVERY_MS);
}

forever();
