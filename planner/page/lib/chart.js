// Drawings of memory: bands over the phases of a plan, and what was in use over the last minutes.
//
// Each stands in a figure with its caption, and the same numbers in a table below it.

import { html, useEffect, useRef, useState } from '../vendor/htm-preact.js';
import { Numbers } from './dom.js';
import { bytes, moment } from './format.js';

// What a band is made of, from below, with the class of its colour.
export const LAYERS = [
  ['overhead', 'Overhead'],
  ['weights', 'Weights'],
  ['compute', 'Compute'],
  ['staging', 'Staging'],
];

const HEIGHT = 200;
const MARGIN = { left: 62, right: 12, top: 18, bottom: 40 };

// Below this share of its budget a plan is drawn larger, without the budget's line.
const SMALL = 0.2;

// The width that an element has, in pixels, so that text in a drawing stays as large as any other.
export function useWidth() {
  const ref = useRef(null);
  const [width, set] = useState(480);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => set(Math.max(200, entry.contentRect.width)));
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return [ref, width];
}

// A scale from 0 to at least `top`, with ticks at multiples of a power of two.
function scale(top) {
  const step = 2 ** Math.ceil(Math.log2(Math.max(top, 4096) / 4));
  const count = Math.ceil(top / step) || 1;
  return { max: count * step, ticks: Array.from({ length: count + 1 }, (_, index) => index * step) };
}

function Axis({ ticks, y, width }) {
  return html`<g class="axis" aria-hidden="true">
    ${ticks.map((tick) => html`<g key=${tick}>
      <line x1=${MARGIN.left} x2=${width - MARGIN.right} y1=${y(tick)} y2=${y(tick)} />
      <text x=${MARGIN.left - 6} y=${y(tick)} dy="0.32em" text-anchor="end">${tickText(tick)}</text>
    </g>`)}
  </g>`;
}

function tickText(tick) {
  return tick === 0 ? '0' : bytes(tick).replace(/\.?0+(?= )/, (zeros) => (zeros[0] === '.' ? '' : zeros));
}

// What is drawn in a legend, where that is no square.
const KEYS = {
  measured: html`<circle class="measured" cx="7" cy="7" r="3" />`,
  predicted: html`<path class="predicted" d="M0 10H7V4H14" />`,
};

export function Legend({ entries }) {
  return html`<ul class="legend" aria-hidden="true">
    ${entries.map(([kind, name]) => html`<li key=${kind}>
      <svg width="14" height="14">${KEYS[kind] || html`<rect width="14" height="14"
        class=${`band ${kind}`} />`}</svg>
      ${name}</li>`)}
  </ul>`;
}

// A device's bytes in each phase. `phases` have `name`, `note` and a number for each layer. What
// others have of a device hangs from its upper end.
export function Bands({ id, title, note, budget, phases, total = 0, others = 0 }) {
  const [ref, width] = useWidth();
  const sums = phases.map((phase) => LAYERS.reduce((sum, [layer]) => sum + phase[layer], 0));
  const peak = Math.max(...sums);
  const near = peak >= budget * SMALL;
  const hanging = near && others > 0;
  const { max, ticks } = scale(hanging ? total : near ? Math.max(peak, budget) : peak);
  const inner = width - MARGIN.left - MARGIN.right;
  const y = (count) => HEIGHT - MARGIN.bottom - (count / max) * (HEIGHT - MARGIN.top - MARGIN.bottom);
  const column = inner / phases.length;
  if (peak === 0) {
    return html`<p class="unused" ref=${ref}><strong>${title}</strong>: not used, of a budget of ${bytes(budget)}</p>`;
  }
  return html`<figure class="chart" ref=${ref}>
    <figcaption id=${`${id}-caption`}>
      <strong>${title}</strong>: at most ${bytes(peak)} of a budget of ${bytes(budget)}
      <span class="muted">. ${note}${others > 0 && `, others have ${bytes(others)}`}</span>
    </figcaption>
    <svg role="img" aria-labelledby=${`${id}-caption`} width=${width} height=${HEIGHT}
      viewBox=${`0 0 ${width} ${HEIGHT}`}>
      <${Axis} ticks=${ticks} y=${y} width=${width} />
      ${phases.map((phase, index) => html`<${Column} key=${phase.name} phase=${phase} y=${y}
        x=${MARGIN.left + index * column} width=${column} />`)}
      ${hanging && html`<rect class="band others" x=${MARGIN.left} width=${inner}
        y=${y(total)} height=${y(total - others) - y(total)} />`}
      ${near && html`<g class="budget">
        <line x1=${MARGIN.left} x2=${width - MARGIN.right} y1=${y(budget)} y2=${y(budget)} />
        <text x=${width - MARGIN.right} y=${y(budget) - 5} text-anchor="end">budget</text>
      </g>`}
      ${!near && html`<text class="beyond" x=${width - MARGIN.right} y="12" text-anchor="end">
        budget is above this drawing</text>`}
    </svg>
    <${Numbers} caption=${`${title}, bytes by phase`}
      head=${['Phase', ...LAYERS.map(([, name]) => name), 'Together']}
      rows=${phases.map((phase, index) => [
        phase.name, ...LAYERS.map(([layer]) => bytes(phase[layer])), bytes(sums[index]),
      ])} />
  </figure>`;
}

function Column({ phase, x, y, width }) {
  let below = 0;
  const bars = LAYERS.map(([layer]) => {
    const from = below;
    below += phase[layer];
    return { layer, top: y(below), bottom: y(from) };
  });
  return html`<g>
    ${bars.filter(({ top, bottom }) => bottom - top > 0).map(({ layer, top, bottom }) => html`
      <rect key=${layer} class=${`band ${layer}`} x=${x + 1} width=${width - 2}
        y=${top} height=${bottom - top} />`)}
    <text class="phase" x=${x + width / 2} y=${HEIGHT - MARGIN.bottom + 16}
      text-anchor="middle">${phase.name}</text>
    <text class="phase muted" x=${x + width / 2} y=${HEIGHT - MARGIN.bottom + 31}
      text-anchor="middle">${phase.note}</text>
  </g>`;
}

// What was in use over time: dots as measured, a line as predicted. `points` have `at` in
// milliseconds, `used` and `predicted`.
export function Minutes({ id, title, total, points, now, span_ms }) {
  const [ref, width] = useWidth();
  const top = Math.max(...points.map(({ used, predicted }) => Math.max(used, predicted)), 1);
  const { max, ticks } = scale(top);
  const x = (at) => width - MARGIN.right
    - ((now - at) / span_ms) * (width - MARGIN.left - MARGIN.right);
  const y = (count) => HEIGHT - MARGIN.bottom - (count / max) * (HEIGHT - MARGIN.top - MARGIN.bottom);
  const last = points[points.length - 1];
  const minutes = span_ms / 60_000;
  return html`<figure class="chart" ref=${ref}>
    <figcaption id=${`${id}-caption`}>
      <strong>${title}</strong>: ${last ? bytes(last.used) : '–'} of ${bytes(total)} in use now
    </figcaption>
    <svg role="img" aria-labelledby=${`${id}-caption`} width=${width} height=${HEIGHT}
      viewBox=${`0 0 ${width} ${HEIGHT}`}>
      <${Axis} ticks=${ticks} y=${y} width=${width} />
      <path class="predicted" d=${steps(points, x, y)} />
      ${points.map(({ at, used }) => html`<circle key=${at} class="measured" r="2"
        cx=${x(at).toFixed(1)} cy=${y(used).toFixed(1)} />`)}
      ${[minutes, minutes / 2, 0].map((ago) => html`<text key=${ago} class="phase"
        x=${x(now - ago * 60_000)} y=${HEIGHT - MARGIN.bottom + 16}
        text-anchor=${ago === minutes ? 'start' : ago === 0 ? 'end' : 'middle'}>
        ${ago === 0 ? 'now' : `${ago} min ago`}</text>`)}
    </svg>
    <${Numbers} caption=${`${title}, the last ${minutes} minutes`}
      head=${['Until', 'Predicted at most', 'In use at most']}
      rows=${minuteRows(points)} />
  </figure>`;
}

function steps(points, x, y) {
  return points.map(({ at, predicted }, index) => {
    const [px, py] = [x(at).toFixed(1), y(predicted).toFixed(1)];
    return index === 0 ? `M${px} ${py}` : `H${px}V${py}`;
  }).join('');
}

// The most of each minute, the newest first.
function minuteRows(points) {
  const rows = new Map();
  for (const { at, used, predicted } of points) {
    const minute = Math.floor(at / 60_000);
    const row = rows.get(minute) || { at, used: 0, predicted: 0 };
    rows.set(minute, {
      at, used: Math.max(row.used, used), predicted: Math.max(row.predicted, predicted),
    });
  }
  return [...rows.values()].reverse().map(({ at, used, predicted }) => [
    moment(at), bytes(predicted), bytes(used),
  ]);
}
