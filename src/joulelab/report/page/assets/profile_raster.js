// Fills the pixels of a panel column by column: every column shows the lowest and the highest of all buckets in it, so
// that no peak fades because it is narrow; and the time it takes depends on the pixels, not on the data.

/** Return a colour of the style sheet (#rrggbb) as [red, green, blue]. */
function rgb(text) {
  const value = parseInt(text.slice(1), 16);
  return [(value >> 16) & 255, (value >> 8) & 255, value & 255];
}

/** The pixels of one panel, and layers drawn into them. Heights count from the top, in pixels of the screen. */
class Raster {
  constructor() {
    this.canvas = document.createElement('canvas');
    this.pen = this.canvas.getContext('2d');
    this.width = 0;
    this.height = 0;
  }

  /** Empty it, in the size of a panel. */
  begin(width, height) {
    if (width !== this.width || height !== this.height) {
      this.canvas.width = this.width = width;
      this.canvas.height = this.height = height;
      this.image = this.pen.createImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
      this.tops = new Float32Array(width);
      this.bottoms = new Float32Array(width);
    } else this.pixels.fill(0);
  }

  /** Put it where the panel is on a canvas that is scaled by a ratio. */
  end(pen, x, y, ratio) {
    pen.drawImage(this.canvas, x, y, this.width / ratio, this.height / ratio);
  }

  /** Draw a layer: `view` is the visible range, `most` the value at the top. */
  draw(layer, view, most, colour, ratio) {
    const alpha = layer.alpha || {area: 0.85, band: layer.colour < 0 ? 0.17 : 0.26, line: 1}[layer.kind];
    const ink = {parts: rgb(colour), alpha};
    if (layer.kind === 'line') {
      this.columns(layer, view, most, null);
      this.stroke(ink, (layer.n / this.width > 0.4 ? 1.2 : 1.6) * ratio, layer.dashed ? 5 * ratio : 0);
    } else {
      this.columns(layer, view, most, layer.kind === 'band');
      const least = layer.kind === 'band' ? ratio : 0;
      for (let c = 0; c < this.width; c += 1) {
        const top = this.tops[c];
        if (top === top) this.span(c, top, Math.max(this.bottoms[c], top + least), ink);
      }
    }
  }

  /** Find for each column where a layer begins and ends: means of its buckets, or for a band their extremes. */
  columns(layer, view, most, extremes) {
    const perColumn = (view.to - view.from) / this.width / layer.dx;
    const first = (view.from - layer.x0) / layer.dx;
    const scale = this.height / most;
    for (let c = 0; c < this.width; c += 1) {
      const from = Math.floor(first + c * perColumn);
      const to = Math.max(from, Math.ceil(first + (c + 1) * perColumn) - 1);
      let low = extremes ? Infinity : 0;
      let high = extremes ? -Infinity : 0;
      let n = 0;
      for (let k = Math.max(0, from); k <= to && k < layer.n; k += 1) {
        const top = layer.high[k];
        const bottom = layer.low ? layer.low[k] : 0;
        if (top !== top || bottom !== bottom) continue;
        if (extremes) {
          if (bottom < low) low = bottom;
          if (top > high) high = top;
        } else { low += bottom; high += top; }
        n += 1;
      }
      const share = extremes ? 1 : 1 / n;
      this.tops[c] = n ? this.height - high * share * scale : NaN;
      this.bottoms[c] = n ? this.height - low * share * scale : NaN;
    }
  }

  /** Draw a line through the tops of the columns, interrupted where a column is empty. */
  stroke(ink, thick, dash) {
    const half = thick / 2;
    let before = NaN;
    for (let c = 0; c < this.width; c += 1) {
      const now = this.tops[c];
      const last = before === before ? before : now;
      if (now === now && !(dash && c % (dash * 1.8) > dash)) this.span(c, Math.min(now, last) - half, Math.max(now, last) + half, ink);
      before = now;
    }
  }

  /** Fill a column from a height to another; pixels at its ends in part. */
  span(column, top, bottom, ink) {
    const from = Math.max(0, top);
    const to = Math.min(this.height, bottom);
    if (!(to > from)) return;
    const first = Math.floor(from);
    const last = Math.ceil(to) - 1;
    const {alpha} = ink;
    if (first === last) { this.blend(first * this.width + column, ink.parts, alpha * (to - from)); return; }
    this.blend(first * this.width + column, ink.parts, alpha * (first + 1 - from));
    this.blend(last * this.width + column, ink.parts, alpha * (to - last));
    const [red, green, blue] = ink.parts;
    const solid = ((Math.round(alpha * 255) << 24) | (blue << 16) | (green << 8) | red) >>> 0;
    const {pixels, width} = this;
    let known = 0; // pixels of a column have few colours: reuse the last mixture
    let mixed = solid;
    for (let at = (first + 1) * width + column, end = last * width + column; at < end; at += width) {
      const below = pixels[at];
      if (below !== known && alpha < 1) {
        known = below;
        mixed = below === 0 ? solid : over(below, ink.parts, alpha);
      }
      pixels[at] = mixed;
    }
  }

  blend(at, parts, alpha) { this.pixels[at] = over(this.pixels[at], parts, alpha); }
}

/** Return the colour of a pixel with another laid over it. */
function over(below, parts, alpha) {
  const under = (below >>> 24) / 255;
  const kept = under * (1 - alpha);
  const whole = alpha + kept;
  if (whole <= 0) return 0;
  const red = (parts[0] * alpha + (below & 255) * kept) / whole;
  const green = (parts[1] * alpha + ((below >> 8) & 255) * kept) / whole;
  const blue = (parts[2] * alpha + ((below >> 16) & 255) * kept) / whole;
  return ((Math.round(whole * 255) << 24) | (Math.round(blue) << 16) | (Math.round(green) << 8) | Math.round(red)) >>> 0;
}

/** Draw layers into a box of a canvas (CSS pixels), through a raster, which is reused for the same layers. */
function paintLayers(pen, raster, layers, box, view, most, colours, ratio) {
  if (!layers.length) return;
  const same = raster.layers === layers && raster.colours === colours && raster.width === Math.round(box.width * ratio);
  if (same) { raster.end(pen, box.left, box.top, ratio); return; }
  raster.layers = layers;
  raster.colours = colours;
  raster.begin(Math.max(1, Math.round(box.width * ratio)), Math.max(1, Math.round(box.height * ratio)));
  for (const layer of layers) raster.draw(layer, view, most, layer.colour < 0 ? colours.ink : colours.data[layer.colour % 8], ratio);
  raster.pen.putImageData(raster.image, 0, 0);
  raster.end(pen, box.left, box.top, ratio);
}
