// Lists: search while typing, renew, select runs and add them up, keys. Without scripts the same are forms and links.
(() => {
'use strict';

const RENEW_MS = 2000, TYPING_MS = 140, KEY = 'joulelab-selected';
const list = document.getElementById('list');
if (!list) return;
document.documentElement.classList.add('scripted');
const filters = document.getElementById('filters');
const bar = document.getElementById('selection');
const most = bar ? Number(bar.dataset.summed) : 0;
const mostCompared = bar ? Number(bar.dataset.compared) : 0;
let asked = 0;       // requests are numbered: an answer that comes late is not shown
const choices = new Map();
let at = null;       // the row that keys are at, by its run
let lost = 0;
let shown = '';      // the list as the server wrote it: what the browser made of it may differ

// Selected runs stay selected on other pages and searches, in this tab.
const selected = new Set(readSelection());
function readSelection() {
  try { return JSON.parse(sessionStorage.getItem(KEY) || '[]').filter(id => typeof id === 'string'); } catch (e) { return []; }
}
function storeSelection() {
  try { sessionStorage.setItem(KEY, JSON.stringify([...selected])); } catch (e) { /* for this page only */ }
}

function boxes() { return [...list.querySelectorAll('input[name="run"]')]; }

/** Show which runs are selected, and their sums; `again` if a run may have changed. */
function showSelection(again) {
  if (!bar) return;
  for (const box of boxes()) {
    box.checked = selected.has(box.value);
    box.disabled = !box.checked && selected.size >= most;
  }
  const all = document.getElementById('select-all');
  if (all) {
    all.hidden = false;
    all.checked = boxes().length > 0 && boxes().every(box => box.checked);
    all.indeterminate = !all.checked && boxes().some(box => box.checked);
  }
  const count = document.getElementById('selected-count');
  const many = selected.size === 1 ? '1 run selected' : `${selected.size} runs selected`;
  const words = !selected.size ? 'Select runs to add them up or to compare them.'
    : selected.size > mostCompared ? `${many}; at most ${mostCompared} can be compared` : many;
  if (count.textContent !== words) count.textContent = words;
  bar.classList.toggle('some', selected.size > 0);
  bar.querySelector('.primary').disabled = selected.size < 2 || selected.size > mostCompared;
  bar.querySelector('.clear-selection').hidden = !selected.size;
  bar.querySelector('.sums').hidden = true;
  addUp(again);
}

let summed = '';  // the selection whose sums are shown or on their way
async function addUp(again) {
  const query = new URLSearchParams([...selected].map(id => ['run', id])).toString();
  if (query === summed && !(again && query)) return;
  summed = query;
  const sums = document.getElementById('sums');
  if (!query) { sums.replaceChildren(); return; }
  let lines;
  try {
    const answer = await fetch(`/api/sums?${query}`);
    const data = await answer.json();
    lines = answer.ok ? data.lines : [['sum', data.error]];
  } catch (gone) { lines = [['sum', 'the server does not answer']]; }
  if (query !== summed) return;
  sums.replaceChildren(...lines.flatMap(line => line.map((text, k) => {
    const part = document.createElement(k ? 'dd' : 'dt');
    part.textContent = text;
    return part;
  })));
}

function select(box) {
  if (box.checked && selected.size < most) selected.add(box.value);
  if (!box.checked) selected.delete(box.value);
}

function compare() {
  if (selected.size < 2 || selected.size > mostCompared) return;
  location.href = '/compare?' + new URLSearchParams([...selected].map(id => ['run', id]));
}

function rows() { return [...list.querySelectorAll('tbody tr[data-run]')]; }

function mark() {
  for (const row of rows()) row.classList.toggle('at', row.dataset.run === at);
}

/** Put the answer's list where ours stands; focus, selection and the marked row stay. */
function show(text, user) {
  const fresh = new DOMParser().parseFromString(text, 'text/html');
  const next = fresh.getElementById('list');
  if (!next) return false;
  if (next.innerHTML !== shown) {
    const before = new Set(rows().map(row => row.dataset.run));
    const focus = document.activeElement;
    const held = list.contains(focus) ? focus.closest('tr') && focus.closest('tr').dataset.run : null;
    const kind = held && focus.tagName;
    const scroll = list.querySelector('.scroll');
    const left = scroll ? scroll.scrollLeft : 0;
    shown = next.innerHTML;
    list.replaceChildren(...next.childNodes);
    for (const row of rows()) if (!user && before.size && !before.has(row.dataset.run)) row.classList.add('new');
    if (left && list.querySelector('.scroll')) list.querySelector('.scroll').scrollLeft = left;
    if (held) {
      const row = rows().find(each => each.dataset.run === held);
      const twin = row && row.querySelector(kind === 'INPUT' ? 'input' : 'a.open');
      if (twin) twin.focus({preventScroll: true});
    }
    showSelection(true);
    mark();
  }
  if (filters) renewFilters(fresh);
  return true;
}

/** Show the reason why there is no list: the old one would be a wrong answer. */
function refuse(text) {
  const reason = new DOMParser().parseFromString(text, 'text/html').querySelector('main section p');
  const part = Object.assign(document.createElement('p'), {className: 'empty', textContent: reason ? reason.textContent : text});
  shown = '';
  list.replaceChildren(part);
}

/** Choices grow while runs are read and arrive; one that is open is left alone. */
function renewFilters(fresh) {
  const clear = filters.querySelector('.clear'), other = fresh.querySelector('#filters .clear');
  if (clear && other) clear.hidden = other.hidden;
  for (const twin of [...fresh.querySelectorAll('#filters select')].reverse()) {  // the one that follows is there
    if (document.getElementById(twin.id)) continue;
    const label = twin.closest('label'), next = label.nextElementSibling.querySelector('select');
    const before = next ? document.getElementById(next.id).closest('label') : filters.querySelector('.days');
    before.before(document.importNode(label, true));
  }
  for (const select of filters.querySelectorAll('select')) {
    const twin = fresh.getElementById(select.id);
    if (!twin || document.activeElement === select || twin.innerHTML === choices.get(select)) continue;
    const value = select.value;
    choices.set(select, twin.innerHTML);
    select.replaceChildren(...twin.childNodes);
    select.value = value;
  }
}

async function load(address, user) {
  const number = ++asked;
  try {
    const answer = await fetch(address, {headers: {'Accept': 'text/html'}});
    if (answer.redirected && new URL(answer.url).pathname === '/login') { location.href = '/login'; return; }
    if (number !== asked) return;
    if (answer.ok) show(await answer.text(), user);
    else if (user) refuse(await answer.text());
    lost = 0;
  } catch (gone) { lost += 1; }
  if (list.firstElementChild) list.firstElementChild.classList.toggle('lost', lost > 1);
}

function address() {
  const pairs = [...new FormData(filters)].filter(([, value]) => String(value).trim() !== '');
  const text = new URLSearchParams(pairs).toString();
  return text ? `/?${text}` : '/';
}

let typing = 0;
function search(wait) {
  clearTimeout(typing);
  typing = setTimeout(() => {
    history.replaceState(null, '', address());
    load(location.href, true);
  }, wait);
}

if (filters) {
  filters.addEventListener('input', event => search(event.target.type === 'search' ? TYPING_MS : 0));
  filters.addEventListener('submit', event => { event.preventDefault(); search(0); });
}

/** Follow links within the list, to another order or page, without leaving. */
list.addEventListener('click', event => {
  const link = event.target.closest('a');
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  if (link.pathname !== location.pathname || !(link.closest('thead') || link.closest('.pager') || link.closest('.count'))) return;
  event.preventDefault();
  history.pushState(null, '', link.href);
  const params = new URLSearchParams(link.search);
  for (const name of ['sort', 'order', 'study']) set(name, params.get(name) || '');
  load(link.href, true).then(() => { if (link.closest('.pager')) scrollTo({top: 0}); });
});

function set(name, value) {
  let field = filters && filters.elements[name];
  if (!filters || (!field && !value)) return;
  if (!field) {
    field = Object.assign(document.createElement('input'), {type: 'hidden', name});
    filters.append(field);
  }
  field.value = value;
}
addEventListener('popstate', () => location.reload());

/** Keys act on the row that has the focus, also if Tab led there. */
list.addEventListener('focusin', event => {
  const row = event.target.closest('tr[data-run]');
  if (row && row.dataset.run !== at) { at = row.dataset.run; mark(); }
});

list.addEventListener('change', event => {
  if (event.target.id === 'select-all') {
    for (const box of boxes()) { box.checked = event.target.checked; select(box); }
  } else if (event.target.name === 'run') select(event.target);
  else return;
  storeSelection();
  showSelection();
});

if (bar) {
  bar.addEventListener('submit', event => { event.preventDefault(); compare(); });
  bar.querySelector('.clear-selection').addEventListener('click', () => { selected.clear(); storeSelection(); showSelection(); });
}

function step(by) {
  const all = rows();
  if (!all.length) return;
  const now = all.findIndex(row => row.dataset.run === at);
  const row = all[now < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(now + by, 0), all.length - 1)];
  at = row.dataset.run;
  mark();
  row.querySelector('a.open').focus({preventScroll: true});
  row.scrollIntoView({block: 'nearest'});
}

addEventListener('keydown', event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const into = event.target.closest('input:not([type="checkbox"]), select, textarea');
  if (into) {
    if (event.key === 'Escape') { event.preventDefault(); into.blur(); }  // browsers would empty the field, and say nothing
    if (event.key === 'ArrowDown' && into.type === 'search') { event.preventDefault(); step(1); }
    return;
  }
  const acts = {
    '/': () => filters && filters.elements.q.focus(),
    'j': () => step(1),
    'k': () => step(-1),
    'c': compare,
    'x': () => {
      const row = rows().find(each => each.dataset.run === at);
      const box = row && row.querySelector('input[name="run"]');
      if (box && !box.disabled) box.click();
    },
  };
  if (!(event.key in acts)) return;
  event.preventDefault();
  acts[event.key]();
});

async function renew() {
  if (!document.hidden) await load(location.href, false);
  setTimeout(renew, RENEW_MS);
}

shown = list.innerHTML;
if (filters) for (const select of filters.querySelectorAll('select')) choices.set(select, select.innerHTML);
showSelection();
setTimeout(renew, RENEW_MS);
})();
