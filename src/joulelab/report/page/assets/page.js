// What every page does: light or dark, where in the contents one is, and renewal of a page of something that goes on.

const THEME_KEY = 'joulelab-theme';

/** Keep a choice where the browser lets us; a file's page may have no storage. */
function stored(key, value) {
  try {
    if (value === undefined) return localStorage.getItem(key);
    localStorage.setItem(key, value);
  } catch (refused) { /* then it holds for this page only */ }
  return null;
}

/** Say whether the page is dark now. */
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
  const told = () => dispatchEvent(new Event('joulelab-theme'));
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
      told();
    });
  }
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { named(); told(); });
  matchMedia('print').addEventListener('change', told);
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

/** Say whether a part may be replaced: nobody is in it, and no chart that renews itself is. */
function replaceable(part) {
  const selected = getSelection();
  const held = selected && !selected.isCollapsed && part.contains(selected.anchorNode);
  return !held && !part.contains(document.activeElement) && !part.querySelector('figure.profile');
}

/** Put new contents where old ones stand, keeping open what the reader opened. */
function replaced(old, fresh) {
  const opened = [...old.querySelectorAll('details')].map(part => part.open);
  fresh.querySelectorAll('details').forEach((part, k) => { if (k in opened) part.open = opened[k]; });
  old.replaceWith(fresh);
}

/** Fetch the page anew while what it tells of goes on, and replace what has changed. */
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
    wait = Math.max(every, 10 * (performance.now() - began)); // a slow server is not asked more than it can bear
    setTimeout(renew, wait);
  };
  setTimeout(renew, wait);
}

// The choice of colours is set before anything is drawn.
if (['light', 'dark'].includes(stored(THEME_KEY))) document.documentElement.dataset.theme = stored(THEME_KEY);
addEventListener('DOMContentLoaded', () => { setUpTheme(); setUpContents(); setUpRenewal(); });
