// Small pieces that several views are made of.

import { html, useEffect, useLayoutEffect, useRef, useState } from '../vendor/htm-preact.js';
import { ApiError } from './api.js';

// A value that is watched: `get`, `set` with what changes, `watch`.
export function watched(value) {
  const watchers = new Set();
  return {
    get: () => value,
    set(change) {
      value = { ...value, ...change };
      for (const tell of [...watchers]) tell(value);
    },
    watch(tell) {
      watchers.add(tell);
      return () => watchers.delete(tell);
    },
  };
}

// The store's value; the component is drawn again when it changes.
export function useStore(store) {
  const [value, set] = useState(store.get());
  useEffect(() => {
    set(store.get());
    return store.watch(set);
  }, [store]);
  return value;
}

// The time, every so many milliseconds.
export function useNow(every_ms) {
  const [now, set] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => set(Date.now()), every_ms);
    return () => clearInterval(timer);
  }, [every_ms]);
  return now;
}

// Where an update takes away the element with the focus, the focus goes to the element of this ref,
// not to the page's beginning.
export function useFocusKept() {
  const ref = useRef(null);
  const within = useRef(false);
  useEffect(() => {
    const moved = (event) => {
      within.current = ref.current?.contains(event.target) && event.target !== document.body;
    };
    const pressed = (event) => {
      if (!ref.current?.contains(event.target)) within.current = false;
    };
    document.addEventListener('focusin', moved);
    document.addEventListener('pointerdown', pressed);
    return () => {
      document.removeEventListener('focusin', moved);
      document.removeEventListener('pointerdown', pressed);
    };
  }, []);
  useLayoutEffect(() => {
    const lost = document.activeElement === null || document.activeElement === document.body;
    if (within.current && lost) ref.current?.focus();
  });
  return ref;
}

// A button whose work takes a while. It stays where it is, and says that it works.
export function Action({ children, work, failed, quiet = false, label = null, disabled = false }) {
  const [busy, setBusy] = useState(false);
  const there = useRef(true);
  useEffect(() => () => { there.current = false; }, []);
  const press = async () => {
    if (busy || disabled) return;
    setBusy(true);
    try {
      failed?.(null);
      await work();
    } catch (error) {
      if (failed) failed(error);
      else throw error;
    } finally {
      if (there.current) setBusy(false);
    }
  };
  return html`<button type="button" class=${quiet ? 'quiet' : ''} onClick=${press}
    aria-label=${label} aria-disabled=${busy || disabled ? 'true' : null}
    aria-busy=${busy ? 'true' : null}>${children}</button>`;
}

// Why something did not work, with what helps. Screen readers tell it at once, unless `quiet`: what
// is found out while somebody types waits until they come to it.
export function Failure({ error, id = null, quiet = false }) {
  if (!error) return null;
  const hints = error instanceof ApiError ? error.hints : [];
  return html`<div class="notice error" role=${quiet ? null : 'alert'} id=${id}>
    <p>${error.message}</p>
    ${hints.map((hint) => html`<p key=${hint}>Hint: ${hint}</p>`)}
  </div>`;
}

// Sentences of the server that do no harm.
export function Notices({ list }) {
  if (!list || list.length === 0) return null;
  return html`<ul class="notice">${list.map((text) => html`<li key=${text}>${text}</li>`)}</ul>`;
}

// Pairs of a name and a figure.
export function Facts({ pairs }) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== '');
  return html`<dl class="facts">
    ${shown.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

// A table behind a disclosure: the same figures as a drawing above it.
export function Numbers({ caption, head, rows, summary = 'Numbers' }) {
  return html`<details class="numbers">
    <summary>${summary}<span class="unseen"> of ${caption}</span></summary>
    <${Table} caption=${caption} head=${head} rows=${rows} />
  </details>`;
}

// A table that scrolls by itself where it is too wide, also by keyboard.
export function Table({ caption, head, rows }) {
  return html`<div class="scroll" role="region" aria-label=${caption} tabindex="0">
    <table>
      <caption class="unseen">${caption}</caption>
      <thead><tr>${head.map((name) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
      <tbody>
        ${rows.map(([first, ...rest], index) => html`<tr key=${index}>
          <th scope="row">${first}</th>
          ${rest.map((cell, column) => html`<td key=${column}>${cell}</td>`)}
        </tr>`)}
      </tbody>
    </table>
  </div>`;
}
