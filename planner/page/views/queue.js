// Queue: what runs and what waits in order, and what became of jobs beside what was predicted.

import { html, useEffect, useState } from '../vendor/htm-preact.js';
import { Action, Facts, Failure, useFocusKept, useStore } from '../lib/dom.js';
import { isEnded, moment, phaseName, plural, stateName } from '../lib/format.js';
import { act, askQueue, move, setPaused, store } from '../lib/store.js';
import { JobError, Took } from './job.js';

// Predicted times are asked for anew so often, in milliseconds.
const ASK_MS = 5_000;

// Ended jobs that are shown; the gallery has the rest.
const ENDED = 20;

export function Queue() {
  const { jobs, queue, paused, failure, connection } = useStore(store);
  const [error, setError] = useState(null);
  const list = useFocusKept();
  const byId = new Map(jobs.map((job) => [job.id, job]));
  const open = queue.map((id) => byId.get(id)).filter((job) => job && !isEnded(job.state));
  const running = open.filter((job) => !waitsForTurn(job)).length;
  const ended = jobs.filter((job) => isEnded(job.state)).slice(0, ENDED);

  const waits = open.length > 0 && connection !== 'lost';
  useEffect(() => {
    if (!waits) return undefined;
    const timer = setInterval(() => askQueue().catch(() => {}), ASK_MS);
    return () => clearInterval(timer);
  }, [waits]);

  return html`
    <h1>Queue</h1>
    <${Failure} error=${failure} />
    <${Pause} paused=${paused} failed=${setError} />
    <${Failure} error=${error} />
    <section aria-labelledby="open-title" tabindex="-1" ref=${list}>
      <h2 id="open-title">Running and waiting</h2>
      ${open.length === 0 && html`<p>No job runs or waits.</p>`}
      <ol class="jobs">
        ${open.map((job, at) => html`<${OpenJob} key=${job.id} job=${job} place=${at - running}
          failed=${setError} />`)}
      </ol>
    </section>
    <section aria-labelledby="ended-title">
      <h2 id="ended-title">Ended</h2>
      ${ended.length === 0 && html`<p>No job has ended yet.</p>`}
      <ul class="jobs">
        ${ended.map((job) => html`<${EndedJob} key=${job.id} job=${job} failed=${setError} />`)}
      </ul>
    </section>`;
}

function Pause({ paused, failed }) {
  const [unload, setUnload] = useState(false);
  return html`<div class="actions bar">
    <${Action} failed=${failed} work=${() => setPaused(!paused, unload)}>
      ${paused ? 'Go on' : 'Pause'}</${Action}>
    ${paused ? html`<p><strong>Paused:</strong> jobs are taken, and none is begun.</p>`
      : html`<label><input type="checkbox" checked=${unload}
          onChange=${(event) => setUnload(event.target.checked)} /> and unload all models</label>`}
  </div>`;
}

function name(job) {
  return (job.prompt || 'without a prompt').slice(0, 200);
}

function details(job) {
  return `${job.model}, ${job.n} ${plural(job.n, 'picture')}, for ${job.client}`;
}

function waitsForTurn({ state }) {
  return state === 'queued' || state === 'waiting';
}

// `place` counts those that wait before it.
function OpenJob({ job, place, failed }) {
  const { progress } = job;
  const of = progress && `${phaseName(progress.phase)}, ${progress.step} of ${progress.of}`;
  const waits = waitsForTurn(job);
  const change = async (event) => {
    try {
      failed(null);
      await move(job.id, { priority: event.target.value });
    } catch (error) {
      failed(error);
    }
  };
  return html`<li class="panel" data-job=${job.id} data-state=${job.state}>
    <h3>${name(job)}</h3>
    <p class="muted">${details(job)}</p>
    <${Facts} pairs=${[
      ['State', stateName(job.state) + (of ? `: ${of}` : '')],
      ['Waits for', job.waiting],
      ['Place', waits ? place + 1 : null],
      [job.started_at ? 'Began' : 'Begins', moment(job.started_at || job.starts_at)],
      ['Ends', `${moment(job.ends_at)}, at first predicted ${moment(job.quote?.ends_at)}`],
    ]} />
    <div class="actions">
      <label>Priority <select value=${job.priority} onChange=${change} disabled=${!waits}
        aria-label=${`Priority of ${name(job)}`}>
        <option value="interactive">soon</option>
        <option value="batch">normal</option>
        <option value="background">when idle</option>
      </select></label>
      ${waits && place > 0 && html`<${Action} label=${`To the front: ${name(job)}`}
        failed=${failed} work=${() => move(job.id, { front: true })}>To the front</${Action}>`}
      <${Action} label=${`Cancel: ${name(job)}`} failed=${failed}
        work=${() => act(job.id, 'cancel')}>Cancel</${Action}>
    </div>
  </li>`;
}

function EndedJob({ job, failed }) {
  const again = job.state !== 'done';
  return html`<li class="panel" data-job=${job.id} data-state=${job.state}>
    <h3>${name(job)}</h3>
    <p class="muted">${details(job)}</p>
    <${Facts} pairs=${[
      ['State', stateName(job.state)],
      ['Ended', `${moment(job.ended_at)}, predicted ${moment(job.quote?.ends_at)}`],
    ]} />
    <${Took} job=${job} />
    ${job.error && html`<${JobError} error=${job.error} />`}
    <p class="actions">
      ${again && html`<${Action} label=${`Try again: ${name(job)}`} failed=${failed}
        work=${() => act(job.id, 'retry')}>Try again</${Action}>`}
      ${job.started_at && html`<a href=${`#/plan?job=${job.id}`}>Plan<span class="unseen"> of
        ${name(job)}</span></a>`}
    </p>
  </li>`;
}
