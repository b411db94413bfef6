"use strict";
// Shows the instances in which the words typed stand, case, spaces and punctuation aside: so an
// n-gram is found however the texts write it.
{
  const plain = (text) =>
    text.normalize("NFC").toLowerCase().replace(/[\s\p{P}\p{S}]+/gu, " ").trim();
  const box = document.getElementById("filter");
  const told = document.getElementById("filter-result");
  const cards = [...document.querySelectorAll(".instance")].map((element) => ({
    element,
    wasOpen: element.open,
    words: plain(element.textContent + " " + (element.dataset.unseen ?? "")),
  }));
  const openAtMost = 5;

  const apply = () => {
    const wanted = plain(box.value);
    const found = cards.filter((card) => card.words.includes(wanted));
    for (const card of cards) card.element.hidden = true;
    for (const card of found) {
      card.element.hidden = false;
      card.element.open = wanted ? found.length <= openAtMost : card.wasOpen;
    }
    told.textContent = wanted
      ? `${found.length} of ${cards.length} instances`
      : `${cards.length} instances`;
  };

  const setAll = (open) => {
    for (const card of cards) card.element.open = open;
  };

  if (box) {
    document.getElementById("tools").hidden = false;
    box.addEventListener("input", apply);
    box.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        box.value = "";
        apply();
      }
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "/" && !event.ctrlKey && !event.metaKey && document.activeElement !== box) {
        event.preventDefault();
        box.focus();
      }
    });
    document.getElementById("open-all").addEventListener("click", () => setAll(true));
    document.getElementById("close-all").addEventListener("click", () => setAll(false));
    apply(); // a reload may have kept what was typed
  }
  addEventListener("beforeprint", () => setAll(true)); // paper cannot be opened
}
