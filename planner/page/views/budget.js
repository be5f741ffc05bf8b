// How much longer the form's job would take with less device memory.

import { html, useEffect, useState } from '../vendor/htm-preact.js';
import { ask } from '../lib/api.js';
import { Curve } from '../lib/curve.js';
import { Action, Failure } from '../lib/dom.js';
import { body, form } from '../lib/form.js';
import { tell } from '../lib/store.js';

// Limits that are asked for: parts of what the plan takes of a device at most.
const PARTS = 8;

export function LessMemory({ plan }) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const peak = Math.max(0, ...plan.devices.map((device) => device.peak_bytes));
  const shape = JSON.stringify([plan.job, plan.family, plan.model]);
  useEffect(() => {
    setFound(null);
    setError(null);
  }, [shape]);
  if (peak === 0) return null;

  const find = async () => {
    const asked = body(form.get());
    const points = [];
    for (let part = PARTS; part > 0; part -= 1) {
      const limit = Math.ceil((peak * part) / PARTS);
      const answer = await ask('POST', '/v1/plan', { ...asked, max_vram: `${limit}B` });
      const ms = answer.feasible ? answer.plan.predicted_ms.next_total : null;
      points.unshift({ limit, ms });
      // Less never fits where more does not.
      if (ms === null) break;
    }
    setFound(points);
    tell('The times with less memory are known.');
  };
  return html`<section aria-labelledby="less-title">
    <h2 id="less-title">With less device memory</h2>
    <p>How long the form's job would take if Berth were given less of each device, with the model
      loaded.</p>
    <${Action} work=${find} failed=${setError}>Work it out</${Action}>
    <${Failure} error=${error} />
    ${found && html`<${Curve} id="less" points=${found} />`}
  </section>`;
}
