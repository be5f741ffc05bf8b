// What the form's job would take, as the server works it out while one types.

import { html, useEffect } from '../vendor/htm-preact.js';
import { Facts, Failure, Notices, Table, useStore } from '../lib/dom.js';
import { form, quote } from '../lib/form.js';
import { bytes, duration, moment } from '../lib/format.js';
import { store, tell } from '../lib/store.js';

export function QuotePanel() {
  const { answer, error, asking } = useStore(quote);
  const verdict = answer && (answer.feasible ? 'It fits.' : 'It does not fit.');
  useEffect(() => {
    if (verdict) tell(verdict);
  }, [verdict]);
  return html`<section class="panel" aria-labelledby="quote-title" aria-busy=${asking ? 'true' : 'false'}>
    <h2 id="quote-title">What it would take</h2>
    <${Failure} error=${error} id="quote-error" quiet=${true} />
    ${!answer && !error && html`<p>${asking ? 'Working it out …' : 'Nothing is known yet.'}</p>`}
    ${answer && html`<p class=${answer.feasible ? 'verdict fits' : 'verdict short'}>${verdict}
      ${asking && html`<span class="muted"> Working it out anew …</span>`}</p>`}
    ${answer?.feasible && html`<${Feasible} answer=${answer} />`}
    ${answer && !answer.feasible && html`<${Infeasible} answer=${answer} />`}
    <${Notices} list=${answer?.notices} />
  </section>`;
}

function Feasible({ answer: { quote, plan } }) {
  const { paused } = useStore(store);
  const all = quote.wait_ms + quote.load_ms + quote.run_ms;
  const measured = quote.confidence === 'measured';
  const runs = `${quote.batch} at a time`;
  return html`
    <${Facts} pairs=${[
      ['Ready in', paused ? 'not before the queue goes on' : `${duration(all)}, at ${moment(quote.ends_at)}`],
      ['In the queue', quote.wait_ms > 0 ? duration(quote.wait_ms) : 'no wait'],
      ['Loading', quote.warm ? 'is loaded already' : duration(quote.load_ms)],
      ['Computing', duration(quote.run_ms)],
      ['Pictures', plan.job.batch > 1 || quote.batch > 1 ? runs : null],
      ['Unloads first', quote.evicts.length > 0 ? quote.evicts.join(', ') : null],
      ['Predicted from', measured ? 'earlier runs here' : 'what is known of the devices'],
    ]} />
    <${Table} caption="Most memory at a time, by device"
      head=${['Device', 'At most', 'Of a budget of']} rows=${peaks(plan)} />
    <p><a href="#/plan">See where everything goes</a></p>`;
}

function peaks({ devices, host }) {
  const share = (peak, budget) => html`<span class="nowrap">${bytes(peak)}</span>
    <meter min="0" max=${budget} value=${peak} aria-hidden="true"></meter>`;
  const row = (name, peak, budget) => [name, share(peak, budget), bytes(budget)];
  return [
    ...devices.map((device) => row(device.id, device.peak_bytes, device.budget_bytes)),
    row('Main memory', host.peak_bytes, host.budget_bytes),
  ];
}

function Infeasible({ answer: { because, nearest } }) {
  const [reason, ...hints] = String(because).split(/(?:; |\n)hint: /);
  // What is nearest says the same, and no flags of the command line.
  return html`<p>${reason}</p>
    ${!nearest && hints.map((hint) => html`<p key=${hint}>Hint: ${hint}</p>`)}
    <${NearestFit} nearest=${nearest} />`;
}

// What would fit, where the server found something.
export function NearestFit({ nearest }) {
  if (!nearest) return null;
  const { width, height, max_vram_bytes: vram, max_ram_bytes: ram, together } = nearest;
  const memory = [
    vram != null && `${bytes(vram)} of device memory`,
    ram != null && `${bytes(ram)} of main memory`,
  ].filter(Boolean);
  const use = () => {
    form.set({ width: String(width), height: String(height) });
    location.hash = '#/make';
    document.getElementById('width')?.focus();
  };
  return html`
    ${memory.length > 0 && html`<p>It would fit with ${memory.join(together ? ' and ' : ', or with ')}.</p>`}
    ${width != null && html`<p>A size that fits: ${width} × ${height}.
      ${' '}<button type="button" class="quiet" onClick=${use}>Use this size</button></p>`}`;
}
