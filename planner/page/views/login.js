// Asks for a token. It becomes a cookie that no script can read.

import { html, useState } from '../vendor/htm-preact.js';
import { ask } from '../lib/api.js';
import { Failure } from '../lib/dom.js';
import { start, store } from '../lib/store.js';

export function Login() {
  const [error, setError] = useState(null);
  const send = async (event) => {
    event.preventDefault();
    try {
      await ask('POST', '/login', { token: new FormData(event.target).get('token').trim() });
      store.set({ locked: false });
      start();
    } catch (failure) {
      setError(failure);
    }
  };
  return html`<form class="panel" onSubmit=${send}>
    <h1>Token</h1>
    <p>This server answers those only who have a token. Whoever runs it can make one for you.</p>
    <${Failure} error=${error} id="login-error" />
    <p class="field">
      <label for="token">Token</label>
      <input id="token" name="token" type="password" required autocomplete="current-password"
        aria-describedby=${error ? 'login-error' : null} />
    </p>
    <button type="submit" class="main">Log in</button>
  </form>`;
}
