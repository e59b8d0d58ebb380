// Pays once, however often it has to ask: node pay.mjs URL KEY

// post sends a request until there is a final answer.
async function post(url, key, body, attempts = 8) {
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
      if (!worthRepeating(answer, text)) return { status: answer.status, text };
      pause += Number(answer.headers.get("Retry-After") ?? 0);
    } catch (error) {
      console.error(error); // no answer, or half of one
    }
    await new Promise((done) => setTimeout(done, pause * 1000));
  }
  throw new Error(`no final answer in ${attempts} attempts; try again later with the same key`);
}

function worthRepeating(answer, text) {
  if (answer.headers.get("Idempotent-Replayed") === "true") return false; // a stored answer does not change
  return [429, 502, 503, 504].includes(answer.status) || (answer.status === 409 && text.includes('"in-progress"'));
}

const [url, key] = process.argv.slice(2);
const { status, text } = await post(`${url}/v1/payments`, key, {
  from: "alice", to: "bob", amount: 1250, currency: "USD", note: key,
});
console.log(text);
process.exitCode = status === 201 ? 0 : 1;
