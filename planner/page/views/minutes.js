// What devices held over the last 10 minutes.

import { html, useEffect, useState } from '../vendor/htm-preact.js';
import { ask } from '../lib/api.js';
import { Legend, Minutes } from '../lib/chart.js';
import { Failure, useNow, useStore } from '../lib/dom.js';
import { store } from '../lib/store.js';

const SPAN_MS = 600_000;

const KINDS = [
  ['measured', 'In use by all programs, as measured'],
  ['predicted', 'Berth’s share as planned: the most of a job while it runs, then what stays'],
];

// Between two drawings, in milliseconds.
const DRAW_MS = 5_000;

export function Minutes10() {
  const { reading, jobs, connection } = useStore(store);
  const now = useNow(DRAW_MS);
  const [readings, setReadings] = useState([]);
  const [error, setError] = useState(null);

  useEffect(() => {
    if (connection === 'lost') return;
    ask('GET', `/v1/timeline?seconds=${SPAN_MS / 1000}`).then((answer) => {
      setReadings(answer.readings);
      setError(null);
    }, setError);
  }, [connection]);
  useEffect(() => {
    if (!reading) return;
    setReadings((known) => [...known, reading].filter(({ unix_ms: at }, index, all) => (
      at > reading.unix_ms - SPAN_MS && all.findIndex((other) => other.unix_ms === at) === index)));
  }, [reading]);

  const newest = readings[readings.length - 1];
  // The server's clock counts, not the browser's.
  const end = newest ? Math.max(newest.unix_ms, Math.min(now, newest.unix_ms + 2 * DRAW_MS)) : now;
  const shown = readings.filter(({ unix_ms: at }) => at > end - SPAN_MS);
  const chart = (id, title, total, points) => html`<${Minutes} key=${id} id=${`minutes-${id}`}
    title=${title} total=${total} points=${points} now=${end} span_ms=${SPAN_MS} />`;
  return html`<section aria-labelledby="minutes-title">
    <h2 id="minutes-title">The last 10 minutes</h2>
    <${Failure} error=${error} />
    ${!newest && !error && html`<p>The devices have not been read yet.</p>`}
    ${newest && html`
      <${Legend} entries=${KINDS} />
      <div class="charts">
        ${newest.devices.map(({ id, name, total_bytes: total }) => (
          chart(id, name && name !== id ? `${id} (${name})` : id, total, devicePoints(id, shown, jobs))))}
        ${chart('host', 'Main memory', newest.host.total_bytes, hostPoints(shown, jobs))}
      </div>`}
  </section>`;
}

function devicePoints(id, readings, jobs) {
  return readings.flatMap(({ unix_ms: at, devices }) => {
    const device = devices.find((device) => device.id === id);
    if (!device) return [];
    const used = device.total_bytes - device.free_bytes;
    return [{ at, used, predicted: Math.max(device.idle_bytes, planned(id, at, jobs)) }];
  });
}

function hostPoints(readings, jobs) {
  return readings.map(({ unix_ms: at, host }) => ({
    at, used: host.total_bytes - host.available_bytes, predicted: planned('host', at, jobs),
  }));
}

// What jobs that ran at a time were predicted to take of a device at most.
function planned(id, at, jobs) {
  const running = jobs.filter(({ started_at: from, ended_at: to, quote }) => (
    quote && from && new Date(from) <= at && (!to || at <= new Date(to))));
  return running.reduce((sum, { quote }) => sum + (quote.peak_bytes[id] || 0), 0);
}
