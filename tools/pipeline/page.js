'use strict';
// The page's program: it draws report.py's `facts`, and the values in `series` or in scripts in the page's folder.
const HEALTH = ['healthy', 'late', 'given up by the board', 'in doubt', 'silent', 'missing', 'twice', 'no proof'];
const UNITS = new Map(Object.entries({Cel: '°C', '/': '', '%RH': '% RH', '%EL': '% battery', lx: 'lx', 'W/m2': 'W/m²', 'm/s2': 'm/s²', m3: 'm³'}));
const PAGE = 12, MOST_SENSORS = 6, MOST_ROWS = 200, SVG = 'http://www.w3.org/2000/svg';
const MS = {s: 1e3, min: 6e4, h: 36e5, d: 864e5};
const STEPS = [[1, 's'], [2, 's'], [5, 's'], [10, 's'], [30, 's'], [1, 'min'], [2, 'min'], [5, 'min'], [10, 'min'], [30, 'min'],
  [1, 'h'], [2, 'h'], [3, 'h'], [6, 'h'], [12, 'h'], [1, 'd'], [2, 'd'], [7, 'd'], [14, 'd'], [30, 'd'], [91, 'd'], [182, 'd'],
  [365, 'd'], [1825, 'd'], [3650, 'd']].map(([n, unit]) => n * MS[unit]);
const id = name => document.getElementById(name);
let facts = JSON.parse(id('facts').textContent), found = [];
const chunks = new Map(), cards = new Map(), wide = new Set();
const state = Object.assign({q: '', health: '', sort: 'worst', page: 0, range: '', boots: '', by: '', down: ''},
  Object.fromEntries(new URLSearchParams(location.hash.slice(1))));
state.page = Math.max(0, Math.floor(+state.page) || 0);

// Invisible characters, and those that change the direction of the text, are shown as numbers.
const seen = text => String(text).replace(/[\p{C}\p{Zl}\p{Zp}]/gu, one => '\\u{' + one.codePointAt(0).toString(16).toUpperCase() + '}');
const number = value => value.toLocaleString('en', {maximumSignificantDigits: 6});
const count = value => value.toLocaleString('en');
const counted = (n, what) => `${count(n)} ${what}${n === 1 ? '' : 's'}`;
const two = n => String(n).padStart(2, '0');
const day = at => `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
const moment = ms => {const at = new Date(ms);
  return `${day(at)} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`};
const now = () => facts.live ? Date.now() : facts.made_ms;
function span(ms) {
  for (const [unit, size] of Object.entries(MS).reverse()) if (ms >= 2 * size || ms === size || unit === 's') return `${count(Math.round(ms / size))} ${unit}`;
}
const ago = ms => now() - ms < -MS.min ? moment(ms) : `${span(Math.max(0, now() - ms))} ago`;
function make(tag, attributes = {}, ...inside) {
  const one = tag in {svg: 1, path: 1, rect: 1, title: 1} ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes))
    if (key.startsWith('on')) one[key] = value; else if (value !== null && value !== false) one.setAttribute(key, value);
  one.append(...inside);
  return one;
}
const named = (tag, text, attributes = {}) => make(tag, {class: 'name', title: seen(text).slice(0, 2000), ...attributes}, seen(text).slice(0, 300));
const dot = health => make('i', {class: 'dot', style: `background:var(--h${health})`});

function remember() {
  const changed = Object.fromEntries(Object.entries(state).filter(([, value]) => value !== '' && value !== 0 && value !== 'worst'));
  history.replaceState(null, '', '#' + new URLSearchParams(changed));
}

// Plots: an SVG of any width; labels are HTML, so that their size does not change.
function ticks(lo, hi) {
  const rough = (hi - lo) / 3, size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(n => n * size).find(one => one >= rough);
  const at = [];
  for (let n = Math.ceil(lo / step); n * step <= hi && at.length < 9; n++) at.push(n * step || 0);
  return [step, at];
}
function times(from, to, most) {
  const step = STEPS.find(one => (to - from) / one <= most) || STEPS.at(-1), at = [];
  const zone = new Date(from).getTimezoneOffset() * MS.min;
  for (let one = Math.ceil((from - zone) / step) * step + zone; one <= to && at.length < 9; one += step) at.push(one);
  return [step, at];
}
function clock(ms, step) {
  const at = new Date(ms);
  if (step >= 365 * MS.d) return String(at.getFullYear());
  if (step >= MS.d || !(at.getHours() || at.getMinutes() || at.getSeconds()))
    return at.getDate() + ' ' + at.toLocaleString('en', {month: 'short'}) + (step >= 30 * MS.d ? ' ' + at.getFullYear() : '');
  return `${two(at.getHours())}:${two(at.getMinutes())}` + (step < MS.min ? ':' + two(at.getSeconds()) : '');
}
function frame(from, to, lo, hi, label, high, words) {
  const x = ms => (1000 * (ms - from) / (to - from)).toFixed(1), y = value => (100 - 100 * (value - lo) / (hi - lo)).toFixed(2);
  const svg = make('svg', {viewBox: '0 0 1000 100', preserveAspectRatio: 'none', role: 'img', 'aria-label': label});
  const [size, ys] = words ? [1, [0, 1]] : ticks(lo, hi), [step, xs] = times(from, to, high ? 8 : 4);
  svg.append(make('path', {class: 'grid', d: ys.map(one => `M0 ${y(one)}H1000`).join('') + xs.map(one => `M${x(one)} 0V100`).join('')}));
  const left = make('div', {class: 'y'}, ...ys.map(one => make('span', {style: `top:${y(one)}%`}, words ? words[one] : brief(one, size))));
  const below = make('div', {class: 'x'}, ...xs.map(one => {
    const at = x(one) / 10;
    return make('span', {style: `left:${at}%` + (at < 7 ? ';transform:none' : at > 93 ? ';transform:translateX(-100%)' : '')}, clock(one, step));
  }));
  return {svg, x, y, box: make('div', {class: high ? 'plot high' : 'plot'}, left, svg, below)};
}
function brief(value, step) {
  const size = Math.max(Math.abs(value), step);
  if (size >= 1e6 || size < 1e-3) return value.toLocaleString('en', {notation: size >= 1e15 || size < 1e-3 ? 'scientific' : 'compact',
    maximumSignificantDigits: Math.min(15, Math.max(2, 2 + Math.ceil(Math.log10(size / step))))}).replace('B', 'G'); // beside bytes
  return (value + 0).toLocaleString('en', {maximumFractionDigits: Math.max(0, Math.ceil(-Math.log10(step) - 1e-9))});
}
function points(set) {
  let at = 0;
  return set.t.map((more, n) => (at += more, {from: at, to: at + (set.d ? set.d[n] : 0), v: set.v[n],
    a: set.a ? set.a[n] : set.v[n], b: set.b ? set.b[n] : set.v[n]}));
}
function drawn(set, from, to, name, unit, isFlag) {
  const all = points(set), breaks = new Set(set.g);
  let lo = Math.min(...all.map(one => one.a)), hi = Math.max(...all.map(one => one.b));
  const pad = hi > lo ? (hi - lo) * .08 : Math.abs(hi) * .05 || 1;
  lo -= pad; hi += pad;
  const label = `${name}: ${count(all.length)} points, ${breaks.size} gaps`;
  const {svg, x, y, box} = frame(from, to, lo, hi, label, false, isFlag && ['false', 'true']);
  const gap = (a, b) => svg.append(make('rect', {class: 'gap', x: x(a), y: 0, width: Math.max(4, x(b) - x(a)), height: 100},
    make('title', {}, `no readings for ${span(b - a)}, from ${moment(a)}`)));
  const parts = [];
  all.forEach((one, n) => {
    if (n && breaks.has(n)) gap(all[n - 1].to, one.from);
    if (!n || breaks.has(n)) parts.push([]);
    parts.at(-1).push(one);
  });
  const last = all.at(-1);
  if (set.u && to - last.to > Math.max(2 * set.u, 1000, (to - from) / 100)) gap(last.to, to);
  let line = '', dots = '', band = '';
  for (const part of parts) {
    if (part.length === 1) dots += `M${x((part[0].from + part[0].to) / 2)} ${y(part[0].v)}h.01`;
    const middle = one => x((one.from + one.to) / 2);
    line += part.map((one, n) => `${!n ? 'M' : isFlag ? `H${middle(one)}V${y(one.v)}L` : 'L'}${middle(one)} ${y(one.v)}`).join('');
    if (set.a && part.length > 1)
      band += 'M' + [...part.map(one => `${middle(one)} ${y(one.b)}`), ...part.slice().reverse().map(one => `${middle(one)} ${y(one.a)}`)].join('L') + 'Z';
  }
  if (band) svg.append(make('path', {class: 'band', d: band}));
  svg.append(make('path', {class: 'line', d: line}));
  if (dots) svg.append(make('path', {class: 'dots', d: dots}));
  pointing(svg, from, to, at => {
    const one = all.reduce((best, next) => Math.abs(next.from + next.to - 2 * at) < Math.abs(best.from + best.to - 2 * at) ? next : best);
    const range = one.b > one.a ? ` (${number(one.a)} to ${number(one.b)})` : '';
    return [(one.from + one.to) / 2, `${moment(one.from)}: ${number(one.v)} ${unit}${range}`];
  });
  return box;
}
function pointing(svg, from, to, textAt) {
  const mark = make('path', {class: 'at'});
  svg.onpointermove = svg.onpointerdown = event => {
    const place = svg.getBoundingClientRect(), tip = id('tip');
    const [at, text] = textAt(from + (to - from) * (event.clientX - place.left) / place.width);
    mark.setAttribute('d', `M${1000 * (at - from) / (to - from)} 0V100`);
    svg.append(mark);
    tip.textContent = text;
    tip.hidden = false;
    tip.style.left = Math.max(4, Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8)) + 'px';
    tip.style.top = Math.max(4, place.top - tip.offsetHeight - 4) + 'px';
  };
  svg.onpointerleave = () => {id('tip').hidden = true; mark.remove()};
}

// The values: a card for each device.
window.flashmqtt = (which, values) => chunks.set(which, new Map(values));
if (id('series')) flashmqtt(0, Object.entries(JSON.parse(id('series').textContent)));
const waiting = new Map();
function load(which) {
  if (id('series')) return Promise.resolve();
  const name = `${facts.folder}/${facts.chunks}/${String(which).padStart(5, '0')}.js?v=${encodeURIComponent(facts.version)}`;
  if (!waiting.has(name)) waiting.set(name, new Promise((done, failed) => {
    const script = make('script', {src: name});
    script.onload = () => {script.remove(); done()};
    script.onerror = () => {script.remove(); waiting.delete(name); failed(name.split('?')[0])};
    document.head.append(script);
  }));
  return waiting.get(name);
}
const chunkOf = row => id('series') ? 0 : Math.floor(row.part * facts.chunks / 65536);

function shown(row) {
  let card = cards.get(row.key);
  if (!card) {
    card = make('article', {class: 'card'}, make('div'), make('div', {}, make('p', {class: 'soft'}, '…')));
    cards.set(row.key, card);
  }
  card.row = row;
  head(card);
  const wanted = `${row.last_ms} ${wide.has(row.key)}`;
  if (card.has !== wanted) load(chunkOf(row)).then(() => {card.has = wanted; head(card); body(card)}, name =>
    card.lastChild.replaceChildren(make('p', {class: 'soft'},
      `The values are in ${name}, which does not exist: keep the folder ${facts.folder} beside the page, or reload the page.`)));
  else if (card.range !== state.range) body(card);
  return card;
}
const dataOf = row => chunks.get(chunkOf(row))?.get(row.key);
function head(card) {
  const {row} = card, delivered = `${count(row.delivered)} of ${count(row.published)} delivered`;
  card.firstChild.replaceChildren(
    make('header', {}, named('h3', dataOf(row)?.device ?? row.key), make('span', {class: 'pill'}, dot(row.health), HEALTH[row.health])),
    make('p', {}, make('small', {title: moment(row.last_ms)}, `last seen ${ago(row.last_ms)}`), ' ', row.health === 7 ? '' :
      make('button', {class: 'link', title: 'show its boots', onclick: () => boots(row.key)},
        delivered + (row.missing ? `, ${count(row.missing)} missing` : ''))));
}
function body(card) {
  card.range = state.range;
  card.lastChild.replaceChildren(...sensors(card.row, dataOf(card.row)));
}
function sensors(row, data) {
  if (!data || !data.series.length) return [make('p', {class: 'soft'}, 'No readings.')];
  const all = data.series.map(([name, unit, last, value, text, whole, latest]) => ({name, unit, last, value, text, whole,
    set: state.range !== 'all' && latest ? latest : whole}));
  all.sort((a, b) => !a.set - !b.set || !a.unit - !b.unit);
  const plotted = all.filter(one => one.set && one.set.t.length > 1), firsts = plotted.map(one => one.set.t[0]);
  let to = Math.max(...all.map(one => one.last)), from = Math.min(...firsts);
  if (state.range === 'day') from = Math.max(from, to - MS.d);
  const open = wide.has(row.key), some = open ? all : all.slice(0, MOST_SENSORS);
  const inside = some.map(one => {
    const unit = one.unit === null ? '' : UNITS.get(one.unit) ?? seen(one.unit);
    const value = one.text !== null ? seen(one.text) : one.value !== null ? `${number(one.value)} ${unit}` : '';
    return make('div', {class: 'sensor'}, make('div', {}, named('span', one.name || '(no name)'),
      make('b', {title: value}, value.slice(0, 200)), make('small', {title: moment(one.last)}, ago(one.last))),
      ...(one.set && one.set.t.length > 1 && to > from ? [drawn(one.set, from, to, seen(one.name), unit, one.text === 'true' || one.text === 'false')] : []));
  });
  if (all.length > some.length)
    inside.push(make('p', {}, make('button', {onclick: () => {wide.add(row.key); list()}},
      `${all.length - some.length} more`)));
  const [names, undated] = data.left_out || [0, 0];
  if (names) inside.push(make('p', {class: 'soft'}, `${count(names)} readings under further names are not drawn.`));
  if (undated) inside.push(make('p', {class: 'soft'}, `${count(undated)} readings without a plausible time are not drawn.`));
  return inside;
}

const SORTS = {worst: () => 0, name: (a, b) => a.key < b.key ? -1 : 1, 'last seen': (a, b) => b.last_ms - a.last_ms,
  'longest silent': (a, b) => a.last_ms - b.last_ms, missing: (a, b) => b.missing - a.missing};
function select() {
  const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
  found = facts.rows.filter(row => (state.health === '' || row.health === +state.health) && words.every(word => row.words.includes(word)));
  if (state.sort !== 'worst' && SORTS[state.sort]) found.sort(SORTS[state.sort]);
}
function list() {
  select();
  const pages = Math.max(1, Math.ceil(found.length / PAGE));
  state.page = Math.min(state.page, pages - 1);
  const first = state.page * PAGE, some = found.slice(first, first + PAGE);
  const range = some.length ? `${count(first + 1)}-${count(first + some.length)} of ${count(found.length)}` : 'none found';
  for (const pager of document.querySelectorAll('.pager')) {
    pager.children[0].hidden = pager.children[2].hidden = pages < 2;
    pager.children[0].disabled = !state.page;
    pager.children[1].textContent = range;
    pager.children[2].disabled = state.page >= pages - 1;
  }
  document.querySelector('.pager.below').hidden = pages < 2;
  const kept = new Set(some.map(row => row.key));
  for (const key of cards.keys()) if (!kept.has(key)) cards.delete(key);
  const made = some.map(shown), place = id('cards');
  if (made.length !== place.children.length || made.some((one, n) => place.children[n] !== one)) place.replaceChildren(...made);
  for (const one of id('chips').children) one.setAttribute('aria-pressed', one.value === state.health);
  for (const one of id('ranges').children) one.setAttribute('aria-pressed', one.value === (state.range || 'day'));
  remember();
}
function turn(by) {state.page += by; list(); id('values').scrollIntoView()}

// Delivery.
function rowsOf(lines, more = '') {
  const most = Math.max(...lines.map(line => line[1]), 1);
  const made = lines.map(([name, size, text]) => make('div', {}, named('span', name),
    make('span', {}, make('i', {style: `width:${100 * size / most}%`})), make('b', {}, text ?? count(size))));
  return make('div', {class: 'rows'}, ...made, more ? make('p', {class: 'soft'}, more) : '');
}
const panel = (name, heading, text, inside) => make('section', {class: 'panel', id: `plot-${name}`},
  make('h3', {}, heading), make('p', {class: 'soft'}, text), inside);
const rest = (shownOf, all, where) => all > shownOf ? `The first ${count(shownOf)} of ${count(all)}${where}.` : '';
function delivery() {
  const made = [], {over_time: time, delays} = facts;
  if (time.at.length > 1) {
    const step = time.step_s * 1000, from = time.at[0] * 1000, to = time.at.at(-1) * 1000 + step, most = Math.max(...time.messages);
    const {svg, x, y, box} = frame(from, to, 0, most * 1.08, 'messages over time', true);
    svg.append(make('path', {class: 'bars', d: time.at.map((at, n) =>
      `M${x(at * 1000)} 100V${y(time.messages[n])}H${Math.max(+x(at * 1000 + step * .9), +x(at * 1000) + 1)}V100Z`).join('')}));
    const by = new Map(time.at.map((at, n) => [at, time.messages[n]]));
    pointing(svg, from, to, at => {const one = Math.floor(at / step) * time.step_s;
      return [one * 1000 + step / 2, `${moment(one * 1000)}: ${count(by.get(one) || 0)} messages in ${span(step)}`]});
    const overTime = panel('time', 'Messages over time', `By their arrival; each bar is ${span(step)}.` +
      (facts.undated ? ` Not drawn: ${count(facts.undated)} that came before 2020 or after 2100 by their collector's clock.` : ''), box);
    overTime.classList.add('wide');
    made.push(overTime);
  }
  if (delays.octave.length) made.push(panel('delays', 'Delay from capture to arrival', 'Messages of boots that know the time.',
    rowsOf(delays.octave.map((octave, n) => [`${length(2 ** octave)} to ${length(2 ** (octave + 1))}`, delays.messages[n]]))));
  if (facts.missing.length) made.push(panel('missing', 'What is missing', 'Ranges of sequence numbers that have not arrived, longest first.',
    rowsOf(facts.missing.slice(0, 12).map(one => [`${one.device}, boot ${one.boot}: ${count(one.lo)}` + (one.hi > one.lo ? ` to ${count(one.hi)}` : ''), one.messages]),
      rest(12, facts.missing_ranges, '; all are in the table missing'))));
  for (const [name, heading, text, of] of [
    ['causes', 'Boots by cause', 'The causes that the boards reported.', facts.causes],
    ['quarantine', 'Quarantine', 'Messages that could not be read, by reason.', facts.quarantine]]) {
    const lines = Object.entries(of);
    if (lines.length) made.push(panel(name, heading, text, rowsOf(lines.slice(0, 15), rest(15, lines.length, ''))));
  }
  const worn = facts.own.filter(one => one.erases !== null).sort((a, b) => b.erases - a.erases);
  if (worn.length) made.push(panel('wear', 'Flash wear', `Erases of the most worn sector; it is rated for ${count(facts.erases_rated)}.`,
    rowsOf(worn.slice(0, 12).map(one => [one.device, one.erases, count(one.erases) +
      (one.years_left === null ? '' : `, ${one.years_left.toLocaleString('en', {maximumFractionDigits: 1})} years left`)]), rest(12, facts.own_count.erases, ', the most worn'))));
  const linked = facts.own.filter(one => one.reconnects !== null).sort((a, b) => b.reconnects - a.reconnects);
  if (linked.length) made.push(panel('reconnects', 'Reconnects', 'Connections beyond the first of each boot.',
    rowsOf(linked.slice(0, 12).map(one => [one.device, one.reconnects]), rest(12, facts.own_count.reconnects, ', the most'))));
  id('panels').replaceChildren(...made);
}
function length(ms) {
  for (const [limit, unit, size] of [[1e3, 'ms', 1], [MS.min, 's', 1e3], [MS.h, 'min', MS.min], [Infinity, 'h', MS.h]])
    if (ms < limit) return `${+(ms / size).toPrecision(3)} ${unit}`;
}

// The audit.
function boots(device) {id('search').value = state.boots = `device=${device}`; audit(); id('audit').closest('section').scrollIntoView(); remember()}
function audit() {
  id('audit').closest('section').hidden = !facts.totals.boots;
  const wanted = state.boots.toLowerCase().split(/\s+/).filter(Boolean), columns = facts.columns;
  let rows = facts.audit.filter(row => {
    const text = columns.map((name, n) => `${name}=${row[n]}`).join(' ').toLowerCase();
    return wanted.every(word => text.includes(word));
  });
  const by = columns.indexOf(state.by);
  if (by >= 0) rows.sort((a, b) => (a[by] < b[by] ? -1 : a[by] > b[by] ? 1 : 0) * (state.down ? -1 : 1));
  id('boots-listed').textContent = `${count(rows.length)} of ${count(facts.audit.length)} boots` + (rows.length > MOST_ROWS ? `, ${MOST_ROWS} are shown` : '')
    + (facts.totals.boots > facts.audit.length ? `; the worst of ${count(facts.totals.boots)} are listed, all are in the table audit` : '');
  id('audit').tHead.rows[0].replaceChildren(...columns.map(name => make('th', {onclick: () => {
    state.down = state.by === name && !state.down ? '1' : ''; state.by = name; audit(); remember()}}, name.replaceAll('_', ' '))));
  id('audit').tBodies[0].replaceChildren(...rows.slice(0, MOST_ROWS).map(row => make('tr', {}, ...row.map((value, n) =>
    make('td', {class: ['missing', 'unexplained'].includes(columns[n]) && value ? 'bad' : null, title: n ? null : seen(value)},
      value === null ? '' : typeof value === 'number' ? number(value) : seen(value))))));
}

function apply(newest) {
  facts = newest;
  facts.rows = facts.fleet.map(([key, part, health, names, published, delivered, missing, last_ms]) => ({key, part, health, published,
    delivered, missing, last_ms, words: `${seen(key)} ${key} ${HEALTH[health]} ${facts.names[names].join(' ')}`.toLowerCase()}));
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  id('when').textContent = `${counted(facts.totals.devices, 'device')}, ${counted(facts.sensors, 'plot')}. ` +
    (facts.last_ms ? `Newest message ${ago(facts.last_ms)}. ` : '') + (facts.live ? `Live; batch ${count(facts.totals.batches)}.` : `As of ${moment(facts.made_ms)}, batch ${count(facts.totals.batches)}.`) + ` Times in ${zone}.`;
  const verdict = id('verdict');
  verdict.textContent = seen(facts.verdict.line);
  verdict.className = facts.verdict.status ? 'bad' : 'good';
  for (const [name, value, bad] of facts.tiles) {
    const tile = id(`total-${name.replaceAll(' ', '-')}`);
    tile.textContent = count(value);
    tile.parentNode.classList.toggle('bad', bad);
  }
  const all = Object.values(facts.health).reduce((a, b) => a + b, 0);
  id('whole').replaceChildren(...facts.health.map((n, code) => n ? make('i', {style: `flex:${n / all};background:var(--h${code})`, title: `${HEALTH[code]}: ${count(n)}`}) : ''));
  const chip = (value, name, n) => make('button', {value, onclick: () => {state.health = value; state.page = 0; list()}}, value === '' ? '' : dot(value), `${name} ${count(n)}`);
  id('chips').replaceChildren(chip('', 'all', all), ...facts.health.map((n, code) => [n, code]).reverse().filter(([n]) => n).map(([n, code]) => chip(String(code), HEALTH[code], n)));
  id('listed').textContent = facts.rows.length < all
    ? `The page lists the ${count(facts.rows.length)} devices with the worst health of ${count(all)}; the counts are of all of them, and so are the tables.` : '';
  id('listed').hidden = facts.rows.length >= all;
  id('ranges').hidden = !facts.has_days;
  delivery();
  list();
  audit();
}

// During a continuous run the page fetches new facts, and keeps its position.
async function refresh() {
  try {
    const answer = await fetch(`facts.json?v=${encodeURIComponent(facts.version)}`, {cache: 'no-store'});
    if (answer.status === 200) {
      const newest = await answer.json(), before = [scrollX, scrollY];
      waiting.clear();
      apply(newest);
      scrollTo(...before);
    } else if (answer.status !== 204) throw new Error(await answer.text());
    refresh.heard = Date.now();
    id('stale').hidden = true;
  } catch (failed) {
    const why = failed instanceof TypeError ? 'the dashboard does not answer' : seen(failed.message);
    id('stale').textContent = `What is shown is of ${moment(refresh.heard)}: ${why}.`;
    id('stale').hidden = false;
  }
  setTimeout(refresh, facts.live * 1000);
}
refresh.heard = Date.now();

id('q').value = state.q;
id('q').oninput = event => {state.q = event.target.value; state.page = 0; list()};
id('sort').append(...Object.keys(SORTS).map(name => make('option', {value: name}, name === 'worst' ? 'worst first' : name)));
id('sort').value = SORTS[state.sort] ? state.sort : 'worst';
id('sort').onchange = event => {state.sort = event.target.value; state.page = 0; list()};
for (const one of id('ranges').children) one.onclick = () => {state.range = one.value; list()};
for (const one of document.querySelectorAll('.pager')) {
  one.children[0].onclick = () => turn(-1);
  one.children[2].onclick = () => turn(1);
}
id('search').value = state.boots;
id('search').oninput = event => {state.boots = event.target.value; audit(); remember()};
apply(facts);
if (facts.live) setTimeout(refresh, facts.live * 1000);
