// Pointer, wheel and keys only set the view; the chart draws it in the next frame.

/** Return the place on the axis under a pointer. */
function under(chart, event) {
  const box = chart.parts.stage.getBoundingClientRect();
  const {plot} = chart.place;
  const x = Math.min(plot.right, Math.max(plot.left, event.clientX - box.left));
  return {x, y: event.clientY - box.top, at: chart.timeAt(x)};
}

function listen(chart) {
  const {over} = chart.parts;
  listenPointer(chart, over);
  over.addEventListener('dblclick', () => chart.goTo(chart.full));
  over.addEventListener('wheel', event => wheeled(chart, event), {passive: false});
  over.addEventListener('keydown', event => {
    if (keyed(chart, event)) event.preventDefault();
  });
  over.addEventListener('blur', () => chart.point(null));
}

/** Follow the pointers on the chart: one draws a box to zoom (a finger moves the view), two pinch. */
function listenPointer(chart, over) {
  const fingers = new Map();
  let drag = null;
  over.addEventListener('pointerdown', event => {
    if (event.pointerType === 'mouse' && event.button !== 0) return;
    const spot = under(chart, event);
    fingers.set(event.pointerId, spot.x);
    over.setPointerCapture(event.pointerId);
    const small = spot.y >= chart.place.overview - 4;
    drag = {kind: small ? 'overview' : event.pointerType === 'touch' ? 'move' : 'box', x: spot.x, at: spot.at, view: {...chart.view}};
    if (small) chart.centre(chart.overviewTime(spot.x));
  });
  over.addEventListener('pointermove', event => {
    const spot = under(chart, event);
    if (fingers.size === 2 && fingers.has(event.pointerId)) pinched(chart, fingers, event.pointerId, spot.x);
    else if (drag && fingers.has(event.pointerId)) dragged(chart, drag, spot);
    else chart.point(spot.y < chart.place.overview ? spot.at : null);
  });
  const ended = event => {
    fingers.delete(event.pointerId);
    if (drag && drag.kind === 'box') boxed(chart, drag, under(chart, event), event.type === 'pointerup');
    drag = null;
  };
  over.addEventListener('pointerup', ended);
  over.addEventListener('pointercancel', ended);
  over.addEventListener('pointerleave', () => { if (!drag) chart.point(null); });
}

function dragged(chart, drag, spot) {
  if (drag.kind === 'overview') chart.centre(chart.overviewTime(spot.x));
  else if (drag.kind === 'move') {
    const shift = (drag.x - spot.x) / chart.plot.width * (drag.view.to - drag.view.from);
    chart.jump({from: drag.view.from + shift, to: drag.view.to + shift});
    if (!chart.zoomed()) chart.point(spot.at);
  } else {
    chart.brush(Math.min(drag.x, spot.x), Math.max(drag.x, spot.x));
    chart.point(spot.at);
  }
}

function boxed(chart, drag, spot, done) {
  chart.brush(0, 0);
  if (!done || Math.abs(spot.x - drag.x) < 5) return;
  chart.goTo({from: Math.min(drag.at, spot.at), to: Math.max(drag.at, spot.at)});
}

function pinched(chart, fingers, id, x) {
  const other = [...fingers].find(([key]) => key !== id)[1];
  const before = Math.abs(fingers.get(id) - other);
  const now = Math.abs(x - other);
  if (before > 10 && now > 10) chart.zoomAt(before / now, chart.timeAt((x + other) / 2), true);
  fingers.set(id, x);
}

/** Zoom by the wheel if the chart is focused, else let the page scroll; sideways it moves the view. */
function wheeled(chart, event) {
  const chosen = event.ctrlKey || document.activeElement === chart.parts.over;
  const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
  if (!chosen || (sideways && !chart.zoomed())) return;
  event.preventDefault();
  const scale = event.deltaMode === 1 ? 16 : 1;
  if (sideways) chart.shift(event.deltaX * scale / chart.plot.width, true);
  else chart.zoomAt(Math.exp(Math.max(-300, Math.min(300, event.deltaY * scale)) * 0.0025), under(chart, event).at, true);
}

/** Act on a key; return whether it was one of ours. */
function keyed(chart, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return false;
  const turn = {ArrowLeft: -1, ArrowRight: 1, PageUp: -1, PageDown: 1}[event.key];
  if (turn && (event.shiftKey || event.key.startsWith('Page'))) chart.shift(turn * 0.25);
  else if (turn) chart.walk(turn);
  else if (event.key === '+' || event.key === '=') chart.zoom(0.5);
  else if (event.key === '-' || event.key === '_') chart.zoom(2);
  else if (event.key === '0') chart.goTo(chart.full);
  else if (event.key === 'Home') chart.walkTo(chart.view.from);
  else if (event.key === 'End') chart.walkTo(chart.view.to);
  else if (event.key === 'Escape') chart.point(null);
  else return false;
  return true;
}
