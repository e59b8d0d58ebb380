"use strict";

const auth = { Authorization: "Bearer demo" };
const find = (id) => document.getElementById(id);
const nothing = find("no-moments").textContent;
let key, number, sent, stream;

// An order has a key, and the key stays the same for every retry. It is in the address of the page,
// so that it is still there after a look at another page.
function newOrder() {
  const name = Array.from(crypto.getRandomValues(new Uint8Array(4)), (b) => b.toString(16).padStart(2, "0")).join("");
  history.replaceState(null, "", "#order-" + name);
  openOrder();
}

function openOrder() {
  if (!/^#order-[0-9a-f]{8}$/.test(location.hash)) return newOrder();
  key = location.hash.slice(1);
  number = sent = 0;
  find("key").textContent = key;
  find("sent").textContent = times(sent);
  find("answers").replaceChildren();
  find("timeline").replaceChildren();
  for (const id of ["no-answers", "no-moments"]) find(id).hidden = false;
  refresh();
  watch(key);
}

const dollars = (cents) => (cents / 100).toLocaleString("en-US", { style: "currency", currency: "USD" });
const times = (n) => n + (n === 1 ? " time" : " times");
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

// send sends the payment once, and again for as long as the service asks for a little patience.
async function send(amount, headers = {}) {
  const mine = key, item = answer(++number, amount);
  for (let tries = 1; mine === key; tries++) {
    find("sent").textContent = times(++sent);
    let response, body;
    try {
      response = await fetch("/v1/payments", {
        method: "POST",
        headers: { ...auth, ...headers, "Idempotency-Key": mine, "Content-Type": "application/json" },
        body: JSON.stringify({ from: "alice", to: "bob", amount, currency: "USD", note: mine }),
      });
      body = await response.text();
    } catch {
      tell(item, "fail", "no answer", "The connection broke. Was the money taken? Pay again to find out.");
      break;
    }
    try { body = JSON.parse(body); } catch { /* an operator may have entered any text */ }
    if (response.status === 409 && body.code === "in-progress" && tries < 60) {
      tell(item, "wait", "409", "The first request still runs. The client tries again.");
      await pause(250);
      continue;
    }
    const replayed = response.headers.get("Idempotent-Replayed") === "true";
    if (response.ok) tell(item, replayed ? "replay" : "ok", response.status, (replayed ? "The same answer again: " : "") + (body.id ? "payment " + String(body.id).slice(0, 14) + "…" : JSON.stringify(body)));
    else tell(item, "fail", response.status, body.code ? body.code + ": " + (body.detail || body.title) + (body.code === "outcome-unknown" ? " An operator settles it in the console." : "") : JSON.stringify(body));
    break;
  }
  refresh();
}

// answer adds a line for a request.
function answer(n, amount) {
  find("no-answers").hidden = true;
  const item = document.createElement("li");
  for (const name of ["what", "status", "text"]) item.append(Object.assign(document.createElement("span"), { className: name }));
  item.querySelector(".what").textContent = "Request " + n + ", " + dollars(amount);
  find("answers").prepend(item);
  tell(item, "wait", "…", "is on its way");
  return item;
}

function tell(item, kind, status, text) {
  item.className = kind;
  item.querySelector(".status").textContent = status;
  item.querySelector(".text").textContent = text;
}

// refresh shows what the ledger says.
async function refresh() {
  const mine = key;
  for (let tries = 0; tries < 40; tries++) {
    try {
      const [list, alice] = await Promise.all([
        fetch("/v1/payments?note=" + encodeURIComponent(mine), { headers: auth }),
        fetch("/v1/accounts/alice", { headers: auth }),
      ]);
      if (list.status === 401) return problem("This page uses the API key demo, which this service does not know. See --api-keys.");
      const payments = (await list.json()).payments, account = await alice.json();
      if (mine !== key) return;
      find("charged").textContent = times(payments.length);
      find("balance").textContent = dollars(account.balance);
      return problem("");
    } catch {
      problem("The service is down. It starts again.");
      await pause(250);
    }
  }
}

function problem(text) {
  find("problem").textContent = text;
  find("problem").hidden = text === "";
}

// watch follows the timeline of a key. EventSource cannot send the key in a header, so the
// events are read from the response.
async function watch(mine) {
  if (stream) stream.abort();
  for (stream = new AbortController(); mine === key; await pause(300)) {
    let open = false;
    try {
      const response = await fetch("/v1/timeline", { headers: { ...auth, "Idempotency-Key": mine }, signal: stream.signal });
      if (!response.ok) {
        find("no-moments").textContent = response.status === 429 ? "Too many pages show a timeline. Close one." : "There is no timeline: " + response.status + ".";
        if (response.status !== 429) return;
        await pause(1000);
        continue;
      }
      open = true;
      find("no-moments").textContent = nothing;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let text = ""; ;) {
        const { value, done } = await reader.read();
        if (done) break;
        text += value;
        const events = text.split("\n\n");
        text = events.pop();
        for (const event of events) {
          const data = event.split("\n").find((line) => line.startsWith("data: "));
          if (data && mine === key) show(JSON.parse(data.slice(6)));
        }
      }
    } catch { /* the service is down, or there is a new order */ }
    if (mine === key && open) show({ at: new Date().toISOString(), step: "crash", text: "the instance is gone" });
  }
}

function show(moment) {
  find("no-moments").hidden = true;
  const item = document.createElement("li");
  item.className = moment.step;
  const at = Object.assign(document.createElement("time"), { textContent: moment.at.slice(11, 23) });
  const step = Object.assign(document.createElement("b"), { textContent: moment.step });
  const text = document.createElement("span");
  text.append(step, " " + moment.text);
  item.append(at, text);
  find("timeline").append(item);
  item.scrollIntoView({ block: "nearest" });
}

window.addEventListener("hashchange", openOrder);
find("fresh").addEventListener("click", newOrder);
find("pay").addEventListener("click", () => send(1250));
find("double").addEventListener("click", () => { send(1250); send(1250); });
find("other").addEventListener("click", () => send(9900));
find("crash").addEventListener("click", () => send(1250, { "Demo-Crash": "yes" }));
openOrder();
