// Gallery: the pictures that were made, with how.

import { html, useEffect, useState } from '../vendor/htm-preact.js';
import { ask } from '../lib/api.js';
import { Action, Facts, Failure, useFocusKept, useStore } from '../lib/dom.js';
import { reuse } from '../lib/form.js';
import { between, compared, duration, moment } from '../lib/format.js';
import { remove, store } from '../lib/store.js';

// Jobs of a page.
const PAGE = 24;

// Pixels of a small picture's longer side: twice what it is shown at, for fine screens.
const THUMB = 512;

export function Gallery() {
  const { jobs, connection } = useStore(store);
  const [older, setOlder] = useState({ jobs: [], before: null, known: false });
  const [error, setError] = useState(null);
  const list = useFocusKept();

  const more = async (before) => {
    const place = before ? `&before=${before}` : '';
    const answer = await ask('GET', `/v1/jobs?state=done&limit=${PAGE}${place}`);
    setOlder(({ jobs }) => ({
      jobs: before ? [...jobs, ...answer.data] : answer.data, before: answer.before, known: true,
    }));
  };
  useEffect(() => {
    if (connection !== 'lost') more(null).then(() => setError(null), setError);
  }, [connection]);

  const gone = async (id) => {
    await remove(id);
    setOlder((known) => ({ ...known, jobs: known.jobs.filter((job) => job.id !== id) }));
  };
  const done = newestFirst([...older.jobs, ...jobs.filter(({ state }) => state === 'done')]);
  const pictures = done.flatMap((job) => (job.pictures || []).map((picture) => ({ job, picture })));
  return html`
    <h1>Gallery</h1>
    <${Failure} error=${error} />
    ${older.known && pictures.length === 0 && html`<p>There are no pictures yet.
      ${' '}<a href="#/make">Make one</a></p>`}
    <ul class="gallery" tabindex="-1" ref=${list} aria-label="Pictures, the newest first">
      ${pictures.map(({ job, picture }) => html`<${Entry} key=${`${job.id}-${picture.index}`}
        job=${job} picture=${picture} gone=${gone} failed=${setError} />`)}
    </ul>
    ${older.before && html`<${Action} failed=${setError}
      work=${() => more(older.before)}>Older pictures</${Action}>`}`;
}

// Names of jobs are in the order in which they were made.
function newestFirst(jobs) {
  const known = new Map(jobs.map((job) => [job.id, job]));
  return [...known.values()].sort((a, b) => (a.id < b.id ? 1 : -1));
}

function Entry({ job, picture, gone, failed }) {
  const { url, seed, width, height, settings } = picture;
  const predicted = job.quote && job.quote.load_ms + job.quote.run_ms;
  const measured = between(job.started_at, job.ended_at);
  const what = job.prompt || 'no prompt';
  return html`<li class="panel" data-job=${job.id}>
    ${url ? html`<a href=${url}><img src=${`${url}?thumb=${THUMB}&format=webp`} loading="lazy"
        width=${width} height=${height} alt=${`Picture for the prompt: ${what}`} /></a>`
      : html`<p>The picture's file could not be written.</p>`}
    <p class="prompt">${what}</p>
    <${Facts} pairs=${[
      ['Model', job.model],
      ['Seed', seed],
      ['Size', `${width} × ${height}`],
      ['Made', moment(job.ended_at)],
      ['Took', measured != null && predicted != null
        ? `${duration(measured)}, predicted ${duration(predicted)}` : null],
      ['That is', compared(predicted, measured)],
    ]} />
    <details><summary>All settings<span class="unseen"> of ${what}, seed ${seed}</span></summary>
      <pre tabindex="0">${settings}</pre></details>
    <p class="actions">
      <${Action} label=${`Reuse settings of ${what}, seed ${seed}`} failed=${failed}
        work=${() => use(job, picture)}>Reuse settings</${Action}>
      <${Action} quiet=${true} label=${`Delete ${what}, ${moment(job.ended_at)}`} failed=${failed}
        work=${() => sure(job) && gone(job.id)}>Delete</${Action}>
    </p>
  </li>`;
}

function sure({ pictures }) {
  const what = pictures.length === 1 ? 'this picture' : `all ${pictures.length} pictures of this job`;
  return confirm(`Delete ${what}? This cannot be undone.`);
}

// The request as it came where it came from our own route; of others what the picture tells.
async function use(job, { seed, width, height, settings }) {
  const { request, api } = await ask('GET', `/v1/jobs/${job.id}`);
  const steps = settings.match(/\bSteps: (\d+)/)?.[1];
  const negative = settings.match(/^Negative prompt: (.*)$/m)?.[1];
  const told = { model: job.model, prompt: job.prompt, negative_prompt: negative, steps, width, height };
  reuse(api === 'native' ? { ...request, model: job.model, width, height } : told, seed);
  location.hash = '#/make';
}
