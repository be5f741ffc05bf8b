// A job in full: how far it is, what it made, and what it took.

import { html, useState } from '../vendor/htm-preact.js';
import { Action, Facts, Failure, Notices, useFocusKept, useStore } from '../lib/dom.js';
import {
  between, bytes, compared, duration, isEnded, moment, phaseName, stateName,
} from '../lib/format.js';
import { act, store } from '../lib/store.js';
import { NearestFit } from './quote.js';

export function JobPanel({ job }) {
  const { previews } = useStore(store);
  const [error, setError] = useState(null);
  const heading = useFocusKept();
  const preview = previews[job.id];
  const pictures = job.pictures || [];
  return html`<section class="panel" aria-labelledby="job-title" data-job=${job.id}
    data-state=${job.state} tabindex="-1" ref=${heading}>
    <h2 id="job-title">${stateName(job.state)}</h2>
    ${job.prompt && html`<p class="prompt">${job.prompt}</p>`}
    ${job.waiting && html`<p class="notice">${job.waiting}</p>`}
    ${!isEnded(job.state) && html`<${Progress} job=${job} />`}
    ${job.error && html`<${JobError} error=${job.error} />`}
    ${pictures.length === 0 && preview && html`<img class="preview" src=${preview}
      alt="A preview of the unfinished picture" />`}
    <${Pictures} job=${job} />
    <${Attempts} job=${job} />
    <${Notices} list=${job.notices} />
    <${Took} job=${job} />
    <${Failure} error=${error} />
    <p class="actions">
      ${!isEnded(job.state) && html`<${Action} work=${() => act(job.id, 'cancel')}
        failed=${setError}>Cancel</${Action}>`}
      ${job.plan && html`<a href=${`#/plan?job=${job.id}`}>See its plan</a>`}
    </p>
  </section>`;
}

function Progress({ job }) {
  const { progress, starts_at: starts, ends_at: ends } = job;
  if (!progress) {
    const when = starts && job.state === 'queued' ? `Begins at about ${moment(starts)}.` : '';
    return html`<p>${when} ${ends && `Ready at about ${moment(ends)}.`}</p>`;
  }
  const text = `${phaseName(progress.phase)}, ${progress.step} of ${progress.of}`;
  return html`<p class="progress">
    <label for="progress">${text}</label>
    <progress id="progress" max=${progress.of || 1} value=${progress.step}></progress>
    <span class="muted">${progress.eta_ms > 0 ? `${duration(progress.eta_ms)} to go`
      : progress.eta_ms === 0 && 'longer than predicted'}</span>
  </p>`;
}

export function JobError({ error }) {
  const [message, ...hints] = error.message.split(/(?:; |\n)hint: /);
  return html`<div class="notice error">
    <p>${message}</p>
    ${hints.map((hint) => html`<p key=${hint}>Hint: ${hint}</p>`)}
    <${NearestFit} nearest=${error.nearest} />
  </div>`;
}

function Pictures({ job }) {
  const figures = (job.pictures || []).map(({ index, url, seed, width, height, bytes: size }) => html`
    <figure key=${index}>
      ${url ? html`<a href=${url}><img src=${url} width=${width} height=${height}
          alt=${`Picture ${index + 1} for the prompt: ${job.prompt || ''}`} /></a>`
        : html`<p class="notice error">The picture could not be written.</p>`}
      <figcaption>Seed ${seed}, ${width} × ${height}, ${bytes(size)}
        ${url && html`${' '}<a href=${url} download=${`${job.id}-${index}.png`}>Download</a>`}
      </figcaption>
    </figure>`);
  return html`<div class="pictures">${figures}</div>`;
}

function Attempts({ job: { failures = [] } }) {
  if (failures.length === 0) return null;
  return html`<details>
    <summary>${failures.length === 1 ? 'One attempt' : `${failures.length} attempts`} failed</summary>
    <ol>${failures.map((failure, index) => html`<li key=${index}>${failure.reason}</li>`)}</ol>
  </details>`;
}

// What was predicted beside what became of it.
export function Took({ job }) {
  const { quote, created_at: created, started_at: started, ended_at: ended } = job;
  if (!quote || job.state !== 'done') return null;
  const predicted = quote.load_ms + quote.run_ms;
  const measured = between(started, ended);
  return html`<${Facts} pairs=${[
    ['Waited', `${duration(between(created, started))}, predicted ${duration(quote.wait_ms)}`],
    ['Took', `${duration(measured)}, predicted ${duration(predicted)}`],
    ['That is', compared(predicted, measured)],
  ]} />`;
}
