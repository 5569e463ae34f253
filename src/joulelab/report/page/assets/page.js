// For every page: light or dark colours, the current section in the contents, the order of two runs, reloading of live pages.

const THEME_KEY = 'joulelab-theme';

/** Store a choice if the browser allows it; a page opened from a file may have no storage. */
function stored(key, value) {
  try {
    if (value === undefined) return localStorage.getItem(key);
    localStorage.setItem(key, value);
  } catch (refused) { /* then it holds for this page only */ }
  return null;
}

/** Return whether the page is dark now. */
function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
}

/** Call back when colours change: by the button, by the system, or for print. */
function onTheme(callback) {
  addEventListener('joulelab-theme', callback);
}

function setUpTheme() {
  const button = document.querySelector('button.theme');
  const announce = () => dispatchEvent(new Event('joulelab-theme'));
  const named = () => {
    if (!button) return;
    button.textContent = isDark() ? 'Light' : 'Dark';
    button.title = isDark() ? 'Light colours' : 'Dark colours';
  };
  if (button) {
    button.hidden = false;
    button.addEventListener('click', () => {
      const chosen = isDark() ? 'light' : 'dark';
      document.documentElement.dataset.theme = chosen;
      stored(THEME_KEY, chosen);
      named();
      announce();
    });
  }
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { named(); announce(); });
  matchMedia('print').addEventListener('change', announce);
  named();
}

/** Mark the section that is being read in the contents. */
function setUpContents() {
  const links = new Map();
  for (const link of document.querySelectorAll('.contents a')) links.set(link.hash.slice(1), link);
  const parts = [...links.keys()].map(id => document.getElementById(id)).filter(Boolean);
  if (!parts.length) return;
  let waiting = false;
  const marked = () => {
    waiting = false;
    let current = parts[0];
    for (const part of parts) if (part.getBoundingClientRect().top < innerHeight * 0.3) current = part;
    if (scrollY > 0 && scrollY + innerHeight >= document.documentElement.scrollHeight - 2) current = parts[parts.length - 1];
    for (const [id, link] of links) {
      if (id === current.id) link.setAttribute('aria-current', 'true');
      else link.removeAttribute('aria-current');
    }
  };
  const soon = () => {
    if (!waiting) requestAnimationFrame(marked);
    waiting = true;
  };
  addEventListener('scroll', soon, {passive: true});
  addEventListener('resize', soon);
  new ResizeObserver(soon).observe(document.body);
  marked();
}

/** Let the button of a comparison exchange A and B: both orders are in the page. */
function setUpSwap() {
  for (const button of document.querySelectorAll('button.swap')) button.hidden = false;
  addEventListener('click', event => {
    const button = event.target.closest && event.target.closest('button.swap');
    if (!button) return;
    const swapped = document.documentElement.toggleAttribute('data-swapped');
    button.setAttribute('aria-pressed', String(swapped));
  });
}

/** Return whether a part may be replaced: the reader is not using it, and it has no chart that reloads itself. */
function replaceable(part) {
  const selected = getSelection();
  const held = selected && !selected.isCollapsed && part.contains(selected.anchorNode);
  return !held && !part.contains(document.activeElement) && !part.querySelector('figure.profile');
}

/** Replace contents; folds that the reader opened stay open. */
function replaced(old, fresh) {
  const opened = [...old.querySelectorAll('details')].map(part => part.open);
  for (const button of fresh.querySelectorAll('button.swap')) button.hidden = false;
  fresh.querySelectorAll('details').forEach((part, k) => { if (k in opened) part.open = opened[k]; });
  old.replaceWith(fresh);
}

/** Reload a live page at intervals, and replace the parts that changed. */
function setUpRenewal() {
  const main = document.querySelector('main[data-renew]');
  if (!main) return;
  const every = Math.max(1, Number(main.dataset.renew)) * 1000;
  let wait = every;
  const renew = async () => {
    const began = performance.now();
    if (!document.hidden) {
      try {
        const answer = await fetch(location.href, {headers: {'Accept': 'text/html'}});
        if (answer.ok) {
          const fresh = new DOMParser().parseFromString(await answer.text(), 'text/html');
          for (const part of main.querySelectorAll(':scope > .headline, :scope > section')) {
            const twin = part.id ? fresh.getElementById(part.id) : fresh.querySelector('main > .headline');
            if (twin && twin.outerHTML !== part.outerHTML && replaceable(part)) replaced(part, twin);
          }
          if (!fresh.querySelector('main[data-renew]')) return;
        }
      } catch (lost) { /* the server may come back */ }
    }
    wait = Math.max(every, 10 * (performance.now() - began)); // do not overload a slow server
    setTimeout(renew, wait);
  };
  setTimeout(renew, wait);
}

// The colours are set before anything is drawn.
if (['light', 'dark'].includes(stored(THEME_KEY))) document.documentElement.dataset.theme = stored(THEME_KEY);
addEventListener('DOMContentLoaded', () => { setUpTheme(); setUpContents(); setUpSwap(); setUpRenewal(); });
