// What scripts add to the table of messages: rows of a search that goes on and of a tail, details at the side, and how
// many messages are selected. The server makes the same rows (web/templates/messages.html).
"use strict";

(() => {
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
  const table = $("#messages");
  if (!table) return;
  const base = document.documentElement.dataset.base.replace(/\/$/, "");
  const list = $("tbody", table), columns = table.dataset.columns.split(" ").filter(Boolean);
  const MOST_ROWS = 500; // a tail removes older ones

  // Rows

  const element = (name, { text, className, ...rest } = {}, ...inside) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    for (const [key, value] of Object.entries(rest)) made.setAttribute(key, value);
    made.append(...inside);
    return made;
  };
  const cell = (label, text, className = "") => element("td", { "data-label": label, text, className });

  function fieldAt(document, path) {
    for (const step of path.split(".")) {
      if (document === null || typeof document !== "object" || !Object.hasOwn(document, step)) return "";
      document = document[step];
    }
    return typeof document === "string" ? document : JSON.stringify(document);
  }
  const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  function previewOf(message) {
    if (message.body_withheld) return "(you may not see its body)";
    if (message.body === undefined) {
      const bytes = bytesOf(message.body_base64);
      return `binary ${Numbers.size(message.size)} · ${[...bytes.slice(0, 12)].map((octet) => octet.toString(16).padStart(2, "0")).join(" ")}${bytes.length > 12 ? "…" : ""}`;
    }
    return message.body.slice(0, 640).replace(/\s+/g, " ").trim().slice(0, 160);
  }
  function parsed(message) {
    try { return JSON.parse(message.body); } catch { return null; }
  }
  function marked(text, terms) {
    const parts = document.createDocumentFragment();
    if (!terms) { parts.append(text); return parts; }
    let at = 0;
    for (const found of text.matchAll(terms)) {
      parts.append(text.slice(at, found.index), element("mark", { text: found[0] }));
      at = found.index + found[0].length;
    }
    parts.append(text.slice(at));
    return parts;
  }
  // The server marks the hits of conditions as well; here a piece of text is enough.
  const wanted = table.dataset.wanted.replace(/^"(.*)"$/, "$1");
  const terms = wanted && !/[=<>~]/.test(wanted) ? new RegExp(wanted.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gi") : null;

  function rowOf(message) {
    const row = element("tr", { "data-row": "" });
    const isKept = message.sequence !== undefined, pick = `${message.sequence}@${message.node}${message.log ? `@${message.log}` : ""}`;
    const where = isKept ? `${message.node} : ${Numbers.exact(message.sequence)}` : message.node;
    const time = element("time", { datetime: new Date(message.timestamp * 1000).toISOString() });
    const query = new URLSearchParams({ topic: table.dataset.topic, node: message.node, sequence: message.sequence, log: message.log ?? "" });
    if (table.dataset.wanted) query.set("filter", table.dataset.wanted);
    const link = isKept
      ? element("a", { href: `${base}/message?${query}`, "data-detail": "" }, time)
      : element("button", { type: "button", className: "plain small" }, time);
    if (!isKept) link.addEventListener("click", () => showNew(message));
    if ("picks" in table.dataset) row.append(isKept ? element("td", { className: "pick" }, element("input", { type: "checkbox", name: "pick", value: pick, "aria-label": `Select message ${where}` })) : element("td", { className: "pick" }));
    row.append(element("th", { scope: "row", "data-label": "Time" }, link), cell("Node : sequence", where, "nowrap"), cell("Size", Numbers.size(message.size), "n"));
    const document = columns.length ? parsed(message) : null;
    for (const name of columns) row.append(cell(name, fieldAt(document, name), "mono"));
    row.append(element("td", { className: "preview mono wide" }, marked(previewOf(message), terms)));
    if ("picks" in table.dataset) row.append(element("td", { className: "pick" }, ...(isKept ? [element("button", { className: "small plain", name: "one", value: pick, text: "Replay…" })] : [])));
    Page.dress(row);
    return row;
  }

  // Details at the side, or in a dialog where there is no room

  const side = $("#detail"), browser = $(".browser");
  const hasRoom = () => matchMedia("(min-width: 901px)").matches;
  function showBeside(sheet) {
    sheet.id = "detail-sheet";
    const close = element("button", { type: "button", className: "small plain close", text: "Close" });
    close.addEventListener("click", hide);
    side.replaceChildren(close, sheet);
    side.hidden = false;
    browser.classList.add("beside");
    Page.dress(side);
  }
  function hide() {
    side.hidden = true;
    side.replaceChildren();
    browser.classList.remove("beside");
    for (const row of $$("tr.shown", list)) row.classList.remove("shown");
  }
  async function show(link) {
    if (!hasRoom()) return Page.open(link.href);
    const answer = await fetch(link.href, { headers: { accept: "text/html" } }).catch(() => null);
    const sheet = answer && $("#sheet", new DOMParser().parseFromString(await answer.text(), "text/html"));
    if (!sheet) { Page.toast("This message cannot be shown"); return; }
    for (const row of $$("tr.shown", list)) row.classList.remove("shown");
    link.closest("tr")?.classList.add("shown");
    showBeside(document.importNode(sheet, true));
  }
  function showNew(message) {
    const document = parsed(message);
    const text = document === null ? message.body ?? message.body_base64 ?? "" : JSON.stringify(document, null, 2);
    const id = `Id ${message.id}${message.body === undefined ? ", shown as Base64" : ""}`;
    showBeside(element("div", { className: "sheet message" }, element("h2", { text: "New message" }), element("p", { text: id, className: "muted" }), element("pre", { text, className: "body", tabindex: "0", "data-copy": "" })));
  }
  document.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    const link = event.target.closest?.("a[data-detail]");
    if (link && (browser.contains(link))) { event.preventDefault(); show(link); }
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !side.hidden && !$("dialog[open]")) hide(); });

  // What is selected

  const button = $("#replay-selected");
  function count() {
    if (!button) return;
    const selected = $$("input[name=pick]:checked", list).length;
    $("#selected").textContent = selected ? `Replay ${Numbers.exact(selected)} to channel…` : "Replay selected to channel…";
    if (!button.title) button.disabled = !selected;
  }
  list.addEventListener("change", count);
  count();
  addEventListener("pageshow", count);

  // A search goes on by itself until it has enough hits

  const goOn = $("#go-on");
  let search = null;
  function look() {
    const hits = $("#hits"), looked = $("#looked");
    goOn.textContent = "Stop";
    search = new EventSource(goOn.dataset.stream);
    search.addEventListener("message", (event) => {
      list.append(rowOf(JSON.parse(event.data)));
      $(".empty")?.remove();
    });
    const progress = (event) => {
      const now = JSON.parse(event.data), found = list.childElementCount;
      hits.textContent = found ? `${Numbers.exact(found)} ${found === 1 ? "hit" : "hits"}` : now.is_whole ? "Nothing matches" : now.goes_on ? "No hit so far" : "No hit in what could be looked at";
      const at = now.reached && now.goes_on ? `, back to ${new Date(now.reached * 1000).toLocaleTimeString([], { hourCycle: "h23" })}` : "";
      looked.textContent = `Looked at ${Numbers.exact(now.looked)} of ${Numbers.exact(now.total)} messages${at}.`;
      for (const address of ["href", "data-stream"]) {
        const url = new URL(goOn.getAttribute(address), location.href);
        url.searchParams.set("cursor", now.cursor);
        goOn.setAttribute(address, url.pathname + url.search);
      }
      return now;
    };
    search.addEventListener("progress", progress);
    search.addEventListener("end", (event) => {
      const now = progress(event);
      stop();
      for (const { node, reason } of now.silent) Page.toast(`${node} was not looked at, or not to the end: ${reason}`);
      if (!now.goes_on) goOn.remove();
      const empty = $(".empty p");
      if (empty) empty.textContent = hits.textContent + ".";
      Page.announce(`${hits.textContent}. ${looked.textContent}`);
    });
    search.addEventListener("error", () => { if (search) { stop(); Page.toast("The search was interrupted: go on"); } });
  }
  function stop() {
    search?.close();
    search = null;
    goOn.textContent = "Go on";
  }
  if (goOn && table.dataset.wanted) {
    goOn.addEventListener("click", (event) => { event.preventDefault(); if (search) stop(); else look(); });
    if (list.childElementCount < 20) look();
  }

  // New messages as they come, in the same table

  const tail = $("#tail"), state = $("#tail-state");
  let source = null;
  function say(text) { state.hidden = false; state.textContent = text; }
  function endTail(text) {
    source?.close();
    source = null;
    tail.setAttribute("aria-pressed", "false");
    say(text);
  }
  tail?.addEventListener("click", () => {
    let arrived = 0, skipped = 0;
    const sofar = () => `${Numbers.count(arrived)} new so far${skipped ? `, ${Numbers.count(skipped)} skipped, as they come too fast` : ""}`;
    if (source) return endTail("Tail stopped");
    tail.setAttribute("aria-pressed", "true");
    say("Waiting for new messages…");
    source = new EventSource(tail.dataset.tail);
    source.addEventListener("message", (event) => {
      if (!event.data) return;
      arrived += 1;
      const row = rowOf(JSON.parse(event.data));
      row.classList.add("new");
      list.prepend(row);
      if (list.childElementCount > MOST_ROWS) list.lastElementChild.remove();
      say(sofar());
    });
    source.addEventListener("skipped", (event) => { skipped = JSON.parse(event.data).count; say(sofar()); });
    source.addEventListener("trouble", (event) => { const { node, reason } = JSON.parse(event.data); Page.toast(`${node}: ${reason}`); });
    source.addEventListener("end", () => endTail(`Time is up, after ${Numbers.count(arrived)} new messages`));
    source.addEventListener("error", () => { if (source) endTail("Tailing is not possible now"); });
  });
  addEventListener("pagehide", () => { source?.close(); search?.close(); });
})();
