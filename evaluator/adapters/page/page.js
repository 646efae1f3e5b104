// The live page: polls /status, /totals and /history, and writes text, never markup.
"use strict";

const POLL_MS = 2000;
const TIMEOUT_MS = 5000;
const CARDS_STEP = 24;
const CARDS_FOR_ALL_RANKERS = 12;
const MAX_TASK_ROWS = 256;
const MAX_LEVEL_ROWS = 200;
const asked = new URLSearchParams(location.search);
const dark = matchMedia("(prefers-color-scheme: dark)");

const MEANINGS = {
  rankings: {
    open: "Queries that still take judgments.",
    expired: "Queries past the retention. They count, and take no more judgments.",
    duplicate: "The same ranking again, byte for byte. Counted once.",
    conflicting: "Another ranking of a reserved key. The first one counts.",
    malformed: "Not a valid ranking. Kept with its reason in the dead letters.",
    heartbeat: "A record without a value. It only moves event time.",
    left_out: "Left out by the mapping.",
  },
  judgments: {
    applied: "Judgments that count for a query.",
    early: "Read before their ranking, and kept for it for a short time.",
    duplicate: "The same judgment again. Counted once.",
    conflicting: "Another judgment with the same judgment_id. The first one counts.",
    late: "Came after the retention of their query. Kept in the dead letters.",
    orphan: "Their ranking did not come in time. Kept in the dead letters.",
    over_limit: "Past the thousandth judgment, or the 10,000th candidate, of one query. Kept in the dead letters.",
    malformed: "Not a valid judgment. Kept with its reason in the dead letters.",
    heartbeat: "A record without a value. It only moves event time.",
    left_out: "Left out by the mapping.",
  },
};
const REASONS = {
  oversize: "More bytes than a message may have.",
  decode: "Not valid JSON in UTF-8.",
  schema: "JSON, but a member is missing or of the wrong type.",
  version: "An unknown schema_version.",
  limit: "More candidates, features, grades or bytes than allowed.",
  non_finite: "A number that is not finite.",
  mapping: "The mapping finds nothing, or a wrong type, at a path.",
  registry: "Its schema is unknown to the registry, or cannot be used.",
  future: "A timestamp too far after the record's own.",
  ...MEANINGS.judgments,
  conflicting: "Another ranking of a reserved key, or another judgment with the same judgment_id.",
  oversize_output: "An output that its topic refused as too large.",
};

/** The alerts at whose limits a tile turns amber (warning) or red (critical). */
const TILE_ALERTS = {
  Alarms: ["EvaluatorQualityAlarm", "EvaluatorPairAlarm", "EvaluatorVariantsAlarm", "EvaluatorObjectiveAlarm"],
  "Judged share": ["EvaluatorCoverageAlarm", "EvaluatorNoJudgments", "EvaluatorJudgedShareLow"],
  Orphans: ["EvaluatorOrphans"],
  Open: ["EvaluatorMemoryHigh", "EvaluatorDiskLow", "EvaluatorStoreNearLimit"],
  Lag: ["EvaluatorStalled"],
  "Watermark age": ["EvaluatorStalled", "EvaluatorWatermarkStale", "EvaluatorInputClockAhead", "EvaluatorClockSkewed"],
};

const byId = (id) => document.getElementById(id);
const state = { totals: null, status: null, coverage: new Map(), worst: [], shown: CARDS_STEP, reachedAt: null };

// ---- writing to the page ------------------------------------------------------------------

function make(tag, properties = {}, children = []) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "data") Object.assign(node.dataset, value);
    else if (name === "text") node.textContent = value;
    else if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function setCount(node, n, write = shortCount) {
  setText(node, write(n));
  if (node.title !== count(n)) node.title = count(n);
}

function setState(node, value) {
  if (node.dataset.state !== value) node.dataset.state = value;
}

/** Brings the children of *parent* to *rows*: one node per key, made once, then updated. */
function reconcile(parent, rows, create, update) {
  const unused = new Map([...parent.children].map((node) => [node.rowKey, node]));
  let at = parent.firstElementChild;
  for (const row of rows) {
    let node = unused.get(row.key);
    if (!node) {
      node = create(row);
      node.rowKey = row.key;
    }
    unused.delete(row.key);
    update(node, row);
    if (node === at) at = at.nextElementSibling;
    else parent.insertBefore(node, at);
  }
  for (const node of unused.values()) node.remove();
}

// ---- words and numbers --------------------------------------------------------------------

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 4 });
const byName = new Intl.Collator("en", { numeric: true }).compare;
const count = (n) => whole.format(n);
const longCount = (n) => (n < 1e12 ? whole.format(n) : compact.format(n));
const shortCount = (n) => (n < 1e7 ? whole.format(n) : compact.format(n));
const measured = (mean) => (mean === null || mean === undefined ? "–" : mean.toFixed(4));
const known = (value) => value !== null;
const named = (name) => (name === "" ? "(unnamed)" : name);

function percent(part, all) {
  if (!all) return "–";
  const share = (100 * part) / all;
  if (share > 0 && share < 0.1) return "< 0.1 %";
  return `${share === 100 ? 100 : Math.min(share, 99.9).toFixed(1)} %`;
}

function duration(ms) {
  if (ms === null) return "–";
  const units = [["d", 86400e3], ["h", 3600e3], ["min", 60e3], ["s", 1e3]];
  const at = units.findIndex(([, size]) => ms >= size);
  if (at < 0) return "0\u00a0s";
  const [name, size] = units[at];
  const first = Math.floor(ms / size);
  if (at === 3 || first >= 10) return `${first}\u00a0${name}`;
  const [nextName, nextSize] = units[at + 1];
  const rest = Math.floor((ms % size) / nextSize);
  return rest ? `${first}\u00a0${name} ${rest}\u00a0${nextName}` : `${first}\u00a0${name}`;
}

function moment(ms) {
  const date = new Date(ms);
  return Number.isNaN(date.getTime()) ? count(ms) : date.toISOString().slice(0, 19).replace("T", " ");
}

/** A time before which no message of a query is, for --from. */
const momentBefore = (ms, earlyMs) => `${moment(Math.max(0, ms - Number(earlyMs ?? 0))).replace(" ", "T")}Z`;

// ---- what the documents say ---------------------------------------------------------------

const key = (...parts) => JSON.stringify(parts);
const pairName = (card) => (card.variant === "" ? named(card.model) : `${named(card.model)} · ${card.variant}`);

/** One card per (model, variant, ranker), with a row per measure. */
function cardsOf(totals) {
  const cards = new Map();
  for (const row of totals.totals) {
    const cardKey = key(row.model, row.variant, row.ranker);
    if (!cards.has(cardKey)) {
      cards.set(cardKey, { key: cardKey, model: row.model, variant: row.variant, ranker: row.ranker, measures: new Map() });
    }
    const measures = cards.get(cardKey).measures;
    if (!measures.has(row.measure)) measures.set(row.measure, { key: row.measure, measure: row.measure });
    measures.get(row.measure)[row.kind] = row;
  }
  const served = (card) => (card.ranker === "served" ? 0 : 1);
  return [...cards.values()].sort((a, b) => byName(a.model, b.model) || byName(a.variant, b.variant)
    || served(a) - served(b) || byName(a.ranker, b.ranker));
}

function takeHistory(history) {
  state.worst = history.worst;
  state.coverage = new Map(history.coverage.map((pair) => [key(pair.model, pair.variant), pair]));
}

// ---- the chart ----------------------------------------------------------------------------

const WINDOWS = { recent: { keep: 150, mean: 15, text: "30 s" }, hours: { keep: 360, mean: 15, text: "15 minutes" } };
const MAX_LINES = 12;
const COLOURS = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6"];
const chart = { plot: null, shape: "", query: "", times: [], lines: new Map(), last: 0 };

/** Of each line the means of what settled over some points; the running means if nothing has in any of them. */
function trendsOf(lines, n) {
  const settled = lines.map((points) => {
    let queries = 0;
    let score = 0;
    return points.map(([q, s], i) => {
      queries += q;
      score += s;
      if (i >= n) { queries -= points[i - n][0]; score -= points[i - n][1]; }
      return queries ? score / queries : null;
    });
  });
  if (settled.some((values) => values.some(known))) return { kind: "settled", trends: settled };
  return { kind: "running", trends: lines.map((points) => points.map(([, , running]) => running)) };
}

function chosenLines() {
  const [pair, measure, segment, time] = ["model", "measure", "segment", "window"].map((name) => byId(`chart-${name}`).value);
  if (!pair) return null;
  const [model, variant] = JSON.parse(pair);
  return { model, variant, measure, segment, window: time };
}

function chartQuery(after) {
  const chosen = chosenLines();
  if (!chosen) return null;
  return new URLSearchParams({ ...chosen, after: String(after) }).toString();
}

function takeChart(query, history) {
  if (query !== chart.query) Object.assign(chart, { query, times: [], lines: new Map(), last: 0 });
  const { keep } = WINDOWS[byId("chart-window").value];
  chart.times = [...chart.times, ...history.times_ms].slice(-keep);
  for (const series of history.series) {
    const name = series.segment ? series.level : series.ranker;
    const before = chart.lines.get(name) ?? [];
    const line = [...before, ...series.points];
    const missing = chart.times.length - line.length;
    chart.lines.set(name, [...Array(Math.max(0, missing)).fill([0, 0, null]), ...line].slice(-chart.times.length));
  }
  if (history.times_ms.length) chart.last = history.times_ms.at(-1);
}

function showChartChoice() {
  const rows = state.totals.totals;
  const pairs = new Map(rows.map((row) => [key(row.model, row.variant), pairName(row)]));
  byId("chart-section").hidden = pairs.size === 0;
  const of = state.status.leader?.alarms.series.find((each) => each.alarm && each.ranker);
  fillSelect(byId("chart-model"), [...pairs], of && key(of.model, of.variant));
  fillSelect(byId("chart-measure"), [...new Set(rows.map((row) => row.measure))].map((name) => [name, name]), of?.measure ?? state.status.settings?.alarm_measures?.[0]);
  const segments = [...new Set((state.totals.segments ?? []).map((row) => row.segment))];
  fillSelect(byId("chart-segment"), [["", "rankers"], ...segments.map((name) => [name, `levels of ${name}`])]);
}

function showChart() {
  const chosen = chosenLines();
  const box = byId("chart");
  if (!chosen) return;
  if (typeof uPlot === "undefined") {
    setText(box, "This build has no chart library: install the package with make install, or from its wheel.");
    return;
  }
  const { mean, text } = WINDOWS[chosen.window];
  const names = [...chart.lines.keys()].sort((a, b) => (b === "served") - (a === "served") || weight(b) - weight(a) || byName(a, b)).slice(0, MAX_LINES);
  const { kind, trends } = trendsOf(names.map((name) => chart.lines.get(name)), mean);
  const shape = key(chart.query, names, kind, document.documentElement.dataset.theme, dark.matches);
  const data = [chart.times.map((ms) => ms / 1000), ...trends];
  if (shape !== chart.shape) {
    chart.plot?.destroy();
    box.replaceChildren();
    chart.plot = new uPlot(chartOptions(names, trends, box), data, box);
    chart.shape = shape;
  } else if (chart.plot.data[0].at(-1) !== data[0].at(-1) || chart.plot.data[0].length !== data[0].length) {
    chart.plot.setData(data);
  }
  const left = chart.lines.size - names.length;
  const silence = (state.status.settings || {}).silence === "zero" ? ", without the zeros of silent queries" : "";
  const note = `${kind === "settled" ? `Settled values as a mean over ${text}` : `Nothing has settled in this time: running means${silence}`}. Times are UTC.`;
  setText(byId("chart-note"), left > 0 ? `${note} ${count(left)} more lines are not shown.` : note);
  const said = trends.map((values, i) => {
    const seen = values.filter(known);
    return seen.length < 2 ? `${named(names[i])}: no trend yet`
      : `${named(names[i])}, ${kind}: from ${measured(seen[0])} to ${measured(seen.at(-1))}, lowest ${measured(Math.min(...seen))}, highest ${measured(Math.max(...seen))}`;
  });
  box.setAttribute("aria-label", `${chosen.measure}. ${said.join(". ")}`);
}

/** Queries of a line, by which the largest come first. */
function weight(name) {
  return chart.lines.get(name).reduce((sum, [n]) => sum + n, 0);
}

function chartOptions(names, trends, box) {
  const style = getComputedStyle(document.documentElement);
  const probe = make("span");
  document.body.append(probe);
  const colour = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const [quiet, line] = [colour("--quiet"), colour("--line")];
  const axis = { stroke: quiet, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: `12px ${style.fontFamily || "sans-serif"}` };
  const series = names.map((name, i) => ({
    label: named(name), stroke: colour(COLOURS[i % COLOURS.length]), width: 1.5, spanGaps: false,
    dash: i < COLOURS.length ? [] : [8, 3],
    value: (_, value) => measured(value), points: { show: trends[i].filter(known).length < 2 },
  }));
  probe.remove();
  return {
    width: box.clientWidth - 16, height: 280,
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC"),
    scales: { y: { range: (_, low, high) => calm(low, high) } },
    axes: [{ ...axis, space: 64, values: (_, ticks) => ticks.map((tick) => moment(tick * 1e3).slice(11)) }, { ...axis, size: 56, values: (_, ticks) => ticks.map((tick) => tick.toFixed(3)) }],
    series: [{ label: "time", value: (_, seconds) => (seconds === null ? "–" : moment(seconds * 1e3)) }, ...series],
  };
}

/** The range of the values: at least 0.06, so that a calm line stays calm. */
function calm(low, high) {
  if (low === null) return [0, 1];
  const spare = Math.max(0.06 - (high - low), 0.1 * (high - low)) / 2;
  return [Math.max(0, low - spare), high > 1 ? high + spare : Math.min(1, high + spare)];
}

function moveCursor(event) {
  const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
  if (!step || !chart.plot || !chart.times.length) return;
  event.preventDefault();
  const last = chart.times.length - 1;
  const at = Math.min(last, Math.max(0, (chart.plot.cursor.idx ?? (step < 0 ? last + 1 : -1)) + step));
  chart.plot.setCursor({ left: chart.plot.valToPos(chart.times[at] / 1000, "x"), top: 10 });
}

function showLevels() {
  const chosen = chosenLines();
  const of = (row) => row.kind === "settled" && row.model === chosen.model && row.variant === chosen.variant
    && row.ranker === "served" && row.measure === chosen.measure;
  const levels = chosen?.segment ? (state.totals.segments ?? []).filter((row) => of(row) && row.segment === chosen.segment && row.queries) : [];
  byId("levels-panel").hidden = levels.length === 0;
  const all = levels.length ? state.totals.totals.find(of) : null;
  const rows = levels.map((row) => ({ key: row.level, mean: row.mean, off: all?.queries ? row.mean - all.mean : 0, n: row.queries }))
    .sort((a, b) => a.off - b.off).slice(0, MAX_LEVEL_ROWS);
  const create = (row) => make("tr", {}, [make("th", { scope: "row", text: row.key }), ...Array.from({ length: 4 }, () => make("td", { className: "n" }))]);
  reconcile(byId("levels").tBodies[0], rows, create, (node, row) => {
    setText(node.cells[1], measured(row.mean));
    setText(node.cells[2], `${row.off < 0 ? "−" : "+"}${Math.abs(row.off).toFixed(4)}`);
    setCount(node.cells[3], row.n, longCount);
    setText(node.cells[4], percent(row.n, all?.queries));
  });
}

/** A text as one word of a shell. */
const quoted = (text) => (/^[\w.:/-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** Settings without which a command finds other topics, or none. */
const TOPICS = ["topic_prefix", "output_prefix", "rankings_topic", "judgments_topic"];

/** The command that shows a query; its ids if there are no brokers to read it from. */
function commandOf({ trace_id, node_id, event_time_ms }, { source, settings }) {
  if (!source) return `${trace_id} ${node_id}`;
  return ["evaluator inspect --source", source, "--from", momentBefore(event_time_ms, settings.early_ms),
    ...(settings.mapping ? [`--mapping ${quoted(settings.mapping)}`] : []),
    ...TOPICS.filter((name) => settings[name] && `${settings[name]}_topic` !== name).map((name) => `--set ${name}=${quoted(settings[name])}`),
    "--", quoted(trace_id), quoted(node_id)].join(" ");
}

/** Recent queries of the model and measure of the chart; rows under the pointer stay, to be copied. */
function showWorst() {
  const table = byId("worst");
  byId("worst-section").hidden = state.worst.length === 0;
  if (!state.worst.length || table.matches(":hover, :focus-within")) return;
  const chosen = chosenLines();
  const { source } = state.status;
  setText(byId("worst-note"), `Lowest ${chosen.measure} of ${pairName(chosen)} (served) within an hour.${source ? " The command shows ranking, judgments and values." : ""}`);
  setText(byId("worst-query"), source ? "Command" : "Query");
  const create = (row) => make("tr", {}, [
    make("td", { className: "n" }), make("td", { className: "n", text: moment(row.event_time_ms) }),
    make("td", {}, [make("code", { text: commandOf(row, state.status) })])]);
  const rows = state.worst.map((row) => ({ ...row, key: key(row.trace_id, row.node_id, row.event_time_ms) }));
  reconcile(table.tBodies[0], rows, create, (node, row) => setText(node.cells[0], measured(row.value)));
}

// ---- the parts of the page ----------------------------------------------------------------

function makeCard(card) {
  const title = make("h3", { title: pairName(card) }, [make("span", { text: named(card.model) })]);
  if (card.variant !== "") title.append(make("span", { className: "variant", text: ` · ${card.variant}` }));
  const ranker = make("span", { className: "ranker", text: named(card.ranker), title: `ranker: ${card.ranker}`, data: { served: card.ranker === "served" ? "yes" : "no" } });
  const head = ["Measure", "Settled", "Running"].map((text, i) => make("th", { scope: "col", text, className: i ? "n" : "" }));
  const foot = make("tr", {}, [make("th", { scope: "row", text: "Queries" }), make("td", { className: "n" }), make("td", { className: "n" })]);
  return make("article", { className: "card", "aria-label": `${pairName(card)}, ${named(card.ranker)}`, data: { model: card.model, variant: card.variant, ranker: card.ranker } }, [
    make("header", {}, [title, ranker]),
    make("div", { className: "coverage" }, [make("progress", { max: 1, value: 0, "aria-hidden": "true" }), make("span", { className: "quiet" })]),
    make("table", {}, [make("thead", {}, [make("tr", {}, head)]), make("tbody"), make("tfoot", {}, [foot])]),
  ]);
}

function updateCard(node, card) {
  const pair = state.coverage.get(key(card.model, card.variant));
  const settled = pair ? pair.judged + pair.unjudged : 0;
  node.querySelector("progress").value = settled ? pair.judged / settled : 0;
  setText(node.querySelector(".coverage .quiet"),
    settled ? `${percent(pair.judged, settled)} of ${shortCount(settled)} judged` : "nothing settled yet");
  const rows = [...card.measures.values()];
  const counts = ["settled", "running"].map((kind) => [...new Set(rows.map((row) => row[kind]?.queries ?? 0))]);
  const uniform = counts.every((different) => different.length <= 1);
  reconcile(node.querySelector("tbody"), rows, makeMeasure, (row, measure) => updateMeasure(row, card, measure, uniform));
  const foot = node.querySelector("tfoot");
  foot.hidden = !uniform;
  if (uniform) counts.forEach(([n], i) => setCount(foot.rows[0].cells[i + 1], n ?? 0));
}

function makeMeasure(row) {
  const value = (kind) => make("td", { className: `n ${kind}` }, [make("span"), make("small")]);
  return make("tr", { data: { measure: row.measure } }, [
    make("th", { scope: "row", text: row.measure }), value("settled"), value("running"),
  ]);
}

function updateMeasure(node, card, row, uniform) {
  for (const kind of ["settled", "running"]) {
    const [value, small] = node.querySelector(`td.${kind}`).children;
    setText(value, measured(row[kind]?.mean));
    small.hidden = uniform;
    setCount(small, row[kind]?.queries ?? 0);
  }
}

function fillSelect(select, wanted, usual) {
  if (select.options.length === wanted.length && wanted.every(([value], i) => select.options[i].value === value)) return;
  const before = select.value || (asked.get(select.id.replace("chart-", "")) ?? usual);
  select.replaceChildren(...wanted.map(([value, text]) => make("option", { value, text })));
  select.value = wanted.some(([value]) => value === before) ? before : wanted[0]?.[0] ?? "";
}

function showQuality() {
  const cards = cardsOf(state.totals);
  const pairs = new Map(cards.map((card) => [key(card.model, card.variant), pairName(card)]));
  const rankers = [...new Set(cards.map((card) => card.ranker))].sort((a, b) => (b === "served") - (a === "served"));
  const measures = [...new Set(cards.flatMap((card) => [...card.measures.keys()]))];
  const filters = ["model", "ranker", "measure"].map((name) => byId(`filter-${name}`));
  const firstFill = filters[0].options.length === 0 && cards.length > 0;
  fillSelect(filters[0], [["", `all (${pairs.size})`], ...pairs]);
  fillSelect(filters[1], [["", `all (${rankers.length})`], ...rankers.map((name) => [name, named(name)])]);
  fillSelect(filters[2], [["", `all (${measures.length})`], ...measures.map((name) => [name, name])]);
  if (firstFill && cards.length > CARDS_FOR_ALL_RANKERS) filters[1].value = "served";
  byId("filters").hidden = cards.length < 2;

  const [pair, ranker, measure] = filters.map((select) => select.value);
  const chosen = cards.filter((card) => (!pair || key(card.model, card.variant) === pair) && (!ranker || card.ranker === ranker));
  if (measure) for (const card of chosen) card.measures = new Map([...card.measures].filter(([name]) => name === measure));
  reconcile(byId("cards"), chosen.slice(0, state.shown), makeCard, updateCard);
  const left = chosen.length - state.shown;
  byId("more").hidden = left <= 0;
  setText(byId("more"), `Show ${Math.min(left, CARDS_STEP)} more of ${count(left)}`);
  setText(byId("quality-hint"), cards.length
    ? "Settled: evaluated once, at a fixed age. Running: corrected by every judgment."
    : "");
  showEmpty(cards);
}

function showEmpty(cards) {
  const box = byId("empty");
  const settings = state.status.settings || {};
  const waitMs = Number(settings.maturity_ms) + Number(settings.out_of_orderness_ms);
  const wait = Number.isFinite(waitMs)
    ? `The first settled value comes ${duration(waitMs)} after the first ranking (maturity_ms plus out_of_orderness_ms, by event time).`
    : "The first settled value comes one maturity_ms plus out_of_orderness_ms after the first ranking, by event time.";
  const nothing = cards.length === 0;
  const running = cards.some((card) => [...card.measures.values()].some((row) => row.running?.queries));
  const settled = state.totals.queries.settled > 0;
  box.hidden = settled;
  box.dataset.alone = nothing ? "yes" : "no";
  if (settled) return;
  const first = nothing ? "No ranking has been read yet." : running ? "Nothing has settled yet." : "Queries are open; no judgment has been applied yet.";
  const second = nothing ? `Running values appear with the first judgment. ${wait}` : wait;
  reconcile(box, [{ key: "first", text: first }, { key: "second", text: second }], () => make("p"), (node, row) => setText(node, row.text));
}

function withUnknown(note, values) {
  const unknown = values.filter((value) => !known(value)).length;
  return unknown && unknown < values.length ? `${note}; ${unknown} unknown` : note;
}

function showTiles() {
  const { queries } = state.totals;
  const { tasks } = state.status;
  const sum = (of) => tasks.reduce((total, task) => total + (of(task) ?? 0), 0);
  const lags = tasks.flatMap((task) => Object.values(task.lag));
  const watermarks = tasks.map((task) => task.watermark_ms);
  const lag = lags.some(known) ? lags.filter(known).reduce((total, n) => total + n, 0) : null;
  const age = watermarks.some(known) ? Math.max(0, state.status.now_ms - Math.min(...watermarks.filter(known))) : null;
  const { judgments } = state.totals.ledger;
  const alarms = state.status.leader?.is_leader ? state.status.leader.alarms : null;
  const tiles = [
    ["Alarms", alarms ? String(alarms.series.filter((each) => each.alarm).length) : "–", alarms ? `on ${alarms.series.length} series` : "at the leader"],
    ["Judged share", percent(queries.settled_judged, queries.settled), `of ${shortCount(queries.settled)} settled`],
    ["Orphans", percent(judgments.orphan, judgments.read), `of all judgments; ${shortCount(sum((task) => task.early))} early`],
    ["Open", shortCount(sum((task) => task.open)), "taking judgments"],
    ["Lag", lag === null ? "–" : shortCount(lag), withUnknown("records to read", lags)],
    ["Watermark age", duration(age), withUnknown("slowest task", watermarks)],
  ].map(([name, value, note]) => ({ key: name, name, value, note, state: worstOf(TILE_ALERTS[name] ?? []) }));
  const create = (tile) => make("div", {}, [make("dt", { text: tile.name }), make("dd"), make("dd", { className: "note" })]);
  reconcile(byId("tiles"), tiles, create, (node, tile) => {
    setText(node.children[1], tile.value);
    setText(node.children[2], tile.note);
    setState(node, tile.state);
  });
}

function term(text, meaning) {
  if (!meaning) return make("span", { text });
  const tip = make("span", { className: "tip", role: "tooltip", text: meaning });
  const id = `tip-${term.made = (term.made || 0) + 1}`;
  tip.id = id;
  return make("span", { className: "term", tabIndex: 0, "aria-describedby": id }, [make("span", { text }), tip]);
}

function showCounts(table, rows, { meanings, withShare }) {
  const create = (row) => make("tr", {}, [
    make("th", { scope: "row" }, [term(row.key, meanings[row.key])]),
    make("td", { className: "n" }), ...(withShare ? [make("td", { className: "n" })] : []),
  ]);
  reconcile(table.tBodies[0], rows, create, (node, row) => {
    node.dataset.zero = row.n ? "no" : "yes";
    node.dataset.total = row.total ? "yes" : "no";
    setCount(node.cells[1], row.n, longCount);
    if (withShare) setText(node.cells[2], row.total ? "" : percent(row.n, row.all));
  });
}

function showLedger() {
  for (const log of ["rankings", "judgments"]) {
    const { read, ...rest } = state.totals.ledger[log];
    const order = Object.keys(MEANINGS[log]);
    const outcomes = Object.keys(rest).sort((a, b) => order.indexOf(a) - order.indexOf(b));
    const rows = outcomes.map((outcome) => ({ key: outcome, n: rest[outcome], all: read }));
    rows.push({ key: "read", n: read, total: true });
    showCounts(byId(`ledger-${log}`), rows, { meanings: MEANINGS[log], withShare: true });
  }
  const letters = Object.entries(state.totals.dead_letters).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]);
  const rows = letters.map(([reason, n]) => ({ key: reason, n }));
  rows.push({ key: rows.length ? "all" : "none so far", n: letters.reduce((total, [, n]) => total + n, 0), total: true });
  showCounts(byId("dead-letters"), rows, { meanings: REASONS, withShare: false });
}

function showTasks() {
  const now = state.status.now_ms;
  const optional = (n) => (n === null || n === undefined ? "–" : longCount(n));
  const rows = state.status.tasks.slice(0, MAX_TASK_ROWS).map((task) => ({
    key: task.task,
    cells: [
      optional(task.positions.rankings), optional(task.lag.rankings),
      optional(task.positions.judgments), optional(task.lag.judgments),
      task.watermark_ms === null ? "not yet" : moment(task.watermark_ms),
      task.watermark_ms === null ? "–" : duration(Math.max(0, now - task.watermark_ms)),
      longCount(task.open), longCount(task.early),
    ],
    restoring: task.restoring,
  }));
  const create = (row) => make("tr", {}, [
    make("th", { scope: "row", text: String(row.key) }), make("td", {}, [make("span", { className: "tag" })]),
    ...row.cells.map(() => make("td", { className: "n" })),
  ]);
  reconcile(byId("tasks").tBodies[0], rows, create, (node, row) => {
    const tag = node.cells[1].firstElementChild;
    setText(tag, row.restoring ? "restoring" : "live");
    setState(tag, row.restoring ? "warn" : "ready");
    row.cells.forEach((text, i) => setText(node.cells[i + 2], text));
  });
}

/** The link to the runbook of an alert, or where it is in the project. */
function runbookOf(alert) {
  const section = `#${alert.toLowerCase()}`;
  const url = state.status.settings?.runbook_url;
  return [url ? make("a", { href: `${url}${section}`, rel: "noreferrer", text: `Runbook: ${alert}` })
    : make("code", { className: "quiet", text: `docs/runbooks.md${section}` })];
}

const MAX_ALARM_ROWS = 50;
const SERIES_LABELS = ["model", "variant", "ranker", "measure", "segment", "level", "kind"];

const seriesName = (series) => SERIES_LABELS.map((label) => series[label]).filter(Boolean).join(" ");
const mondays = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });

/** The first and the last week, with their number: of weeks between some may be left out. */
function weeksOf(weeks) {
  if (!weeks.length) return "–";
  return `${mondays.format(weeks[0])} to ${mondays.format(weeks.at(-1))} (${weeks.length})`;
}

function alarmState(series) {
  if (series.alarm) return series.alarm.acknowledged ? "acknowledged" : "on";
  if (series.windows) return "off";
  if (!["own", "pair"].includes(series.kind) || series.reference_weeks_ms.length) return "too few queries";
  return series.reference_from_ms ? `no reference until ${moment(series.reference_from_ms)}` : "no reference";
}

function showAlarms() {
  const alarms = state.status.leader?.alarms;
  byId("alarms-section").hidden = !alarms?.series.length;
  if (!alarms?.series.length) return;
  const sorted = [...alarms.series].sort((a, b) => !!b.alarm - !!a.alarm || b.evidence - a.evidence);
  const hidden = sorted.length - MAX_ALARM_ROWS;
  const note = [`Watched until ${moment(alarms.watched_until_ms)} UTC. Evidence 1 is the limit; a reference needs two weeks. `
    + "The spread is the standard deviation of the means of days in the reference, beside chance."];
  if (hidden > 0) note.push(`${longCount(hidden)} more series are not shown.`);
  if (alarms.series_left_out) {
    const names = alarms.left_out.map(seriesName);
    if (alarms.series_left_out > names.length) names.push("and so on");
    note.push(`Not watched, beyond alarm_max_series: ${longCount(alarms.series_left_out)} series (${names.join("; ")}).`);
  }
  setText(byId("alarms-note"), note.join(" "));
  const among = state.status.problems.map((problem) => problem.text);
  const others = sorted.slice(0, MAX_ALARM_ROWS).filter((each) => each.alarm && !among.includes(each.alarm.summary));
  showSentences(byId("alarm-list"), others.map((each) => ({
    tag: alarmState(each), severity: "warning", text: each.alarm.summary, alert: each.alarm.alert,
  })));
  const figure = (n) => (n === undefined ? "–" : n.toFixed(3));
  const rows = sorted.slice(0, MAX_ALARM_ROWS).map((series) => ({
    key: seriesName(series),
    state: alarmState(series) + (series.alarm && series.unverifiable ? `, ${series.unverifiable} too` : ""),
    on: !!series.alarm,
    cells: [
      series.evidence.toFixed(2), figure(series.alarm?.observed), figure(series.alarm?.expected),
      series.alarm ? moment(series.alarm.onset_ms) : "–", weeksOf(series.reference_weeks_ms),
      figure(series.spreads["24"]),
    ],
  }));
  const create = (row) => make("tr", {}, [
    make("th", { scope: "row", text: row.key }), make("td", {}, [make("span", { className: "tag" })]),
    ...row.cells.map(() => make("td", { className: "n" })),
  ]);
  reconcile(byId("alarms").tBodies[0], rows, create, (node, row) => {
    const tag = node.cells[1].firstElementChild;
    setText(tag, row.state);
    setState(tag, row.on ? "warn" : row.state === "off" ? "ready" : "none");
    row.cells.forEach((text, i) => setText(node.cells[i + 2], text));
  });
}

/** "critical", "warning" or "" for the problems of these alerts. */
function worstOf(alerts) {
  const found = state.status.problems.filter((problem) => alerts.includes(problem.alert));
  return found.length ? (found.some((problem) => problem.severity === "critical") ? "critical" : "warning") : "";
}

/** A list of problems, or of alarms: a tag, a sentence, and the link to the runbook. */
function showSentences(list, rows) {
  const create = (row) => make("li", { data: { state: row.severity } }, [
    make("span", { className: "tag", text: row.tag, data: { state: row.severity } }), make("span", { text: row.text }), ...runbookOf(row.alert)]);
  reconcile(list, rows.map((row) => ({ key: key(row.alert, row.text), ...row })), create, () => {});
}

function showProblems() {
  const { problems } = state.status;
  byId("problems").hidden = problems.length === 0;
  showSentences(byId("problem-list"), problems.map((problem) => ({ tag: problem.severity, ...problem })));
}

function lastCommit(status) {
  if (!known(status.last_commit_ms)) return "Nothing has been committed yet.";
  return `The figures are those of the last commit, ${moment(status.last_commit_ms)} UTC.`;
}

function showState(error) {
  const pill = byId("state");
  const notice = byId("notice");
  const { status } = state;
  const restoring = status?.tasks.some((task) => task.restoring);
  const worst = status?.problems[0]?.severity;
  const [name, text] = error ? ["away", "Unavailable"]
    : !status.ready ? ["away", "Not ready"]
      : worst ? [worst === "critical" ? "away" : "warn", status.problems.length === 1 ? "1 problem" : `${status.problems.length} problems`]
        : restoring ? ["warn", "Restoring"] : ["ready", "Ready"];
  setState(pill, name);
  setText(pill, text);
  if (status) setText(byId("version"), status.version);
  if (state.reachedAt) setText(byId("as-of"), `as of ${state.reachedAt.toISOString().slice(11, 19)} UTC`);
  const notes = error
    ? ["This page cannot reach the worker. It retries; the figures are the last ones received."]
    : status.ready ? [] : [lastCommit(status)];
  notice.hidden = notes.length === 0;
  reconcile(notice, notes.map((note) => ({ key: note, note })), () => make("p"), (node, row) => setText(node, row.note));
}

function showAll() {
  if (!state.totals || !state.status) return;
  showProblems();
  showTiles();
  showQuality();
  showChartChoice();
  showChart();
  showLevels();
  showWorst();
  showAlarms();
  showLedger();
  showTasks();
}

// ---- the loop -----------------------------------------------------------------------------

async function get(path) {
  const response = await fetch(path, { signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store" });
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
}

async function poll() {
  let failure = null;
  try {
    [state.status, state.totals] = await Promise.all([get("status"), get("totals")]);
    showChartChoice();
    const query = chartQuery(0);
    const history = await get(`history?${query === chart.query ? chartQuery(chart.last) : query ?? "after=0"}`);
    if (query === chartQuery(0)) takeChart(query, history);
    takeHistory(history);
    state.reachedAt = new Date(state.status.now_ms);
  } catch (error) {
    failure = error;
  }
  showState(failure);
  showAll();
}

async function run() {
  const theme = asked.get("theme");
  if (asked.has("model")) asked.set("model", key(asked.get("model"), asked.get("variant") ?? ""));
  if (Object.hasOwn(WINDOWS, asked.get("window") ?? "")) byId("chart-window").value = asked.get("window");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  byId("filters").addEventListener("change", () => { state.shown = CARDS_STEP; showAll(); });
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("more").addEventListener("click", () => { state.shown += CARDS_STEP; showAll(); });
  byId("chart-filters").addEventListener("change", poll);
  byId("chart-filters").addEventListener("submit", (event) => event.preventDefault());
  byId("chart").addEventListener("keydown", moveCursor);
  dark.addEventListener("change", showAll);
  new ResizeObserver(([entry]) => chart.plot?.setSize({ width: Math.max(200, entry.contentRect.width - 16), height: 280 })).observe(byId("chart"));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && document.activeElement?.classList.contains("term")) document.activeElement.blur();
  });
  for (;;) {
    if (!document.hidden) await poll();
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

run();
