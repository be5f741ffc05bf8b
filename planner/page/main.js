// The page: its frame, which view is shown, and what is told while it changes.
//
// A view has an address of its own behind `#/`, so a reload and the browser's history keep it.

import { html, render, useEffect, useRef, useState } from './vendor/htm-preact.js';
import { Action, Failure, Notices, useStore } from './lib/dom.js';
import { plural } from './lib/format.js';
import { acknowledge, start, store } from './lib/store.js';
import { Login } from './views/login.js';
import { Make } from './views/make.js';
import { Plan } from './views/plan.js';
import { Queue } from './views/queue.js';
import { Gallery } from './views/gallery.js';

const VIEWS = {
  make: { name: 'Make', view: Make },
  plan: { name: 'Plan', view: Plan },
  queue: { name: 'Queue', view: Queue },
  gallery: { name: 'Gallery', view: Gallery },
};

// The view of an address with what stands behind its `?`; null for an address that is of no view.
function route() {
  const [name, query] = location.hash.replace(/^#\/?/, '').split('?');
  if (name === '') return { name: 'make', query: new URLSearchParams() };
  return Object.hasOwn(VIEWS, name) ? { name, query: new URLSearchParams(query) } : null;
}

function useRoute() {
  const [shown, show] = useState(route() || { name: 'make', query: new URLSearchParams() });
  useEffect(() => {
    const change = () => {
      const next = route();
      if (next) show(next);
    };
    addEventListener('hashchange', change);
    return () => removeEventListener('hashchange', change);
  }, []);
  return shown;
}

function Page() {
  const { locked, unsettled } = useStore(store);
  const shown = useRoute();
  const main = useRef(null);
  const first = useRef(true);
  const { name, view: View } = VIEWS[shown.name];

  // Who goes to another view by keyboard, or hears the page, is put at its beginning.
  useEffect(() => {
    document.title = `${name} · Berth`;
    if (!first.current) main.current.focus();
    first.current = false;
  }, [name]);

  const skip = (event) => {
    event.preventDefault();
    main.current.focus();
  };
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the view</a>
    <header>
      <p class="brand">Berth</p>
      <nav aria-label="Views">
        <ul>
          ${Object.entries(VIEWS).map(([key, { name }]) => html`
            <li key=${key}><a href=${`#/${key}`}
              aria-current=${key === shown.name ? 'page' : null}>${name}${
                key === 'queue' && unsettled > 0 &&
                html` <span class="count">${unsettled}<span class="unseen">
                  ${plural(unsettled, 'job')}</span></span>`}</a></li>`)}
        </ul>
      </nav>
    </header>
    <${Connection} />
    <${Warnings} />
    <main id="main" tabindex="-1" ref=${main} aria-label=${name}>
      ${locked ? html`<${Login} />` : html`<${View} query=${shown.query} />`}
    </main>
    <${Told} />`;
}

// A lost connection is seen by everybody, and told once.
function Connection() {
  const { connection, locked } = useStore(store);
  if (connection !== 'lost' || locked) return null;
  return html`<p class="notice warning" data-connection="lost">
    The connection to the server is lost. What is shown may be out of date; the page tries again by
    itself.</p>`;
}

// What the operator should know: of the start, and of what was lost before it.
function Warnings() {
  const { warnings, locked } = useStore(store);
  const [error, setError] = useState(null);
  if (warnings.length === 0 || locked) return null;
  return html`<section aria-label="Warnings" data-warnings>
    <${Notices} list=${warnings} />
    <${Failure} error=${error} />
    <p class="actions">
      <${Action} failed=${setError} work=${acknowledge}>Do not show this again</${Action}>
    </p>
  </section>`;
}

// The one place that screen readers listen to: changes of state, not each step.
function Told() {
  const { told } = useStore(store);
  return html`<p role="status" class="unseen">${told}</p>`;
}

start();
render(html`<${Page} />`, document.getElementById('page'));
