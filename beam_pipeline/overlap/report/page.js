"use strict";
// Shows the evaluation sets, cards and rows of the coverage that is chosen, and opens cards.
const cards = [...document.querySelectorAll(".instance")];
const setAll = (open) => {
  for (const card of cards) card.open = open;
};
const apply = () => {
  const level = document.querySelector("input[name=level]:checked").value;
  for (const matrix of document.querySelectorAll("[data-level]"))
    matrix.hidden = matrix.dataset.level !== level;
  for (const row of document.querySelectorAll("[data-coverage]"))
    row.hidden = Number(row.dataset.coverage) < Number(level);
};
addEventListener("beforeprint", () => setAll(true)); // paper cannot be opened
if (cards.length || document.getElementById("levels")) {
  for (const tools of document.querySelectorAll(".tools")) tools.hidden = false;
  document.getElementById("levels").addEventListener("change", apply);
  document.getElementById("open-all").addEventListener("click", () => setAll(true));
  document.getElementById("close-all").addEventListener("click", () => setAll(false));
  document.querySelector("table.rows").addEventListener("click", (event) => {
    const card = event.target.hash && document.querySelector(event.target.hash);
    if (card) card.open = true;
  });
  apply(); // a reload may have kept what was chosen
}
