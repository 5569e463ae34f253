// The interactive chart of power over time: `<figure class="profile" data-source="ID">` with its data in the page.

const GLIDE = 160; // ms a zoom takes
const WAIT = 150; // ms of rest before finer data are fetched
const LIVE = 2000; // ms between updates of a live run

class Chart {
  constructor(figure, given, number) {
    this.figure = figure;
    this.overlay = figure.dataset.mode === 'overlay';
    this.rawUrl = this.overlay ? null : figure.dataset.raw || null;
    this.liveUrl = this.overlay ? null : figure.dataset.live || null;
    this.hidden = new Map();
    this.fraction = false;
    this.trouble = '';
    this.fine = null;
    this.at = null;
    this.load(given);
    this.view = {...this.full};
    this.parts = built(this, figure, number);
    this.pen = this.parts.canvas.getContext('2d');
    this.rasters = new Map([...PANELS.map(panel => panel.unit), 'small'].map(name => [name, new Raster()]));
    this.colours_now = palette(figure);
    onTheme(() => { this.colours_now = palette(figure); this.draw(); });
    listen(this);
    new ResizeObserver(() => this.soon()).observe(this.parts.stage);
    this.draw();
    if (this.liveUrl) setTimeout(() => this.renew(), LIVE);
  }

  /** Take the data of one run, or of several runs in one chart. */
  load(given) {
    const many = this.overlay ? given.profiles : [given];
    this.tracks = many.map((one, k) => ({profile: new Profile(one), label: this.overlay ? given.labels[k] : '', scale: 1}));
    if (this.overlay) {
      this.common = given.common || [];
      this.chosen = this.chosen || 0;
    } else this.colours = coloured(this.tracks[0].profile.traces);
    for (const {profile} of this.tracks) {
      for (const trace of profile.traces) if (!this.hidden.has(trace.id)) this.hidden.set(trace.id, !trace.shown);
    }
    this.scaled();
  }

  /** Set each run's scale: seconds, or its runtime. */
  scaled() {
    for (const track of this.tracks) track.scale = this.fraction ? track.profile.duration || 1 : 1;
    this.full = {
      from: Math.min(...this.tracks.map(track => track.profile.from / track.scale)),
      to: Math.max(...this.tracks.map(track => track.profile.to / track.scale)),
    };
    if (!(this.full.to > this.full.from)) this.full.to = this.full.from + 1;
    this.outlined = null;
  }

  /** Return the contents of the legend, to see whether it has changed. */
  names() {
    const {profile} = this.tracks[0];
    return JSON.stringify([...profile.traces.map(trace => [trace.id, trace.label]), ...profile.lines.map(line => line.kind)]);
  }

  shows(id) { return !this.hidden.get(id); }

  zoomed() { return this.view.to - this.view.from < (this.full.to - this.full.from) * 0.9999; }

  get plot() { return this.place ? this.place.plot : {left: 58, right: 858, width: 800}; }

  toggle(id) {
    this.hidden.set(id, this.shows(id));
    this.outlined = null;
    this.soon();
  }

  /** Return the trace of a run for the chosen common scope of all runs. */
  laid(k) {
    const found = this.common[this.chosen];
    return found ? this.tracks[k].profile.byId.get(found.ids[k]) || null : null;
  }

  /** Choose the common scope that is drawn, and update the caption. */
  choose(number) {
    this.chosen = number;
    const said = this.common[number].told;
    const caption = this.figure.querySelector('.summary, figcaption');
    if (caption) caption.textContent = said;
    this.parts.canvas.setAttribute('aria-label', said);
    this.outlined = null;
    this.soon();
  }

  byFraction(fraction) {
    this.fraction = fraction;
    this.scaled();
    this.goal = null;
    this.view = {...this.full};
    this.soon();
  }

  /** Return the data of a run to draw: fetched finer data if they cover the view, else those of the page. */
  source(track) {
    const fine = this.fine;
    if (fine && fine.from <= this.view.from + 1e-9 && fine.to >= this.view.to - 1e-9) {
      const {profile} = track;
      if (fine.steps[0] < profile.steps[profile.level(this.view.to - this.view.from, this.plot.width)]) return fine;
    }
    return track.profile;
  }

  /** Return the layers of the overview. */
  outlines() {
    if (this.outlined) return this.outlined;
    const layers = [];
    this.tracks.forEach((track, k) => {
      if (this.overlay && !this.shows(`run ${k}`)) return;
      const {profile} = track;
      const level = profile.steps.length - 1;
      const seen = cut(track, profile, level, this.full);
      const whole = this.overlay ? this.laid(k) : profile.traces.find(trace => trace.role === 'whole');
      if (whole && this.overlay) layers.push(...lined(whole, level, seen, k, false));
      else if (whole) layers.push(...silhouette(whole, level, seen));
      else if (!this.overlay) layers.push(...stacked(profile, level, seen, profile.traces.filter(trace => trace.role === 'stack'), this.colours, false));
    });
    this.outlined = layers;
    return layers;
  }

  timeAt(x) { return this.view.from + (x - this.plot.left) / this.plot.width * (this.view.to - this.view.from); }

  overviewTime(x) { return this.full.from + (x - this.plot.left) / this.plot.width * (this.full.to - this.full.from); }

  placeOf(time) { return this.plot.left + (time - this.view.from) / (this.view.to - this.view.from) * this.plot.width; }

  /** Return a view that lies within the run and is not finer than makes sense. */
  bounded({from, to}) {
    const whole = this.full.to - this.full.from;
    const {profile, scale} = this.tracks[0];
    const least = Math.min(whole, (this.rawUrl ? profile.raw : profile.finest) * 8 / scale);
    const span = Math.min(whole, Math.max(least, to - from));
    const middle = (from + to) / 2;
    const start = Math.min(this.full.to - span, Math.max(this.full.from, middle - span / 2));
    return {from: start, to: start + span};
  }

  /** Move to a view with an animation, or at once if the reader prefers no motion. */
  goTo(view) {
    const goal = this.bounded(view);
    if (matchMedia('(prefers-reduced-motion: reduce)').matches) { this.jump(goal); return; }
    this.goal = {start: {...this.view}, end: goal, since: performance.now()};
    this.soon();
  }

  jump(view) {
    this.goal = null;
    this.view = this.bounded(view);
    this.soon();
  }

  /** Zoom around a time by a factor of the span. */
  zoomAt(factor, at, jump = false) {
    const base = this.goal && !jump ? this.goal.end : this.view;
    const view = {from: at + (base.from - at) * factor, to: at + (base.to - at) * factor};
    if (jump) this.jump(view); else this.goTo(view);
  }

  zoom(factor) { this.zoomAt(factor, this.at === null ? (this.view.from + this.view.to) / 2 : this.at); }

  shift(share, jump = false) {
    const base = this.goal && !jump ? this.goal.end : this.view;
    const by = share * (base.to - base.from);
    const view = {from: base.from + by, to: base.to + by};
    if (jump) this.jump(view); else this.goTo(view);
  }

  centre(time) {
    const half = (this.view.to - this.view.from) / 2;
    this.jump({from: time - half, to: time + half});
  }

  /** Move the reading by a step of the visible data, and announce it. */
  walk(turn) {
    const span = this.view.to - this.view.from;
    this.walkTo((this.at === null ? this.view.from + span / 2 : this.at + turn * span / 100));
  }

  walkTo(time) {
    const at = Math.min(this.full.to, Math.max(this.full.from, time));
    if (at < this.view.from || at > this.view.to) this.centre(at);
    this.spoken = true;
    this.point(at);
  }

  /** Show the reading at a time, or none. */
  point(at) {
    this.at = at;
    this.soon();
  }

  brush(left, right) {
    const {brush} = this.parts;
    brush.hidden = right <= left;
    brush.style.left = `${left}px`;
    brush.style.width = `${right - left}px`;
  }

  soon() {
    if (!this.waiting) this.waiting = requestAnimationFrame(now => this.frame(now));
  }

  frame(now) {
    this.waiting = 0;
    if (this.goal) {
      const share = Math.min(1, Math.max(0, now - this.goal.since) / GLIDE);
      const eased = 1 - (1 - share) ** 3;
      const {start, end} = this.goal;
      this.view = {from: start.from + (end.from - start.from) * eased, to: start.to + (end.to - start.to) * eased};
      if (share >= 1) { this.view = end; this.goal = null; } else this.soon();
    }
    this.draw();
  }

  /** Draw the changes: the picture if the view changed, the reading always. */
  draw() {
    const width = Math.max(280, Math.floor(this.parts.stage.clientWidth));
    const ratio = this.ratio = Math.min(3, devicePixelRatio || 1);
    this.place = placed(this, width);
    const {canvas, stage, status} = this.parts;
    const state = JSON.stringify([this.view, width, ratio, [...this.hidden], this.chosen, this.fraction, this.colours_now.bg, this.version]);
    if (state !== this.drawn) {
      this.drawn = state;
      const [wide, high] = [Math.round(width * ratio), Math.round(this.place.height * ratio)];
      if (canvas.width !== wide || canvas.height !== high) {
        canvas.width = wide;
        canvas.height = high;
        stage.style.height = `${this.place.height}px`;
        this.parts.over.style.height = `${this.place.height}px`;
        canvas.style.width = `${width}px`;
        canvas.style.height = `${this.place.height}px`;
      }
      this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      paint(this.pen, this, this.place, this.colours_now);
      this.reset.disabled = !this.zoomed();
      const said = describeResolution(this);
      if (status.textContent !== said) status.textContent = said;
      this.wantFiner();
    }
    this.read();
  }

  /** Show the reading beside the pointer, on the side with more room. */
  read() {
    const {cursor, tip, spoken} = this.parts;
    const off = this.at === null || this.at < this.view.from || this.at > this.view.to;
    cursor.hidden = off;
    tip.hidden = off;
    tip.classList.toggle('below', this.place.width < 560);
    if (off) return;
    const {panels, plot, width} = this.place;
    const x = this.placeOf(this.at);
    const read = reading(this, this.at);
    fillTip(tip, read);
    cursor.style.left = `${x}px`;
    cursor.style.top = `${panels[0].top}px`;
    cursor.style.height = `${panels[panels.length - 1].bottom - panels[0].top}px`;
    const room = tip.offsetWidth;
    const left = x + 14 + room <= width ? x + 14 : x - 14 - room;
    tip.style.left = `${Math.max(0, Math.min(width - room, x < plot.left + plot.width / 2 ? x + 14 : left))}px`;
    tip.style.top = `${panels[0].top + 6}px`;
    if (this.spoken) spoken.textContent = sentence(read);
    this.spoken = false;
  }

  /** Fetch raw readings if the view is finer than the data of the page. */
  wantFiner() {
    clearTimeout(this.asking);
    if (!this.rawUrl) return;
    const {profile} = this.tracks[0];
    const span = this.view.to - this.view.from;
    if (span / profile.finest > this.plot.width * 0.75 || profile.isRaw(profile.finest)) return;
    if (this.fine && this.source(this.tracks[0]) === this.fine && this.fine.steps[0] <= Math.max(profile.raw * NEARLY, span / this.plot.width * 1.5)) return;
    this.asking = setTimeout(() => this.fetchFiner(), WAIT);
  }

  async fetchFiner() {
    if (this.fetching) this.fetching.abort();
    this.fetching = new AbortController();
    const span = this.view.to - this.view.from;
    const from = Math.max(this.full.from, this.view.from - span / 2);
    const to = Math.min(this.full.to, this.view.to + span / 2);
    const buckets = Math.round(this.plot.width * (to - from) / span);
    const url = `${this.rawUrl}${this.rawUrl.includes('?') ? '&' : '?'}from=${from}&to=${to}&buckets=${buckets}`;
    try {
      const answer = await fetch(url, {signal: this.fetching.signal});
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      this.fine = new Profile(await answer.json());
      this.trouble = '';
    } catch (refused) {
      if (refused.name === 'AbortError') return;
      this.trouble = `finer readings could not be fetched: ${refused.message}`;
    }
    this.version = (this.version || 0) + 1;
    this.soon();
  }

  /** Fetch new data of a live run: a view of the whole run grows, a zoomed view stays. Waits while the page is hidden. */
  async renew() {
    if (document.hidden) {
      document.addEventListener('visibilitychange', () => this.renew(), {once: true});
      return;
    }
    const began = performance.now();
    let over = false;
    try {
      const answer = await fetch(this.liveUrl);
      if (answer.status === 404 || answer.status === 410) return;
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      const given = await answer.json();
      if (!given) throw new Error('there is no power to show');
      over = given.live === false;
      const followed = !this.zoomed();
      const names = this.names();
      this.load(given);
      if (this.names() !== names) this.parts.top.querySelector('.legend').replaceWith(legend(this));
      this.trouble = '';
      if (followed) this.view = {...this.full};
    } catch (refused) {
      this.trouble = `not updated: ${refused.message}`;
    }
    this.version = (this.version || 0) + 1;
    this.soon();
    // An ended run is not fetched again; a slow server is not overloaded.
    if (!over) setTimeout(() => this.renew(), Math.max(LIVE, 10 * (performance.now() - began)));
  }
}

function readData(id) {
  const holder = document.querySelector(`script[id="${CSS.escape(id)}"]`);
  return holder && JSON.parse(holder.textContent);
}

/** Draw every chart of the page when it comes near to the screen. */
function setUpProfiles() {
  const figures = [...document.querySelectorAll('figure.profile[data-source]')];
  const begin = figure => {
    const given = readData(figure.dataset.source);
    if (!given || figure.dataset.drawn) return;
    figure.dataset.drawn = 'true';
    // Two runs in the other order name the data that have their readings.
    if (typeof given.profiles === 'string') given.profiles = readData(given.profiles).profiles.reverse();
    new Chart(figure, given, figures.indexOf(figure));
  };
  const near = new IntersectionObserver(entries => {
    for (const entry of entries) if (entry.isIntersecting) { near.unobserve(entry.target); begin(entry.target); }
  }, {rootMargin: '400px'});
  for (const figure of figures) near.observe(figure);
  addEventListener('beforeprint', () => figures.forEach(begin));
}

addEventListener('DOMContentLoaded', setUpProfiles);
