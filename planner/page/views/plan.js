// Plan: where a job's bytes go, what devices held of late, and which models are loaded.

import { html, useEffect, useState } from '../vendor/htm-preact.js';
import { ask } from '../lib/api.js';
import { Bands, LAYERS, Legend } from '../lib/chart.js';
import { Facts, Failure, Notices, Table, useStore } from '../lib/dom.js';
import { quote } from '../lib/form.js';
import { bytes, duration, firstUpper, isEnded } from '../lib/format.js';
import { merge, store } from '../lib/store.js';
import { LessMemory } from './budget.js';
import { Minutes10 } from './minutes.js';
import { Slots } from './slots.js';

// The form's job, in place of an id.
const FORM = '';

export function Plan({ query }) {
  const { jobs, failure } = useStore(store);
  const { answer, error } = useStore(quote);
  const id = query.get('job') || FORM;
  const job = jobs.find((job) => job.id === id);
  const missing = useWhole(id, job);
  const plan = id === FORM ? answer?.feasible && answer.plan : job?.plan;
  return html`
    <h1>Plan</h1>
    <${Failure} error=${failure} />
    <section aria-labelledby="bands-title">
      <h2 id="bands-title">Where everything goes</h2>
      <${Choice} id=${id} jobs=${jobs} />
      <${Failure} error=${id === FORM ? error : missing} />
      ${plan ? html`<${Devices} plan=${plan} />`
        : html`<p>${whyNone(id, answer, job, missing)}</p>`}
    </section>
    ${id === FORM && plan && html`<${LessMemory} plan=${plan} />`}
    <${Minutes10} />
    <${Slots} />`;
}

// A job of which only a summary is known is asked for.
function useWhole(id, job) {
  const [error, setError] = useState(null);
  const wanted = id !== FORM && job?.plan === undefined;
  useEffect(() => {
    setError(null);
    if (!wanted) return;
    ask('GET', `/v1/jobs/${encodeURIComponent(id)}`).then((job) => merge([job]), setError);
  }, [id, wanted]);
  return error;
}

function whyNone(id, answer, job, missing) {
  if (missing) return null;
  if (id === FORM) return answer ? 'What the form on Make asks for does not fit.' : 'Working it out …';
  return job && job.plan === null ? 'The job has no plan: it was not begun.' : 'Looking for the plan …';
}

function Choice({ id, jobs }) {
  const choose = (event) => {
    location.hash = event.target.value === FORM ? '#/plan' : `#/plan?job=${event.target.value}`;
  };
  const shown = jobs.filter((job) => job.id === id || job.started_at);
  return html`<p class="field">
    <label for="plan-of">Plan of</label>
    <select id="plan-of" value=${id} onChange=${choose}>
      <option value=${FORM}>what the form on Make asks for</option>
      ${shown.slice(0, 50).map((job) => html`<option key=${job.id} value=${job.id}>
        ${isEnded(job.state) ? '' : 'now: '}${(job.prompt || job.id).slice(0, 60)}</option>`)}
    </select>
  </p>`;
}

function Devices({ plan }) {
  const { predicted_ms: times, devices, host, components, notices } = plan;
  return html`
    <${Facts} pairs=${[
      ['Model', plan.family],
      ['Size', `${plan.job.width} × ${plan.job.height}, ${plan.job.steps} steps`],
      ['Loading', times.load > 0 ? duration(times.load) : 'is loaded already'],
      ['Computing', duration(times.next_total)],
    ]} />
    <${Legend} entries=${[...LAYERS, ['others', 'Other programs']]} />
    <div class="charts">
      ${devices.map((device) => html`<${Bands} key=${device.id} id=${`band-${device.id}`}
        title=${title(device)} note=${`${bytes(device.idle_bytes)} stay between jobs`}
        budget=${device.budget_bytes} phases=${phases(device, plan)} total=${device.total_bytes}
        others=${Math.max(0, device.total_bytes - device.free_bytes)} />`)}
      <${Bands} id="band-host" title="Main memory" note=${`${bytes(host.idle_bytes)} stay between jobs`}
        budget=${host.budget_bytes} phases=${phases(host, plan)} />
    </div>
    <h3>Parts of the model</h3>
    <${Table} caption="Parts of the model"
      head=${['Part', 'On', 'Weights', 'Held', 'Loading', 'Computing']}
      rows=${components.map(partRow)} />
    <${Notices} list=${notices} />`;
}

function title({ id, name }) {
  return name && name !== id ? `${id} (${name})` : id;
}

// A device's phases with what is no layer of its own as overhead.
function phases(device, plan) {
  return device.phases.map((phase) => {
    const [weights, compute, staging] = [phase.weights_bytes, phase.compute_bytes, phase.staging_bytes];
    return {
      name: firstUpper(phase.phase),
      note: phaseTime(phase.phase, plan),
      weights,
      compute,
      staging,
      overhead: Math.max(0, phase.peak_bytes - weights - compute - staging),
    };
  });
}

function phaseTime(phase, { predicted_ms: times, job }) {
  if (phase === 'denoise') return duration(times.denoise_step * (job.steps - job.first_step));
  return times[phase] == null ? '' : duration(times[phase]);
}

const RESIDENCY = {
  resident: 'all the time',
  streamed: 'streamed in pieces',
  lazy: 'when its phase begins',
};

function partRow(part) {
  return [
    part.name,
    part.devices.join(', '),
    bytes(part.weights_bytes),
    RESIDENCY[part.residency] || part.residency,
    duration(part.predicted_load_ms),
    duration(part.predicted_compute_ms),
  ];
}
