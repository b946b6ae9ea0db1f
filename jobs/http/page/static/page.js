// Keeps the page as the farm is, and sends its forms without leaving it. Without this script both work by reloading.

const REST_MS = 1000; // between two looks
const LONGEST_REST_MS = 10_000; // while the farm does not answer
const REQUEST_MS = 8000;
const NOTE_MS = 12_000; // that a note stays
const MOST_SAID = 3; // changes that are read out one by one

const live = document.getElementById("live");
const said = document.getElementById("said");
const away = document.getElementById("away");
let tag = ""; // of what `live` shows
let skewMs = 0; // of this clock, against the server's
let failures = 0;
let looks = 0; // begun so far: the answer to an earlier one comes too late

// --- what is shown

const KEEPS = {
  morphStyle: "innerHTML",
  callbacks: {
    // What a visitor has opened stays open: the server knows nothing of it.
    beforeAttributeUpdated: (name, node) => !(name === "open" && node instanceof HTMLDetailsElement),
  },
};

function show(html) {
  const before = readNews();
  Idiomorph.morph(live, html, KEEPS);
  tellTimes();
  say([...readNews()].filter(([job, says]) => says && says !== before.get(job)).map(([, says]) => says));
  const { title } = live.firstElementChild?.dataset ?? {};
  if (title) document.title = title;
}

// What is worth a word when it changes, by job: states, never steps.
function readNews() {
  return new Map([...live.querySelectorAll("[data-job]")].map(({ dataset }) => [dataset.job, dataset.says]));
}

function say(news) {
  if (!news.length) return;
  said.textContent = news.length > MOST_SAID ? `${news.length} renders have changed` : news.join(". ");
}

// --- times: told by the server as moments, and by this clock as durations

function tellTimes() {
  const now = Date.now() + skewMs;
  for (const time of live.querySelectorAll("time[data-as]")) {
    const seconds = (Date.parse(time.dateTime) - now) / 1000;
    const text = TIMES[time.dataset.as](seconds);
    if (time.textContent !== text) time.textContent = text;
  }
}

const TIMES = {
  for: (seconds) => sayDuration(-seconds),
  ago: (seconds) => (seconds > -2 ? "just now" : `${sayDuration(-seconds)} ago`),
  left: (seconds) => (seconds < 1 ? "any moment" : `in about ${sayDuration(seconds)}`),
};

function sayDuration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  for (const [size, name, smaller, smallerName] of UNITS) {
    if (whole < size) continue;
    const rest = Math.floor((whole % size) / smaller);
    return `${Math.floor(whole / size)} ${name}${rest ? ` ${rest} ${smallerName}` : ""}`;
  }
  return `${whole} s`;
}

const UNITS = [
  [86400, "d", 3600, "h"],
  [3600, "h", 60, "min"],
  [60, "min", 1, "s"],
];

// --- looks at the farm

async function look() {
  const mine = ++looks;
  try {
    const answer = await ask(live.dataset.from, tag ? { headers: { "If-None-Match": tag } } : {});
    if (mine !== looks) return;
    if (answer.redirected) return location.reload(); // signed out: the page says how to go on
    if (answer.status !== 304) await take(answer);
    const date = Date.parse(answer.headers.get("Date"));
    if (date) skewMs = Math.abs(date - Date.now()) > 2000 ? date - Date.now() : 0;
    failures = 0;
  } catch {
    failures += 1;
  }
  away.hidden = failures === 0;
}

async function take(answer) {
  if (!answer.ok) throw new Error(`the farm answers ${answer.status}`);
  const html = await answer.text();
  tag = answer.headers.get("ETag") ?? "";
  show(html);
}

function ask(url, options) {
  return fetch(url, { ...options, cache: "no-store", signal: AbortSignal.timeout(REQUEST_MS) });
}

async function lookForEver() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, Math.min(REST_MS * 2 ** failures, LONGEST_REST_MS)));
    if (document.hidden) await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
    await look();
  }
}

// --- forms and links that stay here

async function send(form, button) {
  if (form.getAttribute("aria-busy") === "true") return;
  form.setAttribute("aria-busy", "true");
  button?.setAttribute("aria-disabled", "true");
  try {
    const body = new FormData(form, button);
    const encoded = form.enctype === "multipart/form-data" ? body : new URLSearchParams(body);
    const answer = await ask(form.action, { method: "POST", body: encoded });
    await turnTo(answer, form.closest(".submit"));
  } catch {
    away.hidden = false;
    said.textContent = "The farm does not answer; nothing was sent. Try again.";
  } finally {
    form.removeAttribute("aria-busy");
    button?.removeAttribute("aria-disabled");
  }
}

// Takes the parts of the page that would have come next.
async function turnTo(answer, form) {
  const next = new DOMParser().parseFromString(await answer.text(), "text/html");
  const nextLive = next.getElementById("live");
  if (!nextLive) return answer.redirected ? location.reload() : turnNote(makeNote(next, answer.status));
  turnNote(next.getElementById("note"));
  if (form) turnForm(next, answer.ok ? [] : [...form.querySelectorAll("input[type=file]")]);
  if (answer.ok) await look();
}

// Of an answer that is no page of ours: what was typed stays.
function makeNote(next, status) {
  const note = document.getElementById("note").cloneNode();
  note.hidden = false;
  note.classList.add("bad");
  note.textContent = next.querySelector("main p")?.textContent ?? `The farm refuses this (${status}).`;
  return note;
}

function turnNote(note) {
  document.getElementById("note").replaceWith(note);
  said.textContent = note.textContent;
  letNoteGo(note);
}

// What went well is seen in the page itself before long; what did not stays.
function letNoteGo(note) {
  if (!note.classList.contains("bad")) setTimeout(() => (note.hidden = true), NOTE_MS);
}

function turnForm(next, files = []) {
  const form = document.getElementById("submit");
  // Replaced, and not morphed: what it now says counts, not what was typed before.
  form.replaceChildren(...next.getElementById("submit").childNodes);
  for (const { id, files: chosen } of files) document.getElementById(id).files = chosen;
  const wrong = form.querySelector("[aria-invalid=true]");
  if (wrong) wrong.focus();
  else form.querySelector("button.main").focus({ preventScroll: true }); // no field: a phone would show its keyboard
}

async function fillForm(link) {
  const answer = await ask(link.href);
  turnForm(new DOMParser().parseFromString(await answer.text(), "text/html"));
  const prompt = document.getElementById("prompt");
  prompt.focus({ preventScroll: true });
  document.getElementById("submit").scrollIntoView({ block: "start" });
  said.textContent = "The form has the same parameters again";
}

document.addEventListener("submit", (event) => {
  if (!event.target.hasAttribute("data-stay")) return;
  event.preventDefault();
  send(event.target, event.submitter);
});

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-again]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  fillForm(link).catch(() => (location.href = link.href));
});

// Ctrl+Enter sends from the prompt, where Enter makes a new line.
document.addEventListener("keydown", (event) => {
  const isMeant = event.key === "Enter" && (event.ctrlKey || event.metaKey);
  if (isMeant && event.target instanceof HTMLTextAreaElement) event.target.form.requestSubmit();
});

// A picture that is gone leaves its place to the words behind it.
document.addEventListener("error", (event) => event.target instanceof HTMLImageElement && (event.target.hidden = true), true);

letNoteGo(document.getElementById("note"));
if (live) {
  const address = new URL(location.href);
  for (const told of ["done", "again"]) address.searchParams.delete(told); // loading again does not tell it again
  history.replaceState(null, "", address);
  tag = live.dataset.tag ?? "";
  tellTimes();
  setInterval(() => document.hidden || tellTimes(), 1000);
  lookForEver();
}
