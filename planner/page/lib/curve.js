// A drawing of time against memory.

import { html } from '../vendor/htm-preact.js';
import { useWidth } from './chart.js';
import { Numbers } from './dom.js';
import { bytes, duration } from './format.js';

const HEIGHT = 200;
const MARGIN = { left: 62, right: 40, top: 16, bottom: 36 };

// `points` from the least limit to the largest: `limit` in bytes, `ms`, which is null where nothing
// fits.
export function Curve({ id, points }) {
  const [ref, width] = useWidth();
  const fits = points.filter(({ ms }) => ms !== null);
  const most = Math.max(1, ...fits.map(({ ms }) => ms));
  const largest = points[points.length - 1].limit;
  const x = (limit) => MARGIN.left + (limit / largest) * (width - MARGIN.left - MARGIN.right);
  const y = (ms) => HEIGHT - MARGIN.bottom - (ms / most) * (HEIGHT - MARGIN.top - MARGIN.bottom);
  const floor = HEIGHT - MARGIN.bottom;
  const path = fits.map(({ limit, ms }, index) => `${index === 0 ? 'M' : 'L'}${x(limit)} ${y(ms)}`);
  return html`<figure class="chart" ref=${ref}>
    <figcaption id=${`${id}-caption`}>${caption(fits, points)}</figcaption>
    <svg role="img" aria-labelledby=${`${id}-caption`} width=${width} height=${HEIGHT}
      viewBox=${`0 0 ${width} ${HEIGHT}`}>
      <g class="axis" aria-hidden="true">
        ${[0, 0.5, 1].map((part) => html`<g key=${part}>
          <line x1=${MARGIN.left} x2=${width - MARGIN.right} y1=${y(most * part)} y2=${y(most * part)} />
          <text x=${MARGIN.left - 6} y=${y(most * part)} dy="0.32em" text-anchor="end">
            ${part === 0 ? '0' : duration(most * part)}</text>
        </g>`)}
        ${[0, 0.5, 1].map((part) => html`<text key=${part} x=${x(largest * part)} y=${floor + 16}
          text-anchor="middle">${part === 0 ? '0' : bytes(largest * part)}</text>`)}
      </g>
      <path class="predicted" d=${path.join('')} />
      ${fits.map(({ limit, ms }) => html`<circle key=${limit} class="measured" r="3"
        cx=${x(limit)} cy=${y(ms)} />`)}
      ${points.filter(({ ms }) => ms === null).map(({ limit }) => html`<text key=${limit}
        class="cross" x=${x(limit)} y=${floor} dy="-0.3em" text-anchor="middle">×</text>`)}
    </svg>
    <${Numbers} caption="time by limit of device memory" head=${['Limit of each device', 'Predicted']}
      rows=${points.map(({ limit, ms }) => [bytes(limit), ms === null ? 'does not fit' : duration(ms)])} />
  </figure>`;
}

function caption(fits, points) {
  if (fits.length === 0) return 'Nothing fits.';
  const [least, most] = [fits[0], fits[fits.length - 1]];
  const below = points[0].ms === null ? ` With ${bytes(points[0].limit)} it does not fit.` : '';
  return `${duration(most.ms)} with ${bytes(most.limit)} of each device, ${duration(least.ms)} with `
    + `${bytes(least.limit)}.${below}`;
}
