// The elements around the canvas: legend, buttons, the reading under the pointer, and the resolution.

/** Make an element with a class, text and attributes. Text of a run is never taken for markup. */
function made(name, className, text, attributes = {}) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined && text !== null) element.textContent = text;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

/** Return a button that acts when it is pressed. */
function pressed(label, title, act, className = '') {
  const button = made('button', className, label, {type: 'button', title});
  if (title) button.setAttribute('aria-label', title);
  button.addEventListener('click', act);
  return button;
}

/** Return the class of a colour: a number of data's, below 0 for ink, or a word. */
function keyClass(colour) {
  if (typeof colour === 'string') return `key-${colour}`;
  return colour < 0 ? 'key-ink' : `key${colour % 8}`;
}

/** Return a button of the legend, which shows and hides its trace. */
function keyButton(chart, key) {
  const button = made('button', 'key', null, {type: 'button', 'aria-pressed': String(chart.shows(key.id))});
  const form = key.form === 'line' ? 'swatch swatch-line' : 'swatch';
  button.append(made('span', `${form} ${keyClass(key.colour)}`), made('span', '', key.label));
  button.addEventListener('click', () => {
    chart.toggle(key.id);
    button.setAttribute('aria-pressed', String(chart.shows(key.id)));
  });
  return button;
}

/** Return the entries of the legend in two groups: drawn at first, and further traces. */
function legendKeys(chart) {
  if (chart.overlay) {
    return [chart.tracks.map((track, k) => ({id: `run ${k}`, label: track.label, colour: k, form: 'line'})), []];
  }
  const {profile} = chart.tracks[0];
  const keys = profile.traces.map(trace => ({
    id: trace.id, label: trace.label, colour: chart.colours.get(trace.id),
    form: trace.role === 'stack' ? 'box' : 'line', more: !trace.shown,
  }));
  const lines = profile.lines.map((line, k) => ({
    id: `line ${k}`, label: line.kind === 'rated' ? 'rated power' : line.kind, form: 'line',
    colour: {rated: 'bad', idle: 'ink'}[line.kind] || 'muted',
  }));
  const [first, more] = [keys.filter(key => !key.more), keys.filter(key => key.more)];
  return [[...first, ...lines], more];
}

/** Build the legend; a long list of further traces is folded. */
function legend(chart) {
  const box = made('div', 'legend');
  const [first, more] = legendKeys(chart);
  const group = made('div', 'keys', null, {role: 'group', 'aria-label': chart.overlay ? 'Runs' : 'Traces'});
  group.append(...first.map(key => keyButton(chart, key)));
  box.append(group);
  if (more.length) {
    const fold = made('details', 'more');
    const keys = made('div', 'keys', null, {role: 'group', 'aria-label': 'More traces'});
    keys.append(...more.map(key => keyButton(chart, key)));
    fold.append(made('summary', '', `${more.length} more ${more.length === 1 ? 'trace' : 'traces'}`), keys);
    box.append(fold);
  }
  return box;
}

/** Build the choice of an overlay: which trace, and by time or by share of the runtime. */
function overlayTools(chart) {
  const tools = made('div', 'choices');
  const choice = made('select', '', null, {'aria-label': 'Trace'});
  chart.common.forEach(({label}, number) => choice.append(made('option', '', label, {value: String(number)})));
  if (!chart.common.length) choice.append(made('option', '', 'nothing in common', {value: '0'}));
  choice.disabled = !chart.common.length;
  choice.value = String(chart.chosen);
  choice.addEventListener('change', () => chart.choose(Number(choice.value)));
  const ways = made('div', 'ways', null, {role: 'group', 'aria-label': 'Axis'});
  const buttons = [['by time', false], ['by share of runtime', true]].map(([label, fraction]) => {
    const button = made('button', 'way', label, {type: 'button', 'aria-pressed': String(chart.fraction === fraction)});
    button.addEventListener('click', () => {
      chart.byFraction(fraction);
      for (const other of buttons) other.setAttribute('aria-pressed', String(other === button));
    });
    return button;
  });
  ways.append(...buttons);
  tools.append(choice, ways);
  return tools;
}

/** Build the buttons that zoom. */
function zoomTools(chart) {
  const tools = made('div', 'zoom', null, {role: 'group', 'aria-label': 'Zoom'});
  chart.reset = pressed('Whole run', '', () => chart.goTo(chart.full), 'reset');
  chart.reset.disabled = true;
  tools.append(pressed('\u2212', 'Zoom out', () => chart.zoom(2)), pressed('+', 'Zoom in', () => chart.zoom(0.5)), chart.reset);
  return tools;
}

const HELP = 'Drag to zoom, double click for the whole run; the wheel zooms once the chart is focused, or with Ctrl. '
  + 'Keys: arrows move the reading, Shift and arrows the view, + and \u2212 zoom, 0 shows all.';

/** Build all elements of a figure, before its caption. */
function built(chart, figure, number) {
  figure.querySelectorAll('.waits, noscript').forEach(part => part.remove());
  const caption = figure.querySelector('.summary, figcaption');
  const summary = caption ? caption.textContent.trim() : 'Power over time.';
  const top = made('div', 'tools');
  if (chart.overlay) top.append(overlayTools(chart));
  top.append(legend(chart), zoomTools(chart));
  const stage = made('div', 'stage');
  const canvas = made('canvas', 'drawn', null, {role: 'img', 'aria-label': summary});
  const over = made('div', 'over', null, {
    tabindex: '0', role: 'application', 'aria-roledescription': 'chart', 'aria-label': 'Power over time: move the reading with the arrow keys',
    'aria-describedby': `profile-help-${number}`,
  });
  const cursor = made('div', 'cursor', null, {hidden: ''});
  const brush = made('div', 'brush', null, {hidden: ''});
  const tip = made('div', 'tip', null, {hidden: '', 'aria-hidden': 'true'});
  stage.append(canvas, brush, cursor, over);
  const status = made('p', 'status muted');
  const help = made('p', 'help muted no-print', HELP, {id: `profile-help-${number}`});
  const spoken = made('p', 'sr-only', '', {'aria-live': 'polite'});
  stage.append(tip);
  const parts = [top, stage, status, help, spoken];
  if (figure.firstChild) figure.prepend(...parts);
  else figure.append(...parts);
  return {canvas, over, cursor, brush, tip, status, spoken, stage, top};
}

/** Return the reading at a place of the axis: time, phases, and the value of each trace. */
function reading(chart, at) {
  const rows = [];
  const place = chart.place;
  let step = Infinity;
  chart.tracks.forEach((track, k) => {
    if (chart.overlay && !chart.shows(`run ${k}`)) return;
    const profile = chart.source(track);
    const level = profile.level((chart.view.to - chart.view.from) * track.scale, place.plot.width);
    const bucket = profile.bucket(level, at * track.scale);
    step = Math.min(step, profile.steps[level]);
    const traces = chart.overlay
      ? ['W', '%'].map(unit => overlayTrace(chart, k, unit)).filter(Boolean)
      : profile.traces.filter(trace => chart.shows(trace.id));
    for (const trace of traces) {
      const value = kind => (bucket < 0 ? NaN : trace.values(kind, level)[bucket]);
      rows.push({
        label: chart.overlay ? `${track.label} ${trace.unit === 'W' ? '' : trace.label}`.trim() : trace.label,
        colour: chart.overlay ? k : chart.colours.get(trace.id), unit: trace.unit, whole: trace.role === 'whole',
        mean: value('mean'), low: value('low'), high: value('high'),
      });
    }
  });
  return {rows, step, ...when(chart, at, step)};
}

const MOST_GAPS = 3; // named at one place

/** Return a place of the axis in words, and the phases there. */
function when(chart, at, step) {
  const {profile} = chart.tracks[0];
  const titles = chart.overlay ? [] : profile.phasesAt(at).map(phase => phase.title);
  const gaps = chart.overlay ? [] : profile.gaps.filter(one => one.from_s <= at && at <= one.to_s);
  titles.push(...gaps.slice(0, MOST_GAPS).map(gap => `gap: ${gap.label}`));
  if (gaps.length > MOST_GAPS) titles.push(`and ${gaps.length - MOST_GAPS} more gaps`);
  if (chart.fraction) return {time: `${(at * 100).toFixed(1)} % of the runtime`, utc: '', titles};
  const time = clocked(at, Math.min(step, 1), Math.max(120, Math.abs(chart.full.to)));
  const date = new Date(profile.start + at * 1000);
  const utc = chart.overlay || Number.isNaN(date.getTime()) ? '' : `${date.toISOString().slice(11, 19)} UTC`;
  return {time, utc, titles};
}

/** Return low to high in one unit, or nothing if both are equal. */
function extent(row) {
  if (!Number.isFinite(row.low) || row.low === row.high) return '';
  const [low, high] = [quantity(row.low, row.unit), quantity(row.high, row.unit)];
  if (low === high) return '';
  const [lowUnit, highUnit] = [low.split(' ')[1], high.split(' ')[1]];
  return lowUnit === highUnit ? `${low.split(' ')[0]} \u2013 ${high.split(' ')[0]}` : `${low} \u2013 ${high}`;
}

const MOST_ROWS = 16; // the reading must not be taller than the chart

/** Fill the box beside the pointer. */
function fillTip(tip, read) {
  tip.replaceChildren();
  const head = made('div', 'tip-head');
  head.append(made('strong', '', read.time), made('span', 'muted', read.utc));
  tip.append(head);
  if (read.titles.length) tip.append(made('div', 'tip-phase', read.titles.join(' / ')));
  const grid = made('div', 'tip-grid');
  for (const row of read.rows.slice(0, MOST_ROWS)) {
    const strong = row.whole ? ' strong' : '';
    grid.append(
      made('span', `swatch ${keyClass(row.colour)}`), made('span', `tip-name${strong}`, row.label),
      made('span', `tip-value${strong}`, quantity(row.mean, row.unit)), made('span', 'tip-extent muted', extent(row)),
    );
  }
  tip.append(grid);
  if (read.rows.length > MOST_ROWS) tip.append(made('div', 'muted', `and ${read.rows.length - MOST_ROWS} more`));
}

/** Return a reading in one sentence, for screen readers. */
function sentence(read) {
  const values = read.rows.slice(0, MOST_ROWS).map(row => {
    const between = extent(row);
    return `${row.label} ${quantity(row.mean, row.unit)}${between ? ` (${between})` : ''}`;
  });
  return `${read.time}${read.titles.length ? `, ${read.titles.join(', ')}` : ''}: ${values.join(', ')}`;
}

/** Show the time that a point stands for, and the finest resolution. */
function describeResolution(chart) {
  const source = chart.source(chart.tracks[0]);
  const {profile} = chart.tracks[0];
  const level = source.level((chart.view.to - chart.view.from) * chart.tracks[0].scale, chart.plot.width);
  const step = source.steps[level];
  const raw = profile.isRaw(step);
  const point = raw ? `each point: ${lasting(step)}, the readings themselves` : `each point: ${lasting(step)}, lowest and highest kept`;
  const parts = [point];
  if (!raw && profile.isRaw(profile.finest)) parts.push(`this page's finest step: ${lasting(profile.finest)}, the readings themselves`);
  else if (!raw) {
    const alone = chart.overlay ? 'joulelab dashboard shows them, run by run' : 'joulelab dashboard shows them';
    const served = chart.rawUrl ? 'zoom in further for them' : alone;
    parts.push(`this page's finest step: ${lasting(profile.finest)}`, `readings every ${lasting(profile.raw)} (${served})`);
  }
  if (chart.trouble) parts.push(chart.trouble);
  return parts.join(' · ');
}
