// What the page knows of the server: asked for at the start and after a lost connection, kept up to
// date by events in between.

import { ask, whenLocked } from './api.js';
import { watched } from './dom.js';
import { isEnded, stateName } from './format.js';
import { follow } from './sse.js';

// Jobs that are asked for at the start.
const JOBS = 50;

// Jobs that are kept: older ones are asked for by the gallery.
const JOBS_MAX = 200;

// Between the first event that makes the queue's order stale and the question for it.
const SOON_MS = 150;

export const store = watched({
  connection: 'opening', // opening, open, lost
  locked: false, // a token is wanted
  jobs: [], // the newest first
  queue: [], // ids in the order in which they will run
  unsettled: 0, // jobs that have not ended
  paused: false,
  models: null, // null until they are known
  reading: null, // the newest of the devices
  problems: [], // why no jobs are taken
  warnings: [], // what the operator should know, until it is acknowledged
  previews: {}, // by job, a picture's address
  told: '', // for screen readers
  failure: null, // why the server's state is not known
});

let stop = null;

// Begins to follow the server.
export function start() {
  whenLocked(() => {
    stop?.();
    stop = null;
    store.set({ locked: true, connection: 'opening' });
  });
  stop?.();
  stop = follow(happened, connected);
  refresh();
}

// A change of state, for people who do not see it.
export function tell(text) {
  store.set({ told: text });
}

function connected(how) {
  const before = store.get().connection;
  if (how === before) return;
  store.set({ connection: how });
  if (how === 'lost') tell('The connection to the server is lost.');
  if (how === 'open' && before === 'lost') {
    tell('The server is connected again.');
    refresh();
  }
}

// Asks for everything anew.
export async function refresh() {
  try {
    const [models, queue, list] = await Promise.all([
      ask('GET', '/v1/models'),
      ask('GET', '/v1/queue'),
      ask('GET', `/v1/jobs?limit=${JOBS}`),
    ]);
    store.set({ models: models.data, locked: false, failure: null });
    // What runs may be older than the newest ended ones.
    merge([...list.data, ...queue.jobs]);
    order(queue);
  } catch (error) {
    if (error.status !== 401) store.set({ failure: error });
    return;
  }
  readiness();
}

async function readiness() {
  // Where no jobs are taken it answers 503, with its reasons.
  const answer = await ask('GET', '/readyz').catch((error) => error.answer);
  store.set({ problems: answer?.reasons || [], warnings: answer?.warnings || [] });
}

function order({ jobs, paused }) {
  merge(jobs);
  store.set({ queue: jobs.map((job) => job.id), unsettled: jobs.length, paused });
}

export function job(id) {
  return store.get().jobs.find((job) => job.id === id);
}

// Takes jobs as they are now. A summary lacks what a whole job has, which stays. An answer may be
// older than an event that came before it: what has ended does not begin again.
export function merge(jobs) {
  const known = new Map(store.get().jobs.map((job) => [job.id, job]));
  for (const job of jobs) {
    const before = known.get(job.id);
    const older = before && isEnded(before.state) && job.state && !isEnded(job.state);
    if (!older) known.set(job.id, { ...before, ...job });
  }
  // Names of jobs are in the order in which they were made.
  const newest = [...known.values()].sort((a, b) => (a.id < b.id ? 1 : -1));
  store.set({ jobs: newest.filter((job, index) => index < JOBS_MAX || !isEnded(job.state)) });
}

// Forgets a job.
export function forget(id) {
  store.set({ jobs: store.get().jobs.filter((job) => job.id !== id) });
}

function happened(name, data) {
  switch (name) {
    case 'state': {
      const before = job(data.id)?.state;
      merge([data]);
      if (before !== data.state && data.state) tellOf(data);
      if (isEnded(data.state)) dropPreview(data.id);
      soon.queue();
      break;
    }
    case 'progress':
      if (job(data.job)) merge([{ id: data.job, progress: data.progress }]);
      break;
    case 'preview':
      if (data.png) {
        const previews = { ...store.get().previews, [data.job]: `data:image/png;base64,${data.png}` };
        store.set({ previews });
      }
      break;
    case 'picture': {
      const known = job(data.job);
      if (known) {
        const others = (known.pictures || []).filter((one) => one.index !== data.picture.index);
        const pictures = [...others, data.picture].sort((a, b) => a.index - b.index);
        merge([{ id: data.job, pictures }]);
      }
      break;
    }
    case 'plan':
      if (job(data.job)) merge([{ id: data.job, plan: data.plan }]);
      break;
    case 'reading':
      store.set({ reading: data });
      break;
    case 'model':
      soon.models();
      break;
    case 'lost':
      refresh();
      break;
  }
}

function tellOf({ state, prompt, error }) {
  const what = prompt ? `“${prompt.slice(0, 60)}”` : 'A job';
  const why = state === 'failed' && error ? ` ${error.message.split('; hint: ')[0]}` : '';
  tell(`${what}: ${stateName(state)}.${why}`);
}

function dropPreview(id) {
  const { [id]: _, ...previews } = store.get().previews;
  store.set({ previews });
}

// Asks once for what several events at a time have made stale. What fails is asked for again with
// the next event, or when the connection is back.
function later(work) {
  let timer = null;
  return () => {
    timer ??= setTimeout(() => {
      timer = null;
      work().catch(() => {});
    }, SOON_MS);
  };
}

// Asks for the queue with its predicted times.
export async function askQueue() {
  order(await ask('GET', '/v1/queue'));
}

const soon = {
  queue: later(askQueue),
  models: later(async () => store.set({ models: (await ask('GET', '/v1/models')).data })),
};

// What is done to jobs and models, with what is then known.

export async function act(id, verb) {
  const answer = await ask('POST', `/v1/jobs/${id}/${verb}`);
  merge([answer]);
  return answer;
}

export async function move(id, place) {
  merge([await ask('PATCH', `/v1/jobs/${id}`, place)]);
  soon.queue();
}

export async function remove(id) {
  await ask('DELETE', `/v1/jobs/${id}`);
  forget(id);
}

export async function setPaused(paused, unload = false) {
  await ask('POST', paused ? '/v1/queue/pause' : '/v1/queue/resume', paused ? { unload } : undefined);
  store.set({ paused });
  tell(paused ? 'The queue is paused.' : 'The queue goes on.');
}

export async function acknowledge() {
  await ask('POST', '/v1/warnings/acknowledge');
  store.set({ warnings: [] });
}

export async function loadModel(id, load) {
  await ask('POST', `/v1/models/${encodeURIComponent(id)}/${load ? 'load' : 'unload'}`, {});
  soon.models();
}
