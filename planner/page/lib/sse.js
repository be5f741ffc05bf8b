// The server's events, for as long as the page is open.
//
// The browser comes back by itself after a broken connection, and says which event it saw last; what
// it missed comes again. Where the server refuses (401, 503), the browser gives up, and we ask anew.

const NAMES = ['state', 'progress', 'preview', 'picture', 'plan', 'reading', 'model', 'lost'];

// Between two questions after a refusal, in milliseconds: doubled up to the largest.
const RETRY_MS = [1_000, 30_000];

// After so long without an event, whether the server is there is asked for. Readings come at least
// every 5 s.
const SILENCE_MS = 20_000;

// Follows the events: `happened(name, data)` for each, `connected(how)` with `open` or `lost` when
// that changes. Returns a function that ends it.
export function follow(happened, connected) {
  let source = null;
  let retry = null;
  let wait = RETRY_MS[0];
  let heard = Date.now();

  const open = () => {
    source = new EventSource('/v1/events');
    source.onopen = () => {
      wait = RETRY_MS[0];
      heard = Date.now();
      connected('open');
    };
    source.onerror = () => {
      connected('lost');
      if (source.readyState === EventSource.CLOSED) again();
    };
    for (const name of NAMES) {
      source.addEventListener(name, (event) => {
        heard = Date.now();
        happened(name, JSON.parse(event.data));
      });
    }
  };
  const again = () => {
    source.close();
    clearTimeout(retry);
    retry = setTimeout(open, wait);
    wait = Math.min(wait * 2, RETRY_MS[1]);
  };
  const silent = setInterval(async () => {
    if (source.readyState !== EventSource.OPEN || Date.now() - heard < SILENCE_MS) return;
    heard = Date.now();
    const alive = await fetch('/healthz', { signal: AbortSignal.timeout(SILENCE_MS / 4) })
      .then((response) => response.ok, () => false);
    if (!alive && source.readyState === EventSource.OPEN) {
      connected('lost');
      again();
    }
  }, SILENCE_MS / 4);
  open();
  return () => {
    clearInterval(silent);
    clearTimeout(retry);
    source.close();
  };
}
