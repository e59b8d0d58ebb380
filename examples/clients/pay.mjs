// Pays once, however often it has to ask: node pay.mjs URL KEY

// post sends a request until there is a final answer.
async function post(url, key, body, attempts = 8) {
  let askedOnce = false;
  for (let attempt = 0; attempt < attempts; attempt++) {
    let pause = Math.random() * Math.min(5, 0.1 * 2 ** attempt);
    try {
      const answer = await fetch(url, {
        method: "POST",
        headers: { "Idempotency-Key": key, Authorization: "Bearer demo", "Content-Type": "application/json" },
        body: JSON.stringify(body),
        signal: AbortSignal.timeout(30_000),
      });
      const text = await answer.text();
      if (!worthRepeating(answer, text, askedOnce)) return { status: answer.status, text };
      askedOnce ||= ![409, 425, 429, 502, 503, 504].includes(answer.status);
      pause += askedFor(answer) ?? 0;
    } catch (error) {
      console.error(error); // no answer, or half of one
    }
    await new Promise((done) => setTimeout(done, pause * 1000));
  }
  throw new Error(`no final answer in ${attempts} attempts; try again later with the same key`);
}

function worthRepeating(answer, text, askedOnce) {
  if (answer.headers.get("Idempotent-Replayed") === "true") return false; // the outcome, which does not change
  const { status } = answer;
  if ([429, 502, 503, 504].includes(status) || (status === 409 && text.includes('"in-progress"'))) return true;
  const undecided = status === 408 || status === 499 || status >= 500;
  if (askedFor(answer) !== undefined && (undecided || status === 409 || status === 425)) return true;
  return undecided && !askedOnce; // one repeat tells what became of it
}

// askedFor is the pause in seconds that the server asks for. Retry-After is a number or a date.
function askedFor(answer) {
  const value = answer.headers.get("Retry-After") ?? "";
  const pause = /^[0-9]+$/.test(value) ? Number(value) : Math.max(0, (Date.parse(value) - Date.now()) / 1000);
  return Number.isNaN(pause) ? undefined : pause;
}

const [url, key] = process.argv.slice(2);
const { status, text } = await post(`${url}/v1/payments`, key, {
  from: "alice", to: "bob", amount: 1250, currency: "USD", note: key,
});
console.log(text);
process.exitCode = status === 201 ? 0 : 1;
