// The models: which are loaded, what they hold between jobs, and until when.

import { html, useState } from '../vendor/htm-preact.js';
import { Action, Facts, Failure, Notices, useStore } from '../lib/dom.js';
import { bytes, moment, slotName } from '../lib/format.js';
import { loadModel, store } from '../lib/store.js';

export function Slots() {
  const { models } = useStore(store);
  const [error, setError] = useState(null);
  return html`<section aria-labelledby="slots-title">
    <h2 id="slots-title">Models</h2>
    <${Failure} error=${error} />
    <ul class="cards">
      ${(models || []).map((model) => html`<${Slot} key=${model.id} model=${model} failed=${setError} />`)}
    </ul>
  </section>`;
}

const LOADED = ['warm', 'kept', 'running', 'loading'];

function Slot({ model: { id, berth }, failed }) {
  const loaded = LOADED.includes(berth.state);
  const held = Object.entries(berth.idle_bytes).filter(([, count]) => count > 0);
  return html`<li class="panel" data-model=${id}>
    <h3>${id}</h3>
    <${Facts} pairs=${[
      ['State', slotName(berth.state)],
      ['Kind', berth.family],
      ['Files', bytes(berth.files_bytes)],
      ['Holds', loaded && held.length > 0
        ? held.map(([device, count]) => `${device} ${bytes(count)}`).join(', ') : null],
      ['Unloads at', loaded && berth.expires_at ? moment(berth.expires_at) : null],
      ['Also called', berth.aliases.join(', ')],
    ]} />
    <${Notices} list=${berth.problems} />
    <p class="actions">
      <${Action} label=${`Load ${id}`} disabled=${loaded} failed=${failed}
        work=${() => loadModel(id, true)}>Load</${Action}>
      <${Action} label=${`Unload ${id}`} disabled=${!loaded} failed=${failed}
        work=${() => loadModel(id, false)}>Unload</${Action}>
    </p>
  </li>`;
}
