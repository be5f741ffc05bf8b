// Make: what is wanted, what it would take, and the job that came of it.

import { html, useEffect, useRef, useState } from '../vendor/htm-preact.js';
import { ask } from '../lib/api.js';
import { Failure, Notices, useStore } from '../lib/dom.js';
import { body, chosenModel, form, quote } from '../lib/form.js';
import { merge, store, tell } from '../lib/store.js';
import { JobPanel } from './job.js';
import { QuotePanel } from './quote.js';

const LAST_JOB = 'berth.job';

export function Make() {
  const { models, problems, failure } = useStore(store);
  const [id, setId] = useState(sessionStorage.getItem(LAST_JOB));
  const made = (job) => {
    sessionStorage.setItem(LAST_JOB, job.id);
    setId(job.id);
  };
  return html`
    <h1>Make a picture</h1>
    <${Failure} error=${failure} />
    <${Notices} list=${problems} />
    ${models && models.length === 0 && html`<p class="notice warning">
      There is no model yet. Put one into a folder of models that the server was started with.</p>`}
    <div class="columns">
      <${Form} models=${models} made=${made} />
      <div>
        <${QuotePanel} />
        <${LastJob} id=${id} />
      </div>
    </div>`;
}

// The job that this tab asked for last. After a reload it may not be among the newest.
function LastJob({ id }) {
  const { jobs, models } = useStore(store);
  const job = jobs.find((job) => job.id === id);
  const missing = id && models && !job;
  useEffect(() => {
    if (missing) {
      ask('GET', `/v1/jobs/${id}`).then((job) => merge([job]), () => {
        sessionStorage.removeItem(LAST_JOB);
      });
    }
  }, [id, missing]);
  return job ? html`<${JobPanel} key=${job.id} job=${job} />` : null;
}

function Form({ models, made }) {
  const values = useStore(form);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const sent = useRef({ text: null, key: null });
  const live = useStore(quote).error;
  const model = chosenModel(models, values.model);
  const set = (name) => (event) => form.set({ [name]: event.target.value });

  const send = async (event) => {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    setError(null);
    try {
      const job = await submit(values, sent.current);
      merge([job]);
      made(job);
      tell('The job is in the queue.');
    } catch (failure) {
      setError(failure);
    } finally {
      setBusy(false);
    }
  };
  const wrong = error ? [error.param, 'form-error'] : [live?.param, 'quote-error'];
  const field = { values, set, wrong };
  return html`<form class="panel" onSubmit=${send}>
    <p class="field">
      <label for="model">Model</label>
      <select id="model" value=${model?.id || ''} onChange=${set('model')} disabled=${!model}>
        ${(models || []).map(({ id, berth }) => html`
          <option key=${id} value=${id}>${id}${berth.problems.length > 0 ? ' (has problems)' : ''}</option>`)}
      </select>
    </p>
    <${Notices} list=${model?.berth.problems} />
    <p class="field">
      <label for="prompt">Prompt</label>
      <textarea id="prompt" rows="4" required value=${values.prompt} onInput=${set('prompt')}
        onKeyDown=${sendByKey} aria-describedby="prompt-keys"></textarea>
      <small id="prompt-keys">Ctrl and Enter makes the picture.</small>
    </p>
    <${Shape} ...${field} model=${model} />
    <${More} ...${field} model=${model} />
    <${Failure} error=${error} id="form-error" />
    <button type="submit" class="main" aria-disabled=${busy || !model ? 'true' : null}>Make</button>
  </form>`;
}

function sendByKey(event) {
  if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    event.target.form.requestSubmit();
  }
}

// Sent again after a lost answer, the same request is the same job.
async function submit(values, sent) {
  const request = { ...body(values), priority: values.priority, preview_every: 1 };
  const text = JSON.stringify(request);
  if (sent.text !== text) {
    const random = crypto.getRandomValues(new Uint32Array(4));
    Object.assign(sent, { text, key: [...random].map((part) => part.toString(16)).join('-') });
  }
  const job = await ask('POST', '/v1/jobs', request, undefined, { 'idempotency-key': sent.key });
  sent.text = null;
  return job;
}

function Shape({ values, set, wrong, model }) {
  const defaults = model?.berth.defaults;
  const multiple = model?.berth.side_multiple_pixels || 1;
  const side = { type: 'number', min: multiple, step: multiple, values, set, wrong };
  return html`<fieldset class="grid">
    <legend>Picture</legend>
    <${Field} ...${side} name="width" label="Width in pixels" usual=${defaults?.width} />
    <${Field} ...${side} name="height" label="Height in pixels" usual=${defaults?.height} />
    <${Field} ...${side} name="steps" label="Steps" min="1" step="1" usual=${defaults?.steps} />
    <${Field} ...${side} name="n" label="Pictures" min="1" step="1" usual=${1} />
  </fieldset>`;
}

function More({ values, set, wrong, model }) {
  const number = { type: 'number', values, set, wrong };
  const defaults = model?.berth.defaults;
  return html`<details open=${wrong[0] && !SHAPE.includes(wrong[0]) ? true : null}>
    <summary>More settings</summary>
    <div class="grid">
      <${Field} ...${number} name="seed" label="Seed" min="0" step="1" usual="drawn" />
      <${Field} ...${number} name="guidance_scale" label="Guidance" min="0" step="any"
        usual=${defaults?.guidance_scale} />
      <${Field} ...${number} name="true_cfg_scale" label="Classifier-free guidance" min="0"
        step="any" usual=${defaults?.true_cfg_scale} help="1 is none; more takes twice the time" />
      <p class="field">
        <label for="priority">Priority</label>
        <select id="priority" value=${values.priority} onChange=${set('priority')}>
          <option value="interactive">Soon: I am waiting</option>
          <option value="batch">Normal</option>
          <option value="background">When nothing else is to do</option>
        </select>
      </p>
    </div>
    <p class="field">
      <label for="negative_prompt">Negative prompt</label>
      <textarea id="negative_prompt" rows="2" value=${values.negative_prompt}
        onInput=${set('negative_prompt')}
        aria-describedby="negative-help"></textarea>
      <small id="negative-help">Has an effect with classifier-free guidance only.</small>
    </p>
    <${Start} ...${number} />
  </details>`;
}

const SHAPE = ['size', 'width', 'height', 'steps', 'n', 'prompt', 'model'];

// The picture that the job starts from.
function Start({ values, set, wrong }) {
  const input = useRef(null);
  const read = (event) => {
    const [file] = event.target.files;
    if (!file) return form.set({ image: null });
    const reader = new FileReader();
    reader.onload = () => form.set({ image: { name: file.name, data: reader.result } });
    reader.readAsDataURL(file);
  };
  const drop = () => {
    form.set({ image: null, strength: '' });
    input.current.value = '';
    input.current.focus();
  };
  return html`<p class="field">
      <label for="image">Start from a picture</label>
      <input id="image" type="file" accept="image/png,image/jpeg,image/webp" onChange=${read}
        ref=${input} />
    </p>
    ${values.image && html`<div class="grid">
      <${Field} type="number" values=${values} set=${set} wrong=${wrong} name="strength"
        label="How far it is changed" min="0" max="1" step="any" help="From 0 to 1" />
      <p class="start"><img src=${values.image.data} alt="The picture to start from" />
        <button type="button" class="quiet" onClick=${drop}>Without it</button></p>
    </div>`}`;
}

// A field that may be left empty, with what is taken then.
function Field({ name, label, type, values, set, wrong, usual = null, help = null, ...limits }) {
  const [param, why] = wrong;
  const isWrong = param === name || (param === 'size' && (name === 'width' || name === 'height'));
  const describedby = [help && `${name}-help`, isWrong && why].filter(Boolean).join(' ');
  return html`<p class="field">
    <label for=${name}>${label}</label>
    <input id=${name} type=${type} inputmode="decimal" value=${values[name]} onInput=${set(name)}
      placeholder=${usual == null ? null : String(usual)} ...${limits}
      aria-invalid=${isWrong ? 'true' : null} aria-describedby=${describedby || null} />
    ${help && html`<small id=${`${name}-help`}>${help}</small>`}
  </p>`;
}
