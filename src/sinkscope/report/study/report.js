// What is folded on the screen is open on paper; and the table of answers shows the rows that hold what was typed.
(() => {
"use strict";
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details.line:not([open])")];
  for (const one of opened) one.open = true;
});
addEventListener("afterprint", () => {
  for (const one of opened) one.open = false;
});
const find = document.querySelector("#answers-find");
if (find) {
  const rows = [...document.querySelectorAll("#answers tbody tr")];
  const count = document.querySelector("#answers-count");
  const texts = rows.map((row) => row.textContent.toLowerCase());
  find.addEventListener("input", () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, i) => {
      row.hidden = !words.every((word) => texts[i].includes(word));
      shown += !row.hidden;
    });
    count.textContent = `${shown} of ${rows.length} answers`;
  });
}
})();
