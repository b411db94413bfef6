"use strict";
// Searches all rows of the index, in set, id, file and shared words, case and punctuation aside, and
// shows those with enough coverage: as cards, where the page has both texts, and in a list.
(async () => {
  const part = (id) => document.getElementById(id);
  const cards = [...document.querySelectorAll(".instance")];
  const setAll = (open) => {
    for (const card of cards) card.open = open;
  };
  addEventListener("beforeprint", () => setAll(true)); // paper cannot be opened
  if (!part("index")) return;

  const read = async () => {
    const packed = atob(part("index").content.textContent);
    const bytes = Uint8Array.from(packed, (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).json();
  };
  const rows = await read();
  const numRows = rows.instance_id.length;

  // --- figures of rows: at an n, by its place among the lengths, or at any, which is -1
  const at = (columns, length) =>
    length >= 0
      ? columns[length]
      : Array.from({ length: numRows }, (_, row) => Math.max(...columns.map((one) => one[row])));
  const views = new Map();
  const viewOf = (length) => {
    if (!views.has(length)) {
      const covered = at(rows.num_covered_tokens, length);
      const documents = at(rows.num_train_documents, length);
      const coverage = covered.map((tokens, row) => tokens / rows.num_tokens[row]);
      const order = [...covered.keys()]
        .filter((row) => covered[row] > 0)
        .sort((a, b) => covered[b] - covered[a] || a - b);
      views.set(length, { covered, documents, coverage, order });
    }
    return views.get(length);
  };

  // --- what is searched
  const plain = (text) =>
    text.normalize("NFC").toLowerCase().replace(/[\s\p{P}\p{S}]+/gu, " ").trim();
  const wasOpen = cards.map((card) => card.open);
  let texts = null;
  const textOf = (row) => {
    texts ??= rows.instance_id.map((id, row) => {
      const card = cards[row] ? `${cards[row].textContent} ${cards[row].dataset.unseen}` : "";
      const set = rows.eval_datasets[rows.eval_dataset[row]];
      const path = rows.eval_paths[rows.eval_path[row]];
      return plain(`${set} ${id} ${path} ${rows.words[row] ?? ""} ${card}`);
    });
    return texts[row];
  };

  // --- what is shown
  const number = (value) => value.toLocaleString("en-US");
  const oneDigit = new Intl.NumberFormat("en-US", {
    minimumFractionDigits: 1, maximumFractionDigits: 1, roundingMode: "halfEven",
  });
  const share = (value) => {
    if (value === 0 || value === 1) return `${100 * value}\u00a0%`;
    if (value < 0.0005) return "<0.1\u00a0%";
    return value >= 0.9995 ? ">99.9\u00a0%" : `${oneDigit.format(100 * value)}\u00a0%`;
  };
  const lineOf = (row, rank, view) => {
    const line = document.createElement("tr");
    const add = (kind, text, name = "") => {
      const cell = document.createElement(kind);
      if (kind === "th") cell.scope = "row";
      cell.className = name;
      cell.append(text);
      line.append(cell);
      return cell;
    };
    add("td", number(rank));
    add("td", rows.eval_datasets[rows.eval_dataset[row]], "words");
    const id = add("th", "", "words id");
    const name = document.createElement(cards[row] ? "a" : "bdi");
    if (cards[row]) name.href = `#${cards[row].id}`;
    name.textContent = rows.instance_id[row];
    id.append(name);
    add("td", `${number(view.covered[row])} of ${number(rows.num_tokens[row])}`);
    add("td", share(view.coverage[row]));
    add("td", number(view.documents[row]));
    add("td", rows.eval_paths[rows.eval_path[row]], "words file");
    add("td", number(rows.eval_row[row]));
    return line;
  };
  const openAtMost = 5, step = 50;
  const box = part("filter"), told = part("filter-result"), more = part("more");
  const body = part("rows-table").tBodies[0];
  let found = [], view = viewOf(-1), numShown = 0;

  const showMore = () => {
    const stop = Math.min(numShown + step, found.length);
    const lines = found.slice(numShown, stop).map((row, at) => lineOf(row, numShown + at + 1, view));
    body.append(...lines);
    numShown = stop;
    more.hidden = numShown === found.length;
    more.textContent = `Show ${number(Math.min(step, found.length - numShown))} more of ${number(found.length)}`;
  };
  const apply = () => {
    const level = document.querySelector("input[name=level]:checked").value;
    for (const matrix of document.querySelectorAll("[data-level]"))
      matrix.hidden = matrix.dataset.level !== level;
    view = viewOf(Number(part("length").value));
    const words = plain(box.value).split(" ").filter(Boolean);
    found = view.order.filter(
      (row) => view.coverage[row] >= Number(level) && words.every((word) => textOf(row).includes(word)),
    );
    const shown = new Set(found);
    const numCards = cards.filter((_, row) => shown.has(row)).length;
    cards.forEach((card, row) => {
      card.hidden = !shown.has(row);
      if (shown.has(row)) card.open = words.length ? numCards <= openAtMost : wasOpen[row];
    });
    const isAll = found.length === numRows;
    told.textContent = isAll ? `${number(numRows)} rows` : `${number(found.length)} of ${number(numRows)} rows`;
    body.replaceChildren();
    numShown = 0;
    showMore();
  };

  for (const id of ["view", "tools", "all"]) part(id).hidden = false;
  part("view").addEventListener("change", apply);
  box.addEventListener("input", apply);
  box.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      box.value = "";
      apply();
    }
  });
  document.addEventListener("keydown", (event) => {
    const isTyping = document.activeElement.matches("input, select");
    if (event.key === "/" && !event.ctrlKey && !event.metaKey && !isTyping) {
      event.preventDefault();
      box.focus();
    }
  });
  more.addEventListener("click", showMore);
  body.addEventListener("click", (event) => {
    const card = event.target.hash && document.querySelector(event.target.hash);
    if (card) card.open = true;
  });
  part("open-all").addEventListener("click", () => setAll(true));
  part("close-all").addEventListener("click", () => setAll(false));
  apply(); // a reload may have kept what was chosen
})();
