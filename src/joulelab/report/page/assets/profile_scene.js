// The scene as data: panels with layers of buckets. Nothing here touches the canvas.
//
// A layer is {kind: 'area' | 'band' | 'line', colour, x0, dx, n, low, high}: bucket k reaches from x0 + k dx to
// x0 + (k + 1) dx on the chart's axis; an area and a band fill from low to high, a line runs at high.

const PANELS = [
  {unit: 'W', title: 'power', height: 300},
  {unit: '%', title: 'load', height: 84},
  {unit: 'degC', title: 'temperature', height: 84},
];

/** Return the visible part of a trace: arrays from the first bucket in view. */
function cut(track, profile, level, view) {
  const scale = track.scale;
  const [first, last] = profile.range(level, view.from * scale, view.to * scale);
  const step = profile.steps[level];
  return {first, last, n: last - first, x0: (profile.from + first * step) / scale, dx: step / scale};
}

/** Return the areas of a stack, each on those before it; one without a reading has no height there. */
function stacked(profile, level, seen, traces, colours, banded) {
  const layers = [];
  let below = new Float32Array(seen.n);
  for (const trace of traces) {
    const means = trace.values('mean', level);
    const floor = new Float32Array(seen.n);
    const top = new Float32Array(seen.n);
    const next = new Float32Array(seen.n);
    for (let k = 0; k < seen.n; k += 1) {
      const mean = means[seen.first + k];
      floor[k] = below[k];
      top[k] = below[k] + mean;
      next[k] = mean === mean ? top[k] : below[k];
    }
    const placed = {colour: colours.get(trace.id), x0: seen.x0, dx: seen.dx, n: seen.n};
    layers.push({kind: 'area', low: floor, high: top, ...placed});
    if (banded) layers.push({kind: 'band', ...raised(trace, level, seen, below), ...placed});
    below = next;
  }
  return layers;
}

/** Return the lowest and highest readings of a trace that stands on others. */
function raised(trace, level, seen, below) {
  const lows = trace.values('low', level);
  const highs = trace.values('high', level);
  const low = new Float32Array(seen.n);
  const high = new Float32Array(seen.n);
  for (let k = 0; k < seen.n; k += 1) {
    low[k] = below[k] + lows[seen.first + k];
    high[k] = below[k] + highs[seen.first + k];
  }
  return {low, high};
}

/** Return a trace as a line with the band from its lowest to its highest readings. */
function lined(trace, level, seen, colour, dashed) {
  const part = kind => trace.values(kind, level).subarray(seen.first, seen.last);
  const placed = {colour, x0: seen.x0, dx: seen.dx, n: seen.n};
  return [
    {kind: 'band', low: part('low'), high: part('high'), ...placed},
    {kind: 'line', low: null, high: part('mean'), dashed, ...placed},
  ];
}

/** Return a trace as a filled shape for the overview: its mean, with its highest readings behind. */
function silhouette(trace, level, seen) {
  const part = kind => trace.values(kind, level).subarray(seen.first, seen.last);
  const placed = {kind: 'area', colour: 7, x0: seen.x0, dx: seen.dx, n: seen.n, low: new Float32Array(seen.n)};
  return [{...placed, high: part('high'), alpha: 0.35}, {...placed, high: part('mean'), alpha: 0.6}];
}

/** Return the highest finite value of layers and lines. */
function highest(layers, lines) {
  let most = 0;
  for (const layer of layers) for (let k = 0; k < layer.n; k += 1) if (layer.high[k] > most) most = layer.high[k];
  for (const line of lines) most = Math.max(most, line.w);
  return most;
}

/** Return the layers of the power panel of one run: the stack, the whole, then the other shown traces. */
function powerLayers(chart, track, profile, level, seen) {
  const shown = profile.traces.filter(trace => trace.unit === 'W' && chart.shows(trace.id));
  const stack = shown.filter(trace => trace.role === 'stack');
  const rest = shown.filter(trace => trace.role !== 'stack');
  const whole = rest.some(trace => trace.role === 'whole');
  const layers = stacked(profile, level, seen, stack, chart.colours, !whole);
  for (const trace of rest) layers.push(...lined(trace, level, seen, chart.colours.get(trace.id), trace.role === 'cap'));
  return layers;
}

/** Return all layers of a panel. */
function layersOf(chart, unit) {
  const layers = [];
  chart.tracks.forEach((track, k) => {
    if (chart.overlay && !chart.shows(`run ${k}`)) return;
    const profile = chart.source(track);
    const level = profile.level((chart.view.to - chart.view.from) * track.scale, chart.plot.width);
    const seen = cut(track, profile, level, chart.view);
    if (chart.overlay) {
      const trace = overlayTrace(chart, k, unit);
      if (trace) layers.push(...lined(trace, level, seen, k, false));
    } else if (unit === 'W') layers.push(...powerLayers(chart, track, profile, level, seen));
    else {
      for (const trace of profile.traces) {
        if (trace.unit === unit && chart.shows(trace.id)) layers.push(...lined(trace, level, seen, chart.colours.get(trace.id), false));
      }
    }
  });
  return layers;
}

/** Return the trace of a run in a chart of several runs. */
function overlayTrace(chart, k, unit) {
  if (unit === 'W') return chart.laid(k);
  return chart.tracks[k].profile.traces.find(trace => trace.unit === unit && trace.role === 'load' && trace.shown) || null;
}

/** Return the horizontal lines that are shown: rated, idle, mean. */
function linesOf(chart) {
  if (chart.overlay) return [];
  return chart.tracks[0].profile.lines.filter((line, k) => chart.shows(`line ${k}`));
}

/** Return the panels: power always, others if a trace of their unit is shown. */
function panelsOf(chart) {
  const has = unit => chart.tracks.some(({profile}, k) => (chart.overlay
    ? unit === '%' && overlayTrace(chart, k, unit)
    : profile.traces.some(trace => trace.unit === unit && chart.shows(trace.id))));
  return PANELS.filter(panel => panel.unit === 'W' || has(panel.unit));
}

/** Return a panel with its layers, its lines and its scale. */
function panelScene(chart, panel) {
  const layers = layersOf(chart, panel.unit);
  const lines = panel.unit === 'W' ? linesOf(chart) : [];
  let top = panel.unit === '%' ? 100 : highest(layers, lines) * 1.04;
  if (!(top > 0)) top = 1;
  const step = roundStep(top, Math.max(2, Math.floor(panel.height / 44)));
  return {layers, lines, most: top, step};
}

/** Return the names of phases as boxes in rows by depth, in seconds of the chart's axis. */
function phaseRows(chart) {
  const rows = [];
  chart.tracks.forEach((track, k) => {
    if (chart.overlay && (chart.tracks.length > 3 || !chart.shows(`run ${k}`))) return;
    const deepest = chart.overlay ? 0 : Math.min(track.profile.depth, 2);
    for (let depth = 0; depth <= deepest; depth += 1) {
      const boxes = track.profile.phases.filter(phase => phase.depth === depth);
      if (boxes.length) rows.push({colour: chart.overlay ? k : -1, scale: track.scale, boxes});
    }
  });
  return rows;
}
