// What the form on Make asks for, and what that would take. Plan shows the same.
//
// The form outlives a reload, but for the picture that it starts from: that may be larger than what
// a browser keeps for a page.

import { ask } from './api.js';
import { watched } from './dom.js';
import { store } from './store.js';

const KEPT = 'berth.form';

// From the last change to the question what it would take.
const PAUSE_MS = 300;

const EMPTY = {
  model: '', prompt: '', negative_prompt: '', width: '', height: '', steps: '', n: '', seed: '',
  guidance_scale: '', true_cfg_scale: '', strength: '', priority: 'interactive', image: null,
};

const NUMBERS = ['width', 'height', 'steps', 'n', 'seed', 'guidance_scale', 'true_cfg_scale'];

export const form = watched({ ...EMPTY, ...kept() });

// What the form's job would take: `answer` of the newest question that was answered, `error` where
// it could not be, `asking` while another one is on its way.
export const quote = watched({ answer: null, error: null, asking: false });

function kept() {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT)) || {};
  } catch {
    return {};
  }
}

form.watch(({ image, ...rest }) => {
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(rest));
  } catch {
    // Without it the form is empty after a reload.
  }
});

// Fills the form by the request of an earlier job, with the seed of one of its pictures.
export function reuse(request, seed) {
  const taken = Object.keys(EMPTY).filter((name) => name !== 'image' && request[name] != null);
  const values = Object.fromEntries(taken.map((name) => [name, String(request[name])]));
  form.set({ ...EMPTY, ...values, seed: seed == null ? '' : String(seed), n: '' });
}

// The model that the form means, as the server describes it.
export function chosenModel(models, name) {
  const found = models?.find((model) => model.id === name);
  return found || models?.find((model) => model.berth.default) || models?.[0] || null;
}

// The body of a request for this form.
export function body(values) {
  const asked = {};
  if (values.model) asked.model = values.model;
  for (const name of ['prompt', 'negative_prompt']) {
    if (values[name].trim() !== '') asked[name] = values[name];
  }
  for (const name of NUMBERS) {
    if (values[name] !== '') asked[name] = Number(values[name]);
  }
  if (values.image) {
    asked.image = values.image.data;
    if (values.strength !== '') asked.strength = Number(values.strength);
  }
  return asked;
}

// What changes an answer: prompts and seeds do not.
function question() {
  const { prompt, negative_prompt, seed, image, ...rest } = body(form.get());
  const { models, queue, paused, connection } = store.get();
  const host = [models?.map((model) => [model.id, model.berth.state]), queue, paused, connection];
  return JSON.stringify([rest, form.get().image?.name, image?.length, negative_prompt != null, host]);
}

let asked = null;
let timer = null;
let running = null;

// Asks anew where what is asked, or the host, has changed.
function look() {
  const { models, locked, connection } = store.get();
  if (!models || models.length === 0 || locked || connection === 'lost') return;
  const now = question();
  if (now === asked) return;
  asked = now;
  clearTimeout(timer);
  timer = setTimeout(() => find(now), PAUSE_MS);
}

async function find(now) {
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  quote.set({ asking: true });
  try {
    const answer = await ask('POST', '/v1/plan', body(form.get()), signal);
    if (now === asked) quote.set({ answer, error: null, asking: false });
  } catch (error) {
    if (signal.aborted || now !== asked) return;
    quote.set({ answer: null, error, asking: false });
    // A server that was busy is asked again with the next change.
    if (error.status === 0 || error.status >= 500) asked = null;
  }
}

form.watch(look);
store.watch(look);
