"use strict";

const auth = { Authorization: "Bearer demo" };
const find = (id) => document.getElementById(id);
const nothing = find("no-moments").textContent, curl = find("curl").textContent;
let key, sent, wished, stream;

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
  sent = wished = 0;
  find("renewed").hidden = true;
  find("key").textContent = key;
  find("curl").textContent = curl.replace("localhost:8080", location.origin).replaceAll("order-17", key);
  count();
  identify("operation", "");
  find("answers").replaceChildren();
  find("timeline").replaceChildren();
  for (const id of ["no-answers", "no-moments"]) find(id).hidden = false;
  refresh();
  watch(key);
}

const dollars = (cents) => (cents / 100).toLocaleString("en-US", { style: "currency", currency: "USD" });
const times = (n) => n + (n === 1 ? " time" : " times");
const clock = { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3 };
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

// count shows how often the client has sent. Without keys each wish of the user might be a charge. A
// request that only asks again is none, because a plain handler would have answered the one before.
function count() {
  find("sent").textContent = times(sent);
  identify("without", wished > 1 ? times(wished) : "");
}

// identify shows a value with its name, or neither.
function identify(id, value) {
  find(id).textContent = value;
  find(id).parentElement.hidden = !value;
}

// send sends the payment once, and again for as long as the service asks for a little patience.
async function send(amount, headers = {}) {
  const mine = key;
  wished++;
  for (let tries = 1; mine === key; tries++) {
    const item = answer(++sent, amount);
    let response, body;
    count();
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
    if (response.status === 409 && body.code === "in-progress" && tries < 20) {
      tell(item, "wait", 409, "in-progress, asked again");
      await pause(250 * tries);
      item.className = "again";
      continue;
    }
    const replayed = response.headers.get("Idempotent-Replayed") === "true";
    if (response.ok) tell(item, replayed ? "replay" : "ok", response.status, (!replayed ? "paid: " : others(item) ? "replayed: the same answer again, " : "the stored answer: ") + (body.id ? "payment " + String(body.id).slice(0, 14) + "…" : JSON.stringify(body)));
    else tell(item, "fail", response.status, body.code ? body.code + ": " + (body.detail || body.title) + (body.code === "outcome-unknown" ? " An operator settles it in the console." : "") : JSON.stringify(body));
    break;
  }
  refresh();
}

// others reports whether another request on the page has the answer, or may still get it. Otherwise the
// stored answer is the first one that the client sees, for example after an operator has settled the charge.
const others = (item) => [...find("answers").children].some((li) => li !== item && ["ok", "replay", "wait"].includes(li.className));

// crash sends a charge that breaks off in its middle. A paid order would only get its answer again, so it
// takes a new one.
async function crash() {
  const mine = key;
  let paid = false;
  try {
    paid = (await ask(mine, "/v1/idempotency")).state === "completed";
  } catch { /* the service is down, and send says so */ }
  if (mine !== key) return;
  if (paid) {
    newOrder();
    find("renewed").hidden = false;
  }
  send(1250, { "Demo-Crash": "yes" });
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

// ask reads a route. The service may be down for a moment.
async function ask(mine, path) {
  const response = await fetch(path, { headers: { ...auth, "Idempotency-Key": mine } });
  if (response.status === 401) throw new Error("This page uses the API key demo, which this service does not know. See --api-keys.");
  return response.json();
}

const payments = async (mine) => (await ask(mine, "/v1/payments?note=" + encodeURIComponent(mine))).payments;

// refresh shows what the ledger says.
async function refresh() {
  const mine = key;
  for (let tries = 0; tries < 40 && mine === key; tries++) {
    try {
      const [list, alice, state] = await Promise.all([payments(mine), ask(mine, "/v1/accounts/alice"), ask(mine, "/v1/idempotency")]);
      if (mine !== key) return;
      find("charged").textContent = times(list.length);
      find("charges").className = ["", "once"][list.length] ?? "twice";
      find("balance").textContent = dollars(alice.balance);
      identify("payment", list.map((p) => p.id).join(", "));
      if (state.operation_id) identify("operation", state.operation_id);
      return problem("");
    } catch (e) {
      if (e.message.includes("--api-keys")) return problem(e.message);
      problem("The service does not answer. The page asks again.");
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
  let charge, gone = false; // the last step of a charge that is on its way
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
      if (gone) {
        const found = charge && await left(mine, charge);
        show(mine, "restart", "another instance takes over");
        if (found) show(mine, "ledger", found);
        gone = false;
      }
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ""; ;) {
        const { value, done } = await reader.read();
        if (done) break;
        rest += value;
        const events = rest.split("\n\n");
        rest = events.pop();
        for (const event of events) {
          const data = event.split("\n").find((line) => line.startsWith("data: "));
          if (!data) continue;
          const { step, text, at } = JSON.parse(data.slice(6));
          if (step === "handler") charge = at;
          if (["settle", "doubt", "resolve"].includes(step)) charge = undefined;
          show(mine, step, text, at);
        }
      }
    } catch { /* the service is down, or there is a new order */ }
    if (open) show(mine, "crash", "the instance is gone");
    gone ||= open;
  }
}

// left asks the ledger what a charge has left there that was on its way when its instance crashed.
// A payment that is younger is not of that charge.
async function left(mine, lastStep) {
  const made = (await payments(mine)).some((p) => Date.parse(p.created_at) <= Date.parse(lastStep));
  return made ? "has the payment, though its answer is lost" : "rolled back what was not committed: nothing was charged";
}

function show(mine, kind, words, at = Date.now()) {
  if (mine !== key) return;
  find("no-moments").hidden = true;
  const item = document.createElement("li"), list = find("timeline");
  item.className = kind;
  const time = Object.assign(document.createElement("time"), { textContent: new Date(at).toLocaleTimeString("en-GB", clock) });
  const text = document.createElement("span");
  text.append(Object.assign(document.createElement("b"), { textContent: kind }), " " + words);
  item.append(time, text);
  list.append(item);
  list.scrollTop = list.scrollHeight;
}

window.addEventListener("hashchange", openOrder);
find("fresh").addEventListener("click", newOrder);
find("pay").addEventListener("click", () => send(1250));
find("double").addEventListener("click", () => { send(1250); send(1250); });
find("other").addEventListener("click", () => send(9900));
find("crash").addEventListener("click", crash);
openOrder();
