// Draws a chart's scene on its canvas. All places are CSS pixels; the canvas is scaled to the screen's.

const ROW = 19; // height of a row of phases
const AXIS = 24;
const BETWEEN = 14;
const OVERVIEW = 30;

/** Return the colours of the page as they are now. */
function palette(element) {
  const style = getComputedStyle(element);
  const read = name => style.getPropertyValue(name).trim();
  return {
    data: [0, 1, 2, 3, 4, 5, 6, 7].map(k => read(`--c${k}`)),
    bg: read('--bg'), panel: read('--panel'), ink: read('--ink'), muted: read('--muted'), rule: read('--rule'),
    strong: read('--strong-rule'), even: read('--phase-even'), odd: read('--phase-odd'), bad: read('--bad'),
    warn: read('--warn'), focus: read('--focus'), sans: read('--sans'),
  };
}

/** Return where everything stands for a width: the plot, the rows of phases, the panels, the axis. */
function placed(chart, width) {
  const narrow = width < 560;
  const plot = {left: narrow ? 52 : 58, right: width - (narrow ? 6 : 10)};
  plot.width = Math.max(50, plot.right - plot.left);
  let y = 2;
  const rows = phaseRows(chart).map(row => ({...row, top: (y += ROW) - ROW}));
  y += rows.length ? 8 : 14;
  const panels = panelsOf(chart).map(panel => {
    const height = panel.unit === 'W' ? (narrow ? 220 : panel.height) : panel.height;
    const top = y;
    y += height + BETWEEN + (panel.unit === 'W' ? 6 : 4);
    return {...panel, height, top, bottom: top + height};
  });
  const axis = y - BETWEEN - 2;
  return {width, plot, rows, panels, axis, overview: axis + AXIS + 8, height: axis + AXIS + 8 + OVERVIEW + 2};
}

/** Write a text that is cut to a width, with an ellipsis; nothing where not even that fits. */
function fitted(pen, text, x, y, room) {
  if (room < 8) return;
  let said = text;
  if (pen.measureText(said).width > room) {
    const number = /\d+$/.exec(said); // the number of `epoch 12` distinguishes it from other epochs
    if (number && pen.measureText(number[0]).width <= room && room < 60) {
      pen.fillText(number[0], x, y);
      return;
    }
    let low = 0;
    let high = said.length;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (pen.measureText(`${said.slice(0, middle)}…`).width <= room) low = middle;
      else high = middle - 1;
    }
    if (low < 1 || (low < 2 && text.length > 3)) return;
    said = `${said.slice(0, low)}…`;
  }
  pen.fillText(said, x, y);
}

/** Shade phases: a row of named boxes above, and light stripes of the outermost ones through the panels. */
function paintPhases(pen, place, x, colours) {
  const {plot} = place;
  place.rows.forEach((row, number) => {
    let reached = -Infinity;
    row.boxes.forEach((phase, k) => {
      const left = Math.max(plot.left, x(phase.from_s / row.scale));
      const right = Math.min(plot.right, x(phase.to_s / row.scale));
      if (right <= left) return;
      if (number === 0 && row.colour < 0 && k % 2 === 0) {
        pen.fillStyle = colours.even;
        pen.globalAlpha = 0.5;
        for (const panel of place.panels) pen.fillRect(left, panel.top, right - left, panel.height);
        pen.globalAlpha = 1;
      }
      if (right - reached < 0.5) return; // too narrow to be seen
      pen.fillStyle = k % 2 ? colours.odd : colours.even;
      pen.fillRect(left, row.top, Math.max(0.5, right - left - (right - left > 3 ? 1 : 0)), ROW - 2);
      if (row.colour >= 0) {
        pen.fillStyle = colours.data[row.colour];
        pen.fillRect(left, row.top + ROW - 4, Math.max(0.5, right - left - 1), 2);
      }
      pen.fillStyle = colours.ink;
      const aside = right - left < 40 ? 2 : 5;
      const start = Math.max(left, reached) + aside;
      fitted(pen, phase.title, start, row.top + ROW / 2 - 0.5, right - start - aside);
      reached = Math.max(reached, right);
    });
  });
}

/** Draw scale and grid of a panel. */
function paintScale(pen, place, panel, colours) {
  const {plot} = place;
  const unit = panel.unit === 'W' && panel.most >= 1e4 ? (panel.most >= 1e7 ? ['MW', 1e6] : ['kW', 1e3]) : [panel.unit === 'degC' ? '°C' : panel.unit, 1];
  const decimals = Math.max(0, -Math.floor(Math.log10(panel.step / unit[1]) + 1e-9));
  pen.textAlign = 'right';
  for (let value = 0; value <= panel.most * 1.0001; value += panel.step) {
    const at = Math.round(panel.bottom - value / panel.most * panel.height) + 0.5;
    pen.strokeStyle = value === 0 ? colours.strong : colours.rule;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(plot.left, at);
    pen.lineTo(plot.right, at);
    pen.stroke();
    const last = value + panel.step > panel.most * 1.0001;
    pen.fillStyle = colours.muted;
    pen.fillText((value / unit[1]).toFixed(decimals) + (last ? ` ${unit[0]}` : ''), plot.left - 6, at);
  }
  pen.textAlign = 'left';
}

/** Draw rated, idle and mean lines with names that do not overlap. */
function paintLines(pen, place, panel, y, colours) {
  const {plot} = place;
  const taken = [];
  for (const line of [...panel.lines].sort((a, b) => b.w - a.w)) {
    const at = Math.round(y(line.w)) + 0.5;
    const colour = line.kind === 'rated' ? colours.bad : line.kind === 'idle' ? colours.ink : colours.muted;
    pen.strokeStyle = colour;
    pen.lineWidth = 1.25;
    pen.setLineDash(line.kind === 'mean' ? [2, 3] : [7, 4]);
    pen.beginPath();
    pen.moveTo(plot.left, at);
    pen.lineTo(plot.right, at);
    pen.stroke();
    pen.setLineDash([]);
    let under = at - 9 < panel.top + 4 ? at + 10 : at - 8;
    while (taken.some(other => Math.abs(other - under) < 15)) under += 15;
    taken.push(under);
    const said = line.label;
    const wide = Math.min(pen.measureText(said).width, plot.width - 12);
    pen.fillStyle = colours.bg;
    pen.globalAlpha = 0.82;
    pen.fillRect(plot.right - wide - 10, under - 7.5, wide + 8, 15);
    pen.globalAlpha = 1;
    pen.fillStyle = colour;
    fitted(pen, said, plot.right - wide - 6, under, wide + 1);
  }
}

/** Hatch stretches without readings. */
function paintGaps(pen, place, x, track, colours) {
  const {plot} = place;
  const panel = place.panels[0];
  for (const gap of track.profile.gaps) {
    const left = Math.max(plot.left, x(gap.from_s / track.scale));
    const right = Math.min(plot.right, Math.max(x(gap.to_s / track.scale), x(gap.from_s / track.scale) + 2));
    if (right <= left) continue;
    pen.save();
    pen.beginPath();
    pen.rect(left, panel.top, right - left, panel.height);
    pen.clip();
    pen.strokeStyle = colours.warn;
    pen.globalAlpha = 0.55;
    pen.lineWidth = 1;
    pen.beginPath();
    for (let at = left - panel.height; at < right; at += 7) {
      pen.moveTo(at, panel.bottom);
      pen.lineTo(at + panel.height, panel.top);
    }
    pen.stroke();
    pen.restore();
    pen.fillStyle = colours.warn;
    pen.fillRect(left, panel.top - 3, right - left, 3);
  }
}

/** Draw the axis of time: from the workload's start, or as a share of its runtime. */
function paintTime(pen, place, view, x, colours, fraction) {
  const {plot, axis} = place;
  const span = view.to - view.from;
  const most = Math.max(2, Math.floor(plot.width / 72));
  const step = fraction ? roundStep(span, most) : timeStep(span, most);
  const longest = Math.max(Math.abs(view.from), Math.abs(view.to));
  pen.fillStyle = colours.muted;
  pen.textAlign = 'right';
  pen.fillText(fraction ? 'runtime' : clockName(step, longest), plot.left - 6, axis + 14);
  pen.textAlign = 'center';
  for (let k = Math.ceil(view.from / step - 1e-9); k * step <= view.to; k += 1) {
    const at = Math.round(x(k * step)) + 0.5;
    pen.strokeStyle = k === 0 ? colours.strong : colours.rule;
    pen.lineWidth = 1;
    pen.beginPath();
    for (const panel of place.panels) { pen.moveTo(at, panel.top); pen.lineTo(at, panel.bottom); }
    pen.moveTo(at, axis - 2);
    pen.lineTo(at, axis + 4);
    pen.stroke();
    const share = k * step * 100;
    const said = fraction ? `${share.toFixed(Math.max(0, -Math.floor(Math.log10(step * 100) + 1e-9)))} %` : clocked(k * step, step, longest);
    const half = pen.measureText(said).width / 2;
    if (at + half <= place.width && at - half >= plot.left - 3) pen.fillText(said, at, axis + 14);
  }
  pen.textAlign = 'left';
}

/** Draw the overview of the whole run, and mark the visible part. */
function paintOverview(pen, chart, place, colours) {
  const {plot, overview: top} = place;
  const {full, view} = chart;
  const x = time => plot.left + (time - full.from) / (full.to - full.from) * plot.width;
  pen.fillStyle = colours.panel;
  pen.fillRect(plot.left, top, plot.width, OVERVIEW);
  const layers = chart.outlines();
  const most = highest(layers, []) || 1;
  const box = {left: plot.left, top: top + 3, width: plot.width, height: OVERVIEW - 4};
  paintLayers(pen, chart.rasters.get('small'), layers, box, full, most, colours, chart.ratio);
  const left = x(view.from);
  const right = x(view.to);
  pen.fillStyle = colours.bg;
  pen.globalAlpha = 0.72;
  pen.fillRect(plot.left, top, left - plot.left, OVERVIEW);
  pen.fillRect(right, top, plot.right - right, OVERVIEW);
  pen.globalAlpha = 1;
  pen.strokeStyle = chart.zoomed() ? colours.focus : colours.rule;
  pen.lineWidth = chart.zoomed() ? 1.5 : 1;
  pen.strokeRect(left + 0.5, top + 0.5, Math.max(2, right - left - 1), OVERVIEW - 1);
}

/** Draw all. */
function paint(pen, chart, place, colours) {
  const {plot} = place;
  const {view} = chart;
  const x = time => plot.left + (time - view.from) / (view.to - view.from) * plot.width;
  pen.clearRect(0, 0, place.width, place.height);
  pen.font = `12px ${colours.sans}`;
  pen.textBaseline = 'middle';
  pen.textAlign = 'left';
  paintPhases(pen, place, x, colours);
  paintTime(pen, place, view, x, colours, chart.fraction);
  place.scenes = place.panels.map(panel => ({...panel, ...panelScene(chart, panel)}));
  for (const panel of place.scenes) {
    const y = value => panel.bottom - value / panel.most * panel.height;
    paintScale(pen, place, panel, colours);
    const box = {left: plot.left, top: panel.top, width: plot.width, height: panel.height};
    paintLayers(pen, chart.rasters.get(panel.unit), panel.layers, box, view, panel.most, colours, chart.goal ? 1 : chart.ratio); // coarse while it moves
    paintLines(pen, place, panel, y, colours);
  }
  for (const track of chart.tracks) if (!chart.overlay) paintGaps(pen, place, x, track, colours);
  if (chart.tracks.length) paintOverview(pen, chart, place, colours);
}
