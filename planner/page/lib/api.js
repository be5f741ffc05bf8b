// Questions to the server. Each has a deadline, and fails with a sentence that can be shown.

// The longest wait for an answer, in milliseconds. A quote of a model that nobody has asked for yet
// reads its files first.
const ANSWER_MS = 30_000;

// Tells the server that a page asks for a token by itself, where the browser would show a dialog.
const OURS = { 'x-requested-with': 'berth-page' };

const JSON_BODY = { 'content-type': 'application/json' };

export class ApiError extends Error {
  constructor(status, error, answer = null) {
    const text = String(error.message || 'The server gave no reason.');
    const [message, ...hints] = text.split(/(?:; |\n)hint: /);
    super(message);
    this.status = status;
    this.code = error.code || null;
    this.param = error.param || null;
    this.hints = hints;
    // All of the answer's body, where it was JSON.
    this.answer = answer;
  }
}

// Whom to tell that the server wants a token.
let onLocked = () => {};
export function whenLocked(tell) {
  onLocked = tell;
}

// Asks, and returns the answer's JSON; null for an answer without a body. Aborted by `signal` it
// throws an AbortError. `more` are headers beside the usual ones.
export async function ask(method, path, body = undefined, signal = undefined, more = {}) {
  const deadline = AbortSignal.timeout(ANSWER_MS);
  const signals = signal ? AbortSignal.any([signal, deadline]) : deadline;
  let response;
  let text;
  try {
    response = await fetch(path, {
      method,
      headers: { ...OURS, ...(body === undefined ? {} : JSON_BODY), ...more },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: signals,
    });
    text = await response.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    const late = error.name === 'TimeoutError';
    throw new ApiError(0, {
      code: 'unreachable',
      message: late ? 'The server did not answer in time.' : 'The server cannot be reached.',
    });
  }
  const answer = parsed(text);
  if (response.ok) return answer;
  if (response.status === 401 && path !== '/login') onLocked();
  const error = answer?.error || { message: `The server answered ${response.status}.` };
  throw new ApiError(response.status, error, answer);
}

function parsed(text) {
  try {
    return text === '' ? null : JSON.parse(text);
  } catch {
    return null;
  }
}
