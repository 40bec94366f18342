// What scripts add to the table of messages: rows of a search that goes on and of a tail, and the open message beside it.
// The server makes the rows (web/templates/parts/message_row.html), and the message that the page's address names.
"use strict";

(() => {
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
  const table = $("#messages");
  if (!table) return;
  const list = $("tbody", table), found = () => $$("tr[data-row]", list);
  const MOST_ROWS = 500; // a tail removes older ones
  const LONGEST_SEARCH = 30000; // milliseconds; then it waits for "Continue"

  // Rows come from the server as they are in the page, so that all look alike

  function pageIn(text) { return new DOMParser().parseFromString(text, "text/html"); }
  function adopted(row) {
    const here = document.importNode(row, true);
    Page.dress(here);
    return here;
  }

  // Details at the side, or in a dialog where there is no room

  const side = $("#detail"), browser = $(".browser");
  const hasRoom = () => matchMedia("(min-width: 901px)").matches;
  function showBeside(sheet) {
    sheet.removeAttribute("id"); // a dialog may open meanwhile, and has these ids
    for (const title of $$("h1", sheet)) {
      const smaller = document.createElement("h2");
      smaller.append(...title.childNodes);
      title.replaceWith(smaller);
    }
    const close = document.createElement("button");
    Object.assign(close, { type: "button", className: "small plain close", textContent: "Close" });
    side.replaceChildren(close, sheet);
    side.hidden = false;
    browser.classList.add("beside");
    Page.dress(side);
  }
  function hide() {
    side.hidden = true;
    side.replaceChildren();
    browser.classList.remove("beside");
    mark(null);
  }
  function mark(row) {
    for (const other of $$("tr.shown", list)) other.classList.remove("shown");
    row?.classList.add("shown");
  }
  async function show(link, row) {
    if (!hasRoom()) return Page.open(link.href);
    const answer = await fetch(link.href, { headers: { accept: "text/html" } }).catch(() => null);
    const sheet = answer && $("#sheet", pageIn(await answer.text()));
    if (!sheet) { Page.toast("This message cannot be shown"); return; }
    if (row) mark(row);
    showBeside(document.importNode(sheet, true));
  }

  // The address of the page names the open message, for a reload, the Back button and a colleague.

  const opened = () => new URL(location.href).searchParams.get("open");
  function name(key, isBack = false) {
    const url = new URL(location.href);
    if (key) url.searchParams.set("open", key); else url.searchParams.delete("open");
    if (url.href !== location.href) history[isBack ? "replaceState" : "pushState"](null, "", url);
  }
  function close() { hide(); name(null); }
  if (opened() && !hasRoom()) side.scrollIntoView();
  addEventListener("popstate", () => {
    const key = opened(), row = key && $(`tr[data-open="${CSS.escape(key)}"]`, list);
    const link = row && $("a[data-detail]", row);
    if (key && !link) location.reload(); // its row is not here, but the server can show it
    else if (key) show(link, row);
    else if (!side.hidden) hide();
    else $("#dialog").close();
  });
  $("#dialog").addEventListener("close", () => { if (side.hidden && opened()) name(null, true); });
  document.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    const link = event.target.closest?.("a[data-detail]");
    if (link && browser.contains(link)) {
      event.preventDefault();
      const row = link.closest("tr[data-open]");
      if (row) name(row.dataset.open);
      show(link, row);
    }
    if (event.target.closest?.("#detail > .close")) { event.preventDefault(); close(); }
    const fresh = event.target.closest?.("button[data-new]");
    if (fresh) { // it has no place in the history yet, so no address either
      name(null);
      mark(fresh.closest("tr"));
      showBeside(document.importNode(fresh.nextElementSibling.content.firstElementChild, true));
    }
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !side.hidden && !$("dialog[open]")) close(); });

  // The button that replays says how many

  const replay = $("#replay-selected");
  replay?.form.addEventListener("picked", ({ detail: selected }) => {
    $("#selected").textContent = selected ? `Replay ${Numbers.exact(selected)} to channel…` : "Replay selected to channel…";
    if (!("forbidden" in replay.dataset)) $("#why-no-replay").textContent = selected ? "" : "Select messages to replay them.";
  });
  replay?.form.dispatchEvent(new CustomEvent("picked", { detail: $$("input[name=pick]:checked", list).length }));

  // A search goes on by itself until it has enough hits. Each step is the page that the link leads to.

  const goOn = $("#go-on");
  let search = null;
  async function step() {
    const answer = await fetch(goOn.href, { headers: { accept: "text/html" }, signal: search.signal });
    const page = pageIn(await answer.text()), next = $("#go-on", page);
    if (!$("#hits", page)) throw new Error("no page of messages");
    const rows = $$("#messages tr[data-row]", page);
    if ("live" in list.dataset) list.dataset.grown = ""; // no page that is fetched again has all of these rows
    list.append(...rows.map(adopted));
    if (rows.length) $("tr.none", list)?.remove(); else $("tr.none", list)?.replaceWith(...$$("tr.none", page).map(adopted));
    for (const part of ["#hits", "#looked"]) $(part).replaceChildren(...adopted($(part, page)).childNodes);
    const these = $("#replay-shown"), more = $("#replay-shown", page);
    if (these && more) {
      these.value += ` ${more.value}`;
      $("span", these).textContent = `Replay these ${Numbers.exact(found().length)}…`;
    } else if (more) $("#replay-selected").after(" ", adopted(more));
    const all = $("#replay-all"), isShown = !next && !new URL(location.href).searchParams.has("cursor");
    if (all && isShown) all.textContent = "Replay all matches…";
    const empty = $(".empty"), still = $(".empty", page);
    if (found().length) empty?.remove(); else if (empty && still) empty.replaceWith(adopted(still));
    $("#remarks").replaceChildren(...adopted($("#remarks", page)).childNodes);
    if (next) goOn.href = next.getAttribute("href");
    return { found: rows.length, goesOn: Boolean(next) };
  }
  async function look() {
    const wanted = Number(table.dataset.limit), began = performance.now();
    search = new AbortController();
    goOn.textContent = "Stop";
    try {
      for (let hits = 0, goesOn = true; goesOn && hits < wanted && performance.now() - began < LONGEST_SEARCH;) {
        const did = await step();
        hits += did.found;
        goesOn = did.goesOn;
        if (!goesOn) goOn.remove();
      }
      Page.announce(`${$("#hits").textContent}. ${$("#looked").textContent}`);
    } catch (error) {
      if (error.name !== "AbortError") Page.toast("The search was interrupted: continue it");
    }
    search = null;
    goOn.textContent = "Continue";
  }
  if (goOn && table.dataset.wanted) {
    goOn.addEventListener("click", (event) => { event.preventDefault(); if (search) search.abort(); else look(); });
    if (found().length < 20) look();
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
      const made = document.createElement("template");
      made.innerHTML = JSON.parse(event.data).row; // of our own template, with everything in it escaped
      list.prepend(adopted(made.content.firstElementChild));
      $(".empty")?.remove();
      if (list.childElementCount > MOST_ROWS) list.lastElementChild.remove();
      say(sofar());
    });
    source.addEventListener("skipped", (event) => { skipped = JSON.parse(event.data).count; say(sofar()); });
    source.addEventListener("trouble", (event) => { const { node, reason } = JSON.parse(event.data); Page.toast(`${node}: ${reason}`); });
    source.addEventListener("end", () => endTail(`Time is up, after ${Numbers.count(arrived)} new messages`));
    source.addEventListener("error", () => { if (source) endTail("Tailing is not possible now"); });
  });
  addEventListener("pagehide", () => { source?.close(); search?.abort(); });
})();
