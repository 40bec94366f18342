// What scripts add to nsqadmin's pages: live numbers, dialogs, keys and the palette. The pages work without this script.
"use strict";

// Numbers as people read them; the same as nsqadmin/numbers.py (tests/browser checks both against one table).
const Numbers = (() => {
  const UNKNOWN = "–";
  const grouped = (value) => value.toFixed(0).replace(/^-0$/, "0").replace(/\B(?=(\d{3})+$)/g, ",");
  const tenths = (value) => { const text = value.toFixed(1).replace(/\.0$/, ""); return text === "-0" ? "0" : text; };
  const scaled = (value) => {
    let unit = -1;
    while (Math.abs(value) >= 999.5 && unit < 4) { value /= 1000; unit += 1; }
    return value.toFixed(Math.abs(value) < 9.995 ? 2 : Math.abs(value) < 99.95 ? 1 : 0) + "kMGTP"[unit];
  };
  const known = (write) => (value) => (value === null || value === undefined ? UNKNOWN : write(value));
  const twoUnits = (seconds, large, largeName, small, smallName) => {
    const rest = Math.floor((seconds % large) / small);
    return `${Math.floor(seconds / large)}${largeName}${rest ? ` ${rest}${smallName}` : ""}`;
  };
  const duration = known((seconds) => {
    if (seconds < 0) return `-${duration(-seconds)}`;
    if (seconds === 0) return "0 s";
    if (seconds < 0.001) return `${(seconds * 1e6).toFixed(0)} µs`;
    if (seconds < 1) return `${(seconds * 1000).toFixed(0)} ms`;
    if (seconds < 9.95) return `${tenths(seconds)} s`;
    const whole = Math.floor(seconds + 0.5);
    if (whole < 60) return `${whole} s`;
    if (whole < 3600) return twoUnits(whole, 60, "m", 1, "s");
    if (whole < 86400) return twoUnits(whole, 3600, "h", 60, "m");
    return twoUnits(whole, 86400, "d", 3600, "h");
  });
  const exact = known(grouped);
  const count = known((value) => (Math.abs(value) < 10000 ? grouped(value) : scaled(value)));
  const rate = known((value) => {
    if (Math.abs(value) >= 10) return `${count(value)}/s`;
    const text = tenths(value);
    return text === "0" && value > 0 ? "<0.1/s" : `${text}/s`;
  });
  const size = known((octets) => {
    if (Math.abs(octets) < 1000) return `${grouped(octets)} B`;
    const text = scaled(octets);
    return `${text.slice(0, -1)} ${text.slice(-1)}B`;
  });
  return {
    exact, count, rate, duration, size,
    net: known((value) => (Math.abs(value) < 0.05 ? "0/s" : `${value > 0 ? "↑" : "↓"} ${rate(Math.abs(value))}`)),
    size_rate: known((octets) => `${size(octets)}/s`),
    percent: known((share) => { const value = share * 100; return Math.abs(value) > 0 && Math.abs(value) < 1 ? `${tenths(value)} %` : `${grouped(value)} %`; }),
    per_minute: known((value) => { const all = value * 60; return `${Math.abs(all) < 10 ? tenths(all) : count(all)}/min`; }),
  };
})();

(() => {
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
  const base = document.documentElement.dataset.base.replace(/\/$/, "");
  const body = document.body;
  const kept = {
    get(key) { try { return localStorage.getItem(`nsqadmin.${key}`); } catch { return null; } },
    set(key, value) { try { localStorage.setItem(`nsqadmin.${key}`, value); } catch {} },
  };
  const announce = (text) => { $("#announce").textContent = text; };

  function toast(text, forms = []) {
    $(".toast")?.remove();
    const box = document.createElement("div");
    box.className = "toast";
    box.append(text, ...forms.map((form) => document.importNode(form, true)));
    body.append(box);
    announce(text);
    // A toast with buttons stays while somebody may be about to press one.
    const leave = () => (forms.length && (box.matches(":hover") || box.contains(document.activeElement)) ? setTimeout(leave, 1000) : box.remove());
    setTimeout(leave, forms.length ? 15000 : 4000);
  }

  // Prepares a part of a page, at the start and whenever it is replaced: local times, copy buttons, folds, confirmations

  function dress(part) {
    for (const time of $$("time[datetime]", part)) {
      const at = new Date(time.dateTime);
      if (isNaN(at)) continue;
      const isToday = at.toDateString() === new Date().toDateString();
      time.textContent = isToday ? at.toLocaleTimeString([], { hourCycle: "h23" }) : at.toLocaleString([], { day: "2-digit", month: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
      time.title = at.toLocaleString();
    }
    for (const block of $$("[data-copy]", part)) {
      const buttons = block.nextElementSibling?.matches(".buttons") ? block.nextElementSibling : null;
      if ($(".copy", buttons ?? block.parentElement) && (buttons || block.nextElementSibling?.matches(".copy"))) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "small copy";
      button.textContent = "Copy";
      button.addEventListener("click", () => copy(block.textContent));
      if (buttons) buttons.prepend(button); else block.after(button);
    }
    Charts.dress(part);
    for (const row of $$("tbody", part)) if (folded.has(nameOf(row))) fold(row, true);
    for (const area of $$("[data-keep-as]", part)) { // keeps what the user has typed
      area.value ||= kept.get(area.dataset.keepAs) ?? "";
      area.addEventListener("change", () => kept.set(area.dataset.keepAs, area.value));
    }
    for (const input of $$("[data-must]", part)) {
      const button = $("button:not([type=button])", input.form);
      if (button.title) continue; // disabled anyway: the user lacks the right
      const check = () => { button.disabled = input.value !== input.dataset.must; };
      input.addEventListener("input", check);
      check();
    }
  }

  async function copy(text, said = "Copied") {
    try { await navigator.clipboard.writeText(text); } catch { if (!copyByHand(text)) said = "The browser does not allow copying here"; }
    toast(said);
  }
  // Over plain HTTP browsers have no clipboard for scripts, but they still copy what is selected.
  function copyByHand(text) {
    const area = document.createElement("textarea"), before = document.activeElement;
    area.value = text;
    ($("dialog[open]") ?? body).append(area);
    area.select();
    try { return document.execCommand("copy"); } finally { area.remove(); before?.focus({ preventScroll: true }); }
  }

  // Folded topics

  const folded = new Set();
  const nameOf = (group) => group.dataset.name ?? $("tr.topic > th a", group)?.textContent ?? "";
  function fold(group, isFolded) {
    for (const row of $$("tr:not(.topic)", group)) row.hidden = isFolded;
    $(".fold", group)?.setAttribute("aria-expanded", String(!isFolded));
  }
  document.addEventListener("click", (event) => {
    const group = event.target.closest?.(".fold")?.closest("tbody");
    if (!group) return;
    const name = nameOf(group);
    if (folded.has(name)) folded.delete(name); else folded.add(name);
    fold(group, folded.has(name));
  });

  // Live numbers

  const interval = Math.max(1, Number(body.dataset.interval) || 5);
  const isStill = "still" in body.dataset;
  const live = { isPaused: kept.get("paused") === "yes", source: null, timer: 0, taken: Number(body.dataset.taken) || 0, samples: 0, since: 0, isOther: false, notBefore: 0, failures: 0, isLost: false, lastEvent: Date.now(), lastAnswer: Date.now() };

  // Numbers change all the time; only one that passes such a limit is tinted for a moment.
  const LIMITS = { clients: 1, ready: 1, depth: 1001, total_depth: 1001 };
  const before = new Map();
  function passesLimit(key, value) {
    const limit = LIMITS[key.slice(key.lastIndexOf("/") + 1)], was = before.get(key);
    if (limit === undefined) return false;
    before.set(key, value);
    return typeof was === "number" && typeof value === "number" && (was >= limit) !== (value >= limit);
  }

  // "lag –" says nothing: such words are hidden while their number is unknown.
  function write(cell, text) {
    cell.textContent = text;
    if ("ifKnown" in cell.parentElement.dataset) cell.parentElement.hidden = text === "–";
  }

  function put(key, value) {
    const isTinted = passesLimit(key, value);
    for (const cell of $$(`[data-k="${CSS.escape(key)}"]`)) {
      const text = (Numbers[cell.dataset.f] ?? String)(value);
      if (cell.textContent === text) continue;
      write(cell, text);
      if (cell.title) cell.title = typeof value === "number" ? (cell.dataset.f === "count" ? Numbers.exact(value) : `${value.toFixed(2)}/s`) : "";
      cell.classList.remove("changed");
      if (!isTinted) continue;
      void cell.offsetWidth; // restarts the animation of the tint
      cell.classList.add("changed");
    }
  }

  function onCells({ t, set }) {
    live.taken = t;
    live.lastEvent = live.lastAnswer = Date.now();
    if (live.isLost) showLost();
    for (const [key, value] of Object.entries(set)) put(key, value);
    Charts.append(t, set);
    live.samples += 1;
    // Anything but numbers (consumers, findings, rows of tables) comes with the page, which is fetched again.
    const isOther = live.samples > 1 && Object.keys(set).some((key) => /\/(clients|paused|channels|nodes|topics|health|readers)$/.test(key));
    live.isOther ||= isOther;
    live.since += 1;
    if (((live.isOther && live.since > 1) || live.since >= ($("[data-hurries]") ? 1 : 6)) && performance.now() > live.notBefore) { live.isOther = false; live.since = 0; refresh(); }
  }

  // Fetches the page again and replaces the parts that have changed. A part is not replaced while the user is in it:
  // while it has the pointer or the focus, only its numbers change. What the user has just done is shown under the
  // pointer as well. Returns whether that was done.
  let underWay = null;
  async function refresh({ fresh = false, waits = fresh } = {}) {
    while (waits && underWay) await underWay; // its answer may be older than what the user has just done
    if (underWay || $("dialog[open]")) return false;
    underWay = fetchAgain(fresh);
    try { return await underWay; } finally { underWay = null; }
  }
  async function fetchAgain(fresh) {
    const began = performance.now();
    try {
      const url = new URL(location.href);
      if (fresh) url.searchParams.set("fresh", "1");
      const answer = await fetch(url, { headers: { accept: "text/html" } });
      live.isOut = answer.status === 401;
      if (!answer.ok) throw new Error(`${answer.status}`);
      take(new DOMParser().parseFromString(await answer.text(), "text/html"), fresh);
      live.failures = 0;
      live.lastAnswer = Date.now();
      showLost();
      return true;
    } catch {
      live.failures += 1;
      return false;
    } finally {
      live.notBefore = performance.now() + 50 * (performance.now() - began); // an expensive page is fetched less often
      showLive();
    }
  }

  function take(page, isAsked) {
    live.taken = Number(page.body.dataset.taken) || live.taken;
    document.title = page.title;
    for (const part of $$("[data-live]")) {
      const fresh = $(`[data-live="${part.dataset.live}"]`, page);
      if (!fresh || fresh.innerHTML === part.dataset.was || "grown" in part.dataset) continue;
      if (!isAsked && part.matches(":hover") && part.matches("[data-table]") || part.contains(document.activeElement)) {
        for (const cell of $$("[data-k]", fresh)) for (const old of $$(`[data-k="${CSS.escape(cell.dataset.k)}"]`, part)) write(old, cell.textContent);
        continue;
      }
      const open = new Set($$("details[open] > summary", part).map((summary) => summary.textContent));
      const picked = new Set($$("input[name=pick]:checked", part).map((box) => box.value));
      part.dataset.was = fresh.innerHTML;
      part.replaceChildren(...[...fresh.childNodes].map((node) => document.importNode(node, true)));
      for (const summary of $$("details > summary", part)) if (open.has(summary.textContent)) summary.parentElement.open = true;
      for (const box of $$("input[name=pick]", part)) box.checked = picked.has(box.value);
      dress(part);
    }
    for (const cell of $$("[data-k]", page)) {
      if (cell.closest("[data-live]")) continue;
      for (const old of $$(`[data-k="${CSS.escape(cell.dataset.k)}"]`)) if (!old.closest("[data-live]") && old.textContent !== cell.textContent) write(old, cell.textContent);
    }
    Charts.retake(page);
  }

  // The list of topics asks only for the rows that it shows.
  const only = () => (body.dataset.scope === "topics" ? `&only=${encodeURIComponent($$("tbody").map(nameOf).join(","))}` : "");

  function connect() {
    disconnect();
    if (live.isPaused || isStill || document.hidden) return showLive();
    live.lastEvent = live.lastAnswer = Date.now();
    const scope = body.dataset.scope;
    if (scope && "EventSource" in window) {
      const source = new EventSource(`${base}/events?scope=${encodeURIComponent(scope)}${only()}`);
      live.source = source;
      source.addEventListener("cells", (event) => onCells(JSON.parse(event.data)));
      source.addEventListener("health", (event) => onHealth(JSON.parse(event.data)));
      source.addEventListener("activity", () => { if ($('[data-live="activity"]')) refresh(); });
      source.addEventListener("error", () => { if (source.readyState === EventSource.CLOSED) { live.source = null; poll(); } });
    } else if (scope) poll();
    showLive();
  }
  // Without a stream, fetches the whole page once for each sample.
  function poll() {
    clearInterval(live.timer);
    live.timer = setInterval(refresh, interval * 1000);
  }
  function disconnect() {
    live.source?.close();
    live.source = null;
    clearInterval(live.timer);
    live.timer = 0;
  }
  let said = null, silentNodes = null;
  function onHealth({ verdict, silent_nodes }) {
    if (said !== null && verdict !== said) announce(verdict);
    if (said !== null && (verdict !== said || silent_nodes !== silentNodes)) refresh();
    [said, silentNodes] = [verdict, silent_nodes];
  }

  // nsqadmin itself may be gone. A sample comes in each interval, so after two without any the numbers are old.
  function showLost() {
    live.isLost = live.isOut || !live.isPaused && !isStill && !document.hidden && Boolean(body.dataset.scope) && Date.now() - live.lastAnswer > 2000 * interval + 1000;
    if ($("#lost").hidden !== live.isLost) return;
    const at = new Date(live.taken * 1000).toLocaleTimeString([], { hourCycle: "h23" });
    $("#lost-text").textContent = live.isOut ? "Your session has ended: reload this page to log in." : live.isLost ? `nsqadmin no longer answers: numbers are of ${at}` : "";
    $("#lost").hidden = !live.isLost;
    showLive();
  }

  function showLive() {
    const button = $("#live"), word = $("#live-word");
    const state = isStill ? "off" : live.isPaused ? "paused" : live.isLost ? "lost" : live.failures > 1 ? "trouble" : "on";
    button.dataset.state = state;
    button.disabled = isStill;
    button.setAttribute("aria-pressed", String(state === "on"));
    const text = { off: "Snapshot", paused: "Paused", lost: "No answer", trouble: "No answer", on: `Live ${Numbers.duration(interval)}` }[state];
    if (word.textContent !== text) word.textContent = text;
  }
  function tick() {
    showLost();
    if (isStill || !live.taken || !body.dataset.scope) return;
    const age = Math.max(0, Date.now() / 1000 - live.taken), asof = $("#asof");
    asof.textContent = `As of ${age < 1 ? "just now" : `${Numbers.duration(Math.floor(age))} ago`}${live.isPaused ? " (paused)" : ""}`;
    asof.classList.toggle("stale", age > 3 * interval);
    // An open stream that delivers nothing, such as behind a proxy that buffers it, is replaced by polling.
    if (live.source && Date.now() - live.lastEvent > 4000 * interval && !live.timer) { live.source.close(); live.source = null; poll(); }
  }
  $("#live").addEventListener("click", () => {
    live.isPaused = !live.isPaused;
    kept.set("paused", live.isPaused ? "yes" : "no");
    announce(live.isPaused ? "Live numbers paused" : "Live numbers on");
    if (!live.isPaused) refresh();
    connect();
  });
  document.addEventListener("visibilitychange", () => { if (document.hidden) disconnect(); else { connect(); if (!live.isPaused && !isStill) refresh(); } });
  window.addEventListener("pagehide", disconnect);

  // Colours

  const themes = ["auto", "light", "dark"];
  const theme = () => document.documentElement.dataset.theme ?? "auto";
  function showTheme() { $("#theme-word").textContent = { auto: "Auto", light: "Light", dark: "Dark" }[theme()]; }
  $("#theme").addEventListener("click", () => {
    const next = themes[(themes.indexOf(theme()) + 1) % 3];
    if (next === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = next;
    kept.set("theme", next);
    showTheme();
  });

  // Dialogs show the pages that confirm actions, and their receipts, without leaving the current page

  const dialog = $("#dialog");
  let isDone = false;
  async function openPage(url) {
    try {
      showSheet(await fetch(url, { headers: { accept: "text/html" } }));
    } catch { location.href = url; }
  }
  async function showSheet(answer) { showPage(await answer.text(), answer.status); }
  function showPage(html, status) {
    const sheet = $("#sheet", new DOMParser().parseFromString(html, "text/html"));
    if (!sheet) { toast(`The request failed (${status})`); return; }
    dialog.replaceChildren(document.importNode(sheet, true));
    dress(dialog);
    if (!dialog.open) dialog.showModal();
    isDone = isDone || "receipt" in sheet.dataset;
    begin(sheet.dataset.receipt);
    if (sheet.dataset.receipt) announce($(".notice strong", dialog)?.textContent ?? "");
  }

  // A dialog begins at its top. Its title has the focus, unless it asks for a text that is in sight, or only says how it went.
  function begin(isReceipt) {
    const title = $("h1", dialog), first = isReceipt ? $(".buttons a.primary", dialog) : $("[autofocus]", dialog);
    title.tabIndex = -1;
    first?.focus({ preventScroll: true });
    dialog.scrollTop = 0;
    if (!first || first.getBoundingClientRect().bottom > dialog.getBoundingClientRect().bottom) title.focus({ preventScroll: true });
  }

  // Posts a form. While nodes are waited for, `waiting(addresses)` and `step(address, isDone)` are called. Returns the page.
  async function posted(url, values, waiting, step) {
    const answer = await fetch(url, { method: "POST", body: values, headers: { accept: "text/html, application/x-ndjson" } });
    if (!answer.headers.get("content-type")?.includes("ndjson")) return [await answer.text(), answer.status];
    const left = [];
    let rest = "", page = "";
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
      const lines = (rest + piece.value).split("\n");
      rest = lines.pop();
      for (const line of lines.map((text) => JSON.parse(text))) {
        if (line.asked) left.push(...line.asked);
        if (line.step) { const at = left.indexOf(line.step); if (at >= 0) left.splice(at, 1); step(line.step, line.done); }
        page = line.page ?? page;
      }
      waiting([...new Set(left)]);
    }
    return [page, answer.status];
  }
  const waitingFor = (left) => (left.length ? `Waiting for ${left.slice(0, 4).join(", ")}${left.length > 4 ? ` and ${left.length - 4} more` : ""}…` : "");
  document.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    const link = event.target.closest?.("a");
    if (!link) return;
    if (link.matches("[data-dialog]")) { event.preventDefault(); openPage(link.href); }
    else if (link.matches("[data-close]") && dialog.contains(link)) { event.preventDefault(); dialog.close(); }
    else if (link.matches("[data-done]") && dialog.contains(link)) {
      event.preventDefault();
      const leaves = new URL(link.href).pathname !== location.pathname;
      if (leaves) { isDone = false; disconnect(); } // the subject of this page may be deleted now, so the page must not be fetched again
      dialog.close();
      if (leaves) location.href = link.href;
    }
  });
  dialog.addEventListener("close", () => {
    dialog.replaceChildren();
    if (!isDone) return;
    isDone = false;
    if ($("[data-grown]")) location.reload(); else refresh({ fresh: true }); // rows of many steps are searched again
  });
  dialog.addEventListener("submit", (event) => { event.preventDefault(); event.stopPropagation(); send(event.target, event.submitter); });
  async function send(form, button) {
    const values = new URLSearchParams(new FormData(form, button));
    if (button) button.disabled = true;
    const isPost = form.method === "post";
    const url = new URL(button?.hasAttribute("formaction") ? button.formAction : form.action);
    if (!isPost) url.search = values;
    try {
      if (!isPost) return await showSheet(await fetch(url));
      const status = $("[data-waiting]", form);
      showPage(...await posted(url, values, (left) => { if (status) status.textContent = waitingFor(left); }, (address, isGood) => {
        const mark = $(`[data-asked="${CSS.escape(address)}"] .progress`, form);
        if (mark) { mark.textContent = isGood ? "✓ done" : "✗ failed"; mark.className = `progress ${isGood ? "tick" : "cross"}`; }
      }));
    } catch {
      toast("nsqadmin does not answer");
    } finally {
      if (button) button.disabled = false;
    }
  }

  // What is easily taken back happens at once: a toast says how it went, with Undo
  async function doLight(form, button) {
    const values = new URLSearchParams(new FormData(form));
    if (button) button.disabled = true;
    let left = [];
    const slow = setTimeout(() => { if (left.length) toast(waitingFor(left)); }, 700);
    try {
      const [html, status] = await posted(new URL(form.action), values, (now) => { left = now; }, () => {});
      const sheet = $("#sheet[data-receipt]", new DOMParser().parseFromString(html, "text/html"));
      if (!sheet) return showPage(html, status);
      const why = $$(".reached .cross", sheet).map((cross) => cross.textContent.replace("✗ ", "")).filter((text, at, all) => all.indexOf(text) === at);
      toast([$("[data-summary]", sheet)?.textContent ?? "", ...why].join(" "), $$("form[data-light]", sheet));
      refresh({ fresh: true });
    } catch {
      toast("nsqadmin does not answer");
    } finally {
      clearTimeout(slow);
      if (button) button.disabled = false;
    }
  }

  // Forms whose answer a dialog shows
  document.addEventListener("submit", (event) => {
    if (event.target.matches("[data-in-dialog]")) { event.preventDefault(); send(event.target, event.submitter); }
    if (event.target.matches("[data-light]")) { event.preventDefault(); doLight(event.target, event.submitter); }
  });
  document.addEventListener("input", (event) => {
    const within = event.target.closest(".choice");
    if (event.target.matches("[data-narrows]")) for (const label of $$("label", within)) label.hidden = !label.textContent.toLowerCase().includes(event.target.value.toLowerCase());
    else if (within) $("input[name=on][value=some]", within.closest("form")).checked = true;
    else if (event.target.matches("input[name=on]")) { const choice = $(".choice", event.target.form); choice.open = event.target.value === "some"; }
  });

  // A plan that follows what is typed
  let planned = 0;
  dialog.addEventListener("input", (event) => {
    const asks = event.target.closest("[data-replans]");
    if (!asks) return;
    const number = (planned += 1), form = event.target.form;
    setTimeout(async () => {
      if (number !== planned) return;
      const answer = await fetch(`${asks.dataset.replans}?${new URLSearchParams(new FormData(form))}`, { headers: { accept: "text/html" } }).catch(() => null);
      const page = answer && new DOMParser().parseFromString(await answer.text(), "text/html"), fresh = page && $("[data-plan]", page);
      if (number !== planned || !fresh || !form.isConnected) return;
      $("[data-plan]", form).replaceWith(document.importNode(fresh, true));
      $("h1", dialog).textContent = $("h1", page).textContent;
    }, 250);
  });

  // The palette: the server decides what a text finds, and in which order. Commands open the dialog of their action.

  const palette = $("#palette");
  let found = [], chosen = 0, asking = null, isEntered = false;
  function element(name, attributes, ...content) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...content);
    return made;
  }
  function openPalette() {
    if (palette.open) return;
    const input = element("input", {
      type: "text", placeholder: "A name, an id, or a command such as pause billing", autocomplete: "off", spellcheck: "false", maxlength: "500",
      role: "combobox", "aria-expanded": "false", "aria-autocomplete": "list", "aria-controls": "palette-found", "aria-label": "Find, or do",
    });
    const list = element("ul", { role: "listbox", "aria-label": "Found" });
    list.id = "palette-found";
    palette.replaceChildren(input, list, element("div", { class: "notes", role: "status" }));
    [found, chosen, isEntered] = [[], 0, false];
    palette.showModal();
    input.focus();
    input.addEventListener("input", () => { isEntered = false; look(input.value); });
    input.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "ArrowDown" || (event.key === "Tab" && !event.shiftKey)) choose(chosen + 1);
      else if (event.key === "ArrowUp" || event.key === "Tab") choose(chosen - 1);
      else if (event.key === "Enter" && asking) isEntered = true; // what is shown belongs to an earlier text
      else if (event.key === "Enter") go(found[chosen]);
      else return;
      event.preventDefault();
    });
    look("");
  }
  palette.addEventListener("close", () => { asking?.abort(); asking = null; });
  async function look(text) {
    asking?.abort();
    const own = asking = new AbortController();
    const slow = setTimeout(() => showNotes(["Searching…"]), 400);
    try {
      const answer = await fetch(`${base}/jump?q=${encodeURIComponent(text)}&scope=${encodeURIComponent(body.dataset.scope)}`, { signal: own.signal });
      if (!answer.ok) throw new Error(`${answer.status}`);
      const told = await answer.json();
      if (own === asking) show(told, text);
    } catch {
      if (own === asking) show({ found: [], said: "", notes: ["nsqadmin does not answer"] }, text);
    } finally {
      clearTimeout(slow);
    }
  }
  function show(told, text) {
    asking = null;
    found = told.found;
    const list = $("#palette-found"), input = $("input", palette);
    list.replaceChildren(...found.map((place, at) => {
      const item = element("li", { role: "option" }, element("span", { class: "name" }, place.name));
      item.id = `palette-found-${at}`;
      if (place.detail) item.append(element("span", { class: `detail ${place.mark}` }, place.detail));
      item.append(element("span", { class: "kind" }, place.kind));
      item.addEventListener("click", () => go(place));
      item.addEventListener("pointermove", () => choose(at));
      return item;
    }));
    list.hidden = !found.length;
    input.setAttribute("aria-expanded", String(found.length > 0));
    showNotes([...told.notes], text && found.length ? told.said : "");
    choose(0);
    if (isEntered) { isEntered = false; go(found[0]); }
  }
  function showNotes(notes, said = "") {
    const box = $(".notes", palette);
    box?.replaceChildren(...notes.map((note) => element("p", {}, note)), ...(said ? [element("p", { class: "hush" }, said)] : []));
  }
  function choose(at) {
    const items = $$("#palette-found > li");
    chosen = Math.max(0, Math.min(items.length - 1, at));
    items.forEach((item, place) => item.setAttribute("aria-selected", String(place === chosen)));
    items[chosen]?.scrollIntoView({ block: "nearest" });
    const input = $("input", palette);
    if (items.length) input.setAttribute("aria-activedescendant", `palette-found-${chosen}`); else input.removeAttribute("aria-activedescendant");
  }
  function go(place) {
    if (!place) return;
    if (!place.dialog) { location.href = place.href; return; }
    palette.close();
    openPage(place.href);
  }
  $("#jump").addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    openPalette();
  });

  // Keys

  const places = { o: "/", t: "/topics", c: "/consumers", j: "/jobs", n: "/nodes", l: "/lookup", a: "/activity" };
  let wentAt = 0, here = null;
  function move(by) {
    const rows = $$("[data-row]:not([hidden])").filter((row) => row.checkVisibility());
    if (!rows.length) return;
    const at = here && rows.includes(here) ? rows.indexOf(here) + by : by > 0 ? 0 : rows.length - 1;
    here?.classList.remove("here");
    here = rows[Math.max(0, Math.min(rows.length - 1, at))];
    here.classList.add("here");
    here.scrollIntoView({ block: "nearest" });
    $("a", here)?.focus({ preventScroll: true });
  }
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") { event.preventDefault(); openPalette(); return; }
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, textarea, select, dialog")) {
      if (event.key === "Escape" && event.target.matches?.("input")) event.target.blur();
      return;
    }
    const key = event.key;
    if (wentAt && Date.now() - wentAt < 1500 && places[key]) { wentAt = 0; location.href = base + places[key]; return; }
    wentAt = 0;
    if (key === "g") wentAt = Date.now();
    else if (key === "?") { event.preventDefault(); showKeys(); }
    else if (key === "/") { const filter = $("#filter"); if (filter) { event.preventDefault(); filter.focus(); filter.select(); } else openPalette(); }
    else if (key === "j") move(1);
    else if (key === "k") move(-1);
    else if (key === "x" && here) { $("input[name=pick]", here)?.click(); }
    else if (key === "r") askAll();
    else if (key === "p") $("#live").click();
  });
  async function askAll() {
    if (await refresh({ fresh: true })) announce("All nodes were asked");
    else if (live.failures) announce("nsqadmin does not answer");
  }
  async function showKeys() {
    const page = new DOMParser().parseFromString(await (await fetch(`${base}/help`)).text(), "text/html");
    const title = document.createElement("h2");
    title.id = "dialog-title";
    title.textContent = "Keys";
    const close = document.createElement("button");
    close.type = "button";
    close.textContent = "Close";
    close.autofocus = true;
    close.addEventListener("click", () => dialog.close());
    const keys = document.importNode($(".keys", page), true);
    if (!$("[data-row] input[name=pick]")) $$("[data-for-rows]", keys).forEach((entry) => entry.remove());
    const line = document.createElement("div");
    line.className = "buttons";
    line.append(close);
    dialog.replaceChildren(title, keys, line);
    if (!dialog.open) dialog.showModal();
    close.focus();
  }

  window.Page = { dress, toast, announce, copy, refresh, open: openPage }; // for rows.js, messages.js and charts.js
  Charts.start();
  for (const part of $$("[data-live]")) part.dataset.was = part.innerHTML;
  dress(document);
  showTheme();
  connect();
  setInterval(tick, 1000);
  tick();
})();
