// What scripts add to rows: a click anywhere opens the row, boxes select rows, and links are copied. Without this script
// the link in a row opens it, and forms send what is ticked.
"use strict";

(() => {
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];

  // The whole row opens what its link opens, except where it has something to click on, or where text is being selected.

  const INNER = "a, button, input, label, select, textarea, summary, details, pre";
  const linkOf = (row) => $("a[data-detail], button[data-new]", row) ?? $(":scope > th > a[href], :scope > .says a[href]", row);
  function rowLink(event) {
    const row = event.target.closest?.("main tbody tr, main li.incident");
    return row && !event.target.closest(INNER) && getSelection().isCollapsed ? linkOf(row) : null;
  }
  document.addEventListener("click", (event) => {
    if (event.button || event.altKey || event.defaultPrevented) return;
    const cell = event.target.closest?.(".pick"), box = cell && $("input:not([data-pick-all])", cell);
    if (box && event.target !== box) return box.click(); // a near miss selects, and opens nothing
    const { ctrlKey, metaKey, shiftKey } = event; // the browser opens a new tab or window for these
    rowLink(event)?.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true, ctrlKey, metaKey, shiftKey }));
  });
  document.addEventListener("auxclick", (event) => {
    const link = event.button === 1 && rowLink(event);
    if (link?.href) window.open(link.href, "_blank", "noopener");
  });
  document.addEventListener("mousedown", (event) => { if (event.button === 1 && rowLink(event)) event.preventDefault(); }); // no scrolling instead

  // What is selected. A button with a title from the server is forbidden to the user, and stays so.

  const boxesOf = (form) => $$("input[name=pick]", form);
  const seen = (box) => box.checkVisibility() && !("context" in box.dataset);
  const forms = $$("[data-picked]").map((bar) => bar.closest("form"));
  for (const button of $$("[data-needs-pick]")) if (button.title) button.dataset.forbidden = "";

  const counted = new Map();
  function count(form) {
    const bar = $("[data-picked]", form), what = bar.dataset.picked;
    const boxes = boxesOf(form), picked = boxes.filter((box) => box.checked).length, shown = boxes.filter(seen);
    const isAll = shown.length > 0 && shown.every((box) => box.checked);
    const text = picked ? `${Numbers.exact(picked)} selected` : `Select ${what}`;
    if ($("[data-count]", bar).textContent !== text) $("[data-count]", bar).textContent = text;
    for (const box of $$("[data-pick-all]", form)) {
      box.checked = isAll;
      box.indeterminate = picked > 0 && !isAll;
      box.disabled = !shown.length;
      box.title = shown.length ? "" : "There is nothing to select";
    }
    for (const button of $$("[data-needs-pick]", bar)) {
      if ("forbidden" in button.dataset) continue;
      const fits = button.dataset.fits ?? "", mark = fits.replace("!", "");
      const isIdle = mark && boxes.every((box) => !box.checked || (box.dataset.marks ?? "").split(" ").includes(mark) === fits.startsWith("!"));
      button.disabled = !picked || isIdle;
      button.title = !picked ? `Select ${what} first` : !isIdle ? button.dataset.hint ?? "" : fits === mark ? `None of them is ${mark}` : `All of them are ${mark} already`;
    }
    const header = $("header.top");
    form.style.setProperty("--under", getComputedStyle(header).position === "sticky" ? `${header.offsetHeight}px` : "0px");
    form.style.setProperty("--picked", picked ? `${bar.offsetHeight}px` : "0px");
    if (counted.get(form) !== picked) form.dispatchEvent(new CustomEvent("picked", { detail: picked }));
    counted.set(form, picked);
  }

  function start(form) {
    let last = null;
    form.addEventListener("click", (event) => {
      if (event.target.name !== "pick") return;
      const boxes = boxesOf(form).filter(seen), from = boxes.indexOf(last), to = boxes.indexOf(event.target);
      if (event.shiftKey && from >= 0 && to >= 0) for (const box of boxes.slice(Math.min(from, to), Math.max(from, to))) box.checked = event.target.checked;
      last = event.target;
    });
    form.addEventListener("change", (event) => {
      if ("pickAll" in event.target.dataset) for (const box of boxesOf(form).filter(seen)) box.checked = event.target.checked;
      count(form);
    });
    form.addEventListener("click", (event) => {
      if (!event.target.closest("[data-clear]")) return;
      for (const box of boxesOf(form)) box.checked = false;
      count(form);
      $("[data-pick-all]", form).focus();
    });
    // A row that is gone is not selected any more, and one that is folded away is not shown. New texts change nothing.
    new MutationObserver((seen) => {
      if (seen.some((it) => it.type === "attributes" || [...it.addedNodes, ...it.removedNodes].some((node) => node.nodeType === Node.ELEMENT_NODE))) count(form);
    }).observe(form, { childList: true, subtree: true, attributeFilter: ["hidden", "open"] });
    count(form);
  }
  forms.forEach(start);
  const countAll = () => forms.forEach(count);
  addEventListener("pageshow", countAll); // the browser may have kept what was ticked
  addEventListener("resize", countAll);

  // Links for a colleague: under the address by which people reach nsqadmin, if it is known

  function absolute(href) {
    const url = new URL(href || location.href, location.href);
    url.searchParams.delete("fresh");
    return (document.documentElement.dataset.external ?? url.origin) + url.pathname + url.search + url.hash;
  }
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("[data-copy-link], [data-copy-picked]");
    if (!button) return;
    if ("copyLink" in button.dataset) return Page.copy(absolute(button.dataset.copyLink));
    const boxes = boxesOf(button.form).filter((box) => box.checked), topic = button.dataset.copyPicked;
    const links = boxes.map((box) => absolute(linkOf(box.closest("tr, li"))?.href));
    if (!topic) return Page.copy(links.join("\n"), links.length > 1 ? `${Numbers.exact(links.length)} links copied` : "Copied");
    const messages = boxes.map((box) => box.dataset.message).join(" ");
    const base = document.documentElement.dataset.base.replace(/\/$/, "");
    const answer = await fetch(`${base}/api/v2/messages/${encodeURIComponent(topic)}`, { method: "POST", body: JSON.stringify({ messages }) }).catch(() => null);
    if (!answer?.ok) return Page.toast("These messages cannot be read now");
    const lines = await answer.text(), found = lines.split("\n").length - 1;
    await Page.copy(lines, `${Numbers.exact(found)} of ${Numbers.exact(boxes.length)} messages copied`);
  });
})();
