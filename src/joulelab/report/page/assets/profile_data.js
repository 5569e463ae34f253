// Power over time as the page holds it: levels of buckets, decoded when they are first drawn. Times in s, powers in W.

/** Return base64 text as little-endian 32-bit numbers; NaN is a bucket without a reading. */
function decoded(text) {
  let bytes;
  if (typeof Uint8Array.fromBase64 === 'function') {
    bytes = Uint8Array.fromBase64(text);
  } else {
    const raw = atob(text);
    bytes = new Uint8Array(raw.length);
    for (let k = 0; k < raw.length; k += 1) bytes[k] = raw.charCodeAt(k);
  }
  return new Float32Array(bytes.buffer, 0, bytes.length >> 2);
}

/** One curve: mean, low and high per bucket, at every level. */
class Trace {
  constructor(given) {
    this.id = given.id;
    this.label = given.label;
    this.role = given.role;
    this.unit = given.unit;
    this.shown = given.shown;
    this.texts = {mean: given.mean, low: given.low, high: given.high};
    this.kept = {mean: [], low: [], high: []};
  }

  /** Return one array of a level. */
  values(kind, level) {
    const kept = this.kept[kind];
    if (!kept[level]) kept[level] = decoded(this.texts[kind][level]);
    return kept[level];
  }
}

const NEARLY = 1.05; // a grid is not exactly as fine as its readings

/** Power of one run over time. */
class Profile {
  constructor(given) {
    this.start = Date.parse(given.start_utc);
    this.duration = given.duration_s;
    this.from = given.from_s;
    this.to = given.to_s;
    this.finest = given.finest_s;
    this.raw = given.raw_s;
    this.steps = given.steps_s;
    this.counts = given.counts;
    this.lines = given.lines || [];
    this.phases = given.phases || [];
    this.gaps = given.gaps || [];
    this.traces = given.series.map(one => new Trace(one));
    this.byId = new Map(this.traces.map(trace => [trace.id, trace]));
    this.depth = this.phases.reduce((deepest, phase) => Math.max(deepest, phase.depth), 0);
  }

  /** Return whether a step is as fine as the readings. */
  isRaw(step) { return step <= this.raw * NEARLY; }

  /** Return the finest level that has not many more buckets in a span than it has pixels. */
  level(span, pixels) {
    const most = Math.max(200, 1.5 * pixels);
    for (let k = 0; k < this.steps.length; k += 1) if (span / this.steps[k] <= most) return k;
    return this.steps.length - 1;
  }

  /** Return the buckets that a stretch touches, as [first, after the last]. */
  range(level, from, to) {
    const step = this.steps[level];
    const first = Math.floor((from - this.from) / step) - 1;
    const last = Math.ceil((to - this.from) / step) + 1;
    return [Math.max(0, Math.min(first, this.counts[level])), Math.max(0, Math.min(last, this.counts[level]))];
  }

  /** Return the bucket of a time, or -1. */
  bucket(level, time) {
    const k = Math.floor((time - this.from) / this.steps[level]);
    return k >= 0 && k < this.counts[level] ? k : -1;
  }

  /** Return the phases around a time, outermost first. */
  phasesAt(time) {
    return this.phases.filter(phase => phase.from_s <= time && time < phase.to_s).sort((a, b) => a.depth - b.depth);
  }
}

// One colour per family, the same as in charts that Python draws; others take what is left in turn.
const FAMILIES = {gpu: 0, cpu: 1, dram: 2, 'supply loss': 3, psys: 4, 'node.dc': 4, 'node.ac': 5, rack: 6, rest: 7};
const FREE = [4, 3, 5, 6];

/** Return the number of a trace's colour: by its family (`gpu:0` is of `gpu`), else in turn. */
function coloured(traces) {
  const numbers = new Map();
  const families = new Map();
  let taken = 0;
  for (const trace of traces) {
    const family = trace.id.split(/[:/]/)[0];
    if (trace.role === 'stack' && family in FAMILIES) numbers.set(trace.id, FAMILIES[family]);
    else if (trace.role === 'whole') numbers.set(trace.id, -1);
    else if (trace.role === 'load' || trace.role === 'temperature') {
      const known = ['gpu', 'cpu'].find(word => trace.id.toLowerCase().includes(word));
      const first = known && !families.has(`${trace.role} ${known}`);
      if (first) families.set(`${trace.role} ${known}`, true);
      numbers.set(trace.id, first ? FAMILIES[known] : FREE[taken++ % FREE.length]);
    } else numbers.set(trace.id, FREE[taken++ % FREE.length]);
  }
  return numbers;
}

/** Return a whole number with a comma between thousands. */
function thousands(value) {
  return value.toFixed(0).replace(/\B(?=(\d{3})+$)/g, ',');
}

/** Return a number with three digits at least, and no more than it needs. */
function digits(value) {
  const size = Math.abs(value);
  if (size >= 99.95) return thousands(value);
  return value.toFixed(size >= 9.995 ? 1 : 2);
}

/** Return a value with its unit; powers from 10 kW on in kW, from 10 MW on in MW. */
function quantity(value, unit) {
  if (!Number.isFinite(value)) return 'no reading';
  if (unit !== 'W') return `${thousands(value)} ${unit === 'degC' ? '°C' : unit}`;
  if (Math.abs(value) >= 1e7) return `${(value / 1e6).toFixed(2)} MW`;
  if (Math.abs(value) >= 1e4) return `${(value / 1e3).toFixed(2)} kW`;
  return `${digits(value)} W`;
}

/** Return a length of time in words: 0.1 s, 8 s, 2 min. */
function lasting(seconds) {
  if (seconds < 1e-3) return `${+(seconds * 1e6).toPrecision(3)} us`;
  if (seconds < 1) return `${+(seconds * 1e3).toPrecision(3)} ms`;
  if (seconds < 120) return `${+seconds.toPrecision(3)} s`;
  if (seconds < 7200) return `${+(seconds / 60).toPrecision(3)} min`;
  return `${+(seconds / 3600).toPrecision(3)} h`;
}

/** Return a time since the start as h:mm:ss, m:ss or s, with as many decimals as a step needs. */
function clocked(seconds, step, longest) {
  const decimals = step >= 1 ? 0 : Math.min(6, Math.ceil(-Math.log10(step) - 1e-9));
  const sign = seconds < -step / 1e3 ? '\u2212' : '';
  const unit = 10 ** decimals;
  const whole = Math.round(Math.abs(seconds) * unit);
  const text = (value, width) => (value / unit).toFixed(decimals).padStart(width + (decimals ? decimals + 1 : 0), '0');
  if (longest < 120) return sign + text(whole, 1);
  const rest = whole % (60 * unit);
  const minutes = Math.floor(whole / (60 * unit));
  if (longest < 3600) return `${sign}${minutes}:${text(rest, 2)}`;
  const hours = `${sign}${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, '0')}`;
  return step >= 60 && rest === 0 ? hours : `${hours}:${text(rest, 2)}`;
}

/** Return the format of `clocked`, for the end of the axis. */
function clockName(step, longest) {
  if (longest < 120) return 's';
  if (longest < 3600) return 'm:ss';
  return step >= 60 ? 'h:mm' : 'h:mm:ss';
}

const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

/** Return a round step of time that gives at most this many ticks. */
function timeStep(span, most) {
  const least = span / Math.max(1, most);
  if (least < 1) return roundStep(span, most);
  return TIME_STEPS.find(step => step >= least) || 86400 * Math.ceil(least / 86400);
}

/** Return a step of 1, 2 or 5 times a power of ten that gives at most this many ticks. */
function roundStep(span, most) {
  const least = span / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(least));
  return ([1, 2, 5].find(m => m * power >= least * (1 - 1e-9)) || 10) * power;
}
