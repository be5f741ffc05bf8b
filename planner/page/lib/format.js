// Figures as people read them.

const UNITS = [['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10]];

// Bytes in the largest unit that leaves at least 1, with three digits: `1.50 GiB`.
export function bytes(count) {
  if (count == null) return '–';
  const [unit, size] = UNITS.find(([, size]) => Math.abs(count) >= size) || ['bytes', 1];
  return size === 1 ? `${count} bytes` : `${digits(count / size)} ${unit}`;
}

function digits(number) {
  const size = Math.abs(number);
  return number.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

// A time that something takes: `0.4 ms`, `840 ms`, `2.5 s`, `3 min 20 s`, `2 h 5 min`.
export function duration(ms) {
  if (ms == null) return '–';
  if (ms < 1_000) return `${ms < 9.95 && ms > 0 ? ms.toFixed(1) : Math.round(ms)} ms`;
  const seconds = ms / 1_000;
  if (seconds < 59.5) return `${seconds.toFixed(seconds < 9.95 ? 1 : 0)} s`;
  const whole = Math.round(seconds);
  if (whole < 3_600) return parts([Math.floor(whole / 60), 'min'], [whole % 60, 's']);
  const minutes = Math.round(whole / 60);
  const hours = Math.round(minutes / 60);
  if (hours >= 48) return parts([Math.floor(hours / 24), 'days'], [hours % 24, 'h']);
  return parts([Math.floor(minutes / 60), 'h'], [minutes % 60, 'min']);
}

function parts([large, unit], [small, smaller]) {
  return small === 0 ? `${large} ${unit}` : `${large} ${unit} ${small} ${smaller}`;
}

const TIME = new Intl.DateTimeFormat(undefined, { timeStyle: 'medium' });
const DAY_AND_TIME = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'short' });

// A moment: only the time where it is of today. Takes what the server writes, or milliseconds.
export function moment(at) {
  if (at == null) return '–';
  const date = new Date(at);
  const today = date.toDateString() === new Date().toDateString();
  return (today ? TIME : DAY_AND_TIME).format(date);
}

// Milliseconds from one moment to another; null where one of them is missing.
export function between(from, to) {
  return from == null || to == null ? null : Math.max(0, new Date(to) - new Date(from));
}

export function plural(count, noun) {
  return count === 1 ? noun : `${noun}s`;
}

// How a measured time compares with the predicted one: `8 % longer`, `as predicted`.
export function compared(predicted, measured) {
  if (!(predicted > 0) || measured == null) return null;
  const percent = Math.round((measured / predicted - 1) * 100);
  if (percent > 900) return `${Math.round(measured / predicted)} times as long`;
  if (percent === 0) return 'as predicted';
  return percent > 0 ? `${percent} % longer` : `${-percent} % shorter`;
}

export function firstUpper(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

const STATES = {
  queued: 'In the queue',
  waiting: 'Waiting for memory',
  loading: 'Loading',
  running: 'Running',
  filing: 'Writing the picture',
  done: 'Done',
  failed: 'Failed',
  cancelled: 'Cancelled',
};

export function stateName(state) {
  return STATES[state] || state;
}

export function isEnded(state) {
  return state === 'done' || state === 'failed' || state === 'cancelled';
}

const SLOTS = {
  cold: 'not loaded',
  kept: 'loaded, kept for the next job',
  loading: 'loading',
  running: 'running a job',
  warm: 'loaded',
  evicting: 'unloading',
};

export function slotName(state) {
  return SLOTS[state] || state;
}

// A phase of a job as it is said.
const PHASES = {
  load: 'Loading weights',
  encode: 'Reading the start picture',
  condition: 'Reading the prompt',
  denoise: 'Denoising',
  decode: 'Decoding the picture',
};

export function phaseName(phase) {
  return PHASES[phase] || firstUpper(phase);
}
