// The pages work without this script. It only adds buttons that copy a text.
"use strict";

for (const button of document.querySelectorAll("button[data-copy]")) {
  button.hidden = false;
  const label = button.textContent;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "Copied";
    } catch { // a page over plain HTTP has no clipboard
      getSelection().selectAllChildren(button.previousElementSibling);
      button.textContent = "Press Ctrl+C";
    }
    setTimeout(() => { button.textContent = label; }, 3000);
  });
}
