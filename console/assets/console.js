// The pages work without this script. It only adds buttons that copy a text, and leads the
// keyboard to a problem.
"use strict";

for (const button of document.querySelectorAll("button[data-copy]")) {
  if (!navigator.clipboard) break;
  button.hidden = false;
  const label = button.textContent;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = label; }, 1500);
  });
}

const problem = document.getElementById("problem");
if (problem) problem.focus();

// An answer that is entered belongs to the outcome it is for.
const applied = document.querySelector('input[name="outcome"][value="applied"]');
if (applied) {
  for (const field of document.querySelectorAll(".answer input, .answer textarea")) {
    field.addEventListener("input", () => { applied.checked = true; });
  }
}
