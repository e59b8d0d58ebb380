package browser

// accessible lists what keeps people from using a page: controls and regions without a name for
// screen readers, pictures without a text, tables without headers, IDs that come twice, links and
// controls that a click in their middle misses, and text with less contrast than WCAG 2.2 asks for at
// level AA (sections 1.1.1, 1.3.1, 1.4.3, 4.1.2).
const accessible = `(() => {
  const faults = [], all = (selector) => [...document.querySelectorAll(selector)];
  const text = (id) => document.getElementById(id)?.textContent ?? "";
  const labelled = (e) => e.ariaLabel || (e.getAttribute("aria-labelledby") ?? "").split(" ").map(text).join("");
  const shown = (e) => e.checkVisibility();
  for (const e of all("input:not([type=hidden]), select, textarea"))
    if (!labelled(e) && ![...e.labels].some((l) => l.textContent.trim())) faults.push("no label: " + e.outerHTML);
  for (const e of all("a[href], button, summary"))
    if (!labelled(e) && !e.textContent.trim()) faults.push("no name: " + e.outerHTML);
  for (const e of all("nav, section, [role=search], [tabindex='0']"))
    if (!labelled(e).trim()) faults.push("no name: " + e.outerHTML.slice(0, 100));
  for (const e of all("img:not([alt])")) faults.push("no text: " + e.outerHTML);
  for (const e of all("th:not([scope]), table:not(:has(caption))")) faults.push("table: " + e.outerHTML.slice(0, 100));
  for (const e of all("[id]")) if (all("#" + e.id).length > 1) faults.push("twice: #" + e.id);
  if (!document.documentElement.lang || all("h1").length !== 1 || all("main").length !== 1) faults.push("the page needs a language, one heading and one main part");
  // The middle of what one clicks on has to be that, and not an invisible part or what is around it.
  const [x, y] = [scrollX, scrollY];
  for (const e of all("a[href], button, summary, input:not([type=hidden]), select, textarea")) {
    if (!shown(e) || e.closest(".skip")) continue;
    e.scrollIntoView({ block: "center", inline: "center" });
    const box = e.getBoundingClientRect(), hit = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
    if (!e.contains(hit) || hit.closest(".sr")) faults.push("a click in the middle misses: " + e.outerHTML.slice(0, 100) + " and hits " + hit?.outerHTML.slice(0, 100));
  }
  scrollTo(x, y);
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgb = (colors) => { // each over those before it
    for (const c of colors) { canvas.fillStyle = c; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (c) => c.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  for (const e of all("body *")) {
    if (!shown(e) || e.closest(".sr, .skip") || ![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    const grounds = [], style = getComputedStyle(e);
    for (let up = e; up; up = up.parentElement) grounds.unshift(getComputedStyle(up).backgroundColor);
    const below = rgb(["white", ...grounds]), [low, high] = [light(below), light(rgb(["rgb(" + below + ")", style.color]))].sort((a, b) => a - b);
    const size = parseFloat(style.fontSize), large = size >= 24 || size >= 18.66 && style.fontWeight >= 700;
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < (large ? 3 : 4.5)) faults.push("contrast " + ratio.toFixed(2) + ": " + e.outerHTML.slice(0, 100));
  }
  return faults;
})()`
